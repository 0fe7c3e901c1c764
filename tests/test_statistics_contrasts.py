"""Tests of differences against scipy and statsmodels; letters, Holm and permutation by hand and by law."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import cochrans_q
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests

from safevla_bench.statistics import (
    barnard_p,
    boschloo_p,
    cochran_q,
    holm_adjust,
    letter_display,
    mcnemar_p,
    permutation_p,
    sign_flip_p,
)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_agrees_with_statsmodels_exact(b, c):
    assert mcnemar_p(b, c) == pytest.approx(statsmodels_mcnemar([[5, b], [c, 5]], exact=True).pvalue if b + c else 1.0)


def test_barnard_and_boschloo_give_scipys_documented_cases():
    """scipy's own examples: Barnard 1945's and Boschloo's tables."""
    assert barnard_p(7, 15, 12, 15) == pytest.approx(stats.barnard_exact([[7, 12], [8, 3]]).pvalue)
    assert boschloo_p(74, 105, 31, 66) == pytest.approx(stats.boschloo_exact([[74, 31], [31, 35]]).pvalue)


@pytest.mark.parametrize("test", [barnard_p, boschloo_p])
def test_samples_that_are_all_alike_do_not_differ(test):
    assert test(0, 5, 0, 9) == 1.0
    assert test(5, 5, 9, 9) == 1.0
    assert test(0, 5, 5, 5) < 0.01


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 2**32))
def test_cochrans_q_agrees_with_statsmodels(n, k, seed):
    outcomes = np.random.default_rng(seed).random((n, k)) < 0.6
    found = cochran_q(outcomes)
    if all(row.all() or not row.any() for row in outcomes):
        assert (found.statistic, found.p_value) == (0.0, 1.0)
        return
    theirs = cochrans_q(outcomes.astype(int))
    assert (found.statistic, found.p_value) == (pytest.approx(theirs.statistic), pytest.approx(theirs.pvalue))


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
    found = letter_display(*graph)
    groups = [{k for k, one in enumerate(found) if letter in one} for letter in set("".join(found))]
    assert not any(one < other for one, other in combinations(groups, 2))


def test_letters_begin_with_the_first_and_go_on():
    assert letter_display(1, set()) == ("a",)
    assert letter_display(3, {(0, 1), (0, 2), (1, 2)}) == ("a", "b", "c")
    assert letter_display(4, {(0, 3), (1, 3)}) == ("a", "a", "ab", "b")


def test_sign_flips_are_exact_for_few_pairs():
    assert sign_flip_p(np.array([0.5]), generator()) == 1.0
    assert sign_flip_p(np.array([0.1, 0.2, 0.0, 0.3]), generator()) == pytest.approx(2 / 8)
    assert sign_flip_p(np.zeros(9), generator()) == 1.0
    assert sign_flip_p(np.empty(0), generator()) == 1.0


@pytest.mark.parametrize("n", [9, 40])
def test_sign_flips_agree_with_scipys_paired_permutations(n):
    differences = np.random.default_rng(5).normal(0.3, 1, n)
    theirs = stats.permutation_test(
        (differences, np.zeros(n)), lambda x, y: (x - y).mean(), permutation_type="samples", n_resamples=20_000,
        rng=generator(3),
    ).pvalue  # fmt: skip
    assert sign_flip_p(differences, generator()) == pytest.approx(theirs, abs=0.02)


def test_relabelling_agrees_with_scipys_permutations():
    rng = np.random.default_rng(8)
    one, other = rng.exponential(1.0, 30), rng.exponential(1.6, 45)
    theirs = stats.permutation_test(
        (one, other), lambda x, y: x.mean() - y.mean(), permutation_type="independent", n_resamples=20_000,
        rng=generator(3),
    ).pvalue  # fmt: skip
    assert permutation_p(one, other, generator()) == pytest.approx(theirs, abs=0.02)
    assert permutation_p(np.zeros(5), np.zeros(7), generator()) == 1.0


def test_the_seed_of_a_permutation_test_matters_and_repeats():
    differences = np.random.default_rng(5).normal(0.3, 1, 40)
    found = [sign_flip_p(differences, generator(seed)) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
