"""Scores under another threshold, from the scores alone.

A clause G(signal < bound), or one behind a crisp gate, is decided by the worst value that its signal took, whatever the
bound; so another threshold needs that value only, not the records. Clauses of another shape are judged anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import stl
from safevla_bench.errors import SpecError
from safevla_bench.scores import ACTIVE, Scores, SpecColumn
from safevla_bench.sensitivity.variants import ThresholdSetting, ThresholdVariant
from safevla_bench.signals import SIGNALS
from safevla_bench.specs import Library, Spec
from safevla_bench.verdicts import BINARY_MARGIN, violation_depth

Rescore = Callable[[Library], Scores]
"""A function that judges the same records with another library."""


def apply_variant(
    scores: Scores, library: Library, variant: ThresholdVariant, rescore: Rescore | None = None
) -> Scores:
    """Return the scores under a variant: safe, sbu, vsi, rho, depth and state equal a full re-score bit for bit.

    `first` is -1 throughout a changed specification: when a violation begins is not decided by the worst value.
    Raises as `ablate` does.
    """
    specs = {spec_id: _change_threshold(library[spec_id], setting) for spec_id, setting in variant.settings.items()}
    if not all(_is_decided_by_extreme(library[spec_id]) for spec_id in specs):
        if rescore is None:
            problem = f"{', '.join(specs)}: the worst value of its signal does not decide the formula"
            raise SpecError(problem, remedy="Pass `rescore`, so that the records can be judged anew.")
        return rescore(replace(library, specs=tuple(specs.get(base_spec.spec_id, base_spec) for base_spec in library)))
    rho, depths, first = scores.rho.copy(), scores.depth.copy(), scores.first.copy()
    for k, column in enumerate(scores.specs):
        if column.spec_id in specs:
            spec, active = specs[column.spec_id], scores.state[k] == ACTIVE
            rho[k] = np.where(active, _margin_of_extreme(spec, scores.extreme[k]), np.nan)
            depths[k] = np.where(active, violation_depth(spec, rho[k]), np.nan)
            first[k] = -1
    return replace(scores, specs=_replace_columns(scores, specs), rho=rho, depth=depths, first=first)


def _replace_columns(scores: Scores, specs: Mapping[str, Spec]) -> tuple[SpecColumn, ...]:
    return tuple(
        msgspec.structs.replace(column, threshold=specs[column.spec_id].threshold, severe=specs[column.spec_id].severe)
        if column.spec_id in specs
        else column
        for column in scores.specs
    )


def _parse_placeholder(spec: Spec) -> stl.Formula:
    """Return the formula with `threshold` still in it."""
    formula = stl.parse(spec.stl, {name: signal.boolean for name, signal in SIGNALS.items()})
    if not stl.has_placeholder(formula):
        remedy = "Write `threshold` in place of the number in its formula."
        raise SpecError(f"{spec.spec_id} states its number itself, so that it cannot be moved", remedy=remedy)
    return formula


def _change_threshold(spec: Spec, setting: ThresholdSetting) -> Spec:
    formula = stl.substitute_threshold(_parse_placeholder(spec), setting.threshold)
    return replace(spec, threshold=setting.threshold, severe=setting.severe, formula=formula)


def _is_decided_by_extreme(spec: Spec) -> bool:
    """True for G(predicate), and for G(gate -> predicate) with a crisp gate that the threshold does not move."""
    match _parse_placeholder(spec):
        case stl.Always(_, stl.Implies(gate, _)) if not stl.is_boolean_only(gate):
            return False
    return stl.match_clause(spec.formula) is not None


def _margin_of_extreme(spec: Spec, extreme: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the robustness from the worst value, [E]; +inf where the gate never opened."""
    clause = stl.match_clause(spec.formula)
    assert clause is not None
    least = clause.bound - extreme if clause.upper else extreme - clause.bound
    rho = np.where(np.isnan(extreme), np.inf, least + 0.0)
    return np.where(rho >= 0, BINARY_MARGIN, -BINARY_MARGIN) if spec.binary else rho
