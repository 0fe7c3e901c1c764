"""What RoboCasa's kitchen holds: names, roles and tracked bodies; what the episode was drawn as; privileged state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.hosts.mujoco.contacts import Floats
from safevla_bench.hosts.mujoco.privileged import read_only, shapes
from safevla_bench.hosts.mujoco.scene import Scene, moving_links, roles_in_use, subtree
from safevla_bench.hosts.robocasa.episodes import AT, SLIDE, Rules
from safevla_bench.interface import Joint, Privileged

if TYPE_CHECKING:
    import mujoco
    from robocasa.environments.kitchen.kitchen import Kitchen

LID = "lid"
"""The blender's lid: a fixture in RoboCasa, but held and put in place like an object, and so recorded as one."""
_GRIP_SITE = "gripper0_right_grip_site"
_ROBOT = "robot0_base"
_BUTTONS = ("_start_button", "_stop_button")
_OBJECTS_FOLDER = "/objects/"
_HINGE = 3
"""Of mjtJoint."""


def scene(kitchen: Kitchen, rules: Rules) -> Scene:
    """Names and roles of the kitchen's present model.

    The robot is the subtree of its mobile base, arm and gripper. Objects go by RoboCasa's names (`obj`, `container`,
    `distr_counter`) with all their bodies, whatever else by MuJoCo's body names, as furniture. Links of articulated
    fixtures are tracked unless the goal moves the fixture (docs/fidelity.md, bystanders).
    """
    model = kitchen.sim.model._model
    objects = _objects(kitchen, rules)
    robot = subtree(model, int(model.body(_ROBOT).id))
    body_name = _body_names(model, objects)
    moved = _goal_moved(kitchen, rules, model)
    fixtures = (body for body in moving_links(model, 0) if body not in {*robot, *moved})
    links = {body_name[body]: body for body in fixtures if body_name[body] not in objects}
    roles = dict.fromkeys(body_name, "furniture") | dict.fromkeys(objects, "bystander")
    roles |= {rules.target: "target"} if rules.target else {}
    roles |= {body_name[body]: "robot" for body in robot}
    fingers = kitchen.robots[0].gripper["right"].important_geoms
    return Scene(
        body_name=body_name,
        roles=roles_in_use(model, body_name, roles, frozenset(objects) | frozenset(links)),
        objects=objects,
        links=links,
        fingers=(_geom_ids(model, fingers["left_finger"]), _geom_ids(model, fingers["right_finger"])),
        eef_site=int(model.site(_GRIP_SITE).id),
        arm_dofs=tuple(int(model.joint(f"robot0_joint{k}").dofadr[0]) for k in range(1, 8)),
        # RoboCasa sets joints of some fixtures anew after each control step: where two overlap at rest, their contact
        # goes for a few substeps and comes back with the force of the overlap.
        apart_substeps=round(kitchen.control_timestep / kitchen.model_timestep),
    )


def _body_names(model: mujoco.MjModel, objects: Mapping[str, int]) -> tuple[str, ...]:
    names = [str(model.body(body).name) for body in range(model.nbody)]
    for name, root in objects.items():
        for body in subtree(model, root):
            names[body] = name
    return tuple(names)


def _objects(kitchen: Kitchen, rules: Rules) -> dict[str, int]:
    """Root bodies of what can be carried, by name."""
    found = {str(name): int(body) for name, body in kitchen.obj_body_id.items()}
    if rules.target == LID:
        lid = kitchen.blender.blender_lid
        found[LID] = int(kitchen.sim.model._model.body(lid.root_body).id)
    return found


def _goal_moved(kitchen: Kitchen, rules: Rules, model: mujoco.MjModel) -> tuple[int, ...]:
    """Bodies of the fixture that the goal moves."""
    if rules.moves is None:
        return ()
    fixture = getattr(kitchen, rules.moves)
    return subtree(model, int(model.body(fixture.root_body).id))


def _geom_ids(model: mujoco.MjModel, names: list[str]) -> tuple[int, ...]:
    return tuple(int(model.geom(name).id) for name in names)


