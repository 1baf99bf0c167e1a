"""Compiled loops run whatever happens to the machine code that numba keeps between runs."""

import copy
import errno
import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numba
import pytest
from families import slow_unless
from numba.core.caching import FunctionCache, IndexDataCacheFile

from tracekit.kernels import inlined, kernel

compiled_only = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def double(x):
    return 2 * x


def half(x):
    return x // 2


@kernel
def same(x):
    return x


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


@compiled_only
def test_machine_code_is_kept(cache):
    assert kernel(double)(2) == 4
    again = kernel(double)
    assert again(2) == 4
    assert sum(again.stats.cache_hits.values()) == 1


@compiled_only
def test_no_folder_for_machine_code(monkeypatch):
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    assert kernel(double)(2) == 4


@pytest.mark.slow
@compiled_only
def test_every_loop_does_without_such_a_folder():
    code = (
        "from numba.core.caching import FunctionCache; "
        "FunctionCache._impl_class._locator_classes = []; "
        "import tracekit.analysis, tracekit.policies, tracekit.predictors, tracekit.replaying, tracekit.scoring; "
        "import gc; from tracekit.kernels import Kernel; "
        "kernels = [each for each in gc.get_objects() if isinstance(each, Kernel)]; "
        "assert len(kernels) > 9; [each.signatures for each in kernels]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@compiled_only
@pytest.mark.parametrize(
    ("left", "ending"), slow_unless(product([0, 50], ["nbi", "nbc"]), (0, "nbi"), (50, "nbc"))
)
def test_machine_code_that_was_cut_short_is_made_anew(cache, ending, left):
    assert kernel(double)(2) == 4
    (file,) = cache.rglob(f"*.{ending}")
    file.write_bytes(file.read_bytes()[:left])
    assert kernel(double)(2) == 4
    again = kernel(double)
    assert again(2) == 4
    assert sum(again.stats.cache_hits.values()) == 1


def flip(data: bytes, at: float) -> bytes:
    """Flip one bit at a share of the length."""
    place = int(at * (len(data) - 1))
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGE = {
    "a bit of the seal": lambda data: flip(data, 0),
    "a bit of the content": lambda data: flip(data, 0.6),
    "its last bit": lambda data: flip(data, 1),
    "another text": lambda data: b"cos\nsystem\n(S'false'\ntR." * 9,
    "what numba writes by itself": lambda data: data[32:],
    "two files": lambda data: data + data,
}


@compiled_only
@pytest.mark.parametrize("damage", slow_unless(DAMAGE, "a bit of the content", "two files"))
def test_machine_code_that_was_damaged_is_made_anew(cache, damage):
    """Machine code with a flipped bit would run as well."""
    assert kernel(double)(2) == 4
    for ending in ("nbi", "nbc"):
        (file,) = cache.rglob(f"*.{ending}")
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
        again = kernel(double)
        assert again(2) == 4
        assert sum(again.stats.cache_hits.values()) == 0
    last = kernel(double)
    assert last(2) == 4
    assert sum(last.stats.cache_hits.values()) == 1


@compiled_only
def test_whatever_goes_wrong_with_the_cache_is_no_error(cache, monkeypatch):
    assert kernel(double)(2) == 4

    def fail(*_):
        raise KeyError("what a damaged file may lead to")

    monkeypatch.setattr(FunctionCache, "_load_overload", fail)
    monkeypatch.setattr(FunctionCache, "save_overload", fail)
    assert kernel(double)(2) == 4


@pytest.mark.slow  # two processes compile
@compiled_only
def test_a_file_that_changes_before_the_first_call_leaves_no_machine_code_of_before(tmp_path):
    """Else the next process would run what the file held when this one was imported."""
    file = tmp_path / "module_that_changes.py"
    text = KERNEL + "@kernel\ndef times(x):\n    return 2 * x\n"
    file.write_text(text)
    use = "import module_that_changes as m; from pathlib import Path; file = Path(m.__file__); "
    late = f"file.write_text({text.replace('2', '3')!r}); print(m.times(10))"
    known = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    assert [run_code(tmp_path, use + last, **known) for last in (late, "print(m.times(10))")] == [
        "20\n",
        "30\n",
    ]


@compiled_only
def test_threads_that_call_first_at_the_same_time_share_one_compilation(cache):
    for _ in range(20):
        together = kernel(double)
        start = threading.Barrier(8)

        def call_it(x, together=together, start=start):
            start.wait()
            return together(x), together.signatures

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(call_it, range(8))) == [
                (2 * x, together.signatures) for x in range(8)
            ]
        assert len(together.signatures) == 1


