"""The records of a run folder: raw episodes, the archive's parts, and the manifest that names what was written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builders import episode
from safevla_bench.archive.npz import encode_npz
from safevla_bench.errors import DamageError, RecordError, RunError
from safevla_bench.files import sha256_of
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.folder import Latency, Repeats, archive_parts, read_manifest
from safevla_bench.sources.runs.parts import RawEpisode
from safevla_bench.trajectory.batch import Batch


def raw(name: str, outcome: str = "success", **fields: object) -> RawEpisode:
    return RawEpisode(
        episode_id=name, policy="p", benchmark="s", task_id="t", episode=0, init_state_index=0, env_seed=7, seed=0,
        policy_seed=1, horizon=10, outcome=outcome, steps=3, **fields,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A complete run of three episodes, one of which crashed."""
    rows = [raw("a"), raw("b", "crashed"), raw("c")]
    records = [episode(4, episode_id=name) for name in "ac"]
    parts.write_run(tmp_path, {"planned": 3, "volatile": {"x": 1}}, [row.row for row in rows], records)
    return tmp_path


def test_raw_episodes_are_in_plan_order_and_other_files_are_none(tmp_path):
    (tmp_path / "run.json").write_text('{"planned": 3}')
    assert parts.count_progress(tmp_path) == (0, 3)
    assert not parts.has_raw(tmp_path)
    (tmp_path / "raw").mkdir()
    for index in (1000000, 2):
        parts.write_raw(tmp_path, index, raw(f"{index}", latency=Latency(calls=1, p50_ms=1.0, p95_ms=2.0)), b"record")
    parts.write_raw(tmp_path, 7, raw("7", "crashed"), None)
    (tmp_path / "raw" / "notes.json").write_text("{}")
    (tmp_path / "raw" / "000003.txt").write_text("{}")
    episodes = parts.read_raw(tmp_path)
    assert list(episodes) == [2, 7, 1000000]
    assert (episodes[2].latency.p95_ms, episodes[7].latency) == (2.0, None)
    assert parts.record_files(tmp_path) == [tmp_path / "raw" / name for name in ("000002.npz", "1000000.npz")]
    assert [row.episode_id for row in parts.episode_rows(tmp_path)] == ["2", "7", "1000000"]
    assert parts.count_progress(tmp_path) == (3, 3)
    parts.require_records(tmp_path, episodes)
    parts.remove_raw(tmp_path, 2)
    assert parts.count_progress(tmp_path) == (2, 3)
    with pytest.raises(RunError, match=r"000002\.npz: .* missing"):
        parts.require_records(tmp_path, episodes)
    parts.remove_raw(tmp_path, 2)


@pytest.mark.parametrize(
    ("description", "progress"),
    [({}, (0, 0)), ({"planned": "3"}, (0, 0)), ({"complete": True, "planned": 3}, (3, 3)), ({"planned": 3}, (0, 3))],
)
def test_the_progress_of_a_run_is_counted_against_its_plan(tmp_path, description, progress):
    (tmp_path / "run.json").write_text(json.dumps(description))
    assert parts.count_progress(tmp_path) == progress


def test_a_record_that_is_missing_or_damaged_is_an_error_with_its_file_and_loses_one_episode(tmp_path):
    (tmp_path / "raw").mkdir()
    with pytest.raises(DamageError, match="record is missing") as caught:
        parts.read_record(tmp_path, 3)
    assert (caught.value.episodes, caught.value.place.file) == (1, str(tmp_path / "raw" / "000003.npz"))
    episodes = {index: raw(name) for index, name in enumerate("abc")} | {3: raw("d", "crashed")}
    for index, name in enumerate("abc"):
        parts.write_raw(tmp_path, index, episodes[index], encode_npz(episode(4, episode_id=name)))
    parts.record_path(tmp_path, 1).unlink()
    first, error, last = parts.read_unfinished(tmp_path, episodes)
    assert [batch.headers[0].episode_id for batch in (first, last)] == ["a", "c"]
    assert error.place.episode == "b"
    (only,) = parts.read_unfinished(tmp_path, episodes, [2])
    assert isinstance(only, Batch)
    assert only.headers[0].episode_id == "c"


