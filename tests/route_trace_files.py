"""Small ``# route_trace v1`` files, as text and as rows to be damaged."""

from collections.abc import Sequence

HEADER = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
PREAMBLE = """\
# route_trace v1
# model=/models/My Model Q4.gguf arch=test n_layer=3 n_expert=8 n_expert_used=2
# layer=0 expert_bytes=0 dense_bytes=70
# layer=1 expert_bytes=100 dense_bytes=71
# layer=2 expert_bytes=200 dense_bytes=72
"""


def routing(turn, phase, step, layer, experts=(3, 5), weights=("0.75", "0.25"), end=None):
    """Return the rows of one routing; by default each expert is read."""
    end = f"0,{100 * layer}" if end is None else end
    return [
        f"{turn},{phase},{step},{layer},{slot},{expert},{weight},{end}"
        for slot, (expert, weight) in enumerate(zip(experts, weights, strict=True))
    ]


def turn(number: int, prompt: int = 3, decoded: int = 2) -> list[str]:
    """Return the rows of a turn; its last layer routes only the last token of the prompt."""
    rows = [row for step in range(prompt) for row in routing(number, 0, step, 1)]
    rows += routing(number, 0, prompt - 1, 2)
    for step in range(prompt, prompt + decoded):
        rows += routing(number, 1, step, 1) + routing(number, 1, step, 2)
    return rows


def text(rows: Sequence[str], preamble: str = PREAMBLE, header: str = HEADER) -> str:
    """Return the text of a file."""
    return preamble + "\n".join([header, *rows]) + "\n"
