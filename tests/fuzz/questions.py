"""Everything that can be asked of a trace that was read: an answer or one sentence, and no warning."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

from harness import refusal

from tracekit import analysis
from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS
from tracekit.replaying import replay
from tracekit.scoring import predict
from tracekit.trace import Trace, TracekitError, describe


def ask_everything(trace: Trace) -> None:
    """Replay, predict and look at `trace`; what it lacks is told in a sentence."""
    questions: list[Callable[[], Any]] = [
        lambda: json.dumps(describe(trace), allow_nan=False),
        lambda: _replay(trace, [cls.name for cls in POLICIES if not cls.needs_predictor]),
        lambda: _replay(trace, [cls.name for cls in POLICIES if cls.needs_predictor]),
        lambda: _predict(trace),
        lambda: analysis.working_set(trace),
        lambda: analysis.overlap_by_lag(trace),
        lambda: analysis.reuse_distance(trace),
        lambda: analysis.reuse_distance(trace, "tokens"),
        lambda: analysis.expert_popularity(trace),
        lambda: analysis.routing_concentration(trace),
        lambda: analysis.read_bytes_by_token(trace),
        lambda: analysis.hit_rate_gains(trace),
    ]
    for question in questions:
        with contextlib.suppress(_Told):
            try:
                question()
            except TracekitError as error:
                refusal(error)
                raise _Told from error


class _Told(Exception):  # noqa: N818
    """The question was answered with a sentence."""


def _replay(trace: Trace, policies: list[str]) -> None:
    params = {f"{name}.predictor": "prev-token" for name in ("retention", "prefetch")}
    usable = {key: value for key, value in params.items() if key.split(".")[0] in policies}
    result = replay(
        trace, policies, cache_fraction=[0, 0.3, 1], params=usable, jobs=1, per_layer=True
    )
    result.to_text()
    json.dumps(result.to_json(), allow_nan=False)


def _predict(trace: Trace) -> None:
    names = [cls.name for cls in PREDICTORS]
    result = predict(trace, names, jobs=1)
    result.to_text()
    json.dumps(result.to_json(), allow_nan=False)