@compiled_only
def test_a_function_of_numba_calls_a_kernel(cache):
    times_two = kernel(double)
    halved = inlined(half)

    @numba.njit
    def calls_both(x):
        return times_two(x) + halved(x)

    assert calls_both(8) == 20


def test_a_kernel_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(same)) is same
    assert copy.deepcopy(same) is same


def test_a_kernel_has_the_name_and_the_text_of_its_function():
    made = kernel(double)
    assert (made.__name__, made.__module__, made.py_func(4)) == ("double", __name__, 8)
    assert repr(made) == f"<kernel {__name__}.double>"
    assert not hasattr(made, "no_such_attribute")


@compiled_only
def test_a_full_disk_takes_no_machine_code(cache, monkeypatch):
    def full(self, path):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    assert kernel(double)(2) == 4
    assert not [path for path in cache.rglob("*") if path.is_file()]


# ---- kernels that use other modules -----------------------------------------------------------

KERNEL = "from tracekit.kernels import kernel\n"
HELPER = KERNEL + "@kernel\ndef helper(x):\n    return FACTOR * x\n"
CALLER = "\n@kernel\ndef caller(x):\n    return {}\n"
# Each way in which `caller`, of a module of its own, comes to depend on FACTOR in another module:
# the text of `caller`'s module, and those of the others.
WAYS = {
    "name": (
        KERNEL + "from .near import helper" + CALLER.format("helper(x)"),
        {"near.py": HELPER},
    ),
    "inlined": (
        KERNEL + "from .near import helper" + CALLER.format("helper(x)"),
        {
            "near.py": HELPER.replace("import kernel", "import inlined").replace(
                "@kernel", "@inlined"
            )
        },
    ),
    "other_name": (
        KERNEL + "from .near import helper as h" + CALLER.format("h(x)"),
        {"near.py": HELPER},
    ),
    "module": (
        KERNEL + "from . import near" + CALLER.format("near.helper(x)"),
        {"near.py": HELPER},
    ),
    "package": (
        KERNEL
        + "from . import folder\nfrom .folder import near"
        + CALLER.format("folder.near.helper(x)"),
        {"folder/near.py": HELPER},
    ),
    "helper_of_a_helper": (
        KERNEL + "from .near import near" + CALLER.format("near(x)"),
        {
            "near.py": KERNEL
            + "from .far import helper\n@kernel\ndef near(x):\n    return helper(x)\n",
            "far.py": HELPER,
        },
    ),
    "helper_below": (
        KERNEL
        + "from .near import helper"
        + CALLER.format("below(x)")
        + "@kernel\ndef below(x):\n    return helper(x)\n",
        {"near.py": HELPER},
    ),
    "inner_function": (
        KERNEL
        + "from .near import helper\n@kernel\ndef caller(x):\n"
        + "    def inner(y):\n        return helper(y)\n    return inner(x)\n",
        {"near.py": HELPER},
    ),
    "shadowed_name": (  # the argument of another kernel has the helper's name
        KERNEL
        + "from .near import helper\n@kernel\ndef nothing(helper):\n    return 0 * helper"
        + CALLER.format("helper(x) + nothing(x)"),
        {"near.py": HELPER},
    ),
    "closure": (
        KERNEL
        + "from .near import helper\ndef made(f):\n    @kernel\n    def call(x):\n"
        + "        return f(x)\n    return call\ncaller = made(helper)\n",
        {"near.py": HELPER},
    ),
    "constant": (
        KERNEL + "from .near import factor" + CALLER.format("factor * x"),
        {"near.py": "factor = FACTOR\n"},
    ),
    "constant_of_a_module": (
        KERNEL + "from . import near" + CALLER.format("near.factor * x"),
        {"near.py": "factor = FACTOR\n"},
    ),
    "table": (
        KERNEL + "from .near import table" + CALLER.format("table[1] * x"),
        {"near.py": "import numpy as np\ntable = np.array([0, FACTOR, 0])\n"},
    ),
    "pair": (
        KERNEL + "from .near import pair" + CALLER.format("pair[1] * x"),
        {"near.py": "pair = (0, FACTOR)\n"},
    ),
}
NUMBA = "from numba import njit\nkernel = njit(nogil=True, cache=True)\n"
NUMBA_ALONE = tuple(
    text.replace(KERNEL, NUMBA) for text in (WAYS["name"][0], WAYS["name"][1]["near.py"])
)
NO_FILE = (
    KERNEL
    + f"space = {{}}\nexec({HELPER.replace('FACTOR', '2')!r}, space)\nhelper = space['helper']"
    + CALLER.format("helper(x)")
)
RUN = """
import importlib, json, sys
found = {}
for way in sys.argv[1:]:
    caller = importlib.import_module(way + ".caller").caller
    answer = int(caller(10))
    found[way] = answer, sum(caller.stats.cache_hits.values()) if hasattr(caller, "stats") else 0
print(json.dumps(found))
"""


