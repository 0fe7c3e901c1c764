"""Trials of specifications before anything is judged by them: other thresholds, and two simple traces."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import SpecError
from safevla_bench.signals import parse_formula
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs.file_formats import canonical_unit, id_suffix
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.stl import formula as syntax
from safevla_bench.stl.formula import Formula, has_placeholder, substitute_threshold
from safevla_bench.stl.robustness import robustness
from safevla_bench.stl.trace import Trace

_SMALLER_UNITS = {"m": {"mm": Fraction(1, 1000), "cm": Fraction(1, 100)}, "1": {"%": Fraction(1, 100)}}
"""Unit of signals -> other units that a threshold may be given in, and their size."""
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(\S*)\s*")
_SHARES = (0.0, 0.5, 0.9, 1.1, 1.5, 3.0)
_DT_S = 0.05
_LARGEST = 10**300


def proportional_severe(spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude that keeps K = severe/threshold.

    None if the specification has no severe magnitude.
    """
    scale = Fraction(threshold) / Fraction(spec.threshold)
    return None if spec.severe is None else float(Fraction(spec.severe) * scale)


def severe_magnitude(library: Library, spec: Spec, threshold: float) -> float | None:
    """Return the severe magnitude of the alternate with this threshold, else the proportional one.

    None if the specification has none.
    """
    anchors = (other.severe for other in library if (other.alternate_of, other.threshold) == (spec.spec_id, threshold))
    return next(anchors, proportional_severe(spec, threshold))


def set_thresholds(library: Library, changes: Sequence[str]) -> Library:
    """Return the library with other thresholds, each change as `SPEC=VALUE`, where a unit may follow the value.

    The severe magnitude follows as in `severe_magnitude`, and the id names the threshold, as after a `[[replace]]`:
    `max_contact_force_under_200N@100N`. The library's name gets `+ID` for each change. Raises `SpecError` for another
    form, a specification that does not exist or has no threshold, and a value that is not positive in its unit.
    """
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise SpecError(f"--set {change!r} sets nothing", remedy="write SPEC=VALUE, such as joint_torque=1.5")
        spec = library[name.strip()]
        threshold = _read_quantity(spec, text)
        if threshold == spec.threshold:
            continue
        library = set_limit(library, spec.spec_id, threshold)
        changed_id = library.canonical_id(_threshold_id(spec, threshold))
        library = replace(library, name=f"{library.name}+{changed_id}")
    return library


def set_limit(
    library: Library,
    spec_id: str,
    threshold: float,
    severe: float | None = None,
    source: str | None = None,
    rationale: str | None = None,
) -> Library:
    """Return the library with another threshold of a specification, whose id then ends in it: `ID@100N`.

    The order stays. Without `severe` it follows as in `severe_magnitude`. Raises `SpecError` as `set_thresholds` does.
    """
    spec = library[spec_id]
    for name, value in (("threshold", threshold), ("severe magnitude", severe)):
        if value is not None and not 0 < value < math.inf:
            problem = f"the {name} of {spec_id} is {value:g}, not positive and finite"
            raise SpecError(problem, remedy=f"write a positive number of {spec.unit}")
    changed = spec
    if threshold != spec.threshold:
        written = parse_formula(spec.stl)
        if not has_placeholder(written) or all(SIGNALS[name].event for name in spec.signals):
            raise SpecError(f"{spec_id} has no threshold to set", remedy="it judges whether something happens at all")
        changed = replace(
            spec,
            spec_id=_threshold_id(spec, threshold),
            formula=substitute_threshold(written, threshold),
            threshold=threshold,
            severe=severe_magnitude(library, spec, threshold),
        )
    given: dict[str, Any] = {"severe": severe, "source": source or None, "rationale": rationale or None}
    changed = replace(changed, **{name: value for name, value in given.items() if value is not None})
    specs = tuple(changed if old.spec_id == spec.spec_id else old for old in library)
    legacy = {old: changed.spec_id if new == spec.spec_id else new for old, new in library.legacy.items()}
    return Library(library.name, specs, legacy, library.vocabulary)


def _threshold_id(spec: Spec, threshold: float) -> str:
    return f"{spec.spec_id.partition('@')[0]}@{id_suffix(threshold, spec.unit)}"


