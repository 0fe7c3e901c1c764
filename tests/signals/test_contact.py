"""Contact and displacement signals against cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from builders import BOWL, DRAWER, HAND, LINK, PLATE, contacts, derive, episode, rest_positions

TOUCHES = contacts(
    (1, HAND, DRAWER, 30.0),
    (1, DRAWER, LINK, 40.0),  # roles count in either order
    (2, BOWL, DRAWER, 7.0),
    (2, HAND, BOWL, 55.0),
    (3, LINK, HAND, 1.0),
    (3, PLATE, DRAWER, 90.0),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arm_furniture_force", [0, 40, 0, 0]),
        ("target_furniture_force", [0, 0, 7, 0]),
        ("max_contact_force", [0, 40, 55, 90]),
        ("self_collision", [0, 0, 0, 1]),
    ],
)
def test_forces_are_the_largest_single_contact_of_the_roles(name, expected):
    batch = [episode(4), episode(4, contacts=TOUCHES), episode(4)]
    assert derive(batch, name).tolist() == [0.0] * 4 + [float(x) for x in expected] + [0.0] * 4


@pytest.mark.parametrize("name", ["arm_furniture_force", "max_contact_force", "self_collision"])
def test_an_episode_without_instrumentation_has_no_force_not_zero(name):
    batch = [episode(2, contacts=None), episode(2)]
    assert np.isnan(derive(batch, name)[:2]).all()
    assert derive(batch, name)[2:].tolist() == [0.0, 0.0]


def move(*moves: tuple[int, int, tuple[float, float, float]], n: int = 4) -> np.ndarray:
    """Positions [n, 3, 3] of bowl, plate and drawer; a move (record, column, offset) lasts until the end."""
    pos = rest_positions(n)
    for record, column, offset in moves:
        pos[record:, column] += offset
    return pos


def test_displacement_is_of_bystanders_and_tracked_fixtures_never_of_the_target():
    pos = move((1, 0, (1.0, 0, 0)), (2, 1, (0.003, 0.004, 0.0)), (3, 2, (0, 0, -0.006)))
    largest = derive(episode(4, body_pos_m=pos), "non_target_disp_max")
    np.testing.assert_allclose(largest, [0, 0, 0.005, 0.006], atol=1e-15)
