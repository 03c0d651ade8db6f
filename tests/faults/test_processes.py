"""Killed, forked, interrupted, several at once, without a place to write: the answer of a quiet process, or a named error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import robustly as rb
from robustly._runtime import kept_programs, precision
from robustly.errors import PersistError
from robustly.result import persist

RNG = np.random.default_rng(0)
COUNTS = RNG.negative_binomial(2, 0.3, 60)
X = RNG.normal(size=(60, 2))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


PARENT = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from robustly.study.runs import _follow_parent
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_follow_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_workers_of_a_study_end_when_it_is_killed(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    with subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert is_alive(worker)
        parent.kill()
    deadline = time.monotonic() + 5
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(worker)


FORKED = """
import os, warnings
import jax.numpy as jnp
import robustly as rb
from robustly._runtime.precision import double_precision
from robustly.errors import FitError
warnings.simplefilter("ignore")
with double_precision():
    jnp.ones(3).sum().block_until_ready()
if not os.fork():
    try:
        print("fitted", rb.conjugate.GammaPoisson().fit([1, 2, 3, 9]).log_likelihood, flush=True)
    except FitError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_process_forked_after_a_fit_says_what_to_do():
    """JAX's threads do not live on in it, and it would wait for ever."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert 'get_context("spawn")' in done.stdout


def test_four_fits_at_once_are_those_of_one_after_the_other():
    pair = rb.conjugate.GammaPoisson()
    alone = [pair.fit(COUNTS + k).log_likelihood for k in range(4)]
    found = [0.0] * 4

    def fit(k: int) -> None:
        found[k] = pair.fit(COUNTS + k).log_likelihood

    threads = [threading.Thread(target=fit, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_an_interrupted_fit_leaves_the_estimator_as_it_was(monkeypatch):
    model = rb.RobustGaussianMixture(2, random_state=0).fit(X)
    before = model.means_.copy()

    def stopped(*given: object, **more: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("robustly.mixture.estimator.run_ecm", stopped)
    model.set_params(n_components=3)
    # A shell that starts tests in the background has them ignore the signal.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.fit(RNG.standard_t(3, (200, 3)))
    finally:
        signal.signal(signal.SIGINT, ours)
    assert np.array_equal(model.means_, before)
    assert model.predict(X).shape == (60,)


BROKEN_OFF = """
import signal, sys, threading, time
from robustly._runtime.numba_loops import compiled

signal.signal(signal.SIGINT, signal.default_int_handler)

@compiled()
def twice(x):
    return 2 * x

def send():
    while "numba" not in sys.modules:
        time.sleep(0.001)
    signal.raise_signal(signal.SIGINT)

threading.Thread(target=send).start()
try:
    print("not stopped", twice(1))
except KeyboardInterrupt:
    print("stopped", twice(2.5))
"""


def test_ctrl_c_while_a_module_is_imported_leaves_it_whole():
    """A module whose import is broken off cannot be imported again, and every later fit would fail."""
    done = subprocess.run([sys.executable, "-c", BROKEN_OFF], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "stopped 5.0", done.stderr


# ---------------------------------------------------------------------- where programs are kept


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Programs are kept in an empty folder; returns what computes anew, from what is on disk there."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.compilation_cache import compilation_cache

    def compute() -> list[float]:
        jax.clear_caches()
        compilation_cache.reset_cache()
        precision._cache_switches.cache_clear()
        with precision.double_precision():
            x = jnp.arange(5.0)
            return [float(jax.jit(one)(x)) for one in (lambda x: jnp.sin(x) @ x, lambda x: jnp.cumsum(x)[3])]

    folder = tmp_path / "kept"
    monkeypatch.setenv("ROBUSTLY_CACHE", str(folder))
    monkeypatch.setattr(kept_programs, "YOUNG", -1.0)
    yield folder, compute
    precision._cache_switches.cache_clear()
    compilation_cache.reset_cache()


@pytest.mark.parametrize("damage", ["garbage", "cut short", "swapped"])
def test_damaged_programs_on_disk_are_made_anew(kept, damage):
    folder, compute = kept
    first = compute()
    compute()  # Looks at what the first has left.
    content = {path: path.read_bytes() for path in sorted(folder.glob("*-cache"))}
    assert len(content) > 1
    before = list(content.values())
    for place, path in enumerate(content):
        half = before[place][: len(before[place]) // 2]
        path.write_bytes({"garbage": b"garbage", "cut short": half, "swapped": before[place - 1]}[damage])
    # Without a warning, which would be an error here.
    assert compute() == first
    again = {path: path.read_bytes() for path in folder.glob("*-cache")}
    assert again.keys() == content.keys()
    assert all(len(again[path]) > 0.9 * len(content[path]) for path in content)
    assert compute() == first


def test_a_place_that_cannot_be_written_changes_nothing(kept, monkeypatch, tmp_path):
    first = kept[1]()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROBUSTLY_CACHE", str(tmp_path / "file" / "below"))
    assert precision.cache_directory() is None
    assert kept[1]() == first


# ---------------------------------------------------------------------- one file, two writers


def test_two_writers_of_one_file_leave_one_whole_file(tmp_path):
    path = tmp_path / "file.rb"
    arrays = [{"a": np.full(20_000, float(k))} for k in range(2)]

    def write(k: int) -> None:
        for _ in range(15):
            persist.write(path, "fit", {"k": k}, arrays[k])

    threads = [threading.Thread(target=write, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            _, meta, found = persist.read(path)
            assert np.array_equal(found["a"], arrays[meta["k"]]["a"])
            seen += 1
    assert seen
    assert os.listdir(tmp_path) == ["file.rb"]


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PersistError, match=r"cannot write .*file.*Choose a folder"):
        persist.write(tmp_path / "file" / "x.rb", "fit", {}, {})
