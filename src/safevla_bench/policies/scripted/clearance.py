"""The way from one place to another over what stands between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.policies.scripted.shapes import Prisms, along, lowest
from safevla_bench.policies.scripted.style import Style

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Way:
    """A straight way seen from above: places_m [K, 2], and how high the rest of it from each place must be, [K]."""

    places_m: Floats
    height_m: Floats

    def height_from(self, here_m: Floats) -> float:
        """How high to be at the place nearest to [2]."""
        return float(self.height_m[np.argmin(np.linalg.norm(self.places_m - here_m, axis=1))])


def way(rig: Prisms, start_m: Floats, end_m: Floats, obstacles: Prisms, style: Style) -> Way:
    """The straight way of a rig from [3] to [3], the style's clearance kept to all obstacles; never below its end."""
    places = along(start_m[:2], end_m[:2])
    floor = lowest(rig, places, obstacles, style.clearance_m, style.clearance_m)
    rest = np.maximum.accumulate(np.maximum(floor, end_m[2])[::-1])[::-1]
    return Way(places, rest)


def waypoint(over: Way, goal_m: Floats, here_m: Floats, corner_m: float) -> Floats:
    """Where to head for now, [3]: up until the way is clear, then across, then down; corners cut by `corner_m`."""
    height = over.height_from(here_m[:2])
    if np.linalg.norm(goal_m[:2] - here_m[:2]) < corner_m:
        return goal_m
    if here_m[2] < height - corner_m:
        return np.array([*here_m[:2], height])
    return np.array([*goal_m[:2], height])
