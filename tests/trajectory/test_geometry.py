"""The geometry of a header is checked where a record enters, and its errors name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import episode
from safevla_bench.errors import RecordError

UPRIGHT = [1.0, 0.0, 0.0, 0.0]
PART: dict[str, Any] = {"body": "drawer", "parent": -1, "motion": [], "pose": [0.0, 0.0, 0.0, *UPRIGHT], "shape": "s"}
GOOD: dict[str, Any] = {"parts": [PART], "hand": [0], "shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT, 0.1, 0.1, 0.1]]}}


def test_a_sound_geometry_is_kept_as_it_stands() -> None:
    text = json.dumps(GOOD)
    assert episode(2, geometry=text).headers[0].geometry == text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"parts": [{**PART, "parent": 0}]}, "does not come before it"),
        ({"parts": [{**PART, "parent": -3}]}, "does not come before it"),
        ({"parts": [{**PART, "motion": [6]}]}, "components"),
        ({"parts": [{**PART, "motion": [1, 1]}]}, "components"),
        ({"parts": [{**PART, "parent": -2, "motion": [1]}]}, "tracked"),
        ({"parts": [{**PART, "pose": [0.0] * 7}]}, "unit quaternion"),
        ({"parts": [{**PART, "pose": []}]}, "unit quaternion"),
        ({"parts": [{**PART, "shape": "other"}]}, "not listed"),
        ({"parts": [{**PART, "body": "nothing"}]}, "has no role"),
        ({"hand": [1]}, "hand"),
        ({"shapes": {"s": [[0.0, 0.0, 0.0, *UPRIGHT, -0.1, 0.1, 0.1]]}}, "negative size"),
        ({"shapes": {"s": [[0.0] * 3]}}, "unit quaternion"),
        ({"shapes": {"s": [["x"] * 7]}}, "not a geometry"),
        ({"parts": {}}, "not a geometry"),
    ],
)
def test_a_geometry_that_contradicts_itself_is_an_error(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match=problem) as caught:
        episode(2, geometry=json.dumps({**GOOD, **change}))
    assert caught.value.place.field == "geometry"


def test_motion_has_a_column_for_each_component_that_moves() -> None:
    import numpy as np

    moving = json.dumps({**GOOD, "parts": [{**PART, "motion": [0, 5]}]})
    assert episode(2, geometry=moving, further={"link_motion": np.zeros((2, 2))})
    with pytest.raises(RecordError, match="2 components"):
        episode(2, geometry=moving, further={"link_motion": np.zeros((2, 3))})
