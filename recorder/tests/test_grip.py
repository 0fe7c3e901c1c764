"""Grip: both finger groups touch the same body that is not a robot, at the end of the control step."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_recorder.contacts import NOTHING, GeomMap, gripped_bodies
from safevla_recorder.mujoco.contacts import ConstraintContacts

# Geoms: two of the left finger, one of the right, a link, a can, a box (two geoms).
PAD_L, TIP_L, PAD_R, LINK, CAN, BOX_A, BOX_B = range(7)
FINGERS = np.array([1, 1, 2, 0, 0, 0, 0])
PLACE = np.array([2, 3, 4, 5, 1, 0, 0])
ROLES = dict(zip("abcdef", ["bystander"] * 2 + ["robot"] * 4))
BOX, CAN_BODY = 0, 1


def grips(*substeps, instants=None):
    rows = [(k, a, b, force) for k, contacts in enumerate(substeps) for a, b, force in contacts]
    substep, geom1, geom2 = (np.array([row[i] for row in rows], dtype=np.int32) for i in range(3))
    efc = np.array([[row[3], 0, 0] for row in rows], dtype=float).reshape(-1)
    row, dim = np.arange(len(rows)) * 3, np.full(len(rows), 3)
    touches = ConstraintContacts(len(substeps), substep, geom1, geom2, row, dim, None, efc, np.zeros((len(rows), 9)))
    ends = np.array([len(substeps) - 1]) if instants is None else np.array(instants)
    return gripped_bodies(touches, ends, GeomMap(ROLES, PLACE, FINGERS, 0 * PLACE, 0.002)).tolist()


BOTH = [(PAD_L, CAN, 3), (PAD_R, CAN, 3), (PAD_L, BOX_A, 1), (PAD_R, BOX_A, 4)]
GRIPS = {
    "both fingers on one body, in either order": ([[(PAD_L, CAN, 1), (CAN, PAD_R, 2)]], [CAN_BODY]),
    "on different geoms of it": ([[(TIP_L, BOX_A, 1), (BOX_B, PAD_R, 2)]], [BOX]),
    "one finger with two contacts": ([[(PAD_L, CAN, 1), (TIP_L, CAN, 2)]], [NOTHING]),
    "fingers on different bodies": ([[(PAD_L, CAN, 1), (PAD_R, BOX_A, 2)]], [NOTHING]),
    "finger on finger": ([[(PAD_L, PAD_R, 5), (PAD_R, PAD_L, 5)]], [NOTHING]),
    "fingers on a link": ([[(PAD_L, LINK, 5), (PAD_R, LINK, 5)]], [NOTHING]),
    "only the last substep counts": ([[(PAD_L, CAN, 1), (PAD_R, CAN, 2)], [(PAD_L, CAN, 1)]], [NOTHING]),
    "of two bodies that with the largest contact": ([BOTH], [BOX]),
    "or the other": ([[(a, b, 7 if b == CAN else force) for a, b, force in BOTH]], [CAN_BODY]),
    "of equal bodies the first by name": ([[(a, b, 3) for a, b, _ in BOTH]], [BOX]),
}


@pytest.mark.parametrize(("substeps", "expected"), GRIPS.values(), ids=GRIPS)
def test_what_both_finger_groups_touch_is_gripped(substeps, expected):
    assert grips(*substeps) == expected


def test_several_control_steps_at_once():
    grip, nothing = [(PAD_L, CAN, 1), (PAD_R, CAN, 1)], []
    assert grips(grip, nothing, nothing, grip, instants=[0, 2, 3]) == [CAN_BODY, NOTHING, CAN_BODY]
