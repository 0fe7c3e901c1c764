"""The run folder: what is written is read, and what is in the way is named."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Sequence
from itertools import permutations

import pytest

from builders import episode, same_bits
from folders import contents
from safevla_bench import runs
from safevla_bench.archive import append
from safevla_bench.archive.jsonl import member
from safevla_bench.errors import CollectedError, FileError, RecordError, RunError
from safevla_bench.files import digest
from safevla_bench.runs import journal, parts
from safevla_bench.trajectory import concatenate


def row(name: str, outcome: str = "success", reason: str | None = None) -> runs.EpisodeRow:
    return runs.EpisodeRow(
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
ASKED = {"host": "fake", "planned": 3}


def fill(writer: runs.RunWriter, order: Sequence[int] = (0, 1, 2)) -> None:
    for place in order:
        if place == 2:
            writer.append(2, row("c", "crashed", "Traceback: boom"), None)
        else:
            writer.append(place, row("ab"[place]), member(EPISODES[place], 0, ".jsonl.zst"))


def written(folder, order: Sequence[int] = (0, 1, 2)):
    with runs.RunWriter(folder, ASKED) as writer:
        fill(writer, order)
        writer.finish()
    return EPISODES


def test_a_run_gives_back_its_records_and_its_crashes(tmp_path):
    episodes = written(tmp_path / "run")
    source = runs.open_source(tmp_path / "run")
    assert same_bits(source.batch, concatenate(episodes))
    assert [(one.episode_id, one.outcome, one.reason) for one in source.absent] == [("c", "crashed", "Traceback: boom")]
    assert source.description == {**ASKED, "complete": True}
    assert [one.episode_id for one in runs.episode_rows(tmp_path / "run")] == ["a", "b", "c"]


def test_the_manifest_holds_the_digest_of_every_part(tmp_path):
    written(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["parts"] == {f"archive/{part.name}": digest(part) for part in runs.archive_parts(tmp_path / "run")}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_in_which_episodes_end_changes_no_byte(tmp_path, order):
    written(tmp_path / "one")
    written(tmp_path / "two", order)
    held = contents(tmp_path / "one")
    assert sorted(held) == ["archive/part-00000.jsonl.zst", "episodes.parquet", "manifest.json", "run.json"]
    assert contents(tmp_path / "two") == held


def test_a_part_holds_a_fixed_number_of_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "EPISODES_A_PART", 1)
    written(tmp_path / "run")
    assert [part.name[:10] for part in runs.archive_parts(tmp_path / "run")] == ["part-00000", "part-00001"]
    assert same_bits(runs.open_source(tmp_path / "run").batch, concatenate(EPISODES))


def test_what_an_unfinished_run_has_done_is_read_in_plan_order(tmp_path):
    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        fill(writer, (2, 1, 0))
        source = runs.open_source(tmp_path / "run")
        assert runs.progress(tmp_path / "run") == (3, 3)
    assert same_bits(source.batch, concatenate(EPISODES))
    assert [one.episode_id for one in source.absent] == ["c"]
    assert source.description["complete"] is False


@pytest.mark.parametrize("tail", [b'{"index":0,"row"', b'{"ind', b"\0"])
def test_a_line_that_was_cut_off_is_not_part_of_the_run(tmp_path, tail):
    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        fill(writer, (1, 2))
    partial = tmp_path / "run" / ".partial"
    for name, left in (("journal.jsonl", tail), ("records.jsonl.zst", b"half a frame")):
        with (partial / name).open("ab") as stream:
            stream.write(left)
    assert runs.progress(tmp_path / "run") == (2, 3)
    assert len(runs.open_source(tmp_path / "run").batch) == 1
    with runs.RunWriter(tmp_path / "run", ASKED, resume=True) as writer:
        assert sorted(writer.entries) == [1, 2]
        fill(writer, (0,))
        writer.finish()
    written(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_journal_that_is_damaged_or_says_more_than_there_is_is_named(tmp_path):
    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        fill(writer)
    partial = tmp_path / "run" / ".partial"
    (partial / "records.jsonl.zst").write_bytes(b"")
    with pytest.raises(RunError, match="shorter than the journal"):
        runs.RunWriter(tmp_path / "run", ASKED, resume=True)
    assert len(runs.open_source(tmp_path / "run").problems) == 2
    (partial / "journal.jsonl").write_bytes(b"nonsense\n")
    with pytest.raises(RunError, match=r"journal\.jsonl: the journal is damaged"):
        runs.open_source(tmp_path / "run")


def test_a_crashed_episode_can_be_taken_out_of_a_complete_run_and_run_again(tmp_path):
    written(tmp_path / "run")
    with runs.RunWriter(tmp_path / "run", ASKED, resume=True) as writer:
        assert writer.complete
        writer.reopen()
        assert sorted(writer.entries) == [0, 1]
        assert len(runs.open_source(tmp_path / "run").batch) == 2
        fill(writer, (2,))
        writer.finish()
    written(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_two_runs_never_write_into_one_folder_at_a_time(tmp_path):
    with runs.RunWriter(tmp_path / "run", ASKED):
        for resume in (False, True):
            with pytest.raises(RunError, match="another run is writing here"):
                runs.RunWriter(tmp_path / "run", ASKED, resume=resume)
    with runs.RunWriter(tmp_path / "run", ASKED, resume=True):
        pass
    assert not (tmp_path / "run" / ".lock").exists()


def test_an_unfinished_run_is_continued_only_when_asked_and_the_command_is_said(tmp_path):
    with runs.RunWriter(tmp_path / "a run", ASKED) as writer:
        fill(writer, (0,))
    with pytest.raises(RunError, match="1 of 3 episodes done") as raised:
        runs.RunWriter(tmp_path / "a run", ASKED)
    assert f"safevla eval --resume --out '{tmp_path}/a run'" in raised.value.remedy
    written(tmp_path / "complete")
    with pytest.raises(RunError, match="not empty: it holds a run"):
        runs.RunWriter(tmp_path / "complete", ASKED)


def test_a_difference_in_what_is_asked_is_refused_and_named(tmp_path):
    held = {"host": "fake", "policies": [{"policy": "a", "arguments": {"x": "1"}}], "versions": {"numpy": "1"}}
    with runs.RunWriter(tmp_path / "run", held):
        pass
    asked = {"host": "fake", "policies": [{"policy": "a", "arguments": {"x": "2"}}], "versions": {"numpy": "2"}}
    with pytest.raises(RunError) as raised:
        runs.RunWriter(tmp_path / "run", asked, resume=True)
    assert 'policies[0].arguments.x: the run has "1", asked is "2"' in str(raised.value)
    assert "versions.numpy" in str(raised.value)
    with runs.RunWriter(tmp_path / "run", {**held, "volatile": {"command": "other"}}, resume=True):
        pass


def test_ctrl_c_waits_for_the_episode_that_is_being_written(tmp_path, monkeypatch):
    really = os.fsync

    def interrupted(descriptor: int) -> None:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(os, "fsync", really)
        really(descriptor)

    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fill(writer)
    assert runs.progress(tmp_path / "run") == (1, 3)


def test_a_second_ctrl_c_stops_at_once_and_the_run_can_be_continued(tmp_path, monkeypatch):
    def interrupted(descriptor: int) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        monkeypatch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fill(writer)
    monkeypatch.undo()
    assert runs.progress(tmp_path / "run") == (0, 3)
    with runs.RunWriter(tmp_path / "run", ASKED, resume=True) as writer:
        fill(writer)
        writer.finish()
    written(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_folder_that_holds_something_is_never_written_into(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        runs.RunWriter(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        runs.open_source(tmp_path)
    with pytest.raises(RunError, match="no such file"):
        runs.open_source(tmp_path / "absent")


def test_bad_episodes_of_all_sources_are_listed_or_left_out(tmp_path):
    for name in ("one", "two"):
        append(tmp_path / f"{name}.jsonl", episode(4, episode_id=name))
        with (tmp_path / f"{name}.jsonl").open("ab") as stream:
            stream.write(b"{}\n")
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    with pytest.raises(CollectedError) as raised:
        runs.open_sources(paths)
    assert [(error.place.file, error.place.line) for error in raised.value.errors] == [(str(path), 2) for path in paths]
    batch, sources = runs.open_sources(paths, skip_invalid=True)
    assert [header.episode_id for header in batch.headers] == ["one", "two"]
    assert sum(len(source.problems) for source in sources) == 2


def test_the_same_episode_of_the_same_policy_in_two_sources_is_refused(tmp_path):
    for name, policy in (("one", "a"), ("two", "a"), ("three", "b")):
        append(tmp_path / f"{name}.jsonl", episode(4, policy=policy))
    with pytest.raises(RunError, match=r"one\.jsonl"):
        runs.open_sources([tmp_path / "one.jsonl", tmp_path / "two.jsonl"])
    batch, _ = runs.open_sources([tmp_path / "one.jsonl", tmp_path / "three.jsonl"])
    assert len(batch) == 2


def test_a_damaged_description_is_named(tmp_path):
    written(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json"):
        runs.open_source(tmp_path / "run")


def test_an_empty_archive_file_is_a_problem(tmp_path):
    (tmp_path / "none.jsonl").write_bytes(b"")
    (problem,) = runs.open_source(tmp_path / "none.jsonl").problems
    assert isinstance(problem, RecordError)


def test_a_run_without_a_plan_grows_and_is_whole_whenever_it_is_finished(tmp_path):
    growing = runs.GrowingRun(tmp_path / "run", {"complete": False})
    for count, one in enumerate(EPISODES, start=1):
        growing.append(one)
        growing.finish([row(name) for name in "ab"[:count]], {"complete": True})
        source = runs.open_source(tmp_path / "run")
        assert same_bits(source.batch, concatenate(EPISODES[:count]))
        assert json.loads((tmp_path / "run" / "manifest.json").read_text())["episodes"] == count
    with pytest.raises(RunError, match="not empty"):
        runs.GrowingRun(tmp_path / "run", {})


def test_a_full_disk_is_named_and_what_was_kept_before_stays(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with runs.RunWriter(tmp_path / "run", ASKED) as writer:
        fill(writer, (0,))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left on device") as raised:
            fill(writer, (1,))
        assert "--resume" in raised.value.remedy
    monkeypatch.undo()
    with runs.RunWriter(tmp_path / "run", ASKED, resume=True) as writer:
        fill(writer, (1, 2))
        writer.finish()
    written(tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_that_is_completed_while_it_is_read_is_read_whole(tmp_path, monkeypatch):
    really, writer = journal.finished, runs.RunWriter(tmp_path / "run", ASKED)
    fill(writer)

    def meanwhile(folder):
        writer.finish()
        return really(folder)

    monkeypatch.setattr(journal, "finished", meanwhile)
    source = runs.open_source(tmp_path / "run")
    assert source.description["complete"]
    assert len(source.batch) == 2
    writer.__exit__(None, None, None)
