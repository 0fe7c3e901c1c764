"""What a plan will cost in time and disk, from figures measured by host (`costs.toml`): an estimate, no promise."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import resources
from itertools import groupby
from operator import add

import msgspec

from safevla_bench.rollout.plan import Planned
from safevla_bench.rollout.queue import scene


@dataclass(frozen=True, slots=True)
class Span:
    """A figure known between two bounds."""

    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def __mul__(self, count: float) -> Span:
        return Span(self.low * count, self.high * count)


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host's figures, each from lowest to highest; the file says what each is."""

    source: str
    make_s: tuple[float, float]
    reset_s: tuple[float, float]
    step_s: tuple[float, float]
    camera_step_s: tuple[float, float]
    record_bytes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scenes:
    """The episodes of one policy and task."""

    policy: str
    suite: str
    task_id: str
    name: str
    episodes: int
    horizon: int
    cameras: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """A plan in short. Time and disk are for episodes that all last their full horizon; None = no figures for the host.

    `time_s` is without the policies' own time, divided by the workers, each with a core of its own.
    """

    scenes: tuple[Scenes, ...]
    workers: int
    time_s: Span | None
    disk_bytes: Span | None
    source: str | None

    @property
    def episodes(self) -> int:
        return sum(one.episodes for one in self.scenes)

    @property
    def steps(self) -> int:
        return sum(one.episodes * one.horizon for one in self.scenes)


def costs() -> dict[str, Costs]:
    """The figures by host."""
    text = resources.files(__package__).joinpath("costs.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Costs])


def estimate(episodes: Sequence[Planned], host: str, cameras: Mapping[str, int], workers: int = 1) -> Estimate:
    """What the episodes will cost; `cameras` holds how many each policy wants."""
    groups = [list(group) for _, group in groupby(episodes, key=scene)]
    scenes = tuple(_scenes(group, cameras[group[0].policy]) for group in groups)
    known = costs().get(host)
    if known is None:
        return Estimate(scenes, workers, None, None, None)
    waits = groups[0][0].start.wait_steps if groups else 0
    nothing = Span(0.0, 0.0)
    time = reduce(add, (_time(one, known, waits) for one in scenes), nothing) * (
        1 / max(1, min(workers, len(episodes)))
    )
    disk = reduce(add, (Span(*known.record_bytes) * (one.episodes * (one.horizon + 1)) for one in scenes), nothing)
    return Estimate(scenes, workers, time, disk, known.source)


def _scenes(group: Sequence[Planned], cameras: int) -> Scenes:
    first = group[0]
    task = first.task
    return Scenes(first.policy, task.benchmark, task.task_id, task.name, len(group), first.horizon, cameras)


def _time(one: Scenes, known: Costs, wait_steps: int) -> Span:
    step = Span(*known.step_s) + Span(*known.camera_step_s) * one.cameras
    episode = Span(*known.reset_s) + step * (one.horizon + wait_steps)
    return Span(*known.make_s) + episode * one.episodes
