"""Whatever is written, and at whatever instant the disk is full or the process dies: what was good is there still,
nothing partial looks whole, the message names file and remedy, and doing it again ends as if nothing had happened.
"""

from __future__ import annotations

import errno
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from builders import episode
from safevla_bench import archive, cli, files
from safevla_bench.archive import npz
from safevla_bench.errors import FileError, SafevlaError
from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation import outputs
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing.board import GENERATOR, write_folder
from safevla_bench.rollout.plan import Shard
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import RUN, read_description, write_frames
from safevla_bench.sources.runs.parts import count_progress
from safevla_bench.sources.runs.writer import merge_shards
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_recorder import folder as recorder_folder
from safevla_recorder.attachment import LoopRules
from safevla_recorder.episode import EpisodeRow
from sources.runs.failing_disk import Disk, Killed

REQUEST = Request(host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("noop",), max_steps=3)
FULL, READ_ONLY, DEAD = errno.ENOSPC, errno.EROFS, None


@dataclass(frozen=True)
class Case:
    """Something that is written: what lies there before, how it is written, and which files belong together."""

    write: Callable[[Path], object]
    before: Callable[[Path], object] = lambda folder: None
    again: Callable[[Path], object] | None = None
    """How it is done again after it failed, if that differs."""
    together: tuple[str, ...] = ()
    check: Callable[[Path], object] = lambda folder: None
    """What holds of the folder at any instant."""


def records(*names: str) -> Batch:
    return concatenate_batches([episode(3, episode_id=name) for name in names])


def judge_records(folder: Path, library: str) -> Judged:
    return judge([folder / "records.jsonl"], load_ruleset(library=library, missing="deactivate"))


def write_records(folder: Path) -> None:
    archive.write_archive(folder / "records.jsonl", records("a", "b"))


def write_scores(folder: Path) -> None:
    write_records(folder)
    write_outputs(judge_records(folder, "paper-text"), folder / "out")


def write_shards(folder: Path) -> None:
    for number in (1, 2):
        roll_out(replace(REQUEST, shard=Shard(number, 2)), folder / f"shard-{number}")


def write_own_run(folder: Path) -> None:
    recorder_folder._open_folders.clear()
    env = SimpleNamespace(task=SimpleNamespace(benchmark="fake", task_id="task_0"), host="fake", versions={})
    run = recorder_folder.open_folder(folder / "run", env, LoopRules(policy="a", wait_steps=0), {})
    run.write_episode(OWN_ROW, npz.encode_npz(records("a")))
    run.close_block(complete=True)


OWN_ROW = EpisodeRow("a", "a", "fake", "task_0", 0, None, None, None, None, None, "success", 3)


def rewrite_own_run(folder: Path) -> None:
    shutil.rmtree(folder / "run", ignore_errors=True)
    write_own_run(folder)


def command(*words: str) -> Callable[[Path], object]:
    """A command of `safevla`, as a user runs it."""

    def run(folder: Path) -> None:
        cli.safevla.main([word.replace("HERE", str(folder)) for word in words], standalone_mode=False)

    return run


def judging(*words: str) -> Callable[[Path], object]:
    """A command that judges the records."""
    return command(words[0], "HERE/records.jsonl", "--set", "missing=deactivate", *words[1:])


def roll_case(form: str, episodes: int) -> Case:
    request = replace(REQUEST, archive=form, episodes=episodes)
    return Case(
        write=lambda folder: roll_out(request, folder / "run"),
        again=lambda folder: roll_out(request, folder / "run", running=ExecutionOptions(resume=True)),
        check=lambda folder: require_judged(folder / "run", episodes),
    )


def require_judged(run: Path, planned: int) -> None:
    if (run / RUN).exists():
        judged, (count_done, _) = judge([run], load_ruleset()), count_progress(run)
        assert len(judged.scores) + len(judged.scores.absent) == count_done
        assert judged.interrupted_run_count == (count_done < planned or not read_description(run)["complete"])


