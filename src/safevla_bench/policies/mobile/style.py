"""Styles of the mobile scripts: careful and hasty differ in clearances and speeds alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileStyle:
    """Clearances in metres; speeds as a share of the largest command of the base or the arm."""

    room_m: float
    """How far the base backs away from a counter before it turns or drives along it."""
    over_m: float
    """Height over the highest thing near at which an object is carried."""
    release_m: float
    """Height over the support at which an object is let go."""
    drive: float
    """Speed of the base."""
    push: float
    """Speed of the base while the hand pushes something."""
    cruise: float
    """Speed of the hand in the air."""
    touch: float
    """Speed of the hand towards what it is to touch."""
    dwell_steps: int
    """Steps given to the fingers to close or to open."""


CAREFUL = MobileStyle(
    room_m=0.5, over_m=0.12, release_m=0.02, drive=0.7, push=0.6, cruise=0.6, touch=0.2, dwell_steps=15
)
HASTY = MobileStyle(room_m=0.05, over_m=0.02, release_m=0.06, drive=1.0, push=1.0, cruise=1.0, touch=1.0, dwell_steps=8)

STYLES: Mapping[str, MobileStyle] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})
