"""The table of all episodes: each is in it once, filed under what it is, with nothing made up."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from builders import crash
from report.scenes import NAN, run, verdicts
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.explain.episode import rank_by_severity, select_worst
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import episode_table as module
from safevla_bench.report.episode_details import EpisodeRecords
from safevla_bench.report.episode_table import build_episode_table
from safevla_bench.trajectory.batch import select_episodes

RULESET = load_ruleset()
BATCH = run(["calm", "rough"], [0.1, 1.0], 4, ["libero-goal", "libero-10"])
SCORES = score(BATCH, RULESET)
GONE = crash(episode_id="gone", policy="calm", reason="E: x")


def table_of(scores=SCORES, batch=BATCH, **found):
    return build_episode_table(EpisodeRecords(scores, batch, RULESET), **found)


def test_every_episode_is_listed_once_in_the_order_of_the_sources():
    entries = table_of(replace(SCORES, absent=(GONE,))).entries
    assert [entry.row.number for entry in entries] == list(range(1, len(SCORES) + 2))
    assert [entry.row.episode_id for entry in entries] == [*SCORES.episode_id, "gone"]


def test_of_many_episodes_the_worst_are_listed_and_the_others_are_counted(monkeypatch):
    everything = table_of(replace(SCORES, absent=(GONE,)))
    assert everything.left_out == 0
    monkeypatch.setattr(module, "MOST_LISTED", 3)
    table = table_of(replace(SCORES, absent=(GONE,)))
    assert len(table.entries) == 3
    assert table.left_out == len(everything.entries) - 3


def test_the_worst_of_each_policy_and_suite_is_listed_even_if_others_are_worse(monkeypatch):
    monkeypatch.setattr(module, "MOST_LISTED", 6)
    calm = select_episodes(BATCH, [k for k, policy in enumerate(SCORES.policy) if policy == "calm"])
    last = rank_by_severity(score(calm, RULESET))[-1]
    headers = [msgspec.structs.replace(h, policy="other") if k == last else h for k, h in enumerate(calm.headers)]
    batch = replace(calm, headers=tuple(headers))
    scores = score(batch, RULESET)
    assert last in select_worst(scores)
    assert last not in rank_by_severity(scores)[:6]
    assert {entry.row.number - 1 for entry in table_of(scores, batch).entries} == {*select_worst(scores)}


def test_an_episode_is_filed_under_its_policy_and_exactly_the_specifications_that_it_breaks():
    for k, entry in enumerate(table_of().entries):
        broken = {SCORES.specs[c].spec_id for c in SCORES.scored_columns if SCORES.is_violated[c, k]}
        assert (entry.facets["policy"], set(entry.facets["broken"])) == ([SCORES.policy[k]], broken)
        assert broken == {clause.spec_id for clause in entry.details.clauses if clause.violated}


def test_an_episode_is_filed_under_exactly_the_kinds_of_the_bodies_that_break_limits():
    violations = list(find_bodies([BATCH], SCORES, RULESET))
    for entry in table_of(violations=violations).entries:
        kinds = {kind for broken in violations if broken.number == entry.row.number for kind in broken.kinds}
        assert set(entry.facets["bodies"]) == kinds


def test_each_scored_specification_is_either_judged_or_says_why_not():
    for entry in table_of().entries:
        judged = [clause.spec_id for clause in entry.details.clauses]
        unjudged = [spec_id for spec_id, _, _ in entry.details.unjudged]
        assert sorted(judged + unjudged) == sorted(SCORES.specs[k].spec_id for k in SCORES.scored_columns)
        assert all(why for _, _, why in entry.details.unjudged)


def test_a_crashed_episode_has_a_reason_and_no_verdict():
    entry = table_of(verdicts(absent=(GONE,)), None).entries[0]
    assert (entry.kind, entry.lost, entry.severity, entry.first, entry.details.clauses) == (
        "cr",
        ["E: x"],
        "—",
        "—",
        (),
    )


def test_without_a_time_step_the_first_violation_is_shown_by_its_step():
    entries = table_of(SCORES, None).entries  # only records know their time step
    steps = [entry.row.first_violation_step for entry in entries]
    assert [entry.first for entry in entries] == ["—" if step is None else f"step {step}" for step in steps]


def test_an_episode_without_a_verdict_is_not_called_safe():
    entry = table_of(verdicts((True, NAN, NAN)), None).entries[0]
    assert (entry.kind, entry.ending, entry.severity) == ("nv", "Succeeded, no verdict", "—")
    assert entry.row.episode.no_verdict == "none_applies"


@pytest.mark.parametrize(
    ("outcome", "margin", "kind", "ending"),
    [
        ("invalid_action", 1.0, "nv", "Failed, no verdict (invalid action)"),
        ("invalid_action", -1.0, "fu", "Failed, unsafe (invalid action)"),
        ("stopped", 1.0, "nv", "Stopped, no verdict"),
        ("stopped", -1.0, "st", "Stopped, unsafe"),
    ],
)
def test_what_was_cut_short_is_unsafe_or_without_a_verdict_never_safe(outcome, margin, kind, ending):
    entry = table_of(verdicts((False, margin, 1.0), outcome=(outcome,)), None).entries[0]
    assert (entry.kind, entry.ending) == (kind, ending)
    assert (entry.severity == "—") == (kind == "nv")


def test_without_records_there_are_verdicts_and_nothing_is_drawn():
    table = table_of(SCORES, None)
    assert table.drawn_count == 0
    assert all(clause.spark is None for entry in table.entries for clause in entry.details.clauses)
    assert any(clause.verdict.startswith("violated by") for entry in table.entries for clause in entry.details.clauses)


def test_only_so_many_are_drawn_and_those_are_the_worst(monkeypatch):
    monkeypatch.setattr(module, "MOST_DRAWN", 3)
    table = table_of()
    with_spark = [k for k, entry in enumerate(table.entries) if any(clause.spark for clause in entry.details.clauses)]
    assert len(with_spark) == table.drawn_count == 3
    assert min(SCORES.vsi[with_spark]) >= max(np.delete(SCORES.vsi, with_spark))


def test_records_are_found_whatever_their_order():
    turned = select_episodes(BATCH, list(range(len(BATCH)))[::-1])
    assert table_of(SCORES, turned) == table_of()


@pytest.mark.parametrize(
    ("rho", "words"),
    [(-30.0, "violated by 30.0\N{NO-BREAK SPACE}N, depth 0.06"), (12.0, "kept by 12.0\N{NO-BREAK SPACE}N")],
)
def test_a_verdict_says_by_how_much(rho, words):
    entry = table_of(verdicts((True, rho, NAN)), None).entries[0]
    assert [clause.verdict for clause in entry.details.clauses] == [words]
