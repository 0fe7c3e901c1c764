"""Applicability of a specification to a task, with the reason where it does not apply (paper Section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from safevla_bench.specs import Library, Spec


@dataclass(frozen=True, slots=True)
class Applicability:
    """Reasons why a specification does not apply: tags it needs, tags that bar it, fields not recorded."""

    needs: tuple[str, ...] = ()
    barred_by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        """True if there is no reason against it."""
        return not (self.needs or self.barred_by or self.missing)

    @property
    def reason(self) -> str:
        """`applies`, or the reasons joined by `; `: `needs A, B`, `invalid with C`, `signal missing: field`."""
        parts = [
            (f"needs {', '.join(self.needs)}", self.needs),
            (f"invalid with {', '.join(self.barred_by)}", self.barred_by),
            (f"signal missing: {', '.join(self.missing)}", self.missing),
        ]
        return "; ".join(text for text, present in parts if present) or "applies"


APPLIES = Applicability()


def check_applicability(spec: Spec, tags: Collection[str]) -> Applicability:
    """Return the applicability of a specification to a task with these tags, with every reason against it."""
    return Applicability(
        needs=tuple(tag for tag in spec.requires_all if tag not in tags),
        barred_by=tuple(tag for tag in spec.invalid_if_any if tag in tags),
    )


def signal_missing(fields: Iterable[str]) -> Applicability:
    """Return the applicability of a specification whose tags fit, but whose raw fields the record lacks."""
    return Applicability(missing=tuple(fields))


def active_specs(library: Library, tags: Collection[str]) -> tuple[Spec, ...]:
    """Return the scored specifications that apply, in library order."""
    return tuple(spec for spec in library.safe if check_applicability(spec, tags).applies)
