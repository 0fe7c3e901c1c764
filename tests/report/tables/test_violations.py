"""The tables of violated limits.

Tables of bodies: each kind has its own rate over the episodes of the cell; receptacles can be taken out.
"""

from __future__ import annotations

import numpy as np

from builders import episode
from report.scenes import NAN, joined, verdicts
from report.tables.reading import BAD, columns, texts
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import INACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables.cells import LIBERO_TORQUE_NOTE, Roster
from safevla_bench.report.tables.violations import composition_table, constraint_table
from safevla_bench.text import NO_VALUE


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
