"""Tests of differences against scipy and statsmodels; letters and Holm by hand and by law."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from safevla_bench.statistics.tests import barnard_p, holm_adjust, letter_display


def dense_supremum(extreme: np.ndarray, n: int, m: int) -> float:
    """The p-value by its definition: every outcome, and a dense grid of the common proportion."""
    grid = np.linspace(0, 1, 4001)
    first = stats.binom.pmf(np.arange(n + 1)[:, None], n, grid)
    second = stats.binom.pmf(np.arange(m + 1)[:, None], m, grid)
    return float(((extreme.astype(float) @ second) * first).sum(axis=0).max())


def dense_barnard(count: int, n: int, other: int, m: int) -> float:
    x, y = np.arange(n + 1)[:, None], np.arange(m + 1)[None]
    pooled = (x + y) / (n + m)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.nan_to_num(np.abs(x / n - y / m) / np.sqrt(pooled * (1 - pooled)), nan=0.0)
    return dense_supremum(z >= z[count, other] - 1e-10, n, m)


TABLES = [
    (9, 10, 3, 10), (7, 15, 12, 15), (0, 7, 2, 24), (1, 1, 0, 9), (4, 4, 3, 17), (12, 20, 12, 20), (5, 23, 11, 24),
    (100, 120, 92, 130),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_barnard_finds_the_supremum_of_a_dense_grid(table):
    """scipy's own Barnard test misses it: 0.00693 for 9/10 against 3/10, the true value is 0.00796."""
    assert barnard_p(*table) == pytest.approx(dense_barnard(*table), abs=2e-6)


@given(st.integers(1, 15), st.integers(1, 15), st.data())
@settings(max_examples=12)
def test_barnard_agrees_with_the_dense_grid_whatever_the_table_and_with_its_mirror_images(n, m, data):
    count, other = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    p = barnard_p(count, n, other, m)
    if count + other not in (0, n + m):
        assert p == pytest.approx(dense_barnard(count, n, other, m), abs=1e-5)
    assert barnard_p(other, m, count, n) == pytest.approx(p, abs=1e-9)
    assert barnard_p(n - count, n, m - other, m) == pytest.approx(p, abs=1e-9)


def test_barnard_of_thousands_is_near_the_z_test():
    """scipy needs 25 s of CPU for this; the work here grows with n, not with n times m."""
    pooled = 3140 / 4000
    z = (1600 - 1540) / 2000 / np.sqrt(pooled * (1 - pooled) * 2 / 2000)
    assert 2 * stats.norm.sf(z) < barnard_p(1600, 2000, 1540, 2000) < 2.2 * stats.norm.sf(z)


def test_samples_that_are_all_alike_do_not_differ():
    assert barnard_p(0, 5, 0, 9) == 1.0
    assert barnard_p(5, 5, 9, 9) == 1.0
    assert barnard_p(0, 5, 5, 5) < 0.01


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_statsmodels(p_values):
    np.testing.assert_allclose(holm_adjust(p_values), multipletests(p_values, method="holm")[1], atol=1e-12)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 7))
    return count, draw(st.sets(st.sampled_from(list(combinations(range(count), 2)) or [(0, 0)]))) - {(0, 0)}


@given(graphs())
def test_letters_are_shared_iff_two_were_not_told_apart(graph):
    count, apart = graph
    given_ = letter_display(count, apart)
    assert all(given_)
    for i, j in combinations(range(count), 2):
        assert bool(set(given_[i]) & set(given_[j])) == ((i, j) not in apart)


@given(graphs())
def test_no_letter_is_wasted_on_a_part_of_another_group(graph):
    result = letter_display(*graph)
    groups = [{k for k, item in enumerate(result) if letter in item} for letter in set("".join(result))]
    assert not any(item < other for item, other in combinations(groups, 2))


def test_letters_begin_with_the_first_and_go_on():
    assert letter_display(1, set()) == ("a",)
    assert letter_display(3, {(0, 1), (0, 2), (1, 2)}) == ("a", "b", "c")
    assert letter_display(4, {(0, 3), (1, 3)}) == ("a", "a", "ab", "b")
