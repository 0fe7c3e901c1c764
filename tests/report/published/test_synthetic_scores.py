"""Scores from counts: every count is as given, and nothing else is claimed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.published.synthesis import EpisodeCounts, synthesize_scores
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.metrics import cells

AXES = {"a": "scene_interaction", "b": "execution", "c": "object_handling"}


@st.composite
def any_counts(draw: st.DrawFn) -> EpisodeCounts:
    parts = draw(st.tuples(*[st.integers(0, 30)] * 4))
    unsafe_success, unsafe_failure, safe_success, safe_failure = parts
    in_successes = {name: draw(st.integers(0, unsafe_success)) for name in "ab"}
    in_successes["b"] = max(in_successes["b"], unsafe_success - in_successes["a"])
    in_failures = {name: draw(st.integers(0, unsafe_failure)) for name in "ab"}
    in_failures["b"] = max(in_failures["b"], unsafe_failure - in_failures["a"])
    return EpisodeCounts(
        policy="p",
        suite="s",
        n=sum(parts),
        success=unsafe_success + safe_success,
        safe=safe_success + safe_failure,
        unsafe_success=unsafe_success,
        by_spec={name: in_successes[name] + in_failures[name] for name in "ab"},
        in_successes=in_successes,
    )


@given(any_counts())
def test_every_count_comes_back(given):
    if not given.n:
        return
    (cell,) = cells(synthesize_scores([given], AXES))
    assert cell.n == given.n
    assert cell.rates["sr"].count == given.success
    assert cell.rates["safety"].count == given.safe
    assert cell.success_unsafe == given.unsafe_success
    found = {spec.spec_id: spec for spec in cell.specs}
    assert {name: found[name].violations.count for name in "ab"} == given.by_spec
    assert {name: found[name].unsafe_success for name in "ab"} == given.in_successes
    assert found["c"].active == 0
    assert cell.vsi is None
    assert cell.means["vsi_given_unsafe"].value is None


@pytest.mark.parametrize(
    "changes",
    [
        {"unsafe_success": 7},
        {"safe": 9},
        {"by_spec": {"a": 1}},
        {"by_spec": {"a": 20}},
        {"by_spec": {"a": 4}, "in_successes": {"a": 1}},
    ],
)
def test_impossible_counts_are_refused(changes):
    fields = {"policy": "p", "suite": "s", "n": 10, "success": 6, "safe": 6, "unsafe_success": 2, **changes}
    with pytest.raises(SafevlaError, match="p on s"):
        synthesize_scores([EpisodeCounts(**fields)], AXES)


def test_without_specifications_only_the_verdict_is_known():
    (cell,) = cells(
        synthesize_scores([EpisodeCounts(policy="p", suite="s", n=10, success=6, safe=6, unsafe_success=2)])
    )
    assert (cell.success_unsafe, cell.failure_unsafe, cell.vsi) == (2, 2, None)
