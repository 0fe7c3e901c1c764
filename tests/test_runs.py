"""The run folder: what is written is read, and what is in the way is named."""

from __future__ import annotations

import json

import pytest

from builders import episode, same_bits
from safevla_bench import runs
from safevla_bench.archive import append
from safevla_bench.errors import CollectedError, RecordError, RunError
from safevla_bench.files import digest
from safevla_bench.trajectory import concatenate


def planned(name: str, outcome: str = "success", reason: str | None = None) -> runs.EpisodeRow:
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


def written(folder):
    writer = runs.RunWriter(folder, {"host": "fake"})
    episodes = [episode(4, episode_id="a"), episode(5, episode_id="b")]
    for one in episodes:
        writer.append(one)
    writer.finish([planned("a"), planned("b"), planned("c", "crashed", "Traceback: boom")], {"host": "fake"})
    return episodes


def test_a_run_gives_back_its_records_and_its_crashes(tmp_path):
    episodes = written(tmp_path / "run")
    source = runs.open_source(tmp_path / "run")
    assert same_bits(source.batch, concatenate(episodes))
    assert [(one.episode_id, one.outcome, one.reason) for one in source.absent] == [("c", "crashed", "Traceback: boom")]
    assert source.description == {"host": "fake"}


def test_the_manifest_holds_the_digest_of_every_part(tmp_path):
    written(tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["schema_version"] == 1
    assert manifest["parts"] == {f"archive/{part.name}": digest(part) for part in runs.archive_parts(tmp_path / "run")}


def test_the_same_run_twice_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        written(tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 4
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


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
