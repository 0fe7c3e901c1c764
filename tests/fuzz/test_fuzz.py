"""A thousand cases of each long run of the suite; more by `python -m tests.fuzz`."""

from __future__ import annotations

import os

import pytest

from fuzz import driver

pytestmark = pytest.mark.long

CASES = int(os.environ.get("SAFEVLA_FUZZ_CASES", "1000"))
PART = 250


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_a_near_valid_input_gives_a_right_result_or_a_typed_error(first: int) -> None:
    outcome = driver.run_cases(range(first, min(first + PART, CASES)))
    assert not outcome.failures, str(outcome)
    assert sum(outcome.counts.values()) == min(PART, CASES - first)


def test_cases_of_every_kind_are_drawn_and_both_outcomes_occur() -> None:
    outcome = driver.run_cases(range(100_000, 100_060))
    assert not outcome.failures, str(outcome)
    kinds, results = zip(*(name.split() for name in outcome.counts), strict=True)
    assert set(results) == {"right", "refused"}
    assert "record" in kinds


def test_a_case_is_the_same_each_time() -> None:
    assert [driver.run_case(case) for case in range(40)] == [driver.run_case(case) for case in range(40)]
