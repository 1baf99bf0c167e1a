"""All formats that can be read: one line for each, whose import registers it.

Pages and `tracekit formats` list them in the order of these lines.
"""

from tracekit.formats.format import FORMATS as FORMATS

# isort: off
from tracekit.formats import route_trace as route_trace
from tracekit.formats import vllm as vllm
from tracekit.formats import sglang as sglang
from tracekit.formats import sglang_recorder as sglang_recorder
from tracekit.formats import megatron as megatron
from tracekit.formats import megatron_server as megatron_server
from tracekit.formats import colibri as colibri
from tracekit.formats import mbolt as mbolt
from tracekit.formats import moe_beyond as moe_beyond
from tracekit.formats import expert_cache_log as expert_cache_log
from tracekit.formats import glm52_export as glm52_export
from tracekit.formats import routing_atlas as routing_atlas
from tracekit.formats import flame_moe as flame_moe
from tracekit.formats import graph_order as graph_order
from tracekit.formats import llama_positions as llama_positions
from tracekit.formats import llama_steps as llama_steps
from tracekit.formats import llama_records as llama_records
from tracekit.formats import layer_pairs as layer_pairs
from tracekit.formats import router_logits as router_logits
from tracekit.formats import universal_arrays as universal_arrays
from tracekit.formats import universal_jsonl as universal_jsonl
from tracekit.formats import universal_tables as universal_tables
# isort: on

FORMATS.arrange(globals())
