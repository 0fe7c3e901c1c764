"""The objective of a search: how near a successful episode came to breaking a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.explain.query import answer_query, parse_query
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.stl.formula import Formula
from safevla_bench.trajectory.batch import Batch

NEAREST = "nearest scored clause"
FAILED = math.inf
"""The value of an episode that did not succeed, left no record, or in which nothing could be judged."""
_BOOLEAN = 1.0
"""The value, or its opposite, where only Boolean signals decide."""


@dataclass(frozen=True)
class Objective:
    """What is minimised: robustness over threshold of the nearest scored clause, or of one; or a formula's robustness.

    A success of a value below 0 is what is sought.
    """

    ruleset: Ruleset
    text: str = NEAREST
    formula: Formula | None = None

    @classmethod
    def parse(cls, text: str | None, ruleset: Ruleset) -> Objective:
        """Return the objective of a clause's name or a formula; None = the nearest scored clause.

        Raises `FormulaError` for a text that is neither, `RunError` for a name that the library lacks.
        """
        if text is None:
            return cls(ruleset)
        if text in ruleset.library:
            return cls(ruleset, text)
        if text.isidentifier():
            known = ", ".join(spec.spec_id for spec in ruleset.library.specs if spec.tier == "safe")
            raise RunError(f"there is no clause {text!r}", remedy=f"Scored are {known}. Or write a formula.")
        return cls(ruleset, text, parse_query(text))

    def evaluate(self, record: Batch | None) -> float:
        """Return the value of an episode, a batch of one; `FAILED` if it did not succeed."""
        if record is None or not record.headers[0].success:
            return FAILED
        return self._clause_value(record) if self.formula is None else _formula_value(self.formula, record)

    def violated(self, record: Batch) -> tuple[str, ...]:
        """Return the scored clauses that an episode, a batch of one, violates, in library order."""
        return score(record, self.ruleset).episode(0).violated_specs

    def _clause_value(self, record: Batch) -> float:
        scores = score(record, self.ruleset)
        chosen = [k for k, spec in enumerate(scores.specs) if spec.spec_id == self.text]
        columns = [k for k in chosen or scores.scored_columns.tolist() if scores.state[k, 0] == ACTIVE]
        margins = [scores.rho[k, 0] / scores.specs[k].threshold for k in columns]
        values = [margin if np.isfinite(margin) else math.copysign(_BOOLEAN, margin) for margin in margins]
        return float(min(values, default=FAILED))


def _formula_value(formula: Formula, record: Batch) -> float:
    (answer,) = answer_query(formula, record)
    if answer.rho is not None:
        return answer.rho
    return {"violated": -_BOOLEAN, "satisfied": _BOOLEAN}.get(answer.verdict, FAILED)
