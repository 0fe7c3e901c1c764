"""Signal temporal logic: formulas, their text, and their robustness over many episodes."""

from __future__ import annotations

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
    bounded_windows,
    format_formula,
    has_placeholder,
    is_boolean_only,
    signal_names,
    substitute_threshold,
)
from safevla_bench.stl.localization import deciding_records, violating_records
from safevla_bench.stl.parser import parse
from safevla_bench.stl.robustness import (
    FormulaVerdict,
    OneSidedClause,
    Trace,
    hangs_on_empty_window,
    judge_formula,
    match_clause,
    robustness,
    settle_unknown,
    trajectory_robustness,
)

__all__ = [
    "Always",
    "And",
    "BooleanSignal",
    "Compare",
    "Eventually",
    "Formula",
    "FormulaVerdict",
    "Implies",
    "Not",
    "OneSidedClause",
    "Or",
    "Trace",
    "Until",
    "Window",
    "bounded_windows",
    "deciding_records",
    "format_formula",
    "hangs_on_empty_window",
    "has_placeholder",
    "is_boolean_only",
    "judge_formula",
    "match_clause",
    "parse",
    "robustness",
    "settle_unknown",
    "signal_names",
    "substitute_threshold",
    "trajectory_robustness",
    "violating_records",
]