def write(folder, factor):
    """Write a package for each way, in which `caller` multiplies by `factor`."""
    packages = WAYS | {
        "numba_alone": (NUMBA_ALONE[0], {"near.py": NUMBA_ALONE[1]}),
        "no_file": (NO_FILE, {}),
    }
    for way, (caller, others) in packages.items():
        for name, text in {"caller.py": caller, **others}.items():
            file = folder / way / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("FACTOR", str(factor)))
    return list(packages)


def call(folder, factor, only=(), **environment):
    """Call every `caller` with 10 in a new process, or `only` those.

    Return, by the way it depends on `factor`, its answer and how often its machine code came from
    disk.
    """
    ways = [way for way in write(folder, factor) if not only or way in only]
    cache = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    return json.loads(run_code(folder, RUN, *ways, **cache | environment))


def run_code(folder, code, *words, **environment):
    """Run `code` in a new process that finds modules in `folder`; return what it prints."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", code, *words],
        env=os.environ | {"PYTHONPATH": path} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The answers of three processes; before the third, FACTOR changes from 2 to 3."""
    folder = tmp_path_factory.mktemp("ways")
    return [call(folder, factor) for factor in (2, 2, 3)]


@pytest.mark.slow  # three processes compile
@compiled_only
@pytest.mark.parametrize("way", WAYS)
def test_a_change_in_another_module_is_seen(calls, way):
    first, again, changed = (answers[way] for answers in calls)
    assert (first, changed) == ([20, 0], [30, 0])
    assert again == [20, 1]


@pytest.mark.slow
@compiled_only
def test_numba_alone_does_not_see_it(calls):
    """If this fails, numba stamps its cache with all that a kernel uses, and ours need not."""
    assert [answers["numba_alone"] for answers in calls] == [[20, 0], [20, 1], [20, 1]]


# Nobody can say later whether a helper without a file is still the same.


@pytest.mark.slow  # a process compiles
@compiled_only
def test_what_calls_a_helper_without_a_file_is_not_kept(tmp_path):
    ways = ["no_file", "constant"]
    assert call(tmp_path, 2, ways) == {way: [20, 0] for way in ways}
    kept = {file.parent.name.partition("_")[0] for file in (tmp_path / "cache").rglob("*.nbi")}
    assert kept == {"constant"}


@pytest.mark.slow
@compiled_only
def test_what_calls_a_helper_without_a_file_is_compiled_again(tmp_path):
    # Another is kept in the same folder.
    found = [call(tmp_path, 2, ["name", "no_file"]) for _ in range(2)]
    assert found == [{"name": [20, n], "no_file": [20, 0]} for n in range(2)]


@pytest.mark.slow
def test_plain_python_calls_the_same_helpers(tmp_path):
    answers = call(tmp_path, 3, NUMBA_DISABLE_JIT="1")
    assert {way: answers[way] for way in WAYS} == {way: [30, 0] for way in WAYS}
