"""Which experts stay in the cache? Cache policies: one file a policy, found through a registry.

To add one, write a file beside these: a class derived from `Policy` with its name, a one-line
summary and `simulate`, decorated with ``@register``. Import it below, and write an oracle for it in
``tests/reference.py``: the same rule in plain Python. The conformance suite in the tests then runs
over it. Your own policy can also live elsewhere: any class derived from `Policy`, or from
`PlainPolicy` to try an idea in a few lines, is named ``module:Class``.
"""

from tracekit.policies.arc import ARC
from tracekit.policies.base import (
    POLICIES,
    Batches,
    Cell,
    Guesses,
    Limit,
    NoParams,
    Policy,
    Popularity,
    register,
)
from tracekit.policies.belady import Belady
from tracekit.policies.bound import Bound
from tracekit.policies.drop_cold import DropCold
from tracekit.policies.fewer_experts import FewerExperts
from tracekit.policies.follow import Follow
from tracekit.policies.heat import Heat
from tracekit.policies.layer_lfu import LayerLFU
from tracekit.policies.layer_lru import LayerLRU
from tracekit.policies.lfu import LFU
from tracekit.policies.lfu_da import LFUDA
from tracekit.policies.load import load_policies, load_policy
from tracekit.policies.lrfu import LRFU
from tracekit.policies.lru import LRU
from tracekit.policies.pin import Pin
from tracekit.policies.plain import PlainPolicy
from tracekit.policies.prefetch import Prefetch
from tracekit.policies.random import Random
from tracekit.policies.retention import Retention
from tracekit.policies.ring import Ring
from tracekit.policies.s3_fifo import S3FIFO

__all__ = [
    "ARC",
    "LFU",
    "LFUDA",
    "LRFU",
    "LRU",
    "POLICIES",
    "S3FIFO",
    "Batches",
    "Belady",
    "Bound",
    "Cell",
    "DropCold",
    "FewerExperts",
    "Follow",
    "Guesses",
    "Heat",
    "LayerLFU",
    "LayerLRU",
    "Limit",
    "NoParams",
    "Pin",
    "PlainPolicy",
    "Policy",
    "Popularity",
    "Prefetch",
    "Random",
    "Retention",
    "Ring",
    "load_policies",
    "load_policy",
    "register",
]
