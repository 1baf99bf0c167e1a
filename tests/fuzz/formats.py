"""Samples of all formats with bytes changed at random: each is read, or refused with one sentence.

``python tests/fuzz/formats.py CASES [SEED] [NAME…]`` prints how many were read and refused of each
format, and each case that ended in anything else; the exit code is 1 if there was one. A case that ends
the process is the last that is printed with ``-v``. Nothing may be written but to the folder of the
case, and nothing may be left there.
"""

import gzip
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from format_samples import SAMPLES
from mutations import SENTENCE, mutate, refusals, time_limit

SECONDS = 20


def case(folder: Path, name: str, seed: str) -> str:
    """Read one mutated sample; return ``read``, ``refused``, or what else happened."""
    rng = random.Random(seed)
    sample = SAMPLES[name]
    files = sample.files if isinstance(sample.files, dict) else {"file": sample.files}
    changed = dict(files)
    inside = rng.choice(list(files))
    for _ in range(rng.choice((1, 1, 3))):
        changed[inside] = mutate(changed[inside], rng)
    if rng.random() < 0.05:
        changed[inside] = gzip.compress(changed[inside])
    for path, data in changed.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    before = sorted(each for each in folder.rglob("*"))
    try:
        with time_limit(SECONDS):
            refused = refusals(
                folder if isinstance(sample.files, dict) else folder / "file", sample.options
            )
    except BaseException:
        return traceback.format_exc()
    if sorted(each for each in folder.rglob("*")) != before:
        return "a file was written"
    wrong = [sentence for sentence in refused if not SENTENCE.fullmatch(sentence)]
    return f"no sentence: {wrong[0]!r}" if wrong else ("refused" if refused else "read")


def main() -> int:
    """Run the cases."""
    words = [word for word in sys.argv[1:] if word != "-v"]
    n_cases, seed = int(words[0]), words[1] if len(words) > 1 else "0"
    names = words[2:] or list(SAMPLES)
    outcomes: Counter[tuple[str, str]] = Counter()
    failed = 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        os.chdir(home)  # so that a file written to the current folder is seen
        for number in range(n_cases):
            name = names[number % len(names)]
            if "-v" in sys.argv:
                print(name, f"{seed}-{number}", flush=True)
            with tempfile.TemporaryDirectory(dir=home) as folder:
                outcome = case(Path(folder), name, f"{seed}-{number}")
            if outcome in ("read", "refused"):
                outcomes[name, outcome] += 1
            else:
                failed += 1
                print(f"{name}, case {seed}-{number}: {outcome}", flush=True)
            if os.listdir(home):
                failed += 1
                print(f"{name}, case {seed}-{number}: left {os.listdir(home)}", flush=True)
    for name in names:
        print(f"{name:14} {outcomes[name, 'read']} read, {outcomes[name, 'refused']} refused")
    print(f"{n_cases} cases, {failed} failed, {time.monotonic() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
