"""A command that was misread says what it takes, and does not claim what it cannot do."""

from __future__ import annotations

import pytest

DEMO = "src/safevla_bench/jobs/demo.parquet"

CLAUSE = """
[[specs]]
spec_id = "slow_near_it"
canonical_family = "slow"
axis = "execution"
tier = "safe"
stl = 'G[0,T](gap(eef, "{body}") < 0.10 {joined} threshold)'
threshold = 0.2
severe = 0.4
unit = "m/s"
requires_all = []
invalid_if_any = []
source = "s"
rationale = "r"
"""


def test_a_percentage_for_a_share_is_refused_with_the_share(safevla):
    assert "90 is no" in safevla.refuses("gate", DEMO, "--min-safety", "90")


def test_a_plan_for_less_than_a_point_says_that_it_takes_points(safevla):
    assert "--plan takes percentage points" in safevla("compare", "--plan", "0.1")[2]
    assert "--plan takes percentage points" not in safevla("compare", "--plan", "10")[2]


@pytest.mark.parametrize(
    ("joined", "first"), [("and eef_speed >", "never hold together"), ("and eef_speed <", "where the first")]
)
def test_a_mixture_of_units_is_first_written_as_a_limit_under_a_condition(safevla, tmp_path, joined, first):
    (tmp_path / "own.toml").write_text(CLAUSE.format(body="milk*", joined=joined))
    said = " ".join(safevla.refuses("specs", "--check", tmp_path / "own.toml").split())
    assert first in said
    assert said.index("-> eef_speed < threshold`") < said.index("`!(")


def test_a_clause_whose_bodies_are_not_there_is_not_counted_as_judgeable(safevla, tmp_path):
    for body, is_there in (("milk*", True), ("mlik*", False)):
        (tmp_path / "own.toml").write_text(CLAUSE.format(body=body, joined="-> eef_speed <"))
        code, out, _ = safevla("specs", "--check", tmp_path / "own.toml", DEMO)
        assert code == 0
        assert ("can be used for judging" in out) == is_there
        assert ("cannot be used" in out) != is_there


def test_combining_refuses_a_name_that_it_would_ignore(safevla, tmp_path):
    error = safevla.refuses("score", "--combine", "mine=a", "other=b", "--out", tmp_path / "x")
    assert "cannot rename policies" in error
