"""The tables of what the records show.

Tables of bodies: each kind has its own rate over the episodes of the cell.
"""

from __future__ import annotations

import numpy as np
import pytest

from builders import contacts, episode
from explain.test_bodies import pushing
from explain.test_exposure import hit, measured
from report.scenes import run
from report.tables.reading import texts
from safevla_bench.archive import write_archive
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.explain.exposure import measure_onsets, summarize_exposure
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import table_material
from safevla_bench.judging.metrics import cells, task_rates
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.figures.tradeoff import _tradeoff_notes, compute_tradeoff
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import explain
from safevla_bench.report.tables.catalog import build_tables
from safevla_bench.report.tables.cells import Roster, constraint_table, violation_table
from safevla_bench.report.tables.columns import drop_intervals
from safevla_bench.report.tables.tasks import task_table
from safevla_bench.statistics.intervals import bounded_mean_interval
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.single_episode import empty_batch

RULESET = load_ruleset(missing="deactivate")
FORCE = "max_contact_force_under_200N"


def body_table(batch):
    scores = score(batch, RULESET)
    return explain.body_table(list(find_bodies([batch], scores, RULESET)), scores)


def bodies_texts(table):
    return [dict(zip((column.full for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows]  # fmt: skip


PUSHED = concatenate_batches(
    [pushing({"plate_1": 0.02}), pushing({"plate_1": 0.03, "cookies_1": 0.008}), pushing({"cookies_1": 0.004}),
     pushing({"plate_1": 0.001})]
)  # fmt: skip


def test_each_kind_has_its_share_of_the_cell_s_episodes_and_names_its_bodies():
    kinds = body_table(PUSHED)
    rows = bodies_texts(kinds)
    assert [(row["Kind of body"], row["Episodes"], row["%"]) for row in rows] == [
        ("goal receptacle", "2", "50.0"),
        ("distractor", "1", "25.0"),
    ]
    assert [row["Bodies"] for row in rows] == ["plate_1 (2)", "cookies_1 (1)"]
    assert rows[0]["Worst"] == "30.0\u00a0mm"


def test_a_cell_that_judges_no_displacement_has_no_row():
    batch = pushing({"plate_1": 0.02}, "task_0", "libero-goal")  # opens a drawer: the clause does not apply
    kinds = body_table(batch)
    assert kinds.rows == ()
    assert ["contact or displacement" in note for note in kinds.notes] == [True]


def test_a_touch_has_no_size():
    kinds = body_table(run(["a"], [1.0], 10, ["libero-spatial"]))
    rows = [row for row in bodies_texts(kinds) if row["Specification"] == "self_collision_free"]
    assert rows
    assert {(row["Kind of body"], row["Worst"]) for row in rows} == {("arm link – gripper", "touched")}


def test_of_dependent_episodes_a_share_has_one_interval_on_all_tables_and_figures_which_is_named():
    """Five starts with four seeds each; the share of force violations appears in five tables and a figure."""
    force = [[300.0 if (start + seed) % 3 else 1.0 for seed in range(4)] for start in range(5)]
    episodes = [
        episode(4, episode_id=f"{start}-{seed}", init_state_index=start, env_seed=7, seed=seed, policy="p",
                contacts=contacts((2, 0, 2, force[start][seed])))
        for start in range(5) for seed in range(4)
    ]  # fmt: skip
    batch = concatenate_batches(episodes)
    scores, roster = score(batch, RULESET), Roster()
    onsets = measure_onsets(scores, batch.dt_s, batch.lengths)
    [cell] = cells(scores)
    [rate] = [spec.violations for spec in cell.specs if spec.spec_id == FORCE]
    means = np.array([np.mean([f > 200 for f in of_start]) for of_start in force])
    independent = bounded_mean_interval(means)  # starts of equal size
    assert (rate.starts, rate.value, rate.ci) == (5, means.mean(), pytest.approx((independent.low, independent.high)))
    tables = [
        constraint_table([cell], roster),
        violation_table(cell),
        body_table(batch),
        explain.onset_table(onsets),
        task_table(task_rates(scores), [cell], roster),
    ]
    shown = [
        {(found.value, found.interval) for row in table.rows for found in row if found.interval
         and found.value == pytest.approx(100 * rate.value)}
        for table in tables[:4]
    ]  # fmt: skip
    assert all(shown)
    expected = pytest.approx((100 * rate.ci[0], 100 * rate.ci[1]))
    assert all(interval == expected for pairs in shown for _, interval in pairs)
    for table in tables:
        labels = [*table.notes, *(column.meaning for column in table.columns)]
        assert any("for the mean over starts, Gaffke" in label for label in labels), table.title
        assert not any("Wilson" in label for label in labels), table.title
    assert tables[4].rows[0][3].text == "20, 5 starts"
    figure_notes = [note for note in _tradeoff_notes(compute_tradeoff([cell])) if "Bars" in note]
    assert ["Wilson" in note for note in figure_notes] == [False]


# Exposure: what was not measured is a dash with its reason, never a zero


def exposure_of(batch):
    spent, scores = measured(batch, missing="deactivate")
    return explain.exposure_table(summarize_exposure(spent, scores))


def row_of(table, row):
    return dict(zip((column.name for column in table.columns), table.rows[row], strict=True))


def test_one_row_says_how_long_and_when():
    batch = concatenate_batches([hit((4, 300), (5, 300)), hit((4, 3), episode_id="soft", success=False)])
    row = row_of(exposure_of(batch), 0)
    assert [row[name].text for name in ("n", "In violation", "First violation")] == ["2", "0.05", "0.20"]
    assert row_of(exposure_of(hit((4, 3))), 0)["First violation"].detail == "none unsafe"


def test_only_violated_specifications_have_a_row_beside_any_limit():
    assert texts(exposure_of(hit((4, 300))), "Limit") == ["any limit", "max_contact_force_under_200N"]
    assert texts(exposure_of(hit((4, 3))), "Limit") == ["any limit"]


def test_nothing_makes_an_empty_table_that_can_be_printed():
    table = exposure_of(empty_batch())
    assert table.rows == ()
    assert render_text(table)


def test_the_whole_job_measures_what_the_parts_do(tmp_path):
    batch = run(["rough"], [1.0], 4, ["libero-10"])
    path = tmp_path / "episodes.parquet"
    write_archive(path, batch)
    spent, scores = measured(batch)
    (table,) = build_tables(table_material(judge([path], load_ruleset())), ["beyond"])
    assert table.rows == explain.exposure_table(summarize_exposure(spent, scores)).rows


def test_without_intervals_no_note_speaks_of_them():
    tables = [exposure_of(hit((4, 300))), explain.onset_table([]), explain.agreement_table([])]
    assert any("95 %" in note for table in tables for note in table.notes)
    assert not any("95 %" in note for table in map(drop_intervals, tables) for note in table.notes)
