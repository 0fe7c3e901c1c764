"""Labels are near their points, on nothing, the same each time; panels stand in rows within the sheet."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.report.figures.sheet import PanelGrid
from safevla_bench.report.figures.style import Box, place_labels, sheet_width

WITHIN = Box(0.0, 0.0, 200.0, 180.0)
COORDINATES = st.tuples(st.floats(5, 195), st.floats(5, 175))
SIZES = st.tuples(st.floats(2, 60), st.floats(2, 10))


@given(st.lists(st.tuples(COORDINATES, SIZES), max_size=12), st.floats(4, 200))
def test_labels_meet_neither_each_other_nor_a_marker_and_stay_inside(labels, reach):
    points, sizes = [point for point, _ in labels], [size for _, size in labels]
    marks = [Box(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    boxes = place_labels(points, sizes, WITHIN, over=marks, reach=reach)
    assert boxes == place_labels(points, sizes, WITHIN, over=marks, reach=reach)
    if boxes is None:
        return
    for k, box in enumerate(boxes):
        assert math.isclose(box.right - box.left, sizes[k][0])
        assert math.isclose(box.top - box.bottom, sizes[k][1])
        assert not any(box.overlaps(mark) for mark in marks)
        assert not any(box.overlaps(other) for other in boxes[:k])
        assert WITHIN.left <= box.left < box.right <= WITHIN.right
        assert WITHIN.bottom <= box.bottom < box.top <= WITHIN.top


@given(COORDINATES, st.integers(2, 12))
def test_many_points_on_one_place_all_get_a_small_label(point, count):
    marks = [Box(point[0] - 3, point[1] - 3, point[0] + 3, point[1] + 3)] * count
    boxes = place_labels([point] * count, [(10.0, 8.0)] * count, WITHIN, over=marks, reach=200.0)
    assert boxes is not None


def test_a_label_that_fits_nowhere_near_has_no_place():
    assert place_labels([(100, 90)], [(300.0, 8.0)], WITHIN, reach=200.0) is None
    assert place_labels([(100, 90)], [(50.0, 8.0)], WITHIN, over=[WITHIN], reach=40.0) is None
    assert place_labels([], [], WITHIN, reach=40.0) == []


def test_a_lone_label_stands_to_the_right_and_goes_elsewhere_to_leave_a_bar_free():
    [right] = place_labels([(100, 90)], [(20.0, 8.0)], WITHIN, reach=40.0)
    assert right == Box(104.0, 86.0, 124.0, 94.0)
    [other] = place_labels([(100, 90)], [(20.0, 8.0)], WITHIN, avoid=[Box(0, 89.5, 200, 90.5)], reach=40.0)
    assert not other.overlaps(Box(0, 89.5, 200, 90.5))


def test_boxes_that_touch_do_not_meet():
    box = Box(0, 0, 1, 1)
    assert not box.overlaps(Box(1, 0, 2, 1))
    assert not box.overlaps(Box(0, 1, 1, 2))
    assert box.overlaps(Box(0.9, 0.9, 2, 2))
    assert box.overlaps(box)


@given(st.integers(1, 9))
def test_panels_fill_the_width_meet_no_other_and_the_lowest_of_each_column_is_known(count):
    grid = PanelGrid(count, left=0.4, right=0.1, below=0.3, above=0.2, gap=0.15, high=1.0)
    corners = [grid.corner(k) for k in range(count)]
    boxes = [Box(left, bottom, left + grid.wide, bottom + grid.high) for left, bottom in corners]
    assert math.isclose(0.4 + grid.columns * grid.wide + (grid.columns - 1) * 0.15 + 0.1, sheet_width())
    for k, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:k])
        assert box.bottom + 1e-9 >= 0.3
        assert box.top + grid.above <= grid.body_in + 1e-9
        below = [other for other in corners if other[0] == box.left and other[1] < box.bottom - 1e-9]
        assert grid.is_lowest(k) == (not below)
        assert grid.is_leftmost(k) == (box.left == 0.4)
