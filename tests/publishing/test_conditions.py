"""On a board only official tasks, planned starts and the same conditions compete with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builders import episode, official_fields
from folders import TAGS, record_own_loop
from report.test_page import Checked
from safevla_bench import archive
from safevla_bench.compare.decisions import select_policy
from safevla_bench.jobs.evaluation.judgement import judge, split_judged
from safevla_bench.jobs.evaluation.outputs import build_board
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing.conditions import read_conditions
from safevla_bench.publishing.result_files import (
    ModelFacts,
    build_card,
    encode_harness_results,
    encode_lerobot_results,
    format_eval_results,
)
from safevla_bench.publishing.submission import build_submission
from safevla_bench.report.tables.comparison_answer import selection_table
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_recorder.episode import add_header_field

PROOF = official_fields("libero-goal", "task_8")
OTHER = "0" * 64


def write_policy(folder: Path, policy: str, states: tuple[int | None, ...] = (0, 1), mark: str = "", **changes) -> Path:
    fields = {"env_seed": 7, "horizon": 300, "seed": 0, **changes}
    extra = add_header_field({}, mark, {"source": "x"}) if mark else {}
    records = [
        episode(policy=policy, episode_id=f"{folder.name}/{k}", init_state_index=state, extra=extra, **fields)
        for k, state in enumerate(states)
    ]
    folder.mkdir(exist_ok=True)
    path = folder / f"{policy}.parquet"
    archive.write_archive(path, concatenate_batches(records))
    return path


def ranks(*paths: Path) -> list[list[tuple[str, str]]]:
    """Rank and policy with remarks of each row of each table of a user's own runs."""
    page = build_board(paths, load_ruleset(missing="deactivate"), reports=False)["index.html"]
    own = page.partition('id="runs"')[2].partition("</section>")[0]
    rows = [re.findall(r'<span class="rank">(.*?)</span><span class="name">(.*?)</span></div>', table, re.S)
            for table in own.split("<table")[1:]]  # fmt: skip
    return [[(rank, Checked(f"<p>{name}</p>").text.strip()) for rank, name in table] for table in rows]


def test_official_episodes_are_ranked_and_others_of_their_name_are_not(tmp_path):
    official, bare, own = (
        write_policy(tmp_path, "official", **PROOF),
        write_policy(tmp_path, "bare", instruction=PROOF["instruction"]),
        write_policy(tmp_path, "own", **{**PROOF, "task_sha256": OTHER}),
    )
    together, apart = ranks(official, bare, own)
    assert {name.split()[0]: rank for rank, name in together} == {"official": "1", "bare": "·"}
    assert any("identity not recorded" in name for _, name in together)
    assert [(mark, "task definition" in why) for mark, why in apart] == [("·", True)]
    later = write_policy(tmp_path, "later", horizon=100, instruction=PROOF["instruction"])
    assert [rank for table in ranks(official, later) for rank, _ in table] == ["1", "·"], "in no other table either"


def test_records_without_identities_are_ranked_among_themselves_as_ever(tmp_path):
    (table,) = ranks(*(write_policy(tmp_path, name) for name in "ab"))
    assert [rank for rank, _ in table] == ["1–2", "1–2"]


@pytest.mark.parametrize(
    ("states", "mark"),
    [((None, None), ""), ((3, 4), ""), ((0, 0), ""), ((0, 1), "replay"), ((0, 1), "chosen_start"),
     ((0, 1), "drawn_start")],
)  # fmt: skip
def test_a_policy_with_other_starts_has_no_rank_and_its_row_says_so(tmp_path, states, mark):
    mine, honest = write_policy(tmp_path, "mine", states, mark, **PROOF), write_policy(tmp_path, "honest", **PROOF)
    rows = {name.split()[0]: (rank, name) for table in ranks(mine, honest) for rank, name in table}
    assert (rows["mine"][0], "its starts" in rows["mine"][1]) == ("·", True)
    assert rows["honest"][0] == "1"


@pytest.mark.parametrize("changes", [{"horizon": 100}, {"env_seed": 8}])
def test_other_conditions_have_another_table(tmp_path, changes):
    tables = ranks(write_policy(tmp_path, "a", **PROOF), write_policy(tmp_path, "b", **PROOF, **changes))
    assert [[rank for rank, _ in table] for table in tables] == [["1"], ["1"]]


