"""Compiled loops run whatever becomes of the machine code that numba keeps between runs."""

import errno
import subprocess
import sys

import numba
import pytest
from numba.core.caching import FunctionCache, IndexDataCacheFile

from tracekit.kernels import kernel

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def double(x):
    return 2 * x


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_machine_code_is_kept(cache):
    assert kernel(double)(2) == 4
    again = kernel(double)
    assert again(2) == 4
    assert sum(again.stats.cache_hits.values()) == 1


def test_no_folder_for_machine_code(monkeypatch):
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    assert kernel(double)(2) == 4


def test_every_loop_does_without_such_a_folder():
    code = (
        "from numba.core.caching import FunctionCache; "
        "FunctionCache._impl_class._locator_classes = []; "
        "import tracekit.analysis, tracekit.policies, tracekit.predictors, tracekit.replaying, tracekit.scoring"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 50])
def test_machine_code_that_was_cut_short_is_made_anew(cache, ending, left):
    assert kernel(double)(2) == 4
    (file,) = cache.rglob(f"*.{ending}")
    file.write_bytes(file.read_bytes()[:left])
    assert kernel(double)(2) == 4
    again = kernel(double)
    assert again(2) == 4
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_full_disk_takes_no_machine_code(cache, monkeypatch):
    def full(self, path):
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    assert kernel(double)(2) == 4
    assert not [path for path in cache.rglob("*") if path.is_file()]
