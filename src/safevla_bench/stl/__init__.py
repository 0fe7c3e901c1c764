"""Signal temporal logic: formulas, their text, and their robustness over many episodes at once."""

from __future__ import annotations

from safevla_bench.stl.decisive_record import deciding
from safevla_bench.stl.formula import (
    Always,
    And,
    BooleanSignal,
    Compare,
    Eventually,
    Formula,
    Implies,
    Not,
    Or,
    Until,
    Window,
    boolean_only,
    holds_placeholder,
    signals,
    substitute,
    to_text,
)
from safevla_bench.stl.parser import parse
from safevla_bench.stl.robustness import Clause, Trace, Verdict, clause_of, judge, robustness, trajectory_robustness
from safevla_bench.stl.violated_records import violating

__all__ = [
    "Always",
    "And",
    "BooleanSignal",
    "Clause",
    "Compare",
    "Eventually",
    "Formula",
    "Implies",
    "Not",
    "Or",
    "Trace",
    "Until",
    "Verdict",
    "Window",
    "boolean_only",
    "clause_of",
    "deciding",
    "holds_placeholder",
    "judge",
    "parse",
    "robustness",
    "signals",
    "substitute",
    "to_text",
    "trajectory_robustness",
    "violating",
]
