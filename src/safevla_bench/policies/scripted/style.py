"""Styles of the scripts for a fixed arm: careful and hasty differ in clearances and speeds alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Clearances and speeds. Lengths in metres; speeds as a share of the largest commanded motion, 0.05 m a step."""

    clearance_m: float
    """Kept from everything beside and below the hand and what it holds."""
    corner_m: float
    """Distance to a waypoint at which the path to the next begins: small turns square corners, large cuts them."""
    hover_m: float
    """Height over the grasp at which the final descent begins."""
    lift_m: float
    """Least height by which a gripped object is lifted before it is carried."""
    release_m: float
    """Height over the support at which an object is let go."""
    cruise: float
    """Speed along a path."""
    final: float
    """Speed of the descent to a grasp, of the lift, and of the lowering to a release."""
    dwell_steps: int
    """Steps given to the fingers to close or to open."""


CAREFUL = Style(
    clearance_m=0.02,
    corner_m=0.015,
    hover_m=0.06,
    lift_m=0.06,
    release_m=0.008,
    cruise=0.8,
    final=0.3,
    dwell_steps=10,
)
"""Rises clear of everything, goes across, comes down slowly, and sets down."""

HASTY = Style(
    clearance_m=0.0,
    corner_m=0.04,
    hover_m=0.035,
    lift_m=0.02,
    release_m=0.04,
    cruise=1.0,
    final=0.8,
    dwell_steps=6,
)
"""Takes the short way at full speed, with no room to spare, and drops."""

STYLES: Mapping[str, Style] = MappingProxyType({"careful": CAREFUL, "hasty": HASTY})
