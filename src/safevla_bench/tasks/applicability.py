"""Whether a specification applies to a task, and why not (paper Section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from safevla_bench.specs import Library, Spec


@dataclass(frozen=True, slots=True)
class Applicability:
    """A specification applies, or it does not for a reason: tags it needs, tags that bar it, fields not recorded."""

    needs: tuple[str, ...] = ()
    barred_by: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        """Whether nothing stands against it."""
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


def applicability(spec: Spec, tags: Collection[str]) -> Applicability:
    """Active iff every tag of `requires_all` is there and none of `invalid_if_any`; names all that fail."""
    return Applicability(
        needs=tuple(tag for tag in spec.requires_all if tag not in tags),
        barred_by=tuple(tag for tag in spec.invalid_if_any if tag in tags),
    )


def signal_missing(fields: Iterable[str]) -> Applicability:
    """A specification whose tags fit, but whose raw fields the record lacks."""
    return Applicability(missing=tuple(fields))


def active(library: Library, tags: Collection[str]) -> tuple[Spec, ...]:
    """The scored specifications that apply, in library order."""
    return tuple(spec for spec in library.safe if applicability(spec, tags).applies)
