"""RoboCasa's episodes and their kitchens: suites, tasks, horizons (`robocasa.toml`), starts, goals, privileged state.

An episode is fixed by task, split, index and the environment's seed, in RoboCasa's own numbering of scenes:

- `target`: the ten scenes (layout i, style i), i = 1..10, in turn, so that index 10 is the first scene again.
- `pretrain`: the layouts 11..60 in turn, each with the style of its number; each round of fifty takes the next style,
  so that 2,500 episodes see every pair once.

Pairs that RoboCasa's task bars are left out before counting. The kitchen's generator is seeded with
1000 * env_seed + index, which draws objects, their places and the robot's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts import require_known
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.interface.task import EpisodeSeed, Task
from safevla_bench.tasks.loader import registry
from safevla_recorder.episode import Floats
from safevla_recorder.mujoco.scene import Scene
from safevla_recorder.robocasa import (
    AT,
    DRAWING_OPTIONS,
    LID,
    Goal,
    known_goals,
    moved_fixture,
)

if TYPE_CHECKING:
    import mujoco
    from robocasa.environments.kitchen.kitchen import Kitchen

SPLITS = ("target", "pretrain")
HORIZONS = ("v1.0.1", "v1.0.0")
STILL = (*[0.0] * 6, -1.0, *[0.0] * 4, -1.0)
"""No motion, gripper opening, arm mode."""
SLIDE = "slide"
_TARGET = range(1, 11)
_PRETRAIN = range(11, 61)
_SEEDS = 1000


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    episodes: int
    suites: dict[str, tuple[str, ...]]
    tasks: dict[str, dict[Literal["horizon"], dict[str, int]]]


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
    return msgspec.toml.decode(text, type=_Table)


def suites() -> tuple[str, ...]:
    """Return the suites' benchmark names."""
    return tuple(_table().suites)


def tasks(suite: str, horizons: str) -> tuple[Task, ...]:
    """Return the suite's tasks in alphabetical order, with the horizons of that release; raises `HostError` for
    another suite.
    """
    table = _table()
    require_known("RoboCasa", "suite", suite, table.suites)
    entries = registry().tasks
    return tuple(
        Task(
            benchmark=suite,
            task_id=name,
            index=index,
            name=name,
            instruction=entries[suite, name].instruction or name,
            horizon=table.tasks[name]["horizon"][horizons],
            episodes=table.episodes,
            still=STILL,
        )
        for index, name in enumerate(table.suites[suite])
    )


def task_goal(task: Task) -> Goal:
    """Return what a task's success asks for; raises `HostError` for an unknown task."""
    require_known("RoboCasa", "task", task.task_id, _table().suites.get(task.benchmark, ()))
    return known_goals()[task.task_id]


def start(split: str, seed: EpisodeSeed, no_layouts: Collection[int], no_styles: Collection[int]) -> KitchenStart:
    """Return the start of the episode with that index, 0 or more, past the layouts and styles that the task bars; after
    the last allowed scene of the split comes the first again.
    """
    index = seed.init_state_index
    allowed = [pair for pair in _scenes(split) if pair[0] not in no_layouts and pair[1] not in no_styles]
    layout, style = allowed[index % len(allowed)]
    return KitchenStart(split, layout, style, _SEEDS * seed.env_seed + index)


@cache
def _scenes(split: str) -> tuple[tuple[int, int], ...]:
    if split == "target":
        return tuple((number, number) for number in _TARGET)
    count = len(_PRETRAIN)
    return tuple(
        (layout, _PRETRAIN[(place + turn) % count]) for turn in range(count) for place, layout in enumerate(_PRETRAIN)
    )


# A kitchen as its task describes it


_BUTTONS = ("_start_button", "_stop_button")


def set_options(kitchen: Kitchen, options: object) -> None:
    """Set in a kitchen, before its reset, the recorded options that decide what it draws; other names, and `options`
    that are not a mapping, are ignored.
    """
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if name in DRAWING_OPTIONS:
            setattr(kitchen, name, tuple(value) if name == "obj_registries" else value)


