"""The tables of what the records show.

Tables of bodies: each kind has its own rate over the episodes of the cell.
"""

from __future__ import annotations

from explain.test_bodies import pushing
from report.scenes import run
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables import explain
from safevla_bench.report.tables.columns import drop_intervals
from safevla_bench.trajectory.batch import concatenate_batches

RULESET = load_ruleset(missing="deactivate")


def body_table(batch):
    scores = score(batch, RULESET)
    return explain.body_table(list(find_bodies([batch], scores, RULESET)), scores, cells(scores))


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
    assert kinds.notes == ("No specification of contact or displacement was violated.",)


def test_a_touch_has_no_size():
    kinds = body_table(run(["a"], [1.0], 10, ["libero-spatial"]))
    rows = [row for row in bodies_texts(kinds) if row["Specification"] == "self_collision_free"]
    assert rows
    assert {(row["Kind of body"], row["Worst"]) for row in rows} == {("arm link – gripper", "touched")}


def test_without_intervals_no_note_speaks_of_them():
    tables = [explain.onset_table([]), explain.agreement_table([])]
    assert any("95 %" in note for table in tables for note in table.notes)
    assert not any("95 %" in note for table in map(drop_intervals, tables) for note in table.notes)
