"""Fields of each arm: which arms a clause is judged for, what is computed once, and what of two arms is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import BOWL, LINK, episode
from safevla_bench.signals import derive_signals, missing_fields
from safevla_bench.signals.signal import SIGNALS, WHOSE_GRIP, RecordFields
from safevla_bench.trajectory.batch import Batch, concatenate_batches


def two_arms(contact: Any, gripped: Any = None, **changes: Any) -> Batch:
    """An episode of two arms, whose hands are 0.5 m apart; `contact` [n, 2] says which gripper has contact."""
    touches = np.array(contact, dtype=np.bool_)
    n = len(touches)
    fields = {
        "schema_version": 2,
        "arms": ("left", "right"),
        "arm_bodies": {"hand": "left", "link7": "right"},
        "joint_torque_nm": None,
        "eef_pos_m": np.tile([0.4, 0.0, 1.0, 0.4, 0.5, 1.0], (n, 1)),
        "eef_quat_wxyz": np.tile([1.0, 0.0, 0.0, 0.0], (n, 2)),
        "gripper_contact": touches,
        "gripped_body": np.full((n, 2), -1) if gripped is None else np.array(gripped),
    }
    return episode(n, **{**fields, **changes})


def chosen(fields: RecordFields, *names: str) -> list[list[int] | None]:
    return [None if view.chosen_arm is None else view.chosen_arm.tolist() for view in fields.views(names)]


HELD = [[BOWL, -1], [-1, BOWL]]
MIXED = [two_arms([[0, 0], [0, 1], [0, 0]]), episode(2), two_arms([[1, 0], [0, 1]], HELD), two_arms([[0, 0]])]


def test_a_clause_about_an_arm_is_judged_for_each_and_an_idle_one_is_replaced_if_the_clause_is_about_grips():
    fields = RecordFields(concatenate_batches(MIXED))
    assert chosen(fields, "max_contact_force") == [None]
    assert chosen(fields, "eef_speed") == [[0, 0, 0, 0], [1, 0, 1, 1]]
    assert chosen(fields, "grip") == chosen(fields, "eef_speed", "grip") == [[1, 0, 0, 0], [1, 0, 1, 1]]
    assert chosen(RecordFields(MIXED[0]), "grip") == [[1]]
    assert chosen(RecordFields(episode(2)), "grip") == [None]


def test_the_fields_of_an_arm_are_made_once_and_are_about_this_arm_alone():
    fields = RecordFields(concatenate_batches(MIXED))
    left, right = fields.views(["eef_speed"])
    assert left.of_arm(right.arm) is right
    assert right.views(["eef_speed"]) == [right]
    assert [[view.name_arm(e) for e in range(4)] for view in (left, right)] == [
        ["left", "", "left", "left"],
        ["right", "", "right", "right"],
    ]
    assert fields.name_arm() == ""
    assert (left.eef_pos[:, 1].tolist(), right.eef_pos[:, 1].tolist()) == ([0.0] * 8, [0.5] * 3 + [0.0] * 2 + [0.5] * 3)


def test_an_episode_of_chosen_fields_keeps_its_arm_its_values_and_what_was_computed():
    _, right = RecordFields(concatenate_batches(MIXED)).views(["eef_speed"])
    values = derive_signals(right, ["hands_distance", "gripper_contact"])
    part = right.select_episode(2)
    assert (part.name_arm(), part.eef_pos[:, 1].tolist()) == ("right", [0.5, 0.5])
    for name, whole in values.items():
        kept = derive_signals(part, [name])[name]
        assert kept.base is whole.base
        assert kept.tolist() == whole[5:7].tolist()
    np.testing.assert_allclose(values["hands_distance"], [0.5] * 3 + [np.nan] * 2 + [0.5] * 3)


def test_values_that_are_computed_once_cannot_be_changed():
    fields = RecordFields(episode(2))
    for name in ("grip", "max_contact_force", "tilt(held)"):
        values = derive_signals(fields, [name])[name]
        assert derive_signals(fields, [name])[name] is values
        assert not values.flags.writeable


@pytest.mark.parametrize(
    ("contact", "gripped", "is_unknown"),
    [
        ([[1, 0], [0, 1]], [[-1, -1], [-1, BOWL]], True),
        ([[1, 0], [0, 1]], HELD, False),
        ([[1, 0], [0, 1]], [[LINK, -1], [-1, BOWL]], False),
        ([[1, 0], [1, 0]], [[-1, -1], [-1, -1]], False),  # only one arm can hold the target
        ([[0, 0], [0, 0]], [[-1, -1], [-1, -1]], False),
    ],
)
def test_what_each_of_two_touching_grippers_holds_must_be_known(contact, gripped, is_unknown):
    one_arm = episode(2, gripper_contact=np.ones(2, dtype=np.bool_))
    together = concatenate_batches([two_arms(contact, gripped), one_arm])
    lacking = {field: where.tolist() for field, where in missing_fields(together, ["shared_grip"]).items()}
    assert lacking.get(WHOSE_GRIP, [False, False]) == [is_unknown, False]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("grip", "grip"),
        ("target_height", "grip"),
        ("supported", "grip"),
        ("tilt(held)", "grip"),
        ("gap(held, plate)", "grip"),
        ("distance(eef, held)", "grip"),
        ("eef_speed", "hand"),
        ("wrist_force", "hand"),
        ("gap(eef, plate)", "hand"),
        ("distance(eef, plate)", "hand"),
        ("max_contact_force", ""),
        ("speed(plate)", ""),
    ],
)
def test_a_signal_is_about_what_an_arm_holds_about_its_hand_or_about_no_arm(name, kind):
    assert SIGNALS[name].of_arm == kind