INDEX = f'<meta name="generator" content="{GENERATOR}">'
OLD_BOARD = {"index.html": INDEX, "reports/a-1.html": "old"}
NEW_BOARD = {"index.html": f"{INDEX}2", "reports/b-2.html": "new"}
TABLE: dict[str, Case] = {
    "a run folder, its archive and tables": roll_case("jsonl", episodes=2),
    "a run whose archive is Parquet": roll_case("parquet", episodes=1),
    "a run of a loop of one's own": Case(write=write_own_run, again=rewrite_own_run),
    "merged shards": Case(
        before=write_shards, write=lambda f: merge_shards([f / "shard-1", f / "shard-2"], f / "merged")
    ),
    "scores over older ones": Case(
        before=write_scores,
        write=lambda folder: write_outputs(judge_records(folder, "default"), folder / "out"),
        together=(
            "out/scores.json",
            "out/scores.parquet",
            "out/verdicts.msgpack.gz",
            "out/report.html",
            "out/judged_with.json",
        ),
    ),
    "tables": Case(
        before=write_records,
        write=judging("tables", "--which", "main,tasks", "--out", "HERE/tables/", "--format", "csv"),
    ),
    "figures": Case(before=write_records, write=judging("figures", "--which", "families", "--out", "HERE/figures")),
    "a board over an older one": Case(
        before=lambda folder: write_folder(OLD_BOARD, folder / "board"),
        write=lambda folder: write_folder(NEW_BOARD, folder / "board"),
    ),
    "a first board": Case(write=lambda folder: write_folder(NEW_BOARD, folder / "board")),
    "the demo's archive": Case(write=lambda folder: demo.unpack_archive(folder / "demo")),
    "an archive": Case(before=write_records, write=command("convert", "HERE/records.jsonl", "HERE/x.parquet")),
    "an export": Case(before=write_records, write=judging("export", "--format", "safevla-csv", "--out", "HERE/x.csv")),
    "a gate's XML": Case(before=write_records, write=judging("gate", "--min-sr", "0", "--junit", "HERE/x.xml")),
    "the index of frames": Case(
        before=lambda folder: files.make_folder(folder / "frames"), write=lambda folder: write_frames(folder, [])
    ),
}


@pytest.fixture
def quick(monkeypatch):
    """Pages and figures are drawn elsewhere; here they are written."""
    monkeypatch.setattr(outputs, "render_report", lambda judged, *title, **folder: f"page of {judged.library.name}")
    monkeypatch.setattr("safevla_bench.report.figures.render_figure", lambda figure, form: form.encode())


@pytest.fixture
def prepared(tmp_path, monkeypatch, quick):
    """A folder as it is before, as it is after, and a disk that can fail under copies of it."""

    def of(case: Case):
        start, work = tmp_path / "start", tmp_path / "work"
        start.mkdir()
        case.before(start)
        disk = Disk(work, monkeypatch)
        shutil.copytree(start, work)
        disk.work()
        case.write(work)
        count, after = len(disk.at), visible_files(work)

        def anew() -> Path:
            disk.work()
            shutil.rmtree(work)
            shutil.copytree(start, work)
            return work

        return disk, count, visible_files(start), after, anew

    return of


def visible_files(folder: Path) -> dict[str, bytes]:
    """The files that anybody takes for results: not hidden, nor in a hidden folder; without facts of the day.

    Raw episodes are results only if no archive was made from them.
    """
    contents = {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        str(path): without_volatile(content) if path.name == "run.json" else content
        for path, content in contents.items()
        if not any(part.startswith(".") for part in path.parts)
        and not (path.parent.name == "raw" and path.parent.parent / "manifest.json" in contents)
    }


def without_volatile(described: bytes) -> bytes:
    description = json.loads(described)
    return json.dumps({name: value for name, value in description.items() if name != "volatile"}).encode()


