"""Estimates of the time and disk that a plan costs, from figures measured on each host (`costs.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from itertools import groupby
from operator import add
from types import MappingProxyType

import msgspec

from safevla_bench.rollout.plan import PlannedEpisode, scene_of

NO_INTERVALS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CostRange:
    """A figure known between two bounds."""

    low: float
    high: float

    def __add__(self, other: CostRange) -> CostRange:
        return CostRange(self.low + other.low, self.high + other.high)

    def __mul__(self, count: float) -> CostRange:
        return CostRange(self.low * count, self.high * count)


class HostCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host's figures, each from lowest to highest; the file says what each is."""

    source: str
    make_s: tuple[float, float]
    reset_s: tuple[float, float]
    step_s: tuple[float, float]
    camera_step_s: tuple[float, float]
    record_bytes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """The episodes of one policy and task."""

    policy: str
    suite: str
    task_id: str
    name: str
    episodes: int
    horizon: int
    cameras: int
    look_interval: int = 1
    """Steps from one look at the cameras' images to the next; they are rendered for looks alone."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """A plan in short. Time and disk are for episodes that all last their full horizon; None = no figures for the host.

    `time_s` is without the policies' own time, divided by the workers, each with a core of its own.
    """

    scenes: tuple[ScenePlan, ...]
    workers: int
    time_s: CostRange | None
    disk_bytes: CostRange | None
    source: str | None

    @property
    def episodes(self) -> int:
        return sum(scene.episodes for scene in self.scenes)

    @property
    def steps(self) -> int:
        return sum(scene.episodes * scene.horizon for scene in self.scenes)


def load_costs() -> dict[str, HostCosts]:
    """Return the figures by host."""
    text = resources.files(__package__).joinpath("costs.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, HostCosts])


def estimate_run(
    episodes: Sequence[PlannedEpisode],
    host: str,
    cameras: Mapping[str, int],
    workers: int = 1,
    look_intervals: Mapping[str, int] = NO_INTERVALS,
) -> RunEstimate:
    """Return the estimate for the episodes.

    `cameras` holds how many each policy wants, `look_intervals` the steps between two looks of those that carry out
    several actions of a reply.
    """
    groups = [list(group) for _, group in groupby(episodes, key=scene_of)]
    scenes = tuple(
        _plan_scene(group, cameras[group[0].policy], look_intervals.get(group[0].policy, 1)) for group in groups
    )
    host_costs = load_costs().get(host)
    if host_costs is None:
        return RunEstimate(scenes, workers, None, None, None)
    waits = groups[0][0].start.wait_steps if groups else 0
    nothing = CostRange(0.0, 0.0)
    time = reduce(add, (_scene_time(scene, host_costs, waits) for scene in scenes), nothing) * (
        1 / max(1, min(workers, len(episodes)))
    )
    disk = reduce(
        add, (CostRange(*host_costs.record_bytes) * (scene.episodes * (scene.horizon + 1)) for scene in scenes), nothing
    )
    return RunEstimate(scenes, workers, time, disk, host_costs.source)


def _plan_scene(group: Sequence[PlannedEpisode], cameras: int, look_interval: int) -> ScenePlan:
    first = group[0]
    task = first.task
    return ScenePlan(
        first.policy, task.benchmark, task.task_id, task.name, len(group), first.horizon, cameras, look_interval
    )


def _scene_time(scene: ScenePlan, costs: HostCosts, wait_steps: int) -> CostRange:
    looks = 1 + (scene.horizon - 1) // scene.look_interval
    pictures = CostRange(*costs.camera_step_s) * (scene.cameras * looks)
    episode = CostRange(*costs.reset_s) + CostRange(*costs.step_s) * (scene.horizon + wait_steps) + pictures
    return CostRange(*costs.make_s) + episode * scene.episodes
