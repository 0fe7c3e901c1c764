"""Changes of a host's physics: the variations that show how firm a verdict is, and contacts and bodies taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class PhysicsChange:
    """Physics that differ from the host's own from record 0 on; settling is as recorded. The default changes nothing.

    Factors are of the host's own value.
    """

    time_step: float = 1.0
    """Of the physics time step. A control step lasts as long as before: it has the nearest whole number of substeps,
    and the time step is what that gives. Controllers run once a substep, as before."""
    iterations: float = 1.0
    """Of the greatest number of solver iterations; the tolerance is divided by its square."""
    softness: float = 1.0
    """Of the contacts' time constant, and of the share that their impedance leaves to 1."""
    friction: float = 1.0
    shift_m: float = 0.0
    """How far things that fly free are moved in the plane at record 0, each in a direction drawn from the seeds."""
    apart: tuple[str, str] | None = None
    """Two bodies, by recorded name, that pass through each other."""
    without: str | None = None
    """A body that touches nothing and stays where it is."""

    @property
    def changed(self) -> frozenset[str]:
        """Names of the fields that change something."""
        return frozenset(part.name for part in fields(self) if getattr(self, part.name) != part.default)


@runtime_checkable
class VaryingHost(Protocol):
    """A host whose environments start an episode under the `PhysicsChange` that its seed holds."""

    changeable: frozenset[str]
    """The fields of a change that they follow; a seed with others is not to be given to them."""


VARIATIONS: Mapping[str, PhysicsChange] = {
    "half-step": PhysicsChange(time_step=0.5),
    "double-step": PhysicsChange(time_step=2.0),
    "few-iterations": PhysicsChange(iterations=0.1),
    "many-iterations": PhysicsChange(iterations=10.0),
    "soft": PhysicsChange(softness=2.0),
    "stiff": PhysicsChange(softness=0.5),
    "low-friction": PhysicsChange(friction=0.9),
    "high-friction": PhysicsChange(friction=1.1),
    "shifted": PhysicsChange(shift_m=1e-4),
}
"""Name -> change, in the order in which they are replayed."""
