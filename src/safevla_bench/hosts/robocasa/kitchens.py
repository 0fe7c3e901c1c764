"""RoboCasa's episodes and their kitchens: suites, tasks, horizons (`robocasa.toml`), starts, goals, privileged state.

An episode is fixed by task, split, index and the environment's seed, in RoboCasa's own numbering of scenes:

- `target`: the ten scenes (layout i, style i), i = 1..10, in turn, so that index 10 is the first scene again.
- `pretrain`: the layouts 11..60 in turn, each with the style of its number; each round of fifty takes the next style,
  so that 2,500 episodes see every pair once.

Pairs that RoboCasa's task bars are left out before counting. The kitchen's generator is seeded with
1000 * env_seed + index, which draws objects, their places and the robot's.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.privileged import measure_shapes, read_only
from safevla_bench.interface import EpisodeSeed, Joint, Privileged, Task
from safevla_bench.tasks import registry
from safevla_recorder.episode import Floats
from safevla_recorder.mujoco.scene import Scene, subtree_bodies
from safevla_recorder.robocasa.goals import AT, Goal, goal_target, known_goals, moved_fixture
from safevla_recorder.robocasa.scene import LID

SPLITS = ("target", "pretrain")
HORIZONS = ("v1.0.1", "v1.0.0")
STILL = (*[0.0] * 6, -1.0, *[0.0] * 4, -1.0)
"""No motion, gripper opening, arm mode."""
SLIDE = "slide"
_TARGET = range(1, 11)
_PRETRAIN = range(11, 61)
_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class KitchenTask:
    """Facts about one of RoboCasa's tasks that the host needs: horizons by release, and the goal."""

    horizon: Mapping[str, int]
    goal: Goal

    @property
    def target(self) -> str | None:
        """The object that the goal puts somewhere."""
        return goal_target(self.goal)

    @property
    def moves(self) -> str | None:
        """The attribute of RoboCasa's task with the fixture that the goal moves."""
        return moved_fixture(self.goal)


