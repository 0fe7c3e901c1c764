"""Merging: the bytes of an unsharded run, and whatever cannot give them is refused and named."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from itertools import permutations

import pytest

from folders import change_description, contents
from safevla_bench.archive import write_archive
from safevla_bench.errors import RecordError, RunError
from safevla_bench.files import sha256_of
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.rollout.plan import Shard
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.folder import archive_parts, read_description, read_facts
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.sources.runs.writer import RunFolderWriter, list_shard_states, merge_shards
from safevla_recorder import identity
from scenes import Watcher

REQUEST = Request(host="fake", suites=("fake",), episodes=2, policies=("random", "noop"), max_steps=5)
"""Twelve episodes, four of them crashed."""


def roll_shards(folder, count, request=REQUEST):
    paths = [folder / f"shard-{number}" for number in range(1, count + 1)]
    for number, path in enumerate(paths, start=1):
        roll_out(replace(request, shard=Shard(number, count)), path)
    return paths


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The whole run, and its three shards."""
    folder = tmp_path_factory.mktemp("runs")
    roll_out(REQUEST, folder / "whole")
    return folder / "whole", roll_shards(folder, 3)


@pytest.fixture
def shards(runs, tmp_path):
    """Three shards that a test may spoil."""
    return [shutil.copytree(path, tmp_path / path.name) for path in runs[1]]


def test_shards_in_any_order_give_the_bytes_of_the_whole_run(runs, tmp_path):
    whole, shards = runs
    for place, order in enumerate(permutations(shards)):
        rows = merge_shards(order, tmp_path / str(place))
        assert contents(tmp_path / str(place)) == contents(whole)
    assert [row.outcome for row in rows].count("crashed") == 4


def test_two_processes_may_merge_the_same_shards_into_one_folder(runs, tmp_path, monkeypatch):
    whole, shards = runs
    write_run, out = parts.write_run, tmp_path / "merged"

    def write_after_other(*arguments):
        if not out.exists():
            shutil.copytree(whole, out)  # as another process's merge, which ends while this one writes
        write_run(*arguments)

    monkeypatch.setattr(parts, "write_run", write_after_other)
    assert len(merge_shards(shards, out)) == 12
    assert contents(out) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("together", [1, 3, 200])
def test_parts_of_the_archive_are_those_of_the_whole_run(tmp_path, monkeypatch, form, together):
    monkeypatch.setattr(parts, "EPISODES_A_PART", together)
    request = replace(REQUEST, archive=form)
    roll_out(request, tmp_path / "whole")
    merge_shards(roll_shards(tmp_path, 5, request), tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_what_each_shard_says_of_its_day_is_kept(tmp_path):
    shards = roll_shards(tmp_path, 2, replace(REQUEST, tasks=(0,), volatile={"started": "today"}))
    merge_shards(shards, tmp_path / "merged")
    today = [read_description(shard)["volatile"] for shard in shards]
    assert read_description(tmp_path / "merged")["volatile"]["shards"] == today
    assert all(facts["started"] == "today" for facts in today)
    latency = read_facts(tmp_path / "merged").policy_latency
    assert latency == {name: took for shard in shards for name, took in read_facts(shard).policy_latency.items()}


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([], "of 1 shards, these are missing: 1"),
        ([2], "of 3 shards, these are missing: 1, 3"),
        ([1, 2, 3, 2], "shard 2/3 is given twice: .*shard-2 and .*shard-2$"),
        ([1, 1, 3], "shard 1/3 is given twice: .*\n  of 3 shards, these are missing: 2"),
    ],
)
def test_a_shard_that_is_missing_or_given_twice_is_named(shards, tmp_path, numbers, message):
    with pytest.raises(RunError) as raised:
        merge_shards([shards[number - 1] for number in numbers], tmp_path / "merged")
    assert re.search(message, raised.value.problem)
    assert not (tmp_path / "merged").exists()


def test_a_plan_of_any_number_of_shards_is_compared_without_a_list_of_them(shards, tmp_path):
    shard = shutil.copytree(shards[0], tmp_path / "shard")
    change_description(shard, shard={**read_description(shard)["shard"], "count": 10**18})
    with pytest.raises(RunError, match=f"{10**18} shards"):
        merge_shards([shard], tmp_path / "merged")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: that has"),
        ({"max_steps": 6}, "max_steps: that has"),
        ({"policies": ("random", "noop", "scripted:careful")}, "policies"),
        ({"episodes": 3}, "shard.whole: that has"),
        ({"shard": Shard(4, 4)}, "shard.count: that has"),
    ],
)
def test_shards_of_different_plans_are_refused_with_the_difference(shards, tmp_path, changes, message):
    stranger = tmp_path / "stranger"
    roll_out(replace(REQUEST, **{"shard": Shard(3, 3), **changes}), stranger)
    with pytest.raises(RunError, match="plan of this shard differs") as raised:
        merge_shards([*shards[:2], stranger], tmp_path / "merged")
    assert message in str(raised.value)


