"""Estimates of the time and disk that a plan costs, from figures measured on each host (`costs.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from safevla_bench.rollout.plan import PlannedEpisode, scene_of
from safevla_recorder.episode import Floats

NO_INTERVALS: Mapping[str, int] = MappingProxyType({})


class CostRange(NamedTuple):
    """A figure known between two bounds."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The figure to expect."""
        return (self.low + self.high) / 2


class SuiteCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One suite's own figures, if a host's suites differ."""

    step_s: tuple[float, float]
    camera_step_s: tuple[float, float]


class HostCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host's figures, each from lowest to highest; the file says what each is."""

    source: str
    start_s: tuple[float, float]
    make_s: tuple[float, float]
    camera_make_s: tuple[float, float] = (0.0, 0.0)
    reset_s: tuple[float, float]
    camera_reset_s: tuple[float, float] = (0.0, 0.0)
    step_s: tuple[float, float]
    camera_step_s: tuple[float, float]
    record_bytes: tuple[float, float]
    suites: dict[str, SuiteCosts] = msgspec.field(default_factory=dict)

    def suite(self, name: str) -> SuiteCosts:
        """Return the suite's own figures, or the host's."""
        return self.suites.get(name) or SuiteCosts(step_s=self.step_s, camera_step_s=self.camera_step_s)


@dataclass(frozen=True, slots=True)
class ScenePlan:
    """The episodes of one policy and task."""

    policy: str
    suite: str
    task_id: str
    name: str
    episodes: int
    horizon: int
    cameras: int | None
    """None = not known, and not in the estimate: the policy was not made."""
    look_interval: int = 1
    """Steps from one look at the cameras' images to the next; they are rendered for looks alone."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """A plan in short. Time and disk are for episodes that all last their full horizon; None = no figures for the host.

    `time_s` is from the command's start to its end, without the policies' own time. The work is divided by the workers,
    each with a core of its own.
    """

    scenes: tuple[ScenePlan, ...]
    workers: int
    time_s: CostRange | None
    disk_bytes: CostRange | None
    source: str | None

    @property
    def episodes(self) -> int:
        """Number of planned episodes."""
        return sum(scene.episodes for scene in self.scenes)

    @property
    def steps(self) -> int:
        """Number of control steps if every episode takes its whole horizon."""
        return sum(scene.episodes * scene.horizon for scene in self.scenes)


def load_costs() -> dict[str, HostCosts]:
    """Return host -> measured figures, from the shipped `costs.toml`."""
    text = resources.files(__package__).joinpath("costs.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, HostCosts])


def estimate_run(
    episodes: Sequence[PlannedEpisode],
    host: str,
    cameras: Mapping[str, int | None],
    workers: int = 1,
    look_intervals: Mapping[str, int] = NO_INTERVALS,
) -> RunEstimate:
    """Return the estimate for the episodes; time and disk are None if there are no figures for the host.

    `cameras` holds how many each policy wants, None = not known; `look_intervals` the steps between two looks of a
    policy that carries out several actions of a reply. At most as many workers as there are episodes share their time.
    """
    groups = [list(group) for _, group in groupby(episodes, key=scene_of)]
    scenes = tuple(
        ScenePlan(
            policy := first.policy,
            first.task.benchmark,
            first.task.task_id,
            first.task.name,
            1 + len(others),
            first.horizon,
            cameras[policy],
            look_intervals.get(policy, 1),
        )
        for first, *others in groups
    )
    costs = load_costs().get(host)
    if costs is None:
        return RunEstimate(scenes, workers, None, None, None)
    waits = groups[0][0].start.wait_steps if groups else 0
    at_once = max(1, min(workers, len(episodes)))
    run = sum((_episode_time(scene, costs, waits) * scene.episodes for scene in scenes), np.zeros(2))
    made = np.array(costs.make_s) * len(scenes)
    made += np.array(costs.camera_make_s) * sum(bool(scene.cameras) for scene in scenes)
    # A worker makes an environment for each scene that it comes to, one at least; all of them start at once.
    time = np.array(costs.start_s) + made / max(1, min(at_once, len(scenes))) + run / at_once
    disk = np.array(costs.record_bytes) * sum(scene.episodes * (scene.horizon + 1) for scene in scenes)
    return RunEstimate(scenes, workers, CostRange(*time.tolist()), CostRange(*disk.tolist()), costs.source)


def _episode_time(scene: ScenePlan, costs: HostCosts, wait_steps: int) -> Floats:
    """Return the least and the most seconds of an episode, [2]."""
    suite = costs.suite(scene.suite)
    looks = 1 + (scene.horizon - 1) // scene.look_interval
    reset = np.array(costs.reset_s) + np.array(costs.camera_reset_s) * bool(scene.cameras)
    pictures = np.array(suite.camera_step_s) * ((scene.cameras or 0) * looks)
    episode: Floats = reset + np.array(suite.step_s) * (scene.horizon + wait_steps) + pictures
    return episode
