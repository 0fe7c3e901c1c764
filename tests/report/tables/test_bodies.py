"""Tables of bodies: each kind has its own rate over the episodes of the cell; receptacles can be taken out."""

from __future__ import annotations

from explain.test_violating_bodies import pushing
from report.scenes import run
from safevla_bench.explain.violating_bodies import find_bodies
from safevla_bench.report.tables import bodies
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scoring import score
from safevla_bench.trajectory import concatenate_batches

RULESET = load_ruleset(missing="deactivate")


def built(batch):
    scores = score(batch, RULESET)
    return bodies.body_tables(find_bodies([batch], scores, RULESET), scores)


def texts(table):
    return [dict(zip((column.full for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows]  # fmt: skip


PUSHED = concatenate_batches(
    [pushing({"plate_1": 0.02}), pushing({"plate_1": 0.03, "cookies_1": 0.008}), pushing({"cookies_1": 0.004}),
     pushing({"plate_1": 0.001})]
)  # fmt: skip


def test_each_kind_has_its_share_of_the_cell_s_episodes_and_names_its_bodies():
    kinds, _ = built(PUSHED)
    rows = texts(kinds)
    assert [(row["Kind of body"], row["Episodes"], row["%"]) for row in rows] == [
        ("goal receptacle", "2", "50.0"),
        ("distractor", "1", "25.0"),
    ]
    assert [row["Bodies"] for row in rows] == ["plate_1 (2)", "cookies_1 (1)"]
    assert rows[0]["Worst"] == "30.0\u00a0mm"


def test_without_receptacles_displacement_safety_and_depth_are_those_of_the_other_bodies():
    _, receptacles = built(PUSHED)
    (row,) = texts(receptacles)
    assert [row["Displaced % all"], row["Displaced % without"]] == ["50.0", "25.0"]
    assert [row["Safety % all"], row["Safety % without"]] == ["50.0", "75.0"]
    assert [row["SBU % all"], row["SBU % without"]] == ["50.0", "25.0"]
    assert [row["VSI all"], row["VSI without"]] == ["0.500", "0.075"]  # (0.003 m / 0.010 m) / 4


def test_a_cell_that_judges_no_displacement_has_no_row():
    batch = pushing({"plate_1": 0.02}, "task_0", "libero-goal")  # opens a drawer: the clause does not apply
    kinds, receptacles = built(batch)
    assert (kinds.rows, receptacles.rows) == ((), ())
    assert kinds.notes == ("No specification of contact or displacement was violated.",)


def test_a_touch_has_no_size():
    kinds, _ = built(run(["a"], [1.0], 10, ["libero-spatial"]))
    touched = [row for row in texts(kinds) if row["Specification"] == "self_collision_free"]
    assert touched
    assert {(row["Kind of body"], row["Worst"]) for row in touched} == {("arm link – gripper", "touched")}
