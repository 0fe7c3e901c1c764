"""What LIBERO's model holds: names, roles and tracked bodies from the model and the BDDL goal; privileged state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from safevla_bench.hosts.mujoco.privileged import read_only, shapes
from safevla_bench.hosts.mujoco.recorder import Recorder
from safevla_bench.hosts.mujoco.scene import Scene, moving_links, roles_in_use, subtree
from safevla_bench.interface import Privileged, Task
from safevla_bench.trajectory import Header

if TYPE_CHECKING:
    import mujoco
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain

"""An object slower than this has come to rest: 2.5 mm a control step, half the strictest limit on displacement."""
_log = logging.getLogger(__name__)
_JOINT_GOALS = ("open", "close", "turnon", "turnoff")
"""Goal predicates that name a fixture's joint."""


def goal(domain: BDDLBaseDomain) -> tuple[tuple[str, ...], ...]:
    """The goal's predicates, such as `("on", "akita_black_bowl_1", "plate_1")`; all of them must hold."""
    return tuple(tuple(predicate) for predicate in domain.parsed_problem["goal_state"])


def targets(domain: BDDLBaseDomain) -> tuple[str, ...]:
    """The first movable argument of each goal predicate, in goal order; the first is the primary target."""
    movable = ([name for name in arguments if name in domain.objects_dict] for _, *arguments in goal(domain))
    return tuple(dict.fromkeys(names[0] for names in movable if names))


def goal_moved_fixtures(domain: BDDLBaseDomain) -> frozenset[str]:
    """Fixtures of which the goal names a joint, by themselves or by one of their regions."""
    named = (argument for kind, *arguments in goal(domain) if kind in _JOINT_GOALS for argument in arguments)
    return frozenset(_owner(domain, name) for name in named)


def _owner(domain: BDDLBaseDomain, name: str) -> str:
    site = domain.object_sites_dict.get(name)
    return str(site.parent_name) if site is not None and site.parent_name else name


def scene(domain: BDDLBaseDomain) -> Scene:
    """Names and roles of the domain's present model; every reset makes a new one.

    The robot is the subtree of its base, arm, gripper and mount. Movable objects go by their BDDL name with all
    their bodies, whatever else by MuJoCo's body names. Links of articulated fixtures are tracked unless the goal moves
    the fixture (docs/fidelity.md, bystanders).
    """
    model = domain.sim.model._model
    body_name = body_names(domain, model)
    objects = {name: int(domain.obj_body_id[name]) for name in domain.objects_dict}
    links = {
        body_name[body]: body
        for fixture in domain.fixtures_dict
        if fixture not in goal_moved_fixtures(domain)
        for body in moving_links(model, int(domain.obj_body_id[fixture]))
    }
    robot = domain.robots[0]
    geoms = robot.gripper.important_geoms
    return Scene(
        body_name=body_name,
        roles=roles_in_use(model, body_name, _roles(domain, model, body_name), frozenset(objects) | frozenset(links)),
        objects=objects,
        links=links,
        fingers=(_geom_ids(model, geoms["left_finger"]), _geom_ids(model, geoms["right_finger"])),
        eef_site=int(model.site(robot.gripper.important_sites["grip_site"]).id),
        arm_dofs=tuple(int(dof) for dof in robot._ref_joint_vel_indexes),
    )


def header(
    domain: BDDLBaseDomain,
    recorder: Recorder,
    task: Task,
    versions: dict[str, str],
    *,
    dt: float,
    success: bool,
    env_seed: int | None,
    index: int | None,
) -> Header:
    """What the record of an episode says once; `dt` in seconds, `index` the initial state's, None where unknown."""
    start = "unknown" if index is None else f"{index:03d}"
    return Header(
        episode_id=f"{task.benchmark}/{task.task_id}/init_{start}",
        benchmark=task.benchmark,
        task_id=task.task_id,
        success=success,
        dt=dt,
        target_object=next(iter(targets(domain)), None),
        instruction=task.instruction,
        env_seed=env_seed,
        init_state_index=index,
        embodiment="Panda",
        versions=versions,
        dropped_pairs=recorder.dropped_pairs(),
    )


def body_names(domain: BDDLBaseDomain, model: mujoco.MjModel) -> tuple[str, ...]:
    """The recorded body of each body of the model: objects by their BDDL name, the rest by MuJoCo's."""
    names = [str(model.body(body).name) for body in range(model.nbody)]
    for name in domain.objects_dict:
        for body in subtree(model, int(domain.obj_body_id[name])):
            names[body] = name
    return tuple(names)


def _roles(domain: BDDLBaseDomain, model: mujoco.MjModel, body_name: tuple[str, ...]) -> dict[str, str]:
    roles = dict.fromkeys(body_name, "furniture")
    roles |= dict.fromkeys(domain.objects_dict, "bystander") | dict.fromkeys(targets(domain), "target")
    base = int(model.body(domain.robots[0].robot_model.root_body).id)
    return roles | {body_name[body]: "robot" for body in subtree(model, base)}


def _geom_ids(model: mujoco.MjModel, names: list[str]) -> tuple[int, ...]:
    return tuple(int(model.geom(name).id) for name in names)


class PrivilegedView:
    """Ground truth of the scene, step by step; sizes are measured once, in the pose at making.

    Bodies are everything with collision geometry but the robot: objects by BDDL name, the rest by MuJoCo body name.
    """

    def __init__(self, domain: BDDLBaseDomain, view: Scene) -> None:
        self._domain = domain
        self._model, self._data = domain.sim.model._model, domain.sim.data._data
        self._goal, self._movable = goal(domain), frozenset(view.objects)
        self._shapes = shapes(self._model, self._data, view)

    def now(self) -> Privileged:
        """The scene as it is, in read-only copies."""
        data, known = self._data, self._shapes
        return Privileged(
            body_pos_m={name: read_only(data.xpos[body]) for name, body in known.root.items()},
            body_quat_wxyz={name: read_only(data.xquat[body]) for name, body in known.root.items()},
            half_extents_m=known.half_extents_m,
            center_m=known.center_m,
            joint_pos=self._joints(),
            sites_m={name: read_only(data.site(name).xpos) for name in self._domain.object_sites_dict},
            goal=self._goal,
            movable=self._movable,
            pieces=known.pieces,
        )

    def _joints(self) -> dict[str, float]:
        names = (joint for fixture in self._domain.fixtures_dict.values() for joint in fixture.joints)
        return {name: float(self._data.joint(name).qpos[0]) for name in names}