def test_another_version_is_another_plan(shards, tmp_path):
    """Shards of several physics versions are not a run."""
    for shard, version in zip(shards, ("3.2.3", "3.17.0", "3.2.3"), strict=True):
        change_description(shard, versions={**read_description(shard)["versions"], "mujoco": version})
    with pytest.raises(RunError, match=r"versions\.mujoco: .*3\.17\.0"):
        merge_shards(shards, tmp_path / "merged")


def test_a_folder_that_is_not_a_shard_is_refused_and_nothing_is_overwritten(runs, shards, tmp_path):
    with pytest.raises(RunError, match="not a shard"):
        merge_shards([runs[0], *shards], tmp_path / "merged")
    with pytest.raises(RunError, match="contains run folders"):
        merge_shards([*shards, tmp_path], tmp_path / "merged")
    with pytest.raises(RunError, match="exists already"):
        merge_shards(shards, shards[0])


def test_an_unfinished_shard_says_how_to_go_on(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(RunFolderWriter, "finish", lambda writer, **_: None)
    unfinished = tmp_path / "unfinished"
    roll_out(replace(REQUEST, shard=Shard(3, 3)), unfinished)
    with pytest.raises(RunError, match="4 of 4") as raised:
        merge_shards([*shards[:2], unfinished], tmp_path / "merged")
    assert f"--out {unfinished}" in raised.value.remedy


@pytest.mark.parametrize("spoil", ["cut", "lost", "added", "manifest"])
def test_a_shard_that_is_not_as_its_manifest_says_is_refused(shards, tmp_path, spoil):
    part = next((shards[0] / "archive").glob("part-*"))
    if spoil == "cut":
        part.write_bytes(part.read_bytes()[:-1])
    elif spoil == "lost":
        part.unlink()
    elif spoil == "added":
        shutil.copy(part, part.with_name("part-00001.parquet"))
    else:
        (shards[0] / "manifest.json").unlink()
    with pytest.raises(RunError, match="manifest") as raised:
        merge_shards(shards, tmp_path / "merged")
    assert "again" in raised.value.remedy
    assert not (tmp_path / "merged").exists()


def state_digest(part):
    """Write into a shard's manifest that its part is as it is now."""
    path = part.parents[1] / "manifest.json"
    manifest = {**json.loads(path.read_text()), "parts": {f"archive/{part.name}": sha256_of(part)}}
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_part_that_is_cut_off_or_has_a_tail_gives_no_merged_folder(tmp_path, form):
    shards = roll_shards(tmp_path, 2, replace(REQUEST, archive=form))
    (part,) = (shards[0] / "archive").glob("part-*")
    content = part.read_bytes()
    for cut in (1, 2, 5, 10, 40):
        for damaged in (content[:-cut], content + content[:cut]):
            part.write_bytes(content)
            state_digest(part)
            part.write_bytes(damaged)
            with pytest.raises(RunError, match="was changed"):
                merge_shards(shards, tmp_path / "merged")
            state_digest(part)
            with pytest.raises(RecordError):
                merge_shards(shards, tmp_path / "merged")
            assert not (tmp_path / "merged").exists()


def test_records_of_a_run_come_one_by_one_in_plan_order(runs):
    names = [record.headers[0].episode_id for record in parts.read_records(runs[0])]
    assert names == [row.episode_id for row in episode_rows(runs[0]) if row.outcome != "crashed"]


def test_a_table_of_episodes_that_was_changed_or_has_another_length_is_refused(shards, tmp_path):
    shutil.copy(shards[1] / "episodes.parquet", shards[0] / "episodes.parquet")
    with pytest.raises(RunError, match=r"episodes\.parquet was changed since it was written"):
        merge_shards(shards, tmp_path / "merged")
    change_description(shards[0], shard={**read_description(shards[0])["shard"], "first": 1})
    parts.write_manifest(shards[0], archive_parts(shards[0]), 4, read_description(shards[0]))
    with pytest.raises(RunError, match="end at 4"):
        merge_shards(shards, tmp_path / "merged")


def test_an_archive_with_too_few_records_leaves_nothing_behind(shards, tmp_path):
    (part,) = (shards[0] / "archive").glob("part-*")
    write_archive(part, next(parts.read_records(shards[0])))
    state_digest(part)
    with pytest.raises(RunError, match="1 records, but"):
        merge_shards(shards, tmp_path / "merged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-1", "shard-2", "shard-3"]


def test_a_result_that_is_there_stays_if_it_is_equal_and_intact_and_is_refused_otherwise(shards, tmp_path):
    merge_shards(shards, tmp_path / "merged")
    (tmp_path / "merged" / "scores.json").write_text("{}")
    before = contents(tmp_path / "merged")
    assert len(merge_shards(shards[::-1], tmp_path / "merged")) == 12
    assert contents(tmp_path / "merged") == before
    other = roll_shards(tmp_path / "other", 3, replace(REQUEST, seed=1))
    with pytest.raises(RunError, match="differs from the merged shards"):
        merge_shards(other, tmp_path / "merged")
    assert contents(tmp_path / "merged") == before
    (part,) = archive_parts(tmp_path / "merged")
    part.write_bytes(b"")
    with pytest.raises(RunError, match="exists already"):
        merge_shards(shards, tmp_path / "merged")


def test_the_status_of_shards_lists_each_that_is_wanted_with_its_command(shards, tmp_path):
    for number, shard in enumerate(shards, start=1):
        said = f"safevla eval --shard {number}/3 --out runs/shard-{number} --record-only"
        change_description(shard, volatile={"command": said})
    assert list(list_shard_states(shards)) == []
    twice = shutil.copytree(shards[0], tmp_path / "twice")
    with pytest.raises(KeyboardInterrupt):
        roll_out(replace(REQUEST, shard=Shard(3, 3)), tmp_path / "begun", Watcher(stop_after=2))
    (tmp_path / "stray").mkdir()
    states = dict(list_shard_states([shards[0], tmp_path / "begun", twice, tmp_path / "stray"]))
    assert next(command for state, command in states.items() if "unfinished, 1 of" in state).startswith("safevla eval")
    assert [command for state, command in states.items() if f"{twice}: doubled" in state] == [""]
    assert states["shard 2/3: missing"] == "safevla eval --shard 2/3 --out runs/shard-2 --record-only"
    assert any(state.startswith(f"{tmp_path / 'stray'}: not") for state in states)
    assert len(states) == 4
    others = roll_shards(tmp_path / "other", 2, replace(REQUEST, seed=1))
    states = dict(list_shard_states([*shards, *others]))
    assert len(states) == 2
    assert all("plan differs" in state for state in states)
    with pytest.raises(RunError, match="is a shard"):
        list(list_shard_states([tmp_path / "nowhere"]))


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("safevla eval --shard 1/3 --out runs/2024", "safevla eval --shard 2/3 --out runs/2024-2"),
        ("safevla eval --shard 1/3 --out 'a 1'", "safevla eval --shard 2/3 --out 'a 2'"),
        ("safevla eval --out 'a", "the command of another shard, with --shard 2/3 and another --out"),
    ],
)
def test_the_folder_of_a_missing_shard_has_its_number(shards, command, wanted):
    for shard in shards:
        change_description(shard, volatile={"command": command})
    assert list(list_shard_states([shards[0], shards[2]])) == [("shard 2/3: missing", wanted)]


