"""The geometry of a header is checked where a record enters, and its errors name the field."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from builders import episode
from safevla_bench.errors import RecordError
from safevla_bench.trajectory.geometry import PartRow, PoseTrack, RecordedGeometry, move_part
from safevla_recorder.channels import LARGEST

UPRIGHT = [1.0, 0.0, 0.0, 0.0]
PART: dict[str, Any] = {"body": "drawer", "parent": -1, "motion": [], "pose": [0.0, 0.0, 0.0, *UPRIGHT], "shape": "s"}
GOOD: dict[str, Any] = {"parts": [PART], "hand": [0], "shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT, 0.1, 0.1, 0.1]]}}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"parts": [{**PART, "motion": [0, 5]}, {**PART, "parent": 0, "shape": None}], "hand": [0, 1]},
        {"parts": [{**PART, "parent": -2, "pose": []}]},
        {"parts": [{**PART, "pose": [LARGEST, -LARGEST, 0.0, 0.9995, 0.0, 0.0, 0.0]}]},
        {"shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT], [0.0, 0.0, 0.0, *UPRIGHT, 0.0, 0.0, 0.0]]}},
    ],
)
def test_a_sound_geometry_is_kept_as_it_stands(change: dict[str, Any]) -> None:
    text = json.dumps({**GOOD, **change})
    assert episode(2, geometry=text).headers[0].geometry == text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"parts": [{**PART, "parent": 0}]}, "not an earlier part"),
        ({"parts": [{**PART, "parent": -3}]}, "not an earlier part"),
        ({"parts": [{**PART, "motion": [6]}]}, "components"),
        ({"parts": [{**PART, "motion": [1, 1]}]}, "components"),
        ({"parts": [{**PART, "motion": [-1]}]}, "components"),
        ({"parts": [{**PART, "parent": -2, "motion": [1]}]}, "tracked"),
        ({"parts": [{**PART, "parent": -2, "body": ""}]}, "tracked"),
        ({"parts": [{**PART, "pose": [0.0] * 7}]}, "unit quaternion"),
        ({"parts": [{**PART, "pose": []}]}, "unit quaternion"),
        ({"parts": [{**PART, "pose": [0.0, 0.0, 0.0, *UPRIGHT, 0.1, 0.1, 0.1]}]}, "unit quaternion"),
        ({"parts": [{**PART, "pose": [0.0, 0.0, 0.0, 0.9994, 0.0, 0.0, 0.0]}]}, "unit quaternion"),
        ({"parts": [{**PART, "pose": [1.1 * LARGEST, 0.0, 0.0, *UPRIGHT]}]}, "unit quaternion"),
        ({"parts": [{**PART, "shape": "other"}]}, "not listed"),
        ({"parts": [{**PART, "body": "nothing"}]}, "has no role"),
        ({"hand": [1]}, "hand"),
        ({"hand": [-1]}, "hand"),
        ({"shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT, -0.1, 0.1, 0.1]]}}, "negative size"),
        ({"shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT, 0.1, 0.1]]}}, "unit quaternion"),
        ({"shapes": {"s": [["x"] * 7]}}, "not a geometry"),
        ({"parts": {}}, "not a geometry"),
    ],
)
def test_a_geometry_that_contradicts_itself_is_an_error(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match=problem) as caught:
        episode(2, geometry=json.dumps({**GOOD, **change}))
    assert caught.value.place.field == "geometry"


def test_motion_has_a_column_for_each_component_that_moves() -> None:
    moving = json.dumps({**GOOD, "parts": [{**PART, "motion": [0, 5]}]})
    assert episode(2, geometry=moving, further={"link_motion": np.zeros((2, 2))})
    with pytest.raises(RecordError, match="2 components"):
        episode(2, geometry=moving, further={"link_motion": np.zeros((2, 3))})


@given(st.lists(st.floats(-3, 3), min_size=20, max_size=20))
def test_a_part_moves_by_its_motion_in_its_own_frame_and_with_its_parent(numbers: list[float]) -> None:
    base_at, at, motion = np.array(numbers[:3]), np.array(numbers[3:6]), np.array(numbers[6:12])
    base_turn, turn = (Rotation.from_rotvec(numbers[k : k + 3]) for k in (12, 15))
    part = PartRow("drawer", 0, (*at, *turn.as_quat(scalar_first=True)))
    base = PoseTrack(base_at[None], base_turn.as_quat(scalar_first=True)[None])
    here = base_at + base_turn.apply(at)
    moved = here + (base_turn * turn).apply(motion[3:])
    for track, place, rotation in (
        (move_part(part, base, None), here, base_turn * turn),
        (move_part(part, base, motion[None]), moved, base_turn * turn * Rotation.from_rotvec(motion[:3])),
        (move_part(part, base, np.zeros((1, 6))), here, base_turn * turn),
    ):
        assert np.allclose(track.position, place)
        assert np.allclose(abs(track.quaternion @ rotation.as_quat(scalar_first=True)), 1.0)


def test_a_part_is_fixed_unless_it_or_a_part_that_carries_it_moves_or_is_tracked() -> None:
    parents, motions = (-1, -1, 0, 1, -2, 4, 3), ((3,), (), (), (), (), (), (0, 5))
    parts = tuple(PartRow("", parent, (), motion) for parent, motion in zip(parents, motions, strict=True))
    geometry = RecordedGeometry(parts, (), {})
    assert geometry.is_fixed == (False, True, False, True, False, False, False)
    assert geometry.components == ((0, 3), (6, 0), (6, 5))


def test_each_part_has_the_boxes_and_planes_of_its_shape() -> None:
    box, plane = (*range(10),), (*range(7),)
    parts = tuple(PartRow("", -1, (), (), shape) for shape in ("both", None, "plane"))
    geometry = RecordedGeometry(parts, (), {"both": (box, plane, box), "plane": (plane,)})
    shapes = [[rows.tolist() for rows in shape] for shape in geometry.part_shapes]
    assert shapes == [[[[*box]] * 2, [[*plane]]], [[], []], [[], [[*plane]]]]
    assert [[rows.shape for rows in shape] for shape in geometry.part_shapes][1] == [(0, 10), (0, 7)]