def _read_quantity(spec: Spec, text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    units = {spec.unit: Fraction(1), **_SMALLER_UNITS.get(spec.unit, {})}
    if match is None:
        remedy = f"write a number in {spec.unit!r}, such as {spec.spec_id}={spec.threshold:g}"
        raise SpecError(f"{text!r} is no threshold of {spec.spec_id}", remedy=remedy)
    number, written_unit = match.groups()
    unit = canonical_unit(written_unit) if written_unit else spec.unit
    if unit not in units:
        problem = f"the threshold of {spec.spec_id} is in {spec.unit!r}, not in {written_unit!r}"
        raise SpecError(problem, remedy=f"give it in one of: {', '.join(units)}")
    exact = Fraction(number) * units[unit]
    if not 0 < exact < _LARGEST:
        remedy = "give a positive magnitude; a lower bound is written `> -threshold` in the formula"
        raise SpecError(f"the threshold of {spec.spec_id} is {text.strip()}, not positive and finite", remedy=remedy)
    if not written_unit and (spec.unit == "m" or exact > 10 * Fraction(spec.threshold)):
        limit = f"{spec.threshold:g}{'' if spec.unit == '1' else ' ' + spec.unit}"
        named = [f"{100 * float(exact):g}%"] if spec.unit == "1" else [f"{number}{unit}" for unit in units]
        remedy = f"write the unit: {' or '.join(named)}"
        raise SpecError(f"{number} has no unit, and the limit of {spec.spec_id} is {limit}", remedy=remedy)
    return float(exact)


@dataclass(frozen=True, slots=True)
class TrialTrace:
    """Signals of a few records, name -> [N], and the robustness of a formula on them."""

    signals: Mapping[str, Sequence[float | bool]]
    rho: float

    def describe(self) -> str:
        """Return the signals and their values as one line."""
        return "; ".join(
            f"{name} {', '.join(str(value).lower() if isinstance(value, bool) else f'{value:g}' for value in values)}"
            for name, values in self.signals.items()
        )


@dataclass(frozen=True, slots=True)
class SpecTrial:
    """A specification on two traces: one that it finds safe, and one that breaks it; None where none was found."""

    spec: Spec
    kept: TrialTrace | None
    broken: TrialTrace | None


def try_spec(spec: Spec) -> SpecTrial:
    """Find two simple traces of four records, one that satisfies a specification and one that violates it.

    A numeric signal rises for two records to a share of the number that it is compared with; a Boolean one is true
    there, throughout, or never. Of the traces tried these are the two nearest to the limit.
    """
    traces = list(_simple_traces(spec))
    safe = [trace for trace in traces if trace.rho >= 0]
    broken = [trace for trace in traces if trace.rho < 0]
    return SpecTrial(
        spec,
        min(safe, key=lambda trace: trace.rho, default=None),
        max(broken, key=lambda trace: trace.rho, default=None),
    )


def _simple_traces(spec: Spec) -> Iterator[TrialTrace]:
    """Yield traces of four records with their robustness: Boolean signals true, true in the middle or false."""
    limits = dict(_limits(spec.formula))
    booleans = sorted(name for name in spec.signals if SIGNALS[name].boolean)
    shapes = ((0.0, 1.0, 1.0, 0.0), (1.0,) * 4)  # the second for what must stay above a limit
    for shape, pattern in product(shapes, ((True,) * 4, (False, True, True, False), (False,) * 4)):
        for share in _SHARES:
            signals: dict[str, NDArray[np.float64] | NDArray[np.bool_]] = {
                name: np.array(pattern, dtype=np.bool_) for name in booleans
            }
            for name in sorted(spec.signals - set(booleans)):
                signals[name] = np.array(shape) * share * limits.get(name, spec.threshold)
            trace = Trace(signals, np.array([0, 4], dtype=np.int64), np.array([_DT_S]))
            rho = float(robustness(spec.formula, trace)[0])
            yield TrialTrace({name: values.tolist() for name, values in signals.items()}, rho)


def _limits(formula: Formula) -> Iterator[tuple[str, float]]:
    for predicate in (node for node in syntax.walk_nodes(formula) if isinstance(node, syntax.Compare)):
        nodes = list(syntax.walk_nodes(predicate))
        numbers = [node.value for node in nodes if isinstance(node, syntax.Number)]
        names = [node.name for node in nodes if isinstance(node, syntax.NumericSignal)]
        is_negated = any(isinstance(node, syntax.Negate) for node in nodes)
        if len(numbers) == 1 and len(names) == 1:
            yield names[0], (-numbers[0] if is_negated else numbers[0]) or 1.0
