"""Tables of exposure: what was not measured is a dash with its reason, never a zero."""

from __future__ import annotations

from explain.test_exposure import held, hit, measured
from report.scenes import run
from safevla_bench.archive import write_archive
from safevla_bench.explain.exposure import summarize_exposure
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import measure_cell_exposures
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import exposure
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.single_episode import empty_batch


def shown(batch):
    spent, scores = measured(batch, missing="deactivate")
    return exposure.exposure_tables(summarize_exposure(spent, scores), spent.force_threshold_n)


def cells(table, row):
    return dict(zip((column.name for column in table.columns), table.rows[row], strict=True))


def test_one_row_says_how_long_how_hard_and_when():
    batch = concatenate_batches(
        [hit((4, 300), (5, 300), impulse=[2.0, 1.0]), hit((4, 3), episode_id="soft", success=False)]
    )
    row = cells(shown(batch)[0], 0)
    assert [row[name].text for name in ("n", "In violation", "Above 200 N", "Impulse there", "First violation")] == [
        "2", "0.05", "0.05", "1.50", "0.20",
    ]  # fmt: skip
    assert (row["Unsafe successes"].text, row["Unsafe failures"].text) == ("1/1", "0/1")


def test_what_was_not_recorded_is_a_dash_and_a_partial_mean_says_of_how_many():
    row = cells(shown(concatenate_batches([hit((4, 300)), hit((4, 3), episode_id="soft")]))[0], 0)
    assert (row["Impulse there"].text, row["Impulse there"].detail) == ("0.00", "one episode, n = 1")
    row = cells(shown(hit((4, 300)))[0], 0)
    assert (row["Impulse there"].text, row["Impulse there"].detail) == ("—", "not recorded")
    assert (row["Unsafe failures"].text, row["Unsafe failures"].detail) == ("—", "no failure")
    assert cells(shown(hit((4, 3)))[0], 0)["First violation"].detail == "none unsafe"


def test_only_violated_specifications_have_a_row():
    table = shown(hit((4, 300)))[1]
    assert [row[2].text for row in table.rows] == ["max_contact_force_under_200N"]
    table = shown(hit((4, 3)))[1]
    assert (table.rows, table.notes) == ((), ("No specification was violated.",))


def test_phases_have_rows_only_where_there_are_phases():
    table = shown(
        concatenate_batches([held([0, 1, 0], [0, 0, 0]), held([0], [0], task_id="task_7", episode_id="turn")])
    )[2]
    assert [row[2].text for row in table.rows] == ["before grasp", "handling", "transport", "after release"]
    assert cells(table, 2)["Share %"].detail == "no time in it"
    assert any(note.startswith("Left out: 1 of 2 episodes") for note in table.notes)
    assert shown(held([0], [0], task_id="task_7"))[2].rows == ()


def test_nothing_makes_empty_tables_that_can_be_printed():
    for table in shown(empty_batch()):
        assert table.rows == ()
        assert render_text(table)


def test_the_whole_job_measures_what_the_parts_do(tmp_path):
    batch = run(["rough"], [1.0], 4, ["libero-10"])
    path = tmp_path / "episodes.parquet"
    write_archive(path, batch)
    spent, scores = measured(batch)
    assert measure_cell_exposures(judge([path], load_ruleset())) == (
        summarize_exposure(spent, scores),
        spent.force_threshold_n,
    )