OTHER = "safevla_bench 0123456789abcdef, safevla_recorder 0123456789abcdef"


def test_shards_of_other_code_are_refused_with_both_codes_unless_it_is_allowed_and_then_marked(
    shards, tmp_path, monkeypatch, caplog
):
    (own,) = read_description(shards[0])["code"]
    monkeypatch.setattr(identity, "describe_code", lambda package: OTHER)
    roll_out(replace(REQUEST, shard=Shard(3, 3)), tmp_path / "other")
    given = [*shards[:2], tmp_path / "other"]
    with pytest.raises(RunError, match="different versions") as raised:
        merge_shards(given, tmp_path / "merged")
    assert own in str(raised.value)
    assert OTHER in str(raised.value)
    assert "--other-code" in str(raised.value)
    rows = merge_shards(given, tmp_path / "merged", other_code=True)
    assert OTHER in caplog.text
    assert read_description(tmp_path / "merged")["code"] == [own, OTHER]
    assert {row.code for row in rows if row.outcome != "crashed"} == {own, OTHER}


def test_a_shard_whose_code_is_unknown_is_merged_and_said_to_be_unknown(shards, tmp_path, caplog):
    (own,) = read_description(shards[0])["code"]
    change_description(shards[1], code=None)
    merge_shards(shards, tmp_path / "merged")
    assert f"{shards[1]}: the version of the code" in caplog.text
    assert read_description(tmp_path / "merged")["code"] == [own, "unknown"]


def test_a_run_of_other_code_is_not_resumed_unless_it_is_allowed_and_then_marked(tmp_path, monkeypatch, caplog):
    with pytest.raises(KeyboardInterrupt):
        roll_out(REQUEST, tmp_path / "run", Watcher(stop_after=4))
    (own,) = read_description(tmp_path / "run")["code"]
    monkeypatch.setattr(identity, "describe_code", lambda package: OTHER)
    with pytest.raises(RunError, match="different versions") as raised:
        roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(resume=True))
    assert own in str(raised.value)
    assert OTHER in str(raised.value)
    rows = roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(resume=True, other_code=True))
    assert OTHER in caplog.text
    assert read_description(tmp_path / "run")["code"] == [own, OTHER]
    assert {row.code for row in rows if row.outcome != "crashed"} == {own, OTHER}


def test_a_run_of_an_earlier_version_goes_on_and_its_code_stays_unknown(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        roll_out(REQUEST, tmp_path / "run", Watcher(stop_after=4))
    description = read_description(tmp_path / "run")
    (own,) = description.pop("code")
    (tmp_path / "run" / "run.json").write_text(json.dumps(description))
    for path in (tmp_path / "run" / "raw").glob("*.json"):
        row = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in row.items() if name != "code"}))
    roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(resume=True))
    assert "is unknown, so" in caplog.text
    assert sorted(read_description(tmp_path / "run")["code"]) == sorted([own, "unknown"])