def test_conditions_of_several_sources_are_joined_in_any_order_of_the_sources(tmp_path):
    short, usual = (
        write_policy(tmp_path / str(horizon), "a", task_id=task, horizon=horizon)
        for horizon, task in ((100, "task_0"), (300, "task_1"))
    )
    for paths in ([short, usual], [usual, short]):
        (conditions,) = read_conditions(judge(paths, load_ruleset(missing="deactivate"))).values()
        assert (conditions.horizon, conditions.env_seed) == ("100 and 300", "7")


@pytest.mark.parametrize(("waited", "printed"), [([], "unknown"), ([10], "10"), ([5, 10], "10 and 5")])
def test_still_steps_of_a_loop_of_one_s_own_are_printed_as_numbers(tmp_path, waited, printed):
    (tmp_path / "tags.toml").write_text(TAGS)
    rules = load_ruleset(registry_files=[tmp_path / "tags.toml"], missing="deactivate")
    described = json.loads((record_own_loop(tmp_path / "run") / "run.json").read_text())
    described["protocol"]["wait_steps"] = waited
    (tmp_path / "run" / "run.json").write_text(json.dumps(described))
    (conditions,) = read_conditions(judge([tmp_path / "run"], rules)).values()
    assert conditions.wait_steps == printed


def test_versions_and_judge_are_stated_and_are_no_warnings(tmp_path):
    page = build_board([write_policy(tmp_path, "a")], load_ruleset(missing="deactivate"), reports=False)["index.html"]
    own = page.partition('id="runs"')[2].partition("</section>")[0]
    assert re.search('<p class="note">Judged by', own)
    assert not re.search('<p class="flag">(Simulated with|Judged by)', own)


def test_suites_that_are_not_official_need_no_planned_starts(tmp_path):
    paths = [write_policy(tmp_path, name, (5, 6), benchmark="fake", task_id="task_0") for name in "ab"]
    (table,) = ranks(*paths)
    assert [rank for rank, _ in table] == ["1–2", "1–2"]


def test_a_choice_and_a_submission_say_which_episodes_are_not_known_to_be_official(tmp_path):
    paths = [write_policy(tmp_path, name, **fields) for name, fields in (("official", PROOF), ("bare", {}))]
    judged = judge(paths, load_ruleset(missing="deactivate"))
    selection = select_policy(judged.scores, judged.headers, split_judged(judged), "safety")
    assert any("identity not recorded" in line for line in selection_table(selection).remarks)
    marks = {cell["policy"]: cell["task_identity"] for cell in build_submission(judged, paths)["cells"]}
    assert marks == {"official": {}, "bare": {"identity_not_recorded": 2}}
    card = build_card(judge(paths[1:], judged.ruleset), ModelFacts(), ())
    assert "identity_not_recorded" in card.partition("\n---\n")[0]


def test_an_invalid_episode_counts_only_for_the_policies_of_its_source(tmp_path):
    paths = [write_policy(tmp_path, name) for name in "ab"]
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    rules = load_ruleset(missing="deactivate")

    def uncounted(*sources):
        judged = judge(sources, rules, skip_invalid=True)
        return {result.name: (result.left_out, result.uncounted) for result in split_judged(judged)}

    invalid = ("1 invalid episode left out",)
    mixed = tmp_path / "a.jsonl"
    archive.write_archive(mixed, archive.open_archive(paths[0]))
    mixed.write_text(mixed.read_text() + "{}\n")
    assert uncounted(mixed, paths[1]) == {"a": (invalid, invalid), "b": ((), ())}
    # The episode of a source without a valid episode may be of any policy.
    assert uncounted(*paths, bad) == dict.fromkeys("ab", (invalid, invalid))


@pytest.mark.parametrize("states", [(0, 1), (3, 4)])
def test_what_is_published_of_other_starts_says_so_in_each_form(tmp_path, states):
    path = write_policy(tmp_path, "mine", states, **PROOF)
    judged = judge([path], load_ruleset(missing="deactivate"))
    (cell,) = build_submission(judged, [path])["cells"]
    facts = ModelFacts(dataset_id="lab/libero")
    texts = [
        build_card(judged, facts, ()),
        format_eval_results(judged, facts),
        *(encode(judged).decode() for encode in (encode_lerobot_results, encode_harness_results)),
    ]
    is_own = states != (0, 1)
    assert cell["rank_refused"] == ("not ranked: its starts are not the official ones" if is_own else None)
    assert [("Not ranked: its starts are not the official ones." in text) for text in texts] == [is_own] * 4
    assert ('"rank_refused": "not ranked: its starts are not the official ones"' in texts[0]) == is_own