def partial_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*.partial") if path.exists()]


def is_unfinished(now: dict[str, bytes]) -> bool:
    """Whether a run says of itself that it is not complete: then nothing in it is believed."""
    return any(name.endswith("run.json") and b'"complete": true' not in content for name, content in now.items())


def assert_nothing_half(case: Case, before: dict[str, bytes], after: dict[str, bytes], now: dict[str, bytes]) -> None:
    assert before.keys() - after.keys() - now.keys() <= before.keys()
    for name, content in now.items():
        assert content in (before.get(name), after.get(name)) or is_unfinished(now), name
    assert all(name in now for name in before if name in after and name not in case.together[1:])
    changed = [name for name in case.together if name in now and before.get(name) != after.get(name)]
    assert len({now[name] == after[name] for name in changed}) <= 1, changed


@contextmanager
def collect_error() -> Iterator[list[SafevlaError]]:
    """The typed error that was raised, if any: what fails when all is written already costs nothing."""
    raised: list[SafevlaError] = []
    try:
        yield raised
    except SafevlaError as error:
        raised.append(error)


def instants(count: int) -> list[int]:
    """Changes of a disk, spread evenly over all: the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, 10).astype(int)).tolist()


@pytest.mark.parametrize("fault", [FULL, DEAD], ids=["full", "dead"])
@pytest.mark.parametrize("name", TABLE)
def test_a_disk_that_is_full_and_a_process_that_dies_at_any_instant(prepared, name, fault):
    case = TABLE[name]
    disk, count, before, after, anew = prepared(case)
    assert count >= 3
    for at in instants(count):
        work = anew()
        disk.fail(at, fault)
        with collect_error() if fault == FULL else pytest.raises(Killed) as errors:
            case.write(work)
        for error in errors if fault == FULL else []:
            assert str(work) in str(error.place.file)
            assert error.remedy
            assert "No space left" in str(error)
        disk.work()
        assert_nothing_half(case, before, after, visible_files(work))
        if fault == DEAD:
            case.check(work)
        if visible_files(work) != after:
            (case.again or case.write)(work)
        assert visible_files(work) == after


@pytest.mark.parametrize("name", TABLE)
def test_a_place_that_is_read_only(prepared, name):
    case = TABLE[name]
    disk, _, before, _, anew = prepared(case)
    work = anew()
    disk.fail(0, READ_ONLY)
    with pytest.raises(FileError, match="can be written") as raised:
        case.write(work)
    assert str(work) in str(raised.value.place.file)
    disk.work()
    assert visible_files(work) == before
    assert not partial_files(work)


def test_crashed_episodes_that_are_run_again_lose_none_of_the_others_at_any_instant(prepared):
    request = replace(REQUEST, tasks=(0, 2), episodes=1, max_steps=6)
    rerun = ExecutionOptions(resume=True, retry_crashed=True)
    case = Case(lambda f: roll_out(request, f / "run", running=rerun), lambda f: roll_out(request, f / "run"))
    disk, count, before, after, anew = prepared(case)
    assert before == after
    for at in instants(count):
        work = anew()
        disk.fail(at, DEAD)
        with pytest.raises(Killed):
            case.write(work)
        disk.work()
        assert len(read_sources([work / "run"])[0]) == 1
        case.write(work)
        assert visible_files(work) == after


@contextmanager
def no_file_longer_than(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_the_system_breaks_off_in_the_middle_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "x.jsonl"
    archive.append_episodes(path, records("a"))
    good = path.read_bytes()
    for writing in (files.append_bytes, files.write_atomically):
        with no_file_longer_than(len(good) + 100), pytest.raises(FileError, match="File too large") as raised:
            writing(path, bytes(10_000))
        assert raised.value.place.file == str(path)
        assert path.read_bytes() == good
    assert list(tmp_path.iterdir()) == [path]
