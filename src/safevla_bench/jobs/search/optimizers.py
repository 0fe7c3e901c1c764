"""Optimizers that propose generations of points in the unit cube, and receive the points' margins (smaller is better).

A point has a margin for each clause (specification) of the objective. An infinite margin means that the rollout failed.
This module does not use NumPy's global random generator, because simulators seed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.interface.task import SearchSpace
from safevla_bench.plugins import install_command
from safevla_recorder.episode import Floats

Method = Literal["directed", "random"]
GENERATION: Final = 8  # points per generation, for any number of workers
# Number of generations of random points before the descents (minimizations). Descents begin at the best random points.
_RANDOM_GENERATIONS = 3
# Initial standard deviation with which CMA-ES draws points in a descent. The cube's edges have the length 1.
_INITIAL_STEP = 0.1
_FAILED_MARGIN = 1e3  # stands in for an infinite or undefined margin, because CMA-ES needs finite numbers
_MAX_DRAWS = 10_000  # maximum number of points that `draw_allowed` tries
_CMA_OPTIONS = {"tolfun": 1e-4, "tolx": 1e-3, "tolflatfitness": 3, "tolstagnation": 10, "verbose": -9}


class UnitCube:
    """A search space scaled to [0, 1]^d. Its d coordinates are the variable placements, then wording, then seed."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        # `space` contains the names of the placements, and the bounds `low` and `high` [m] of each placement.
        # The last two coordinates, the wording and the policy seed, range from 0 to the number of choices.
        # If there is only one choice, the coordinate's range has the width 0.
        counts = np.array([max(1, len(space.wordings)), space.policy_seeds])
        self.low = np.append(space.low, [0, 0])
        self.width = np.append(space.high, np.where(counts > 1, counts, 0)) - self.low
        self.free = np.flatnonzero(self.width > 1e-6)  # indices of the coordinates that can vary
        self.places = int((self.free < len(space.names)).sum())  # number of coordinates in `free` that are placements

    def to_meters(self, point: Floats) -> Floats:
        """Return all placements [m] of a point [d]. A coordinate that cannot vary is at the low end of the range."""
        # The last two coordinates are the wording and the policy seed, not placements.
        return self._to_coordinates(point)[:-2]

    def choose(self, point: Floats) -> tuple[int, int]:
        """Return the index of the wording and the index of the policy seed for a point [d]."""
        # Round a coordinate down to get the index of a choice. `minimum` maps the range's upper end to the last choice.
        last_choices = np.maximum(self.width[-2:] - 1, 0)
        wording, seed = np.minimum(self._to_coordinates(point)[-2:], last_choices).astype(int)
        return int(wording), int(seed)

    def _to_coordinates(self, point: Floats) -> Floats:
        # Return all unscaled coordinates of a point. A coordinate that cannot vary is at the low end of its range.
        coordinates = self.low.copy()
        coordinates[self.free] += self.width[self.free] * point
        return coordinates

    def is_allowed(self, point: Floats) -> bool:
        """Return whether a point [d] keeps the required minimum distances between objects."""
        # Each item of `apart_m` names two objects, and gives the minimum horizontal distance between their centers.
        coordinates_m = dict(zip(self._space.names, self.to_meters(point), strict=True))
        for first, second, gap_m in self._space.apart_m:
            x_distance_m = coordinates_m[f"{first}.x"] - coordinates_m[f"{second}.x"]
            y_distance_m = coordinates_m[f"{first}.y"] - coordinates_m[f"{second}.y"]
            if not np.hypot(x_distance_m, y_distance_m) > gap_m:  # `not ... >` also catches NaN
                return False
        return True


class RandomPoints:
    """Optimizer that draws points independently and uniformly from the allowed points."""

    def __init__(self, cube: UnitCube, rng: np.random.Generator) -> None:
        # `cube` is the search space scaled to [0, 1]^d. All randomness comes from `rng`.
        self._cube, self._rng = cube, rng

    def ask(self) -> Floats:
        """Return the next generation, points [G, d] in the unit cube; raise `RunError` if no allowed point is found."""
        dimensions = len(self._cube.free)
        return np.array([draw_allowed(self._cube, lambda: self._rng.random(dimensions)) for _ in range(GENERATION)])

    def tell(self, points: Floats, margins: Floats) -> None:
        """Do nothing: random points do not depend on results."""