class _Horizons(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    horizon: dict[str, int]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    episodes: int
    suites: dict[str, tuple[str, ...]]
    tasks: dict[str, _Horizons]


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
    return KitchenTask(table.tasks[task.task_id].horizon, known_goals()[task.task_id])


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


# A kitchen as its task describes it


if TYPE_CHECKING:
    import mujoco
    from robocasa.environments.kitchen.kitchen import Kitchen

_BUTTONS = ("_start_button", "_stop_button")
_HINGE = 3
"""Of mjtJoint."""


def order_states(model: mujoco.MjModel, joints: object, states: Floats) -> Floats:
    """Return flat states [n, S] of a model whose joints had that order, in the order of this model's.

    RoboCasa makes objects in another order where it rebuilds a kitchen from its own description.

    Raises:
        HostError: the joints are not this model's.
    """
    names = [str(model.joint(joint).name) for joint in range(model.njnt)]
    if not isinstance(joints, list) or sorted(map(str, joints)) != sorted(names):
        remedy = "Render with the versions that run.json names."
        raise HostError("the record's joints are not those of the kitchen that is rebuilt", remedy=remedy)
    positions = _joint_places(model, joints, model.jnt_qposadr, model.nq)
    velocities = _joint_places(model, joints, model.jnt_dofadr, model.nv)
    ordered = states.copy()
    ordered[:, 1 + positions] = states[:, 1 : 1 + model.nq]
    ordered[:, 1 + model.nq + velocities] = states[:, 1 + model.nq : 1 + model.nq + model.nv]
    return ordered


def _joint_places(
    model: mujoco.MjModel, joints: Sequence[str], starts: NDArray[np.int32], size: int
) -> NDArray[np.int64]:
    """Return the places in this model's vector of the numbers of the joints, in the order given."""
    ends = np.append(starts[1:], size)
    places = [np.arange(starts[joint], ends[joint]) for joint in (model.joint(name).id for name in joints)]
    return np.concatenate(places)


def read_goal(kitchen: Kitchen, rules: KitchenTask) -> tuple[str, ...]:
    """Return the goal with names of this episode's bodies and fixtures, such as `("close", "fridge_main_group")`."""
    verb, *names = rules.goal
    if verb == SLIDE:
        verb = f"{SLIDE}_{'out' if kitchen.should_pull else 'in'}"
    return (verb, *(_resolve_name(kitchen, name) for name in names))


def _resolve_name(kitchen: Kitchen, name: str) -> str:
    if name == LID or name in kitchen.objects:
        return name
    thing = getattr(kitchen, name)
    return thing if isinstance(thing, str) else str(thing.name)


class RobocasaPrivileged:
    """Ground truth of the kitchen, step by step; sizes are measured once, in the pose at making.

    Bodies are everything with collision geometry but the robot. `sites_m` has the centres of the buttons that RoboCasa
    names, the anchors of the joints of the fixture that the goal moves (`joints` says more of these), and for a task of
    going somewhere `goal` and `goal_ahead`: where the base should stand, and 1 m in front of it.
    """

    def __init__(self, kitchen: Kitchen, scene: Scene, rules: KitchenTask) -> None:
        self._kitchen = kitchen
        self._model, self._data = kitchen.sim.model._model, kitchen.sim.data._data
        self._goal, self._movable = (read_goal(kitchen, rules),), frozenset(scene.objects)
        self._shapes = measure_shapes(self._model, self._data, scene)
        geoms = ((str(self._model.geom(geom).name), geom) for geom in range(self._model.ngeom))
        self._buttons = {name: geom for name, geom in geoms if name.endswith(_BUTTONS)}
        self._goal_sites = _goal_positions(kitchen) if rules.goal[0] == AT else {}
        self._hinges = _goal_joints(kitchen, rules)
        moved = ((name, self._model.jnt_bodyid[joint]) for name, joint in self._hinges.items())
        self._moved = {
            name: tuple(scene.body_name[part] for part in subtree_bodies(self._model, body)) for name, body in moved
        }
        joints = (joint for fixture in kitchen.fixtures.values() for joint in fixture.joints)
        self._joints = {name: int(self._model.joint(name).qposadr[0]) for name in joints}

    def read_now(self) -> Privileged:
        """Return the kitchen as it is, in read-only copies."""
        data, shapes = self._data, self._shapes
        return Privileged(
            body_pos_m={name: read_only(data.xpos[body]) for name, body in shapes.root.items()},
            body_quat_wxyz={name: read_only(data.xquat[body]) for name, body in shapes.root.items()},
            half_extents_m=shapes.half_extents_m,
            center_m=shapes.center_m,
            joint_pos={name: float(data.qpos[place]) for name, place in self._joints.items()},
            sites_m=self._site_positions(),
            goal=self._goal,
            movable=self._movable,
            pieces=shapes.pieces,
            joints={name: self._read_joint(name) for name in self._hinges},
        )

    def _read_joint(self, name: str) -> Joint:
        joint = self._hinges[name]
        low, high = self._model.jnt_range[joint]
        return Joint(
            kind="hinge" if self._model.jnt_type[joint] == _HINGE else "slide",
            axis=read_only(self._data.xaxis[joint]),
            anchor_m=read_only(self._data.xanchor[joint]),
            low=float(low),
            high=float(high),
            bodies=self._moved[name],
        )

    def _site_positions(self) -> dict[str, Floats]:
        buttons = {name: read_only(self._data.geom_xpos[geom]) for name, geom in self._buttons.items()}
        hinges = {name: read_only(self._data.xanchor[joint]) for name, joint in self._hinges.items()}
        return {**self._goal_sites, **buttons, **hinges}


def _goal_joints(kitchen: Kitchen, rules: KitchenTask) -> dict[str, int]:
    """Return the joints of the fixture that the goal moves, by name."""
    model = kitchen.sim.model._model
    names = getattr(kitchen, rules.moves).joints if rules.moves else ()
    return {str(name): int(model.joint(name).id) for name in names}


def _goal_positions(kitchen: Kitchen) -> dict[str, Floats]:
    place, yaw = np.array(kitchen.target_pos, dtype=np.float64), float(kitchen.target_ori[2])
    return {"goal": read_only(place), "goal_ahead": read_only(place + [np.cos(yaw), np.sin(yaw), 0.0])}
