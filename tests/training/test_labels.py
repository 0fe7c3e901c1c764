"""Labels of records: what the monitor says when each record arrives, for whole batches at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders import BOWL, DRAWER, HAND, LINK, PLATE, contacts, episode
from judging.test_monitor import eventful
from judging.test_unknown_poses import DISP, N, known_but, places, track
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import ACTIVE, INACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.training.labels import HOLDS, UNKNOWN, VIOLATED, label_records, scored_specs
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import iterate_records

RULES = replace(load_ruleset(capabilities=("libero-full",)), missing="deactivate")


@settings(deadline=None, max_examples=12)
@example([91])
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=3, unique=True))
def test_labels_of_a_batch_are_what_a_monitor_says_of_each_record(seeds):
    batches = [eventful(seed) for seed in seeds]
    batch = concatenate_batches(batches)
    scores = score(batch, RULES)
    labels = label_records(batch, scores, RULES)
    names = [spec.spec_id for spec in scored_specs(scores)]
    monitor = Monitor(RULES)
    for e, single in enumerate(batches):
        of_episode = labels.select_records(int(batch.starts[e]), int(batch.starts[e + 1]))
        standings = []
        for k, record in enumerate(iterate_records(single)):
            standings.append(monitor.start(record) if k == 0 else monitor.observe(record))
        has_verdict = bool(standings[-1].scored)
        ends = {name: standings[-1].clauses[name].state for name in names}
        left_out = any(at.clauses[name].state == "active" != ends[name] for at in standings for name in names)
        for k, standing in enumerate(standings):
            violating = tuple(name for name in standing.violating if ends[name] == "active")
            assert tuple(np.array(names)[of_episode.violating[k]]) == violating
            expected = [standing.clauses[name].margin for name in names]
            active = [ends[name] == "active" for name in names]
            margins = [np.nan if m is None or not a else m for m, a in zip(expected, active, strict=True)]
            np.testing.assert_array_equal(of_episode.margin[k], margins)
            if left_out:
                continue  # a field that goes missing leaves a clause out of the whole episode: no monitor foresees it
            if has_verdict:
                assert (of_episode.cost[k], of_episode.severity[k]) == (standing.cost, standing.severity)
            else:
                assert np.isnan(of_episode.cost[k])
                assert of_episode.safe[k] == UNKNOWN


def test_the_smallest_margin_is_the_robustness_and_an_episode_is_safe_if_each_record_is():
    batch = concatenate_batches([eventful(seed) for seed in range(12)])
    scores = score(batch, RULES)
    labels = label_records(batch, scores, RULES)
    for e in range(len(batch)):
        part = labels.select_records(int(batch.starts[e]), int(batch.starts[e + 1]))
        for place, k in enumerate(scores.scored_columns):
            if scores.state[k, e] == ACTIVE and not scores.specs[k].binary:
                assert np.nanmin(part.margin[:, place]) == scores.rho[k, e]
        if (scores.state[scores.scored_columns, e] == ACTIVE).any():
            assert bool(scores.unsafe[e]) == bool((part.safe == 0).any())


def scored(seeds=range(12)):
    batch = concatenate_batches([eventful(seed) for seed in seeds])
    scores = score(batch, RULES)
    return batch, scores, label_records(batch, scores, RULES)


def test_the_worst_margin_of_a_record_is_relative_to_severe_and_between_its_bounds():
    _, scores, labels = scored()
    specs = scored_specs(scores)
    relative = np.stack(
        [
            np.sign(labels.margin[:, k]) if spec.binary else labels.margin[:, k] / spec.severe
            for k, spec in enumerate(specs)
        ],
        axis=1,
    )
    known = ~np.isnan(labels.worst)
    has_margin = ~np.isnan(relative).all(axis=1)
    assert (has_margin & known).sum() > 20
    np.testing.assert_array_equal(
        labels.worst[known & has_margin], np.clip(np.nanmin(relative[known & has_margin], axis=1), -1, 1)
    )
    assert ((labels.worst < 0) == labels.violating.any(axis=1))[known].all()
    np.testing.assert_array_equal(labels.weigh_records(0.5), np.exp(2 * labels.worst))


def test_a_record_that_no_clause_judges_has_no_weight_rather_than_one():
    batch = episode(5, benchmark="libero-goal", task_id="task_8", contacts=contacts((2, HAND, LINK, 900.0)))
    scores = score(batch, RULES)
    labels = label_records(batch, replace(scores, state=np.zeros_like(scores.state)), RULES)
    assert np.isnan(labels.weigh_records(1.0)).all()
    assert np.isnan(labels.costs_to_go(1.0)).all()


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 10_000), st.floats(0, 1))
def test_costs_to_go_are_the_discounted_sums_of_later_costs(seed, discount):
    _, scores, labels = scored([seed])
    powers = discount ** np.arange(len(labels.severity))
    costs = labels.costs_to_go(discount)
    for k in range(len(costs)):
        later = (labels.clause_cost[k:] * powers[: len(costs) - k, None]).sum(axis=0)
        np.testing.assert_allclose(costs[k], later, atol=1e-12)
    is_inactive = (scores.state[scores.scored_columns] == INACTIVE)[:, 0]
    assert np.isnan(costs[:, is_inactive]).all()
    np.testing.assert_array_equal(labels.clause_cost == 1, labels.violating)


def test_an_episode_that_was_cut_off_has_no_cost_to_go():
    batch, scores, _ = scored([1])
    for outcome in ("stopped", "crashed", "invalid_action"):
        labels = label_records(batch, replace(scores, outcome=(outcome,)), RULES)
        assert np.isnan(labels.costs_to_go(0.9)).all()
        assert not np.isnan(labels.cost).all()


def test_a_lost_body_makes_the_weight_and_earlier_costs_to_go_unknown_and_no_later_ones():
    still = track(PLATE, known_but(3, 4))
    labels = label_records(still, score(still, RULES), RULES)
    place = [spec.spec_id for spec in scored_specs(score(still, RULES))].index(DISP)
    assert np.flatnonzero(np.isnan(labels.weigh_records(1.0))).tolist() == [3, 4]
    assert np.flatnonzero(np.isnan(labels.costs_to_go(0.9)[:, place])).tolist() == [0, 1, 2, 3, 4]


def test_an_episode_that_nothing_judges_has_no_cost_rather_than_none():
    batch = episode(5, benchmark="libero-goal", task_id="task_8", contacts=contacts((2, HAND, LINK, 900.0)))
    scores = score(batch, RULES)
    none = replace(scores, state=np.zeros_like(scores.state))
    labels = label_records(batch, none, RULES)
    assert np.isnan(labels.cost).all()
    assert np.isnan(labels.margin).all()
    assert (labels.safe == UNKNOWN).all()


def test_a_record_at_which_a_clause_may_be_violated_is_not_called_safe():
    still = track(PLATE, known_but(3, 4))
    scores = score(still, RULES)
    labels = label_records(still, scores, RULES)
    place = [spec.spec_id for spec in scored_specs(scores)].index(DISP)
    assert scores.safe[0]  # on the other records
    assert np.flatnonzero(labels.safe == UNKNOWN).tolist() == [3, 4]
    assert np.flatnonzero(np.isnan(labels.margin[:, place])).tolist() == [3, 4]
    assert np.flatnonzero(np.isnan(labels.cost)).tolist() == [3, 4]


def test_a_violation_that_is_seen_is_one_while_another_body_is_lost():
    pushed = np.where(np.arange(N) >= 5, 0.1, 0.0)
    batch = track(DRAWER, [True] + [False] * (N - 1), body_pos_m=places(pushed))
    labels = label_records(batch, score(batch, RULES), RULES)
    assert labels.safe.tolist() == [HOLDS] + [UNKNOWN] * 4 + [VIOLATED] * (N - 5)


def test_a_lost_body_that_no_open_gate_asks_for_leaves_the_label_known():
    loose = track(BOWL, known_but(5, 6))
    assert (label_records(loose, score(loose, RULES), RULES).safe == HOLDS).all()
    gripped = track(BOWL, known_but(5, 6), gripper_contact=np.ones(N, dtype=np.bool_))
    labels = label_records(gripped, score(gripped, RULES), RULES)
    assert np.flatnonzero(labels.safe == UNKNOWN).tolist() == [5, 6]


def test_a_formula_over_several_records_costs_where_it_is_first_violated(tmp_path):
    (tmp_path / "soon.toml").write_text(SOON)
    rules = load_ruleset(spec_files=[tmp_path / "soon.toml"], missing="deactivate")
    batch = select_episodes(concatenate_batches([episode(6), episode(6, episode_id="b")]), [0])
    scores = score(batch, rules)
    place = [spec.spec_id for spec in scored_specs(scores)].index("soon_gripped")
    labels = label_records(batch, scores, rules)
    assert scores.unsafe[0]
    assert np.isnan(labels.margin[:, place]).all()
    assert np.flatnonzero(labels.violating[:, place]).tolist() == [int(scores.first_violation[0][0])]


SOON = """
[[specs]]
spec_id = "soon_gripped"
canonical_family = "max_contact_force"
axis = "scene_interaction"
tier = "safe"
stl = "F[0,T](max_contact_force > threshold)"
threshold = 10
severe = 20
unit = "N"
requires_all = []
source = "a test"
rationale = "Something is touched at last."
"""


def test_a_violation_that_a_boolean_decided_has_the_least_weight_and_not_an_unknown_one(tmp_path):
    (tmp_path / "held.toml").write_text(SOON.replace("F[0,T](max_contact_force > threshold)", HELD))
    rules = load_ruleset(spec_files=[tmp_path / "held.toml"], missing="deactivate")
    batch = episode(6)
    scores = score(batch, rules)
    labels = label_records(batch, scores, rules)
    place = [spec.spec_id for spec in scored_specs(scores)].index("soon_gripped")
    assert np.isneginf(labels.margin[:, place]).all()
    assert (labels.worst == -1).all()
    np.testing.assert_array_equal(labels.weigh_records(2.0), np.full(6, np.exp(-0.5)))


HELD = "G[0,T](grip & (max_contact_force < threshold))"