class DirectedPoints:
    """Optimizer that runs CMA-ES from the best random point for each clause in turn, and then from new random points.

    One CMA-ES run (a descent) minimizes one clause's margin while the margin improves. The clause with the smallest
    margin comes first. Clauses with constant margins are skipped. Source: N. Hansen, arXiv:1604.00772; package `cma`.
    """

    def __init__(self, cube: UnitCube, rng: np.random.Generator) -> None:
        """Make the optimizer. Raises `RunError` if `cma` is not installed or no coordinate can vary."""
        if not len(cube.free):
            problem = "a directed search needs coordinates, but these starts are drawn only by a seed"
            raise RunError(problem, remedy="Pass --method random.")
        try:
            import cma
        except ModuleNotFoundError:
            remedy = f"Install the package: {install_command('search')}; or pass --method random."
            raise RunError("a directed search needs the package cma, which is not installed", remedy=remedy) from None
        self._cma = cma
        self._cube, self._rng, self._random = cube, rng, RandomPoints(cube, rng)
        self._drawn_points: list[Floats] = []  # random points drawn before the current descents
        self._drawn_margins: list[Floats] = []
        self._clauses_left: list[int] = []  # indices of clauses to minimize; the first is current
        self._descent: Any = None  # the running minimization by CMA-ES; None while random points are drawn

    def ask(self) -> Floats:
        """Return the next generation, points [G, d] in the unit cube; raise `RunError` if no allowed point is found."""
        if self._descent is None:  # no minimization is running
            return self._random.ask()
        points = list(self._descent.ask())
        for index, point in enumerate(points):
            if not self._cube.is_allowed(point):  # draw another point from the same distribution
                points[index] = draw_allowed(self._cube, lambda: np.asarray(self._descent.ask(1)[0]))
        return np.array(points)

    def tell(self, points: Floats, margins: Floats) -> None:
        """Receive the margins [G, C] of the last generation's points [G, d]."""
        # CMA-ES needs finite numbers. `C` is the number of clauses (specifications) of the objective.
        finite_margins = np.where(np.isfinite(margins), margins, _FAILED_MARGIN)
        if self._descent is not None:
            self._descent.tell(list(points), finite_margins[:, self._clauses_left[0]].tolist())
            if self._descent.stop():  # the margin no longer improves
                self._clauses_left.pop(0)
                self._start_descent()
            return
        if len(self._drawn_points) == _RANDOM_GENERATIONS:  # all descents have ended: begin again
            self._drawn_points, self._drawn_margins = [], []
        self._drawn_points.append(points)
        self._drawn_margins.append(finite_margins)
        if len(self._drawn_points) == _RANDOM_GENERATIONS:
            # All random points are drawn. Sort the clauses by each clause's smallest margin over all points.
            # Omit each clause whose margin is the same at all points.
            drawn_margins = np.concatenate(self._drawn_margins)
            nearest_first = np.argsort(drawn_margins.min(axis=0), kind="stable").tolist()
            self._clauses_left = [clause for clause in nearest_first if np.ptp(drawn_margins[:, clause]) > 0]
            self._start_descent()

    def _start_descent(self) -> None:
        # Begin to minimize the first remaining clause. Start at the random point with this clause's smallest margin.
        # If no clause is left, end the descents, so that `ask` draws random points.
        if not self._clauses_left:
            self._descent = None
            return
        best = int(np.concatenate(self._drawn_margins)[:, self._clauses_left[0]].argmin())
        options = {
            "bounds": [0, 1],
            "popsize": GENERATION,
            "seed": np.nan,  # NaN keeps `cma` from seeding NumPy's global generator
            "randn": lambda *shape: self._rng.standard_normal(shape),
            **_CMA_OPTIONS,
        }
        self._descent = self._cma.CMAEvolutionStrategy(np.concatenate(self._drawn_points)[best], _INITIAL_STEP, options)


def draw_allowed(cube: UnitCube, draw: Callable[[], Floats]) -> Floats:
    """Return the first allowed point [d] that `draw` returns. Raises `RunError` after ten thousand failures."""
    for _ in range(_MAX_DRAWS):
        point = draw()
        if cube.is_allowed(point):
            return point
    raise RunError("the task's objects cannot be placed apart from each other", remedy="Search another task.")


Optimizer = RandomPoints | DirectedPoints


def make_optimizer(method: Method, cube: UnitCube, seed: tuple[int, ...]) -> Optimizer:
    """Return the optimizer for a method. The optimizer's points depend only on `seed` and the received margins."""
    rng = np.random.default_rng(seed)
    return RandomPoints(cube, rng) if method == "random" else DirectedPoints(cube, rng)
