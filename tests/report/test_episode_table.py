"""The register: every episode is on it, filed under what it is, with nothing made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from report.scenes import NAN, joined, rollout, run, verdicts
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.explain.exposure import PHASES, holding, phases
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report import episode_table as module
from safevla_bench.report.episode_table import build_episode_table
from safevla_bench.signals.signal import RecordFields
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.trajectory.batch import select_episodes

RULESET = load_ruleset()
BATCH = run(["calm", "rough"], [0.1, 1.0], 4, ["libero-goal", "libero-10"])
SCORES = score(BATCH, RULESET)
GONE = AbsentEpisode(
    episode_id="gone", benchmark="libero-goal", task_id="task_0", policy="calm", outcome="crashed", reason="E: x"
)


def test_every_episode_is_listed_once_in_the_order_of_the_sources():
    entries = build_episode_table(replace(SCORES, absent=(GONE,)), BATCH, RULESET).entries
    assert [entry.row.number for entry in entries] == list(range(1, len(SCORES) + 2))
    assert [entry.row.episode_id for entry in entries] == [*SCORES.episode_id, "gone"]


def test_facets_file_each_episode_under_its_own_choices_and_count_them():
    table = build_episode_table(SCORES, BATCH, RULESET)
    for facet in table.facets:
        filed = [entry.facets[facet.name].split() for entry in table.entries]
        for index, (_, count) in enumerate(facet.choices):
            assert sum(str(index) in choices for choices in filed) == count
    policies = dict(enumerate(label for label, _ in table.facets[0].choices))
    assert [policies[int(entry.facets["policy"])] for entry in table.entries] == list(SCORES.policy)


def test_an_episode_is_filed_under_exactly_the_specifications_that_it_breaks():
    table = build_episode_table(SCORES, BATCH, RULESET)
    (facet,) = [entry for entry in table.facets if entry.name == "broken"]
    for k, entry in enumerate(table.entries):
        broken = {facet.choices[int(index)][0] for index in entry.facets["broken"].split()}
        assert broken == {SCORES.specs[c].spec_id for c in SCORES.scored_columns if SCORES.is_violated[c, k]}
        assert broken == {clause.spec_id for clause in entry.clauses if clause.violated}


def test_an_episode_is_filed_under_exactly_the_kinds_of_the_bodies_that_break_limits():
    violations = find_bodies([BATCH], SCORES, RULESET).violations
    table = build_episode_table(SCORES, BATCH, RULESET, violations=violations)
    (facet,) = [entry for entry in table.facets if entry.name == "bodies"]
    assert facet.choices
    for entry in table.entries:
        kinds = {facet.choices[int(index)][0] for index in entry.facets["bodies"].split()}
        assert kinds == {kind for found in violations if found.number == entry.row.number for kind in found.kinds}


def test_without_a_search_for_bodies_there_is_no_filter_by_their_kind():
    table = build_episode_table(SCORES, BATCH, RULESET)
    assert "bodies" not in [facet.name for facet in table.facets]
    assert all("bodies" not in entry.facets for entry in table.entries)


def test_each_scored_specification_is_either_judged_or_says_why_not():
    for entry in build_episode_table(SCORES, BATCH, RULESET).entries:
        spec_ids = [clause.spec_id for clause in entry.clauses] + [spec.spec_id for spec in entry.unjudged]
        assert sorted(spec_ids) == sorted(SCORES.specs[k].spec_id for k in SCORES.scored_columns)
        assert all(spec.why for spec in entry.unjudged)


def test_a_crashed_episode_has_a_reason_and_no_verdict():
    entry = build_episode_table(verdicts(absent=(GONE,)), None, RULESET).entries[0]
    assert (entry.kind, entry.lost, entry.vsi, entry.first, entry.clauses) == ("cr", ["E: x"], "—", "—", ())
    assert entry.keys.split()[1:2] + entry.keys.split()[4:] == ["-"] * 4


def test_without_a_time_step_the_first_violation_is_shown_and_sorted_by_its_step():
    entries = build_episode_table(SCORES, None, RULESET).entries  # only records know their time step
    shown = [entry for entry in entries if entry.first != "—"]
    assert shown
    assert [entry.first for entry in shown] == [f"step {entry.keys.split()[-1]}" for entry in shown]
    assert all(key == "-" or np.isfinite(float(key)) for entry in entries for key in entry.keys.split())


def test_an_episode_without_a_verdict_is_not_called_safe():
    entry = build_episode_table(verdicts((True, NAN, NAN)), None, RULESET).entries[0]
    assert (entry.kind, entry.ending, entry.vsi) == ("nv", "Succeeded, no verdict", "—")
    assert entry.row.no_verdict == "no specification applies"


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
    entry = build_episode_table(verdicts((False, margin, 1.0), outcome=(outcome,)), None, RULESET).entries[0]
    assert (entry.kind, entry.ending) == (kind, ending)
    assert (entry.vsi == "—") == (kind == "nv")


def test_without_records_verdicts_are_told_and_nothing_is_drawn():
    table = build_episode_table(SCORES, None, RULESET)
    assert table.drawn_count == 0
    assert all(clause.spark is None for entry in table.entries for clause in entry.clauses)
    assert any(clause.verdict.startswith("violated by") for entry in table.entries for clause in entry.clauses)


def test_only_so_many_are_drawn_and_those_are_the_worst(monkeypatch):
    monkeypatch.setattr(module, "MOST_DRAWN", 3)
    table = build_episode_table(SCORES, BATCH, RULESET)
    drawn = [k for k, entry in enumerate(table.entries) if any(clause.spark for clause in entry.clauses)]
    assert len(drawn) == table.drawn_count == 3
    assert min(SCORES.vsi[drawn]) >= max(np.delete(SCORES.vsi, drawn))


def test_records_are_found_whatever_their_order():
    turned = select_episodes(BATCH, list(range(len(BATCH)))[::-1])
    assert build_episode_table(SCORES, turned, RULESET) == build_episode_table(SCORES, BATCH, RULESET)


def test_natural_order_puts_task_10_behind_task_9():
    scores = joined(*(verdicts((True, 1, 1), policy=f"p{k}") for k in (10, 9, 2)))
    (facet,) = [entry for entry in build_episode_table(scores, None, RULESET).facets if entry.name == "policy"]
    assert [label for label, _ in facet.choices] == ["p2", "p9", "p10"]


def test_names_that_are_hard_to_order_have_one_order_all_the_same():
    names = ["p1", "p01", "p" + "9" * 10_000, "p\u0661", "", "p"]
    orders = []
    for turned in (names, names[::-1]):
        scores = joined(*(verdicts((True, 1, 1), policy=name) for name in turned))
        orders.append([label for label, _ in build_episode_table(scores, None, RULESET).facets[0].choices])
    assert orders[0] == orders[1]


def test_phases_fill_the_episode_and_their_times_add_up():
    batch = rollout(3, 0.5, n=100)
    scores = score(batch, RULESET)
    phase = phases(RecordFields(batch), holding(batch, RULESET.registry))
    (entry,) = build_episode_table(scores, batch, RULESET, [phase]).entries
    assert (phase >= 0).all()
    assert sum(int(part.width) for part in entry.phases.spans) == pytest.approx(1000, abs=len(entry.phases.spans))
    assert sum(float(time.split()[0]) for _, _, time in entry.phases.durations) == pytest.approx(100 * 0.05)
    assert {name for _, name, _ in entry.phases.durations} <= set(PHASES)
    assert all(entry.phases is None for entry in build_episode_table(scores, batch, RULESET).entries)


@pytest.mark.parametrize(
    ("rho", "words"),
    [(-30.0, "violated by 30.0\N{NO-BREAK SPACE}N, depth 0.06"), (12.0, "kept by 12.0\N{NO-BREAK SPACE}N")],
)
def test_a_verdict_says_by_how_much(rho, words):
    entry = build_episode_table(verdicts((True, rho, NAN)), None, RULESET).entries[0]
    assert [clause.verdict for clause in entry.clauses] == [words]
