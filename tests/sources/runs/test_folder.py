"""The run folder: what is written is read, and what is in the way is named."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders import episode, same_bits
from folders import contents, record_own_loop
from safevla_bench.archive import append_episodes
from safevla_bench.archive.npz import encode_npz
from safevla_bench.errors import CollectedError, RecordError, RunError
from safevla_bench.files import sha256_of
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.episode_index import read_sources, scan
from safevla_bench.sources.runs.folder import archive_parts
from safevla_bench.sources.runs.parts import RawEpisode, count_progress, episode_rows
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.sources.runs.writer import RunFolderWriter
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_recorder import folder as recorder_folder
from safevla_recorder.attachment import LoopRules
from safevla_recorder.episode import EpisodeRow


def row(name: str, outcome: str = "success", reason: str | None = None) -> RawEpisode:
    return RawEpisode(
        episode_id=name,
        policy="test",
        benchmark="libero-goal",
        task_id="task_8",
        episode=0,
        init_state_index=0,
        env_seed=7,
        seed=0,
        policy_seed=1,
        horizon=10,
        outcome=outcome,
        steps=3,
        reason=reason,
    )


EPISODES = [episode(4, episode_id="a"), episode(5, episode_id="b")]
DESCRIPTION = {"host": "fake", "planned": 3}


def fill(writer: RunFolderWriter, order: Sequence[int] = (0, 1, 2)) -> None:
    for place in order:
        if place == 2:
            writer.add_episode(2, row("c", "crashed", "Traceback: boom"), None)
        else:
            writer.add_episode(place, row("ab"[place]), encode_npz(EPISODES[place]))


def write_run(folder: Path, order: Sequence[int] = (0, 1, 2)) -> None:
    with RunFolderWriter(folder, DESCRIPTION) as writer:
        fill(writer, order)
        writer.finish()


def require_resumable(tmp_path: Path, order: Sequence[int]) -> None:
    """Fill the rest of the run, and require the bytes of a run that was never interrupted."""
    with RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=True) as writer:
        fill(writer, order)
        writer.finish()
    write_run(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_gives_back_its_records_and_its_crashes(tmp_path):
    write_run(tmp_path / "run")
    batch, index = read_sources([tmp_path / "run"])
    assert same_bits(batch, concatenate_batches(EPISODES))
    assert [(row.episode_id, row.outcome, row.reason) for row in index.absent] == [("c", "crashed", "Traceback: boom")]
    (source,) = index.sources
    description = dict(source.description)
    assert (source.path, list(description.pop("volatile"))) == (tmp_path / "run", ["file_sha256"])
    assert description == {**DESCRIPTION, "complete": True, "code": ["unknown"]}
    assert [row.episode_id for row in episode_rows(tmp_path / "run")] == ["a", "b", "c"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["parts"] == {f"archive/{part.name}": sha256_of(part) for part in archive_parts(tmp_path / "run")}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_in_which_episodes_end_changes_no_byte(tmp_path, order):
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", order)
    files = contents(tmp_path / "one")
    assert sorted(files) == ["archive/part-00000.parquet", "episodes.parquet", "manifest.json", "run.json"]
    assert contents(tmp_path / "two") == files


def test_a_part_holds_a_fixed_number_of_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "EPISODES_A_PART", 1)
    write_run(tmp_path / "run")
    assert [part.name[:10] for part in archive_parts(tmp_path / "run")] == ["part-00000", "part-00001"]
    assert same_bits(read_sources([tmp_path / "run"])[0], concatenate_batches(EPISODES))


@pytest.mark.parametrize("complete", [True, False])
def test_no_command_continues_a_run_that_a_script_recorded(tmp_path, complete):
    folder = record_own_loop(tmp_path / "run")
    description = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**description, "complete": complete}))
    with pytest.raises(RunError) as raised, RunFolderWriter(folder, DESCRIPTION, continuation="safevla search"):
        pass
    assert ("script" in str(raised.value), "safevla search" in raised.value.remedy) == (True, False)


def test_what_an_unfinished_run_has_done_is_read_in_plan_order(tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        fill(writer, (2, 1, 0))
        batch, index = read_sources([tmp_path / "run"])
        assert count_progress(tmp_path / "run") == (3, 3)
    assert same_bits(batch, concatenate_batches(EPISODES))
    assert [row.episode_id for row in index.absent] == ["c"]
    assert index.sources[0].description["complete"] is False


@pytest.mark.parametrize("name", ["000000.npz", ".000000.npz.1.partial", ".000000.json.1.partial"])
def test_what_a_kill_left_half_done_is_not_part_of_the_run(tmp_path, name):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        fill(writer, (1, 2))
    (tmp_path / "run" / "raw" / name).write_bytes(b"half")
    assert count_progress(tmp_path / "run") == (2, 3)
    assert len(read_sources([tmp_path / "run"])[0]) == 1
    with RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=True) as writer:
        assert sorted(writer.episodes) == [1, 2]
    require_resumable(tmp_path, (0,))


def test_a_part_of_the_archive_that_is_half_written_is_written_anew(tmp_path, monkeypatch):
    def kill(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parts.run_folder, "write_episodes", kill)
    with pytest.raises(KeyboardInterrupt):
        write_run(tmp_path / "run")
    monkeypatch.undo()
    (part,) = archive_parts(tmp_path / "run")
    part.write_bytes(b"half")
    (part.parent / "part-00001.parquet").write_bytes(b"stale")
    require_resumable(tmp_path, ())


def test_a_row_that_is_damaged_or_has_lost_its_record_is_named(tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        fill(writer)
    folder = tmp_path / "run" / "raw"
    for name in ("000000.npz", "000001.npz"):
        (folder / name).unlink()
    with pytest.raises(RunError, match=r"000000\.npz: .* missing"):
        RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=True)
    problems = scan([tmp_path / "run"]).problems
    assert [problem.place.episode for problem in problems] == ["a", "b"]
    (folder / "000000.json").write_bytes(b"nonsense\n")
    with pytest.raises(RunError, match=r"000000\.json: .* damaged"):
        open_source(tmp_path / "run")


def test_an_episode_that_crashes_when_it_is_run_again_has_no_record(tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        (tmp_path / "run" / "raw" / "000002.npz").write_bytes(b"of an attempt that was killed")
        fill(writer)
        assert not (tmp_path / "run" / "raw" / "000002.npz").exists()


@pytest.mark.parametrize("complete", [True, False])
def test_a_folder_of_the_recorder_is_a_source(tmp_path, complete):
    folder = tmp_path / "run"
    (folder / "raw").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"host": "own", "complete": complete}))
    for number, batch in enumerate(EPISODES):
        parts.write_raw(folder, number, row("ab"[number]), encode_npz(batch))
    parts.write_raw(folder, 2, row("c", "crashed", "boom"), None)
    batch, index = read_sources([folder])
    assert same_bits(batch, concatenate_batches(EPISODES))
    assert [row.episode_id for row in index.absent] == ["c"]
    assert same_bits(index.read_episodes([1]), EPISODES[1])
    assert [row.episode_id for row in episode_rows(folder)] == ["a", "b", "c"]
    (folder / "raw" / "000001.npz").unlink()
    (problem, *_) = scan([folder]).problems
    assert "000001.npz" in str(problem)


def test_a_crashed_episode_can_be_taken_out_of_a_complete_run_and_run_again(tmp_path):
    write_run(tmp_path / "run")
    with RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=True) as writer:
        assert writer.complete
        writer.reopen({name: place for place, name in enumerate("abc")})
        assert sorted(writer.episodes) == [0, 1]
        assert len(read_sources([tmp_path / "run"])[0]) == 2
    require_resumable(tmp_path, (2,))


def test_two_runs_never_write_into_one_folder_at_a_time(tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION):
        for resume in (False, True):
            with pytest.raises(RunError, match="run is writing"):
                RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=resume)
    with RunFolderWriter(tmp_path / "run", DESCRIPTION, resume=True):
        pass
    assert not (tmp_path / "run" / ".lock").exists()


def test_an_unfinished_run_is_continued_only_when_asked_and_the_command_is_named(tmp_path):
    with RunFolderWriter(tmp_path / "a run", DESCRIPTION) as writer:
        fill(writer, (0,))
    with pytest.raises(RunError, match="1 of 3") as raised:
        RunFolderWriter(tmp_path / "a run", DESCRIPTION)
    assert f"--out '{tmp_path}/a run'" in raised.value.remedy
    write_run(tmp_path / "complete")
    with pytest.raises(RunError, match="empty: it holds"):
        RunFolderWriter(tmp_path / "complete", DESCRIPTION)


def test_a_difference_in_what_is_asked_is_refused_and_named(tmp_path):
    first = {"host": "fake", "policies": [{"policy": "a", "arguments": {"x": "1"}}], "versions": {"numpy": "1"}}
    with RunFolderWriter(tmp_path / "run", first):
        pass
    changed = {"host": "fake", "policies": [{"policy": "a", "arguments": {"x": "2"}}], "versions": {"numpy": "2"}}
    with pytest.raises(RunError) as raised:
        RunFolderWriter(tmp_path / "run", changed, resume=True)
    assert "policies[0].arguments.x" in str(raised.value)
    assert "versions.numpy" in str(raised.value)
    with RunFolderWriter(tmp_path / "run", {**first, "volatile": {"command": "other"}}, resume=True):
        pass


def test_ctrl_c_while_an_episode_is_written_stops_at_once_and_the_run_can_be_continued(tmp_path, monkeypatch):
    def interrupt(descriptor: int) -> None:
        signal.raise_signal(signal.SIGINT)

    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        monkeypatch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fill(writer)
    monkeypatch.undo()
    assert count_progress(tmp_path / "run") == (0, 3)
    require_resumable(tmp_path, (0, 1, 2))


def test_a_folder_that_holds_something_is_never_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        RunFolderWriter(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(RunError, match="not a run"):
        open_source(tmp_path)
    with pytest.raises(RunError, match="no such file"):
        open_source(tmp_path / "absent")
    (tmp_path / "none.jsonl").write_bytes(b"")
    (problem,) = scan([tmp_path / "none.jsonl"]).problems
    assert isinstance(problem, RecordError)
    write_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json"):
        open_source(tmp_path / "run")


def test_bad_episodes_of_all_sources_are_listed_or_left_out(tmp_path):
    for name in ("one", "two"):
        append_episodes(tmp_path / f"{name}.jsonl", episode(4, episode_id=name))
        with (tmp_path / f"{name}.jsonl").open("ab") as stream:
            stream.write(b"{}\n")
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    batch, index = read_sources(paths)
    with pytest.raises(CollectedError) as raised:
        index.require_valid()
    assert [(error.place.file, error.place.line) for error in raised.value.errors] == [(str(path), 2) for path in paths]
    index.require_valid(skip_invalid=True)
    assert [header.episode_id for header in batch.headers] == ["one", "two"]
    assert len(index.problems) == 2


def test_the_same_episode_of_the_same_policy_in_two_sources_is_refused(tmp_path):
    for name, policy in (("one", "a"), ("two", "a"), ("three", "b")):
        append_episodes(tmp_path / f"{name}.jsonl", episode(4, policy=policy))
    with pytest.raises(RunError, match=r"one\.jsonl"):
        scan([tmp_path / "one.jsonl", tmp_path / "two.jsonl"]).require_valid()
    batch, index = read_sources([tmp_path / "one.jsonl", tmp_path / "three.jsonl"])
    index.require_valid()
    assert len(batch) == 2


def test_a_run_without_a_plan_grows_and_can_be_read_whenever_a_block_has_ended(tmp_path):
    task = SimpleNamespace(benchmark="libero-goal", task_id="task_8")
    env = SimpleNamespace(task=task, host="own", versions={})
    for count, batch in enumerate(EPISODES, start=1):
        growing = recorder_folder.open_folder(tmp_path / "run", env, LoopRules(policy="test", wait_steps=0), {})
        fields = {name: getattr(row("ab"[count - 1]), name) for name in EpisodeRow.__dataclass_fields__}
        growing.write_episode(EpisodeRow(**fields), encode_npz(batch))
        growing.close_block(complete=True)
        batch, index = read_sources([tmp_path / "run"])
        assert same_bits(batch, concatenate_batches(EPISODES[:count]))
        index.require_valid()
        assert [row.episode_id for row in episode_rows(tmp_path / "run")] == list("ab"[:count])
    recorder_folder._open_folders.clear()


def test_a_run_that_is_completed_while_it_is_read_is_an_error_with_the_remedy(tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        fill(writer)
        source = open_source(tmp_path / "run")
        writer.finish()
    with pytest.raises(RunError, match="completed while"):
        list(source.read())