def test_a_damaged_record_or_row_is_an_error_and_a_run_that_is_completed_meanwhile_is_one(tmp_path):
    (tmp_path / "raw").mkdir()
    parts.write_raw(tmp_path, 0, raw("a"), b"damaged")
    with pytest.raises(RecordError):
        parts.read_record(tmp_path, 0)
    episodes = parts.read_raw(tmp_path)
    (tmp_path / "raw" / "000000.json").write_bytes(b"{")
    with pytest.raises(RunError, match=r"000000\.json: .* damaged"):
        parts.read_raw(tmp_path)
    (tmp_path / "raw").rename(tmp_path / "archive")
    with pytest.raises(RunError, match="completed while"):
        list(parts.read_unfinished(tmp_path, episodes))


def test_the_archive_and_the_table_go_before_raw_episodes_and_there_may_be_neither(run):
    (run / "raw").mkdir()
    parts.write_raw(run, 9, raw("x"), b"")
    assert parts.record_files(run) == archive_parts(run)
    assert [row.episode_id for row in parts.episode_rows(run)] == ["a", "b", "c"]
    assert (parts.record_files(run / "none"), parts.episode_rows(run / "none")) == ([], [])


def test_facts_of_the_day_are_collected_and_equal_statements_of_a_policy_are_listed_once():
    latency = Latency(calls=1, p50_ms=1.0, p95_ms=2.0)
    episodes = [
        raw("a", greeting={"step": 1}, ran_on="n1", latency=latency),
        raw("b", greeting={"step": 1}),
        raw("c", greeting={"step": 2}, ran_on=""),
        replace(raw("d", greeting={"step": 1}), benchmark="u"),
        replace(raw("e", greeting={"step": 1}), policy="q"),
        raw("f", greeting={}),
    ]
    facts = parts.collect_facts(episodes, {"p": Repeats(asked=2, other=1)})
    assert (facts.ran_on, facts.policy_latency) == ({"a": "n1"}, {"a": latency})
    assert [greeting.episodes for greeting in facts.policies_say] == [["a", "b"], ["c"], ["d"], ["e"]]
    assert facts.repeated_answers["p"].other == 1


