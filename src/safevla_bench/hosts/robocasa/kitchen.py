"""A RoboCasa kitchen as its task describes it: the drawn episode, the goal, and privileged state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.hosts.mujoco.privileged import measure_shapes, read_only
from safevla_bench.hosts.robocasa.episodes import AT, SLIDE, KitchenTask
from safevla_bench.interface import Joint, Privileged
from safevla_recorder.episode import Floats
from safevla_recorder.mujoco.scene import Scene, subtree_bodies
from safevla_recorder.robocasa.scene import LID

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

_BUTTONS = ("_start_button", "_stop_button")
_OBJECTS_FOLDER = "/objects/"
_HINGE = 3
"""Of mjtJoint."""


def episode_meta(kitchen: Kitchen) -> dict[str, Any]:
    """Return RoboCasa's own description of the episode, as plain values: `set_ep_meta` rebuilds the kitchen from it.

    Paths of objects are relative to the assets' folder `objects`, which is how RoboCasa takes them on any machine.
    """
    return {str(key): _to_plain(value) for key, value in kitchen.get_ep_meta().items()}


def _to_plain(value: object) -> Any:
    """Return a value in the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _to_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _to_plain(value.tolist())
    if isinstance(value, str):
        return value.rpartition(_OBJECTS_FOLDER)[2]
    return value if isinstance(value, bool | int | float | None) else getattr(value, "name", str(value))


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