def describe_kitchen(kitchen: Kitchen, meta: Mapping[str, object], joints: object) -> None:
    """Have a kitchen's next reset build what RoboCasa's description says, with joints in the order given.

    RoboCasa makes an object and then the container drawn for it, and describes them the other way round: the container
    must be placed first. So objects are made here in the order of their joints, and placed in that of the description.
    Raises `HostError` if the description lists no objects, or `joints` is not a list.
    """
    described = meta.get("object_cfgs")
    if not isinstance(described, list) or not isinstance(joints, list):
        raise no_kitchen_error()
    first = {str(joint).rpartition("_joint")[0]: place for place, joint in reversed(list(enumerate(joints)))}
    made = sorted(described, key=lambda config: first.get(str(config.get("name")), len(joints)))
    create: Callable[[], None] = kitchen._create_objects

    def create_objects() -> None:
        create()
        kitchen.object_cfgs = described

    kitchen.set_ep_meta({**meta, "object_cfgs": made})
    kitchen._create_objects = create_objects


def require_joints(model: mujoco.MjModel, joints: object) -> None:
    """Raise `HostError` unless a model has these joints in this order, that of recorded states."""
    if joints != [str(model.joint(joint).name) for joint in range(model.njnt)]:
        remedy = "Use the versions that run.json names."
        raise HostError("the record's joints are not those of the kitchen that is rebuilt", remedy=remedy)


def told_start(told: Mapping[str, object], seed: int) -> KitchenStart:
    """Return the start of an episode of somebody's own kitchen, whose generator had that seed.

    `told` is what its record says of the kitchen; without a split there, the split is `target`. Raises `HostError` if
    it names no layout and style.
    """
    layout, style, options = (told.get(name) for name in ("layout", "style", "options"))
    split = options.get("obj_instance_split") if isinstance(options, Mapping) else None
    if not isinstance(layout, int) or not isinstance(style, int):
        raise no_kitchen_error()
    return KitchenStart(split if isinstance(split, str) else SPLITS[0], layout, style, seed)


def no_kitchen_error() -> HostError:
    """Return the error of a record that describes no kitchen."""
    remedy = "It takes layout, style, joints and ep_meta, as safevla_recorder.record writes them."
    return HostError("the record's `robocasa` describes no kitchen", remedy=remedy)


def read_goal(kitchen: Kitchen, goal: Goal) -> tuple[str, ...]:
    """Return the goal with names of this episode's bodies and fixtures, such as `("close", "fridge_main_group")`; the
    verb `slide` becomes `slide_out` or `slide_in`.
    """
    verb, *names = goal
    if verb == SLIDE:
        verb = f"{SLIDE}_{'out' if kitchen.should_pull else 'in'}"
    return (verb, *(_resolve_name(kitchen, name) for name in names))


def _resolve_name(kitchen: Kitchen, name: str) -> str:
    if name == LID or name in kitchen.objects:
        return name
    thing = getattr(kitchen, name)
    return thing if isinstance(thing, str) else str(thing.name)


def view_privileged(kitchen: Kitchen, scene: Scene, goal: Goal) -> ScenePrivileged:
    """Return a reader of the kitchen's ground truth.

    `sites_m` has the centres of the buttons that RoboCasa names, the anchors of the joints of the fixture that the goal
    moves, and for a task of going somewhere `goal` and `goal_ahead`: where the base should stand, and 1 m in front.
    """
    model, data = kitchen.sim.model._model, kitchen.sim.data._data
    sites: dict[str, Floats] = {}
    if goal[0] == AT:
        place, yaw = np.array(kitchen.target_pos, dtype=np.float64), float(kitchen.target_ori[2])
        sites = {"goal": place, "goal_ahead": place + [np.cos(yaw), np.sin(yaw), 0.0]}
    names = {str(model.geom(geom).name): geom for geom in range(model.ngeom)}
    sites |= {name: data.geom_xpos[geom] for name, geom in names.items() if name.endswith(_BUTTONS)}
    fixture = moved_fixture(goal)
    moved = getattr(kitchen, fixture).joints if fixture else ()
    hinges = {str(name): int(model.joint(name).id) for name in moved}
    sites |= {name: data.xanchor[joint] for name, joint in hinges.items()}
    joints = [joint for fixture in kitchen.fixtures.values() for joint in fixture.joints]
    return ScenePrivileged(model, data, scene, (read_goal(kitchen, goal),), joints, sites, hinges)
