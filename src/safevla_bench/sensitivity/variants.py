"""Which thresholds to try: the variants of the paper's Table 9, which are data, and grids that the user asks for."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import SpecError
from safevla_bench.specs import Library, Spec
from safevla_bench.specs.table_reader import Origin, alternatives, read_toml, typed

_MOST_THRESHOLDS = 1000


class Setting(msgspec.Struct, frozen=True):
    """The threshold and severe magnitude of one specification."""

    threshold: float
    severe: float | None


class Variant(msgspec.Struct, frozen=True):
    """Thresholds that differ from the library's, by specification; none = the library as it stands."""

    name: str
    settings: dict[str, Setting]


class Asked(msgspec.Struct, frozen=True):
    """A sweep as it was asked for: which specifications, over which thresholds."""

    name: str
    spec_ids: tuple[str, ...]
    thresholds: tuple[float, ...]


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a variant as written: a family or group, and its new threshold or a factor."""

    family: str
    to: float | None = None
    unit: str | None = None
    times: str | None = None


class VariantRow(msgspec.Struct, frozen=True, kw_only=True):
    """One variant as written."""

    name: str
    change: tuple[dict[str, object], ...] = ()


class VariantsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of sensitivity.toml."""

    groups: dict[str, tuple[str, ...]]
    variants: tuple[VariantRow, ...]


@cache
def _file() -> VariantsFile:
    path = resources.files("safevla_bench.specs") / "library" / "sensitivity.toml"
    return read_toml(path, VariantsFile, _ORIGIN)


_ORIGIN = Origin(SpecError, "library/sensitivity.toml")


def paper_variants(library: Library) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """The rows of the paper's Table 9 for a library, and the names of those that it has no family for.

    Raises:
        SpecError: a family of the library has another unit than the variant states.
    """
    found = [_variant(library, row) for row in _file().variants]
    kept = tuple(one for one, row in zip(found, _file().variants, strict=True) if one.settings or not row.change)
    return kept, tuple(one.name for one in found if one not in kept)


def _variant(library: Library, row: VariantRow) -> Variant:
    settings: dict[str, Setting] = {}
    for written in row.change:
        change = typed(written, ChangeRow, _ORIGIN.about(row.name))
        for spec in _of_family(library, change.family):
            threshold = _changed_threshold(spec, change)
            settings[spec.spec_id] = Setting(threshold, _severe(library, spec, threshold))
    return Variant(row.name, settings)


def _of_family(library: Library, name: str) -> list[Spec]:
    families = _file().groups.get(name, (name,))
    return [spec for spec in library.safe if spec.canonical_family in families]


def _changed_threshold(spec: Spec, change: ChangeRow) -> float:
    if change.times is not None:
        return float(Fraction(spec.threshold) * Fraction(change.times))
    assert change.to is not None
    if change.unit != spec.unit:
        problem = f"{spec.spec_id} is in {spec.unit}, the paper's variants are in {change.unit}"
        raise SpecError(problem, remedy=f"Sweep it instead: --sweep {spec.spec_id}=LOW:HIGH:COUNT, in {spec.unit}.")
    return change.to


def _severe(library: Library, spec: Spec, threshold: float) -> float | None:
    """That of the alternate with this threshold where there is one, else in proportion."""
    anchors = [one.severe for one in library if one.alternate_of == spec.spec_id and one.threshold == threshold]
    return anchors[0] if anchors else proportional(spec, threshold)


def proportional(spec: Spec, threshold: float) -> float | None:
    """The severe magnitude that keeps K = severe/threshold."""
    if spec.severe is None:
        return None
    return float(Fraction(spec.severe) * Fraction(threshold) / Fraction(spec.threshold))


def asked(text: str, library: Library) -> Asked:
    """A sweep from `NAME=LOW:HIGH:COUNT` or `NAME=A,B,C`; NAME is a scored specification, a family or a group.

    >>> from safevla_bench import library
    >>> asked("non_target_max_disp=0.002:0.01:5", library()).thresholds
    (0.002, 0.004, 0.006, 0.008, 0.01)

    Raises:
        SpecError: nothing of that name is scored, the specifications of a family have different units or thresholds,
            or the grid is none.
    """
    name, equals, grid = text.partition("=")
    if not equals:
        raise _no_sweep(text, "it has no `=`")
    specs = _named(library, name)
    return Asked(name, tuple(spec.spec_id for spec in specs), _grid(text, grid))


def _no_sweep(text: str, why: str) -> SpecError:
    remedy = "Write NAME=LOW:HIGH:COUNT, such as non_target_max_disp=0.002:0.05:25, or NAME=A,B,C; in the spec's unit."
    return SpecError(f"{text!r} is no sweep: {why}", remedy=remedy)


def _named(library: Library, name: str) -> Sequence[Spec]:
    if name in library and library[name].tier == "safe":
        return (library[name],)
    specs = _of_family(library, name)
    if not specs:
        known = dict.fromkeys([*_file().groups, *(spec.canonical_family for spec in library.safe)])
        raise SpecError(f"no scored specification or family is {name!r}", remedy=alternatives(name, known, "there are"))
    if len({(spec.unit, spec.threshold) for spec in specs}) > 1:
        remedy = f"Sweep one of {', '.join(spec.spec_id for spec in specs)}."
        raise SpecError(f"the specifications of {name!r} have different units or thresholds", remedy=remedy)
    return specs


def _grid(text: str, grid: str) -> tuple[float, ...]:
    try:
        if ":" in grid:
            low, high, count = (Fraction(part) for part in grid.split(":"))
            exact = _spaced(low, high, count)
        else:
            exact = sorted({Fraction(part) for part in grid.split(",")})
        values = tuple(float(one) for one in exact)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise _no_sweep(text, f"{grid!r} is no grid of numbers") from None
    if not values or not values[0] > 0:
        raise _no_sweep(text, "thresholds are positive magnitudes, from LOW up to HIGH")
    return values


def _spaced(low: Fraction, high: Fraction, count: Fraction) -> list[Fraction]:
    """Evenly from low to high, exact, so that 0.005 on a grid is the threshold 0.005."""
    if not (high > low and count.denominator == 1 and 2 <= count <= _MOST_THRESHOLDS):
        raise ValueError
    return [low + (high - low) * k / (count - 1) for k in range(int(count))]
