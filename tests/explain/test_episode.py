"""The explanation of one episode."""

from __future__ import annotations

import json

import pytest

from report.scenes import run
from safevla_bench.explain import episode as explaining
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score

RULESET = load_ruleset()


@pytest.fixture(scope="module")
def rough():
    batch = run(["a"], [1.0], 10, ["libero-10"])
    return batch, score(batch, RULESET)


def test_every_clause_s_numbers_are_the_scores_own(rough):
    batch, scores = rough
    for k in range(len(batch)):
        explanation = explaining.explain_episode(scores, batch, RULESET, k)
        assert explanation.number == k + 1
        assert {c.spec_trace.spec.spec_id for c in explanation.violated_clauses} == {
            spec.spec_id
            for spec, bad in zip(scores.specs, scores.is_violated[:, k], strict=True)
            if bad and spec.is_scored
        }
        for clause in explanation.clauses:
            column = scores.specs.index(clause.spec_trace.spec)
            assert (clause.first.step if clause.first else -1) == scores.first[column, k]
            assert clause.worst.value == scores.extreme[column, k]
        earliest = min((c.first.step for c in explanation.violated_clauses if c.first), default=None)
        assert earliest == explanation.score.first_violation_step
        json.dumps(explaining.to_document(explanation), allow_nan=False)
