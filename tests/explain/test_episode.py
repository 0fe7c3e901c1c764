"""The explanation of an episode: the verdict's own records and numbers; and the choice of the worst episodes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from report.scenes import NAN, joined, run, verdicts
from safevla_bench.explain.episode import explain_episode, select_worst, to_document
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score

RULESET = load_ruleset()
BATCH = run(["a"], [1.0], 10, ["libero-10"])
SCORES = score(BATCH, RULESET)


@pytest.mark.parametrize("episode", range(len(BATCH)))
def test_every_clause_has_the_numbers_of_the_scores(episode):
    explanation = explain_episode(SCORES, BATCH, RULESET, episode)
    assert explanation.number == episode + 1
    violated = [clause.violated for clause in explanation.clauses]
    assert violated == sorted(violated, reverse=True)
    assert {clause.spec.spec_id for clause in explanation.violated_clauses} == {
        SCORES.specs[k].spec_id for k in SCORES.scored_columns if SCORES.is_violated[k, episode]
    }
    for clause in explanation.clauses:
        column = SCORES.specs.index(clause.spec)
        failing = np.flatnonzero(clause.signal_trace.failing).tolist()
        assert clause.chart.first == SCORES.first[column, episode] == (failing[0] if failing else -1)
        assert bool(failing) == clause.violated
        assert clause.worst.value == SCORES.extreme[column, episode]
    earliest = min((clause.first.step for clause in explanation.violated_clauses if clause.first), default=None)
    assert earliest == explanation.score.first_violation_step
    json.dumps(to_document(explanation), allow_nan=False)


def test_the_scene_breaks_limits_of_several_kinds():
    broken = {SCORES.specs[k].spec_id for k in SCORES.scored_columns if SCORES.is_violated[k].any()}
    assert broken >= {"max_contact_force_under_200N", "non_target_max_disp_5mm", "stable_grasp_maintained_2cm"}


# The worst episodes


def test_the_deepest_violations_come_first_and_ties_by_the_smallest_margin():
    scores = verdicts((True, -10, 1), (True, -900, 1), (True, 5, 1), (False, -600, 1), (True, 1, -20))
    assert select_worst(scores) == [1, 3, 4, 0]


def test_cells_take_turns_so_that_one_bad_policy_does_not_hide_the_others():
    rough, calm = verdicts(*[(True, -900, 1)] * 10), verdicts((True, -1, 1), (True, 1, 1), policy="b")
    assert 10 in select_worst(joined(rough, calm), max_count=6)
    assert len(select_worst(joined(rough, calm), max_count=6)) == 6


def test_a_stopped_episode_is_evidence_of_what_it_violated_and_of_nothing_else():
    assert select_worst(verdicts((True, -9, 1), (False, -9, 1), outcome=("success", "stopped"))) == [0, 1]
    assert select_worst(verdicts((True, 9, 1), (False, 2, 1), outcome=("success", "stopped"))) == [0]


def test_without_a_violation_the_closest_calls_are_shown():
    assert select_worst(verdicts((True, 100, 10), (True, 3, 10), (True, NAN, NAN)), max_count=2) == [1, 0]
