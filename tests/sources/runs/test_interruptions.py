"""A run that stops at any instant and is resumed ends with the bytes of one that never stopped.

What a kill leaves is the folder as it is at that instant: it is copied before every change of the disk, and in the
middle of every write, and each copy is resumed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import contents
from safevla_bench import files
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.sources.runs.parts import count_progress

REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 2), episodes=2, policies=("random", "noop"), max_steps=6)
CHANGES = ("fsync", "mkdir", "replace", "rmdir", "truncate", "unlink")


class Halves:
    """A file each write of which is in two pieces, with an instant between them."""

    def __init__(self, stream, between) -> None:
        self.stream, self.between = stream, between

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.stream.write(content[:half])
        self.stream.flush()
        self.between("write")
        self.stream.write(content[half:])
        return len(content)


class Instants:
    """Copies a folder before every change that this process makes to the disk, and in the middle of every write."""

    def __init__(self, folder: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.copies, self.at = folder, copies, []
        self.copying = False
        for name in CHANGES:
            monkeypatch.setattr(os, name, self.before(getattr(os, name), name))
        monkeypatch.setattr(files, "_synced_file", self.torn(files._synced_file))

    def before(self, change, name: str):
        def changing(*args, **given):
            self.copy(name)
            return change(*args, **given)

        return changing

    def torn(self, stored):
        @contextmanager
        def storing(path: Path):
            with stored(path) as stream:
                yield Halves(stream, self.copy)

        return storing

    def copy(self, name: str) -> None:
        if self.copying or not self.folder.exists():
            return
        self.copying = True
        shutil.copytree(self.folder, self.copies / f"{len(self.at):03d}")
        self.at.append(name)
        self.copying = False


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    roll_out(REQUEST, folder)
    return contents(folder)


@pytest.fixture
def instants(tmp_path, monkeypatch):
    def taken(**running: bool) -> Instants:
        copies = tmp_path / "copies"
        copies.mkdir()
        with monkeypatch.context() as patched:
            found = Instants(tmp_path / "run", copies, patched)
            roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(**running))
        return found

    return taken


@pytest.mark.long
def test_resumed_from_any_instant_it_ends_with_the_bytes_of_an_unbroken_run(instants, whole):
    taken = instants()
    assert contents(taken.folder) == whole
    assert {"write", "fsync", "replace", "unlink"} <= set(taken.at)
    assert len(taken.at) > 40
    for place, name in enumerate(taken.at):
        copy = taken.copies / f"{place:03d}"
        roll_out(REQUEST, copy, running=ExecutionOptions(resume=True))
        assert contents(copy) == whole, (place, name)


def test_at_any_instant_what_is_done_can_be_read_and_judged(instants):
    taken = instants()
    done = []
    for place in range(len(taken.at)):
        copy = taken.copies / f"{place:03d}"
        if (copy / "run.json").exists():
            judged = judge([copy], load_ruleset())
            assert judged.interrupted_run_count == (
                count_progress(copy)[0] < 8 or not read_description(copy)["complete"]
            )
            done.append(len(judged.scores) + len(judged.scores.absent))
            assert done[-1] == count_progress(copy)[0]
    assert done == sorted(done)
    assert set(done) == set(range(9))


@pytest.mark.long
def test_crashed_episodes_run_again_from_any_instant_lose_none_of_the_others(instants, whole, tmp_path):
    roll_out(REQUEST, tmp_path / "run")
    taken = instants(resume=True, retry_crashed=True)
    assert contents(taken.folder) == whole
    assert len(taken.at) > 40
    for place, name in enumerate(taken.at):
        copy = taken.copies / f"{place:03d}"
        assert len(read_sources([copy])[0]) == 4, (place, name)
        roll_out(REQUEST, copy, running=ExecutionOptions(resume=True, retry_crashed=True))
        assert contents(copy) == whole, (place, name)


def test_a_part_of_the_archive_that_is_half_written_is_written_anew(tmp_path, whole, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*args) -> None:
        raise Killed

    monkeypatch.setattr(parts, "write_episodes", killed)
    with pytest.raises(Killed):
        roll_out(REQUEST, tmp_path / "run")
    monkeypatch.undo()
    (part,) = (tmp_path / "run" / "archive").iterdir()
    part.write_bytes(b"half")
    (part.parent / "part-00001.parquet").write_bytes(b"stale")
    roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(resume=True))
    assert contents(tmp_path / "run") == whole
