"""RoboCasa's episodes: suites, tasks and horizons (`robocasa.toml`), and the start of each by its index.

An episode is fixed by task, split, index and the environment's seed, in RoboCasa's own numbering of scenes:

- `target`: the ten scenes (layout i, style i), i = 1..10, in turn, so that index 10 is the first scene again.
- `pretrain`: the layouts 11..60 in turn, each with the style of its number; each round of fifty takes the next style,
  so that 2,500 episodes see every pair once.

Pairs that RoboCasa's task bars are left out before counting. The kitchen's generator is seeded with
1000 * env_seed + index, which draws objects, their places and the robot's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import HostError
from safevla_bench.interface import EpisodeSeed, Task
from safevla_bench.tasks import registry

SPLITS = ("target", "pretrain")
HORIZONS = ("v1.0.1", "v1.0.0")
STILL = (*[0.0] * 6, -1.0, *[0.0] * 4, -1.0)
"""No motion, gripper opening, arm mode."""
AT, SLIDE = "at", "slide"
_PUTS = ("in", "on", "under")
_TARGET = range(1, 11)
_PRETRAIN = range(11, 61)
_SEEDS = 1000


class KitchenTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about one of RoboCasa's tasks that the host needs; `robocasa.toml` describes the fields."""

    horizon: dict[str, int]
    goal: tuple[str, ...]

    @property
    def target(self) -> str | None:
        """The object that the goal puts somewhere."""
        return self.goal[1] if self.goal[0] in _PUTS else None

    @property
    def moves(self) -> str | None:
        """The attribute of RoboCasa's task with the fixture that the goal moves."""
        return self.goal[1] if self.goal[0] not in (*_PUTS, AT) else None


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    episodes: int
    suites: dict[str, tuple[str, ...]]
    tasks: dict[str, KitchenTask]


@dataclass(frozen=True, slots=True)
class KitchenStart:
    """The kitchen of one episode: RoboCasa's split, layout, style and the seed of its generator."""

    split: str
    layout: int
    style: int
    seed: int


@cache
def _table() -> _Table:
    text = resources.files(__package__).joinpath("robocasa.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


def suites() -> tuple[str, ...]:
    """The suites' benchmark names."""
    return tuple(_table().suites)


def tasks(suite: str, horizons: str) -> tuple[Task, ...]:
    """The suite's tasks in alphabetical order, with the horizons of that release of RoboCasa.

    Raises:
        HostError: there is no such suite.
    """
    table = _table()
    if suite not in table.suites:
        raise HostError(f"RoboCasa has no suite {suite!r}", remedy=f"Suites: {', '.join(table.suites)}.")
    known = registry().tasks
    return tuple(
        Task(
            benchmark=suite,
            task_id=name,
            index=index,
            name=name,
            instruction=known[suite, name].instruction or name,
            horizon=table.tasks[name].horizon[horizons],
            episodes=table.episodes,
            still=STILL,
        )
        for index, name in enumerate(table.suites[suite])
    )


def kitchen_task(task: Task) -> KitchenTask:
    """Return the facts about a task.

    Raises:
        HostError: there is no such task.
    """
    table = _table()
    if task.task_id not in table.suites.get(task.benchmark, ()):
        problem = f"RoboCasa has no task {task.task_id!r} in {task.benchmark!r}"
        raise HostError(problem, remedy=f"Suites: {', '.join(table.suites)}; ask tasks(suite) for their tasks.")
    return table.tasks[task.task_id]


def start(split: str, seed: EpisodeSeed, no_layouts: Collection[int], no_styles: Collection[int]) -> KitchenStart:
    """The start of the episode with that index, past the layouts and styles that the task bars.

    Raises:
        HostError: the index is below 0.
    """
    index = seed.init_state_index
    if index < 0:
        raise HostError(f"there is no episode {index}", remedy="Episodes count from 0.")
    allowed = [pair for pair in _scenes(split) if pair[0] not in no_layouts and pair[1] not in no_styles]
    layout, style = allowed[index % len(allowed)]
    return KitchenStart(split, layout, style, _SEEDS * seed.env_seed + index)


@cache
def _scenes(split: str) -> tuple[tuple[int, int], ...]:
    """(layout, style) in the order in which episodes take them."""
    if split == "target":
        return tuple((number, number) for number in _TARGET)
    count = len(_PRETRAIN)
    return tuple(
        (layout, _PRETRAIN[(place + turn) % count]) for turn in range(count) for place, layout in enumerate(_PRETRAIN)
    )
