"""The tables of violated limits.

Tables of bodies: each kind has its own rate over the episodes of the cell; receptacles can be taken out.
"""

from __future__ import annotations

import numpy as np

from builders import episode
from explain.test_bodies import pushing
from report.scenes import NAN, joined, run, verdicts
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import INACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables import violations
from safevla_bench.report.tables.cells import LIBERO_TORQUE_NOTE, Roster
from safevla_bench.report.tables.table import Cell, Table
from safevla_bench.report.tables.violations import composition_table, constraint_table
from safevla_bench.text import NO_VALUE
from safevla_bench.trajectory.batch import concatenate_batches

GOOD, BAD, FAILED = (True, 1, 1), (True, -5, 1), (False, 1, 1)


def columns(table: Table) -> dict[str, list[Cell]]:
    return {column.full: [row[k] for row in table.rows] for k, column in enumerate(table.columns)}


def texts(table: Table, name: str) -> list[str]:
    return [cell.text for cell in columns(table)[name]]


def test_the_note_names_the_episodes_that_rates_are_of():
    """An episode without a verdict is in no rate, and the note speaks of judged ones."""
    scores = verdicts((True, -5, 1), (True, np.inf, np.inf))
    (cell,) = cells(scores)
    assert (cell.n, cell.judged) == (2, 1)
    table = constraint_table([cell], Roster())
    assert texts(table, "Scene interaction force") == ["100.0"]
    assert any(note.startswith("In %, of the judged episodes of the cell.") for note in table.notes)


def test_a_rate_is_over_judged_episodes_and_inactive_is_a_dash():
    scores = joined(
        verdicts((True, -5, NAN), (True, 1, -1)),
        verdicts((True, 1, NAN), policy="b"),
        verdicts((True, 1, np.inf), policy="c"),
    )
    table = columns(constraint_table(cells(scores), Roster()))
    assert [cell.text for cell in table["Scene interaction force"]] == ["50.0", "0.0", "0.0"]
    tilt = table["Object handling tilt"]
    assert [cell.text for cell in tilt] == ["50.0", NO_VALUE, NO_VALUE]
    assert [cell.detail for cell in tilt][1:] == ["", "vacuous"]
    assert [cell.value for cell in tilt][1:] == [None, None]
    assert not any("speed" in name for name in table)


def test_shares_are_of_the_violations_of_unsafe_successes():
    scores = verdicts((True, -5, -1), (True, -5, 1), (True, 1, -1), (False, -5, -1), (True, 1, 1), (True, -5, 1))
    table = composition_table(cells(scores), Roster())
    assert texts(table, "Specification") == ["force", "tilt"]
    assert texts(table, "Violations") == ["3", "2"]
    assert texts(table, "Share %") == ["60", "40"]
    assert texts(table, "Unsafe successes") == ["4", "4"]


def test_a_specification_that_never_fired_is_left_out():
    table = composition_table(cells(verdicts(BAD, (False, 1, -1))), Roster())
    assert texts(table, "Specification") == ["force"]


def test_tables_of_libero_say_which_joint_can_exceed_its_limit_where_torques_are_judged():
    """A rate of joint_torque there is one of joint 5 alone; the actuators of the others stop before."""
    judged = score(episode(), load_ruleset())
    assert LIBERO_TORQUE_NOTE in constraint_table(cells(judged), Roster()).notes
    without = score(episode(joint_torque_nm=None), load_ruleset(missing="deactivate"))
    elsewhere = joined(verdicts((True, 1, 1)))
    for scores in (without, elsewhere):
        assert LIBERO_TORQUE_NOTE not in constraint_table(cells(scores), Roster()).notes


def test_records_without_torque_peaks_are_judged_and_the_diagnostic_says_what_is_missing():
    scores = score(episode(), load_ruleset())
    k = [spec.spec_id for spec in scores.specs].index("joint_torque_peak")
    assert scores.state[k].tolist() == [INACTIVE]
    assert scores.reasons[scores.reason[k, 0]] == "signal missing: joint_torque_peak_nm"
    beyond = np.tile([1.0, 1, 1, 1, 13, 1, 1], (12, 1))
    peaked = score(episode(further={"joint_torque_peak_nm": beyond}), load_ruleset()).episode(0)
    assert peaked.diagnostics["joint_torque_peak"].violated
    assert peaked.safe
    assert "joint_torque_peak" not in peaked.robustness


RULESET = load_ruleset(missing="deactivate")


def built(batch):
    scores = score(batch, RULESET)
    return violations.body_tables(find_bodies([batch], scores, RULESET), scores, cells(scores))


def bodies_texts(table):
    return [dict(zip((column.full for column in table.columns), (cell.text for cell in row), strict=True))
            for row in table.rows]  # fmt: skip


PUSHED = concatenate_batches(
    [pushing({"plate_1": 0.02}), pushing({"plate_1": 0.03, "cookies_1": 0.008}), pushing({"cookies_1": 0.004}),
     pushing({"plate_1": 0.001})]
)  # fmt: skip


def test_each_kind_has_its_share_of_the_cell_s_episodes_and_names_its_bodies():
    kinds, _ = built(PUSHED)
    rows = bodies_texts(kinds)
    assert [(row["Kind of body"], row["Episodes"], row["%"]) for row in rows] == [
        ("goal receptacle", "2", "50.0"),
        ("distractor", "1", "25.0"),
    ]
    assert [row["Bodies"] for row in rows] == ["plate_1 (2)", "cookies_1 (1)"]
    assert rows[0]["Worst"] == "30.0\u00a0mm"


def test_without_receptacles_displacement_safety_and_depth_are_those_of_the_other_bodies():
    _, receptacles = built(PUSHED)
    (row,) = bodies_texts(receptacles)
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
    touched = [row for row in bodies_texts(kinds) if row["Specification"] == "self_collision_free"]
    assert touched
    assert {(row["Kind of body"], row["Worst"]) for row in touched} == {("arm link – gripper", "touched")}
