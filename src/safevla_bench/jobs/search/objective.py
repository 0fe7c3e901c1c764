"""The objective of a search: how near a successful episode came to breaking a limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RunError
from safevla_bench.explain.query import answer_query, parse_query
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.stl.formula import Formula
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import chosen_start

SCORED = "scored clauses"
SHIFTED_M, RESTING_M_S = 0.005, 0.05
"""What an object may have moved until record 0, and its speed after that, if the start is to count."""
_BOOLEAN = 1.0
"""The margin, or its opposite, where only Boolean signals decide."""


@dataclass(frozen=True)
class Objective:
    """What is minimised, each of several margins on its own: a clause's robustness over its threshold, or a formula's
    robustness. A success with a margin below 0 is what is sought.
    """

    ruleset: Ruleset
    text: str
    clauses: tuple[str, ...] = ()
    formula: Formula | None = None

    @classmethod
    def parse(cls, text: str | None, ruleset: Ruleset) -> Objective:
        """Return the objective of a clause's name or a formula; None = every scored clause.

        Raises `FormulaError` for a text that is neither, `RunError` for a name that the library lacks.
        """
        scored = tuple(spec.spec_id for spec in ruleset.library.safe)
        if text is None:
            return cls(ruleset, SCORED, scored)
        if text in ruleset.library:
            return cls(ruleset, text, (ruleset.library.canonical_id(text),))
        if text.isidentifier():
            remedy = f"Scored are {', '.join(scored)}; `safevla specs` lists all. Or write a formula."
            raise RunError(f"there is no clause {text!r}", remedy=remedy)
        return cls(ruleset, text, formula=parse_query(text))

    def margins(self, record: Batch | None) -> NDArray[np.float64]:
        """Return the margins of an episode, a batch of one, [C].

        Infinity where nothing could be judged, and for an episode that did not succeed or left no record. NaN for one
        that did not begin where the search placed things, or in motion: physics has thrown apart what overlapped.
        """
        unknown = np.full(max(1, len(self.clauses)), np.inf)
        if record is not None and not _begins_as_placed(record):
            return unknown * np.nan
        if record is None or not record.headers[0].success:
            return unknown
        return self._clause_margins(record) if self.formula is None else _formula_margin(self.formula, record)

    def violated(self, record: Batch) -> tuple[str, ...]:
        """Return the scored clauses that an episode, a batch of one, violates, in library order."""
        return score(record, self.ruleset).episode(0).violated_specs

    def _clause_margins(self, record: Batch) -> NDArray[np.float64]:
        scores = score(record, self.ruleset)
        column = {spec.spec_id: k for k, spec in enumerate(scores.specs)}
        margins = np.full(len(self.clauses), np.inf)
        for place, clause in enumerate(self.clauses):
            k = column[clause]
            if scores.state[k, 0] == ACTIVE:
                rho = scores.rho[k, 0] / scores.specs[k].threshold
                margins[place] = rho if np.isfinite(rho) else math.copysign(_BOOLEAN, rho)
        return margins


def _begins_as_placed(record: Batch) -> bool:
    bodies, places = record.body_pos_m.episode_poses(0)
    names, shifts = [record.body_label(body) for body in bodies.tolist()], [0.0]
    for coordinate, value in chosen_start(record)[1]:
        name, _, axis = coordinate.rpartition(".")
        if name in names:  # a goal is not recorded
            shifts.append(abs(places[0, names.index(name), "xyz".index(axis)] - value))
    speed = np.abs(np.diff(places[:2], axis=0)).max(initial=0.0) / record.headers[0].dt
    return bool(max(shifts) <= SHIFTED_M and speed <= RESTING_M_S)


def _formula_margin(formula: Formula, record: Batch) -> NDArray[np.float64]:
    (answer,) = answer_query(formula, record)
    decided = {"violated": -_BOOLEAN, "satisfied": _BOOLEAN}.get(answer.verdict, np.inf)
    return np.array([decided if answer.rho is None else answer.rho])
