"""Optimisers: they ask for generations of points in the unit cube and are told their values, the smaller the better.

A value of infinity says that the rollout failed, which is worse than any success. Nothing here draws from NumPy's
global generator, which simulators seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RunError
from safevla_bench.interface.task import SearchSpace
from safevla_bench.plugins import install_command

Floats = NDArray[np.float64]
Method = Literal["directed", "random"]
GENERATION: Final = 8
"""Points asked for at a time, whatever the number of workers."""
_DRAWN = 24
"""Points that are drawn before each descent, which begins at the best of them."""
_STEP = 0.1
"""First standard deviation of a descent, in the unit cube."""
_WORST = 1e3
_TRIES = 10_000
_STOPS = {"tolfun": 1e-4, "tolx": 1e-3, "tolflatfitness": 3, "tolstagnation": 10, "verbose": -9}


class PointSource(Protocol):
    """An optimiser."""

    def ask(self) -> Floats:
        """Return the next generation, [G, d] in 0 to 1; `tell` must follow."""

    def tell(self, points: Floats, values: Floats) -> None:
        """Learn the values [G] of the points [G, d] that were asked for last."""


class UnitCube:
    """A search space scaled to [0, 1]^d; d counts the coordinates that can move."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.low, self.width = np.array(space.low), np.array(space.high) - np.array(space.low)
        self.free = np.flatnonzero(self.width > 1e-6)

    def to_metres(self, point: Floats) -> Floats:
        """Return all coordinates [m] of a point [d]; those that cannot move are at their low end."""
        metres = self.low.copy()
        metres[self.free] += self.width[self.free] * point
        return metres

    def from_metres(self, metres: Floats) -> Floats:
        """Return points [..., d] of coordinates [..., all of them]."""
        return np.asarray((metres[..., self.free] - self.low[self.free]) / self.width[self.free])

    def is_allowed(self, point: Floats) -> bool:
        """Return whether no two objects are too near each other at a point [d] of the cube."""
        at = dict(zip(self._space.names, self.to_metres(point), strict=True))
        return all(
            np.hypot(at[f"{a}.x"] - at[f"{b}.x"], at[f"{a}.y"] - at[f"{b}.y"]) > gap for a, b, gap in self._space.apart_m
        )


class RandomPoints:
    """Points drawn uniformly from what is allowed, independent of one another."""

    def __init__(self, cube: UnitCube, rng: np.random.Generator) -> None:
        self._cube, self._rng = cube, rng

    def ask(self) -> Floats:
        return np.array([self.draw() for _ in range(GENERATION)])

    def tell(self, points: Floats, values: Floats) -> None:
        """Learn nothing: what comes next does not depend on it."""

    def draw(self) -> Floats:
        """Return one point [d]; raises `RunError` if next to nothing is allowed."""
        return draw_allowed(self._cube, lambda: self._rng.random(len(self._cube.free)))


class DirectedPoints:
    """CMA-ES from the best of some random points, begun anew elsewhere when it no longer improves.

    N. Hansen, arXiv:1604.00772, as the package `cma` has it. Chosen by measuring: docs/search.md.
    """

    def __init__(self, cube: UnitCube, rng: np.random.Generator) -> None:
        """Raise `RunError`, which names the extra, if `cma` is not installed or there is nothing to move."""
        if not len(cube.free):
            problem = "a directed search needs coordinates, and these starts are drawn by a seed alone"
            raise RunError(problem, remedy="Pass --method random.")
        self._cma = _import_cma()
        self._cube, self._rng, self._random = cube, rng, RandomPoints(cube, rng)
        self._descent: Any = None
        self._drawn: list[tuple[float, Floats]] = []

    def ask(self) -> Floats:
        if self._descent is None:
            return self._random.ask()
        asked = self._descent.ask()
        return np.array([point if self._cube.is_allowed(point) else self._draw_near() for point in asked])

    def _draw_near(self) -> Floats:
        return draw_allowed(self._cube, lambda: np.asarray(self._descent.ask(1)[0]))

    def tell(self, points: Floats, values: Floats) -> None:
        worst = np.where(np.isfinite(values), values, _WORST)
        if self._descent is not None:
            self._descent.tell(list(points), worst.tolist())
            if self._descent.stop():
                self._descent = None
            return
        self._drawn += zip(worst.tolist(), points, strict=True)
        if len(self._drawn) >= _DRAWN:
            value, start = min(self._drawn, key=lambda pair: pair[0])
            self._drawn = []
            if value < _WORST:
                self._descent = self._begin(start)

    def _begin(self, start: Floats) -> Any:
        options = {
            "bounds": [0, 1],
            "popsize": GENERATION,
            "seed": np.nan,  # nan: leave NumPy's global generator alone
            "randn": lambda *shape: self._rng.standard_normal(shape),
            **_STOPS,
        }
        return self._cma.CMAEvolutionStrategy(start, _STEP, options)


def draw_allowed(cube: UnitCube, draw: Callable[[], Floats]) -> Floats:
    """Return the first point [d] drawn that is allowed; raises `RunError` after ten thousand that are not."""
    for _ in range(_TRIES):
        point = draw()
        if cube.is_allowed(point):
            return point
    raise RunError("the task's objects cannot be placed apart in their regions", remedy="Search another task.")


def make_optimizer(method: Method, cube: UnitCube, seed: tuple[int, ...]) -> PointSource:
    """Return the optimiser of a method; `seed` fixes every point that it asks for, given the values told."""
    rng = np.random.default_rng(seed)
    return RandomPoints(cube, rng) if method == "random" else DirectedPoints(cube, rng)


def _import_cma() -> Any:
    try:
        import cma
    except ModuleNotFoundError:
        remedy = f"Install it: {install_command('search')}; or pass --method random."
        raise RunError("a directed search needs the package cma, which is not installed", remedy=remedy) from None
    return cma
