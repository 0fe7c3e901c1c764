"""Grip: both finger groups touch the same body that is no robot, at the end of the control step."""

from __future__ import annotations

import numpy as np

from safevla_recorder.contacts import NOTHING, gripped_bodies
from safevla_recorder.mujoco.contacts import ConstraintContacts

# Geoms: two of the left finger, one of the right, a link, a can, a box (two geoms).
PAD_L, TIP_L, PAD_R, LINK, CAN, BOX_A, BOX_B = range(7)
FINGERS = np.array([1, 1, 2, 0, 0, 0, 0])
PLACE = np.array([2, 3, 4, 5, 1, 0, 0])
ROBOT = np.array([False, False, True, True, True, True])
BOX, CAN_BODY = 0, 1


def held(*substeps, instants=None):
    rows = [(k, a, b, force) for k, contacts in enumerate(substeps) for a, b, force in contacts]
    substep, geom1, geom2 = (np.array([row[i] for row in rows], dtype=np.int32) for i in range(3))
    efc = np.array([[row[3], 0, 0] for row in rows], dtype=float).reshape(-1)
    row, dim = np.arange(len(rows)) * 3, np.full(len(rows), 3)
    touches = ConstraintContacts(len(substeps), substep, geom1, geom2, row, dim, None, efc)
    ends = np.array([len(substeps) - 1]) if instants is None else np.array(instants)
    return gripped_bodies(touches, ends, FINGERS, PLACE, ROBOT).tolist()


def test_both_fingers_on_one_body_grip_it_whichever_order_and_geom():
    assert held([(PAD_L, CAN, 1), (CAN, PAD_R, 2)]) == [CAN_BODY]
    assert held([(TIP_L, BOX_A, 1), (BOX_B, PAD_R, 2)]) == [BOX]


def test_one_finger_is_no_grip_even_with_two_contacts():
    assert held([(PAD_L, CAN, 1), (TIP_L, CAN, 2)]) == [NOTHING]


def test_fingers_on_different_bodies_are_no_grip():
    assert held([(PAD_L, CAN, 1), (PAD_R, BOX_A, 2)]) == [NOTHING]


def test_finger_on_finger_and_fingers_on_a_link_are_no_grip():
    assert held([(PAD_L, PAD_R, 5), (PAD_R, PAD_L, 5)]) == [NOTHING]
    assert held([(PAD_L, LINK, 5), (PAD_R, LINK, 5)]) == [NOTHING]


def test_only_the_last_substep_counts():
    assert held([(PAD_L, CAN, 1), (PAD_R, CAN, 2)], [(PAD_L, CAN, 1)]) == [NOTHING]


def test_of_two_bodies_the_one_with_the_largest_finger_contact_is_gripped():
    both = [(PAD_L, CAN, 3), (PAD_R, CAN, 3), (PAD_L, BOX_A, 1), (PAD_R, BOX_A, 4)]
    assert held(both) == [BOX]
    assert held([(a, b, 7 if b == CAN else f) for a, b, f in both]) == [CAN_BODY]


def test_of_equal_bodies_the_first_by_name_is_gripped():
    assert held([(PAD_L, CAN, 3), (PAD_R, CAN, 3), (PAD_L, BOX_A, 3), (PAD_R, BOX_A, 3)]) == [BOX]


def test_several_control_steps_at_once():
    grip, none = [(PAD_L, CAN, 1), (PAD_R, CAN, 1)], []
    assert held(grip, none, none, grip, instants=[0, 2, 3]) == [CAN_BODY, NOTHING, CAN_BODY]
