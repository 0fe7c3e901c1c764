"""Thresholds to try: the variants of the paper's Table 9, which are data, and grids that the user asks for."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from importlib import resources
from math import isfinite

import msgspec

from safevla_bench.errors import SpecError
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.specs.table_reader import RowOrigin, convert_row, read_toml, suggest_names
from safevla_bench.specs.trial import severe_magnitude
from safevla_bench.text import shorten_name

_MOST_THRESHOLDS = 1000


class ThresholdSetting(msgspec.Struct, frozen=True):
    """The threshold and severe magnitude of one specification."""

    threshold: float
    severe: float | None


class ThresholdVariant(msgspec.Struct, frozen=True):
    """Thresholds that differ from the library's, by specification; none = the library as it stands."""

    name: str
    settings: dict[str, ThresholdSetting]


class SweepRequest(msgspec.Struct, frozen=True):
    """A requested sweep: specifications and the thresholds to try."""

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
def _read_variants() -> VariantsFile:
    path = resources.files("safevla_bench.specs") / "library" / "sensitivity.toml"
    return read_toml(path, VariantsFile, _ORIGIN)


_ORIGIN = RowOrigin(SpecError, "library/sensitivity.toml")


def paper_variants(library: Library) -> tuple[tuple[ThresholdVariant, ...], tuple[str, ...]]:
    """Return the paper's Table 9 as variants for a library, and the names of the rows of which it has no family."""
    variants = [_make_variant(library, row) for row in _read_variants().variants]
    usable = tuple(
        variant
        for variant, row in zip(variants, _read_variants().variants, strict=True)
        if variant.settings or not row.change
    )
    return usable, tuple(variant.name for variant in variants if variant not in usable)


def _make_variant(library: Library, row: VariantRow) -> ThresholdVariant:
    settings: dict[str, ThresholdSetting] = {}
    for written in row.change:
        change = convert_row(written, ChangeRow, _ORIGIN.with_subject(row.name))
        for spec in _specs_of_family(library, change.family):
            threshold = _changed_threshold(spec, change)
            settings[spec.spec_id] = ThresholdSetting(threshold, severe_magnitude(library, spec, threshold))
    return ThresholdVariant(row.name, settings)


def _specs_of_family(library: Library, name: str) -> list[Spec]:
    families = _read_variants().groups.get(name, (name,))
    return [spec for spec in library.safe if spec.canonical_family in families]


def _changed_threshold(spec: Spec, change: ChangeRow) -> float:
    if change.times is not None:
        return float(Fraction(spec.threshold) * Fraction(change.times))
    assert change.to is not None
    if change.unit != spec.unit:
        problem = f"{spec.spec_id} is in {spec.unit}, the paper's variants are in {change.unit}"
        raise SpecError(problem, remedy=f"Sweep it instead: --sweep {spec.spec_id}=LOW:HIGH:COUNT, in {spec.unit}.")
    return change.to


def parse_sweep(text: str, library: Library) -> SweepRequest:
    """Parse a sweep from `NAME=LOW:HIGH:COUNT` or `NAME=A,B,C`; NAME is a scored specification, a family or a group.

    >>> from safevla_bench.specs.loader import library
    >>> parse_sweep("non_target_max_disp=0.002:0.01:5", library()).thresholds
    (0.002, 0.004, 0.006, 0.008, 0.01)
    """
    name, equals, grid = text.partition("=")
    if not equals:
        raise _sweep_error(text, "it has no `=`")
    specs = _find_specs(library, name)
    return SweepRequest(name, tuple(spec.spec_id for spec in specs), _parse_grid(text, grid))


def _sweep_error(text: str, why: str) -> SpecError:
    remedy = "Write NAME=LOW:HIGH:COUNT, such as non_target_max_disp=0.002:0.05:25, or NAME=A,B,C; in the spec's unit."
    return SpecError(f"{shorten_name(text)!r} is no sweep: {why}", remedy=remedy)


def _find_specs(library: Library, name: str) -> Sequence[Spec]:
    """Return the scored specification of that name, else the specifications of the family or group of that name."""
    if name in library and library[name].tier == "safe":
        return (library[name],)
    specs = _specs_of_family(library, name)
    if not specs:
        names = dict.fromkeys([*_read_variants().groups, *(spec.canonical_family for spec in library.safe)])
        raise SpecError(
            f"no scored specification or family is {name!r}", remedy=suggest_names(name, names, "there are")
        )
    if len({(spec.unit, spec.threshold) for spec in specs}) > 1:
        remedy = f"Sweep one of {', '.join(spec.spec_id for spec in specs)}."
        raise SpecError(f"the specifications of {name!r} have different units or thresholds", remedy=remedy)
    return specs


def _parse_grid(text: str, grid: str) -> tuple[float, ...]:
    """Return the thresholds of a grid, `LOW:HIGH:COUNT` or `A,B,C`, rising and each once."""
    try:
        if ":" in grid:
            low, high, count = grid.split(":")
            exact = _space_evenly(text, _parse_number(low), _parse_number(high), _parse_number(count))
        else:
            exact = sorted({_parse_number(part) for part in _split_list(text, grid)})
        values = tuple(float(value) for value in exact)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise _sweep_error(text, f"{shorten_name(grid)!r} is no grid of numbers") from None
    if not values or not values[0] > 0:
        raise _sweep_error(text, "thresholds are positive magnitudes, from LOW up to HIGH")
    return values


def _parse_number(text: str) -> Fraction:
    nearest = 1.0 if "/" in text else float(text)
    if not isfinite(nearest):
        raise ValueError
    return Fraction(text) if nearest else Fraction(0)


def _split_list(text: str, grid: str) -> list[str]:
    parts = grid.split(",")
    if len(parts) > _MOST_THRESHOLDS:
        raise _sweep_error(text, f"it has {len(parts)} thresholds, and {_MOST_THRESHOLDS} are the most")
    return parts


def _space_evenly(text: str, low: Fraction, high: Fraction, count: Fraction) -> list[Fraction]:
    if not (high > low and count.denominator == 1 and count >= 2):
        raise ValueError
    if count > _MOST_THRESHOLDS:
        raise _sweep_error(text, f"COUNT is {int(count)}, and {_MOST_THRESHOLDS} are the most")
    return [low + (high - low) * k / (count - 1) for k in range(int(count))]
