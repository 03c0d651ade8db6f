"""Files from anyone: damaged and crafted ones are refused with a PersistError, or give the very result that was saved."""

import itertools
import json
import os
import resource
import stat
import tracemalloc

import numpy as np
import pytest
from hostile_files import Watch, content_of, crafted, formulas, members_of, mutated, packed, verdict, zips
from hostile_members import further
from saved_files import rows, write_all

import robustly as rb
from robustly.errors import ModelError, PersistError
from robustly.result import persist

WATCH = Watch()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def expected(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    return {kind: content_of(rb.load(path), folder) for kind, path in saved.items()}


def faults(files, expected, folder):
    """Those that ended otherwise, and how many there were."""
    found, count = [], 0
    for name, content in files:
        kind = max((one for one in expected if name.startswith(f"{one} ")), key=len, default="glm")
        ended = verdict(content, expected[kind], folder, WATCH)
        count += 1
        if ended not in ("refused", "equal"):
            found.append(f"{name}: {ended}")
    return found, count


def test_crafted_files_are_refused_or_harmless(saved, expected, tmp_path):
    # Every fifth of some 1700; the program beside this test reads all of them.
    found, count = faults(itertools.islice(crafted(saved, tmp_path / "ran"), 0, None, 5), expected, tmp_path)
    assert not found
    assert count > 300


def test_formulas_in_files_are_built_from_known_pieces_only(saved, expected, tmp_path):
    found, count = faults(formulas(members_of(saved["glm"]), tmp_path / "ran"), expected, tmp_path)
    assert not found
    assert count >= 25


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_headers_texts_and_formulas_of_all_kinds_are_refused_or_harmless(saved, expected, tmp_path):
    found, count = faults(further(saved, tmp_path / "ran"), expected, tmp_path)
    assert not found
    assert count > 200
    assert not (tmp_path / "ran").exists()


def test_files_that_would_unpack_to_much_are_refused_before_they_do(saved, expected, tmp_path):
    files = list(zips(members_of(saved["glm"])))
    tracemalloc.start()
    try:
        found, count = faults(files, expected, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not found
    assert count >= 20
    assert peak < 200e6


def test_damaged_files_are_refused_or_give_the_same_result(saved, expected, tmp_path):
    found, count = faults(mutated(saved, 400, seed=11), expected, tmp_path)
    assert not found
    assert count == 400


def test_files_of_version_1_have_no_checksums_and_are_read(saved, expected, tmp_path):
    for kind, path in saved.items():
        members = members_of(path)
        head = json.loads(members["meta.json"])
        head = {name: value for name, value in head.items() if name != "sums"} | {"version": 1}
        content = packed({**members, "meta.json": json.dumps(head).encode()}, comment=b"")
        assert verdict(content, expected[kind], tmp_path, WATCH) == "equal", kind


def test_reading_with_what_a_kind_does_not_take_says_what_it_takes(saved):
    with pytest.raises(ModelError, match=r'holds a "glm", which is read with "family" and "local"; got "model"'):
        rb.load(saved["glm"], model=print)


# ---------------------------------------------------------------------- writing


@pytest.fixture
def fit(saved):
    return rb.load(saved["glm"])


def test_saving_over_a_private_file_keeps_it_private(fit, tmp_path):
    path = tmp_path / "fit.rb"
    path.touch(mode=0o600)
    path.chmod(0o600)
    fit.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(rb.load(path).predictive(rows())) == len(rows())


def test_saving_to_a_link_writes_the_file_it_names(fit, tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "fit.rb", tmp_path / "link.rb"
    link.symlink_to(target)
    for _ in range(2):  # the file comes to be, and is replaced
        fit.save(link)
        assert link.is_symlink()
        assert target.is_file()
        assert not target.is_symlink()
    assert os.listdir(tmp_path / "there") == ["fit.rb"]


def test_a_write_that_fails_midway_is_told_and_leaves_what_was_there(fit, tmp_path):
    path = tmp_path / "fit.rb"
    fit.save(path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as a full disk, the system takes no more bytes
    try:
        with pytest.raises(PersistError, match=r"cannot write .*fit\.rb.*make room"):
            fit.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["fit.rb"]


def test_folders_that_are_not_there_and_files_that_are_not_ours_are_named(fit, tmp_path):
    with pytest.raises(PersistError, match=r"cannot write .*nowhere.*Choose a folder"):
        fit.save(tmp_path / "nowhere" / "fit.rb")
    with pytest.raises(PersistError, match="there is no file"):
        rb.load(tmp_path / "none.rb")


def test_what_is_written_is_always_read_again_however_well_it_packs(tmp_path):
    arrays = {
        "zeros": np.zeros(20_000_000),
        "half": np.r_[np.random.default_rng(0).normal(size=200_000), np.zeros(10_000_000)],
    }
    persist.write(tmp_path / "large.rb", "fit", {}, arrays)
    _, _, found = persist.read(tmp_path / "large.rb")
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