def episode_meta(kitchen: Kitchen) -> dict[str, Any]:
    """RoboCasa's own description of the episode, as plain values: `set_ep_meta` rebuilds the kitchen from it.

    Paths of objects are relative to the assets' folder `objects`, which is how RoboCasa takes them on any machine.
    """
    return {str(key): _plain(value) for key, value in kitchen.get_ep_meta().items()}


def _plain(value: object) -> Any:
    """A value as JSON can say it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, str):
        return value.rpartition(_OBJECTS_FOLDER)[2]
    return value if isinstance(value, bool | int | float | None) else getattr(value, "name", str(value))


def goal(kitchen: Kitchen, rules: Rules) -> tuple[str, ...]:
    """The goal with the names of this episode's bodies and fixtures, such as `("close", "fridge_main_group")`."""
    verb, *names = rules.goal
    if verb == SLIDE:
        verb = f"{SLIDE}_{'out' if kitchen.should_pull else 'in'}"
    return (verb, *(_resolved(kitchen, name) for name in names))


def _resolved(kitchen: Kitchen, name: str) -> str:
    if name == LID or name in kitchen.objects:
        return name
    thing = getattr(kitchen, name)
    return thing if isinstance(thing, str) else str(thing.name)


class PrivilegedView:
    """Ground truth of the kitchen, step by step; sizes are measured once, in the pose at making.

    Bodies are everything with collision geometry but the robot. `sites_m` has the centres of the buttons that RoboCasa
    names, the anchors of the joints of the fixture that the goal moves (`joints` says more of these), and for a task of
    going somewhere `goal` and `goal_ahead`: where the base should stand, and 1 m in front of it.
    """

    def __init__(self, kitchen: Kitchen, view: Scene, rules: Rules) -> None:
        self._kitchen = kitchen
        self._model, self._data = kitchen.sim.model._model, kitchen.sim.data._data
        self._goal, self._movable = (goal(kitchen, rules),), frozenset(view.objects)
        self._shapes = shapes(self._model, self._data, view)
        geoms = ((str(self._model.geom(geom).name), geom) for geom in range(self._model.ngeom))
        self._buttons = {name: geom for name, geom in geoms if name.endswith(_BUTTONS)}
        self._stand = _stand(kitchen) if rules.goal[0] == AT else {}
        self._hinges = _hinges(kitchen, rules)
        moved = ((name, self._model.jnt_bodyid[joint]) for name, joint in self._hinges.items())
        self._moved = {name: tuple(view.body_name[one] for one in subtree(self._model, body)) for name, body in moved}
        joints = (joint for fixture in kitchen.fixtures.values() for joint in fixture.joints)
        self._joints = {name: int(self._model.joint(name).qposadr[0]) for name in joints}

    def now(self) -> Privileged:
        """The kitchen as it is, in read-only copies."""
        data, known = self._data, self._shapes
        return Privileged(
            body_pos_m={name: read_only(data.xpos[body]) for name, body in known.root.items()},
            body_quat_wxyz={name: read_only(data.xquat[body]) for name, body in known.root.items()},
            half_extents_m=known.half_extents_m,
            center_m=known.center_m,
            joint_pos={name: float(data.qpos[place]) for name, place in self._joints.items()},
            sites_m=self._sites(),
            goal=self._goal,
            movable=self._movable,
            pieces=known.pieces,
            joints={name: self._joint(name) for name in self._hinges},
        )

    def _joint(self, name: str) -> Joint:
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

    def _sites(self) -> dict[str, Floats]:
        buttons = {name: read_only(self._data.geom_xpos[geom]) for name, geom in self._buttons.items()}
        hinges = {name: read_only(self._data.xanchor[joint]) for name, joint in self._hinges.items()}
        return {**self._stand, **buttons, **hinges}


def _hinges(kitchen: Kitchen, rules: Rules) -> dict[str, int]:
    """Joints of the fixture that the goal moves, by name."""
    model = kitchen.sim.model._model
    names = getattr(kitchen, rules.moves).joints if rules.moves else ()
    return {str(name): int(model.joint(name).id) for name in names}


def _stand(kitchen: Kitchen) -> dict[str, Floats]:
    place, yaw = np.array(kitchen.target_pos, dtype=np.float64), float(kitchen.target_ori[2])
    return {"goal": read_only(place), "goal_ahead": read_only(place + [np.cos(yaw), np.sin(yaw), 0.0])}
