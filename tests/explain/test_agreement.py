"""Others' labels beside our verdicts: who is counted where, which episodes disagree, and kappa."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.inter_rater import cohens_kappa

from builders import recording
from report.scenes import NAN, verdicts
from safevla_bench.errors import RunError
from safevla_bench.explain.agreement import CostLabel, cohen_kappa, kappa_interval, measure_agreement, read_labels
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report.tables.catalog import TableInputs, build_tables
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import add_costs

SAFE, UNSAFE = {"cost": CostLabel(0.0, -1)}, {"cost": CostLabel(2.0, 5)}
GOOD, BAD = (True, 1, 1), (True, -5, 1)


def count_by_clause(labels, scores):
    rows, differing = measure_agreement(labels, scores)
    by_clause = {row.clause: (row.counts.tolist(), row.unlabeled, row.undecided) for row in rows}
    return by_clause, [row.episode for row in differing]


def test_each_episode_is_in_one_cell_of_the_confusion_and_the_differing_ones_are_named():
    scores = verdicts(GOOD, GOOD, BAD, BAD, BAD)
    by_clause, differing = count_by_clause([SAFE, UNSAFE, SAFE, UNSAFE, UNSAFE], scores)
    assert by_clause["any"] == ([[1, 1], [1, 2]], 0, 0)
    assert differing == [1, 2]


def test_no_label_no_verdict_and_an_inactive_clause_are_counted_apart_and_never_as_safe():
    scores = verdicts(GOOD, (True, NAN, NAN), (True, NAN, -5), GOOD)
    by_clause, differing = count_by_clause([{}, SAFE, UNSAFE, SAFE], scores)
    assert by_clause["any"] == ([[1, 0], [0, 1]], 1, 1)
    force = scores.specs[0].spec_id
    assert by_clause[force] == ([[1, 0], [0, 0]], 1, 2)
    assert not differing


def test_an_episode_that_was_cut_short_is_safe_to_neither():
    scores = verdicts(GOOD, GOOD, BAD, outcome=("stopped",) * 3)
    by_clause, _ = count_by_clause([SAFE, UNSAFE, SAFE], scores)
    assert by_clause["any"] == ([[0, 0], [0, 0]], 2, 1)


def test_a_step_without_a_cost_leaves_open_if_the_episode_was_safe_unless_it_is_the_last():
    steps = ([0, None, 0], [0, 0, None], [0, None, 3], [None, None, 0])
    records = [add_costs(recording(4, episode_id=f"e{k}"), costs) for k, costs in enumerate(steps)]
    labels = read_labels([from_recording(record) for record in records])
    rows, _ = measure_agreement(labels, verdicts(*[GOOD] * 4))
    assert (rows[0].counts.tolist(), rows[0].unlabeled) == ([[1, 0], [1, 0]], 2)


def test_labels_are_read_from_records_by_name_with_the_record_of_the_first_cost():
    costs = [{"cost": 0.0, "hazards": 1}, {"cost": 1.5, "hazards": 0}]
    labeled = add_costs(recording(3, episode_id="labeled"), costs)
    unnamed = add_costs(recording(3, episode_id="unnamed"), [0, 1])
    batches = [from_recording(part) for part in (labeled, recording(2), recording(1))]
    batches.append(from_recording(unnamed.__class__(**{**vars(unnamed), "extra": {}})))
    assert read_labels([concatenate_batches(batches)]) == [
        {"cost": CostLabel(1.5, 2), "hazards": CostLabel(1.0, 1)},
        {},
        {},
        {"cost 0": CostLabel(1.0, 2)},
    ]


def test_the_tables_show_kappa_and_what_each_says_of_the_episodes_of_disagreement(monkeypatch):
    scores = verdicts(GOOD, GOOD, BAD, BAD)
    monkeypatch.setattr("safevla_bench.report.tables.catalog.read_labels", lambda _: [SAFE, UNSAFE, SAFE, UNSAFE])
    inputs = TableInputs(scores=scores, ruleset=load_ruleset(), records=scan([]))
    table, differing = build_tables(inputs, ["agree"])
    row = {column.full: cell for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert (row["κ"].value, row["Agree %"].text, row["n"].value) == (0.0, "50.0", 4)
    assert [[cell.text for cell in row] for row in differing.rows] == [
        ["e1", "a", "cost: total 2, from record 5", "safe"],
        ["e2", "a", "cost: safe", f"{scores.specs[0].spec_id}, from record 3"],
    ]


def test_without_labels_the_table_says_what_is_missing():
    inputs = TableInputs(scores=verdicts(GOOD), ruleset=load_ruleset(), records=scan([]))
    with pytest.raises(RunError, match="no data for table 'agree'") as caught:
        build_tables(inputs, ["agree"])
    assert "record has costs" in caught.value.remedy


def test_a_label_differs_where_no_two_sources_share_names():
    scores = verdicts(GOOD, BAD)
    rows, _ = measure_agreement([{"a": CostLabel(0.0, -1)}, {"b": CostLabel(1.0, 1)}], scores)
    assert [(row.label, row.n, row.unlabeled) for row in rows if row.clause == "any"] == [("a", 1, 1), ("b", 1, 1)]


# Kappa against statsmodels and a value by hand; its interval against a simulation


@pytest.mark.parametrize("counts", [(20, 5, 10, 15), (3, 0, 1, 6), (5, 0, 0, 5), (0, 4, 7, 0), (90, 3, 6, 1)])
def test_kappa_is_that_of_statsmodels(counts):
    table = np.array(counts).reshape(2, 2)
    assert float(cohen_kappa(table)) == pytest.approx(cohens_kappa(table).kappa)


def test_kappa_is_that_of_scikit_learn():
    """sklearn.metrics.cohen_kappa_score([0, 0, 1, 1, 1, 0, 1, 0, 1, 1], [0, 1, 1, 1, 0, 0, 1, 0, 1, 1]) is 7/12."""
    assert float(cohen_kappa(np.array([[3, 1], [1, 5]]))) == pytest.approx(7 / 12)


@pytest.mark.parametrize("counts", [(0, 0, 0, 0), (9, 0, 0, 0), (0, 0, 0, 4)])
def test_if_chance_alone_agrees_there_is_no_kappa(counts):
    table = np.array(counts).reshape(2, 2)
    assert np.isnan(cohen_kappa(table))
    assert kappa_interval(table) is None


def test_few_episodes_that_all_agree_leave_room_for_disagreement():
    few, many = (kappa_interval(np.array([[n, 0], [0, n]])) for n in (4, 200))
    assert few.low < 0.6 < 0.97 < many.low


def test_the_interval_covers_the_true_kappa():
    shares = np.array([0.7, 0.05, 0.05, 0.2])
    true = float(cohen_kappa(shares.reshape(2, 2)))
    tables = np.random.default_rng(0).multinomial(20, shares, size=200).reshape(-1, 2, 2)
    intervals = [interval for counts in tables if (interval := kappa_interval(counts))]
    assert np.mean([interval.low <= true <= interval.high for interval in intervals]) > 0.9
