"""The scene of a LIBERO model: names, roles and tracked bodies, from the model and the BDDL goal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safevla_recorder.attachment import TaskLabel, episode_header
from safevla_recorder.mujoco.recorder import Recorder
from safevla_recorder.mujoco.scene import Scene, geom_ids, moving_links, name_bodies, roles_in_use, subtree_bodies

if TYPE_CHECKING:
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain

    import mujoco

_JOINT_GOALS = ("open", "close", "turnon", "turnoff")
"""Goal predicates that name a fixture's joint."""


def goal_predicates(domain: BDDLBaseDomain) -> tuple[tuple[str, ...], ...]:
    """Return the goal's predicates, such as `("on", "akita_black_bowl_1", "plate_1")`; all of them must hold."""
    return tuple(tuple(predicate) for predicate in domain.parsed_problem["goal_state"])


def goal_targets(domain: BDDLBaseDomain) -> tuple[str, ...]:
    """Return the first movable argument of each goal predicate, each once, in goal order; the first is primary."""
    movable = ([name for name in arguments if name in domain.objects_dict] for _, *arguments in goal_predicates(domain))
    return tuple(dict.fromkeys(names[0] for names in movable if names))


def _goal_moved_fixtures(domain: BDDLBaseDomain) -> frozenset[str]:
    predicates = goal_predicates(domain)
    arguments = (argument for kind, *names in predicates if kind in _JOINT_GOALS for argument in names)
    return frozenset(_region_owner(domain, argument) for argument in arguments)


def _region_owner(domain: BDDLBaseDomain, name: str) -> str:
    site = domain.object_sites_dict.get(name)
    return str(site.parent_name) if site is not None and site.parent_name else name


def read_scene(domain: BDDLBaseDomain) -> Scene:
    """Return names and roles of the domain's present model; every reset makes a new one.

    The robot is the subtree of its base, arm, gripper and mount. Movable objects go by their BDDL name with all
    their bodies, everything else by MuJoCo's body names. Links of articulated fixtures are tracked unless the goal
    moves the fixture (docs/fidelity.md, bystanders).
    """
    model = domain.sim.model._model
    objects = _object_roots(domain)
    body_name = name_bodies(model, objects)
    links = {
        body_name[body]: body
        for fixture in domain.fixtures_dict
        if fixture not in _goal_moved_fixtures(domain)
        for body in moving_links(model, int(domain.obj_body_id[fixture]))
    }
    robot = domain.robots[0]
    geoms = robot.gripper.important_geoms
    return Scene(
        body_name=body_name,
        roles=roles_in_use(model, body_name, _body_roles(domain, model, body_name), frozenset({**objects, **links})),
        objects=objects,
        links=links,
        fingers=(geom_ids(model, geoms["left_finger"]), geom_ids(model, geoms["right_finger"])),
        eef_site=int(model.site(robot.gripper.important_sites["grip_site"]).id),
        arm_dofs=tuple(int(dof) for dof in robot._ref_joint_vel_indexes),
    )


def build_header(
    domain: BDDLBaseDomain,
    recorder: Recorder,
    task: TaskLabel,
    versions: dict[str, str],
    *,
    dt: float,
    success: bool,
    env_seed: int | None,
    index: int | None,
) -> dict[str, object]:
    """Return an episode's header; `dt` in seconds, `index` that of the initial state, None = unknown.

    `target_object` is the goal's first target, None without one.
    """
    return episode_header(
        task, recorder, versions, dt=dt, success=success, env_seed=env_seed, index=index,
        target_object=next(iter(goal_targets(domain)), None), embodiment="Panda",
    )  # fmt: skip


def body_names(domain: BDDLBaseDomain, model: mujoco.MjModel) -> tuple[str, ...]:
    """Return the recorded name of each body of the model: objects by their BDDL name, the rest by MuJoCo's."""
    return name_bodies(model, _object_roots(domain))


def _object_roots(domain: BDDLBaseDomain) -> dict[str, int]:
    return {name: int(domain.obj_body_id[name]) for name in domain.objects_dict}


def _body_roles(domain: BDDLBaseDomain, model: mujoco.MjModel, body_name: tuple[str, ...]) -> dict[str, str]:
    base = int(model.body(domain.robots[0].robot_model.root_body).id)
    return {
        **dict.fromkeys(body_name, "furniture"),
        **dict.fromkeys(domain.objects_dict, "bystander"),
        **dict.fromkeys(goal_targets(domain), "target"),
        **{body_name[body]: "robot" for body in subtree_bodies(model, base)},
    }