def test_a_seal_is_broken_by_a_change_of_any_byte():
    content = parts.seal_json({"a": 1, "file_sha256": ""})
    assert parts.is_sealed(content)
    assert json.loads(content)["a"] == 1
    for place in range(len(content)):
        assert not parts.is_sealed(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert not parts.is_sealed(b'{"a": 1}')
    assert not parts.is_sealed(content + b" ")


def test_the_manifest_names_every_file_and_what_was_changed_is_named(run):
    assert list(parts.changed_files(run)) == []
    assert list(parts.changed_parts(run)) == []
    (run / "scores.json").write_bytes(b"scores")
    parts.add_digests(run, {"scores.json": b"scores", "gone.txt": b"x", "../outside": b"x"})
    assert ["gone.txt is missing" in line for line in parts.changed_files(run)] == [True]
    assert parts.later_files(run, "episodes.parquet") == ["run.json", "scores.json", "gone.txt", "../outside"]
    assert (parts.later_files(run, "gone.txt"), parts.later_files(run, "none")) == (["../outside"], [])
    parts.add_digests(run, {"gone.txt": None, "../outside": None})
    assert list(parts.changed_files(run)) == []
    (run / "scores.json").write_bytes(b"changed")
    assert ["scores.json was changed" in line for line in parts.changed_files(run)] == [True]
    (run / "scores.json").unlink()
    (run / "scores.json").symlink_to(Path(__file__))
    assert ["scores.json is missing" in line for line in parts.changed_files(run)] == [True]


@pytest.mark.parametrize(("is_there", "end"), [(True, "manifest.json"), (False, "manifest.json, and is missing")])
def test_a_table_that_the_manifest_does_not_name_is_reported_as_such(run, is_there, end):
    parts.add_digests(run, {"episodes.parquet": None})
    if not is_there:
        (run / "episodes.parquet").unlink()
    assert list(parts.changed_files(run)) == [f"episodes.parquet is not named by {end}"]


def test_a_change_of_run_json_outside_of_its_volatile_facts_breaks_more_than_its_seal(run):
    description = json.loads((run / "run.json").read_text())
    assert (description["complete"], description["volatile"]["x"]) == (True, 1)
    for change, count in ({"volatile": {"x": 2, "file_sha256": ""}}, 0), ({"planned": 4}, 1):
        content = {**description, **change, "volatile": {"x": 2, "file_sha256": ""}}
        (run / "run.json").write_bytes(parts.seal_json(content))
        assert len(list(parts.changed_files(run))) == count
    (run / "run.json").write_text(json.dumps(description))
    assert ["run.json was changed" in line for line in parts.changed_files(run)] == [True]
    (run / "manifest.json").unlink()
    assert parts.later_files(run, "run.json") == []
    parts.add_digests(run, {"a": b"x"})
    assert not (run / "manifest.json").exists()


def test_parts_that_are_missing_changed_or_not_listed_are_named(run):
    (part,) = archive_parts(run)
    extra = part.with_name("part-00009.parquet")
    extra.write_bytes(b"x")
    assert [(name, "is not in" in problem) for name, problem in parts.changed_parts(run)] == [
        ("archive/part-00009.parquet", True)
    ]
    assert parts.listed_parts(run) == [part, extra]
    digest = read_manifest(run).parts["archive/part-00000.parquet"]
    assert digest == sha256_of(part)
    part.write_bytes(b"other")
    assert "was changed" in next(parts.changed_parts(run))[1]
    part.unlink()
    assert "is missing" in next(parts.changed_parts(run))[1]
    assert parts.listed_parts(run) == [part, extra]
    (run / "manifest.json").unlink()
    assert parts.listed_parts(run) == [extra]


def test_the_digest_of_a_plan_is_that_of_what_was_planned(run, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    outcomes = {"a": "failure", "b": "success", "c": "crashed"}
    rows = [raw(name, outcome).row for name, outcome in outcomes.items()]
    parts.write_run(other, {}, rows, [episode(4, episode_id=name) for name in "ab"])
    assert parts.plan_digest(other) == parts.plan_digest(run)
    parts.write_run(other, {}, [replace(rows[0], seed=9), *rows[1:]], [episode(4, episode_id=name) for name in "ab"])
    assert parts.plan_digest(other) != parts.plan_digest(run)


@pytest.mark.parametrize(("form", "suffix"), [({}, ".parquet"), ({"archive": "jsonl"}, ".jsonl.zst")])
def test_a_run_that_is_written_again_has_only_its_own_parts_of_a_fixed_number_of_episodes(
    run, monkeypatch, form, suffix
):
    monkeypatch.setattr(parts, "EPISODES_A_PART", 2)
    records = [episode(4, episode_id=name) for name in "abc"]
    parts.write_run(run, form, [raw(name).row for name in "abc"], records)
    assert [part.name for part in archive_parts(run)] == [f"part-00000{suffix}", f"part-00001{suffix}"]
    assert [batch.headers[0].episode_id for batch in parts.read_records(run)] == ["a", "b", "c"]
    parts.write_run(run, form, [raw("a").row], records[:1])
    assert [len(batch) for batch in parts.read_records(run)] == [1]
    manifest = read_manifest(run)
    assert (manifest.episodes, list(manifest.parts)) == (1, [f"archive/part-00000{suffix}"])


def test_complete_episodes_have_the_facts_of_the_day(tmp_path):
    latency = {"calls": 1, "p50_ms": 1.0, "p95_ms": 2.0}
    says = [{"policy": "p", "suite": "s", "says": {"k": 1}, "episodes": ["b"]}]
    volatile = {"policy_latency": {"a": latency}, "ran_on": {"a": "n1"}, "policies_say": says}
    parts.write_run(tmp_path, {"volatile": volatile}, [raw("a", "crashed").row, raw("b", "crashed").row], [])
    first, second = parts.complete_episodes(tmp_path)
    assert (first.latency.p95_ms, first.ran_on, first.greeting) == (2.0, "n1", None)
    assert (second.latency, second.ran_on, second.greeting) == (None, None, {"k": 1})
