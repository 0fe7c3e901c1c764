"""A LIBERO environment that somebody else made and steps: hooks, task, initial state, scene.

The hooks sit on `ControlEnv` where LIBERO's robosuite environment inside it does not see the call, else on that one, so
that scripts which reach through `env.env` are seen too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from safevla_recorder.attachment import EnvListener, episode_header, find_layer, subscribe_steps
from safevla_recorder.episode import Action, Floats
from safevla_recorder.errors import HostError
from safevla_recorder.libero import installation
from safevla_recorder.mujoco.hook import Undo, wrap_method
from safevla_recorder.mujoco.recorder import Recorder, attach_recorder
from safevla_recorder.mujoco.scene import Scene, assign_roles, geom_ids, moving_links, name_bodies, subtree_bodies

if TYPE_CHECKING:
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain
    from libero.libero.envs.env_wrapper import ControlEnv


_ARM_JOINTS = 7


def find_libero(env: object) -> RecordableLibero | None:
    """Return the LIBERO environment in `env`, which may be a wrapper that holds it; None if there is none. Raises
    `HostError` if it is a vector of environments, or cannot be recorded.
    """
    wrappers = sys.modules.get("libero.libero.envs.env_wrapper")
    if wrappers is None:  # nobody has made one
        return None
    vectors = sys.modules.get("libero.libero.envs.venv")
    if vectors is not None and isinstance(env, vectors.BaseVectorEnv):
        remedy = "Record where a worker makes its environment: record_until_closed(env, policy, out, worker=N)."
        raise HostError("a vector of environments cannot be recorded: its workers are out of reach", remedy=remedy)
    control = find_layer(env, wrappers.ControlEnv)
    return None if control is None else RecordableLibero(control)


class RecordableLibero:
    """One `ControlEnv`, of any subclass."""

    host = "libero"
    wait_steps = 10

    def __init__(self, control: ControlEnv) -> None:
        """Read the task, versions and initial states of an environment; raises `HostError` if it cannot be recorded."""
        domain = _require_domain(control)
        installation.require_robosuite(str(sys.modules["robosuite"].__version__))
        bddl_file = Path(domain.bddl_file_name)
        self.versions = installation.installed_versions()
        self.task = installation.label_task(bddl_file, str(control.language_instruction))
        self.action_size = int(domain.action_dim)
        self._control, self._domain = control, domain
        self._init_states: Floats | None = installation.find_init_states(bddl_file)

    def set_init_states(self, init_states: ArrayLike) -> None:
        self._init_states = np.atleast_2d(np.asarray(init_states, dtype=np.float64))

    def subscribe(self, listener: EnvListener) -> Undo:
        control, domain = self._control, self._domain

        def interrupt(original: Any, *args: object, **kwargs: object) -> object:
            listener.on_interruption()
            return original(*args, **kwargs)

        def reset(original: Any, *args: object, **kwargs: object) -> object:
            listener.on_interruption()  # for scripts that reset `env.env`; for the others this is the second time
            observation = original(*args, **kwargs)
            listener.on_reset()
            return observation

        def set_state(original: Any, mujoco_state: ArrayLike) -> object:
            listener.on_interruption()
            result = original(mujoco_state)
            listener.on_state_set(self._find_index(mujoco_state))
            return result

        def seed(original: Any, seed: int) -> object:
            listener.on_seed(int(seed))
            return original(seed)

        undo_all = [
            wrap_method(control, "reset", interrupt),  # outside its loop, which swallows whatever is raised inside
            wrap_method(control, "set_state", set_state),
            wrap_method(domain, "reset", reset),
            wrap_method(domain, "seed", seed),
            *subscribe_steps(domain, listener, lambda result: bool(result[2])),
        ]

        def unsubscribe() -> None:
            for undo in undo_all:
                undo()

        return unsubscribe

    def _find_index(self, state: ArrayLike) -> int | None:
        numbers = np.asarray(state, dtype=np.float64).ravel()
        states = self._init_states
        if states is None or states.shape[1:] != numbers.shape:
            return None
        return next(iter(np.flatnonzero((states == numbers).all(axis=1)).tolist()), None)

    def start_recorder(self) -> tuple[Recorder, Undo]:
        return attach_recorder(self._domain.sim, "step", read_scene(self._domain), self.task.task_id)

    def fixture_poses(self) -> dict[str, list[float]]:
        model = self._domain.sim.model._model
        bodies = {fixture.root_body: model.body(fixture.root_body) for fixture in self._domain.fixtures_dict.values()}
        return {name: [*body.pos.tolist(), *body.quat.tolist()] for name, body in bodies.items()}

    def header_fields(self) -> dict[str, object]:
        return {}

    def is_still(self, action: Action) -> bool:
        return not np.any(action[:-1])

    def build_header(
        self, recorder: Recorder, *, success: bool, env_seed: int | None, index: int | None
    ) -> dict[str, object]:
        domain = self._domain
        return episode_header(
            self.task,
            success=success,
            env_seed=env_seed,
            index=index,
            dt=float(domain.control_timestep),
            target_object=next(iter(goal_targets(domain)), None),
            embodiment="Panda",
            versions=dict(self.versions),
            dropped_pairs=recorder.dropped_pairs(),
        )


def _require_domain(control: ControlEnv) -> BDDLBaseDomain:
    domain = getattr(control, "env", None)
    if domain is None:
        raise HostError("the environment is closed", remedy="Make a new one before recording.")
    if hasattr(vars(domain).get("step"), "__wrapped__"):
        raise HostError("the environment is being recorded already", remedy="Record it once.")
    robot = domain.robots[0]
    if len(domain.robots) != 1 or len(robot._ref_joint_vel_indexes) != _ARM_JOINTS or "Panda" not in robot.name:
        names = ", ".join(str(robot.name) for robot in domain.robots)
        remedy = "Make the environment with one Panda, LIBERO's default."
        raise HostError(f"the robot {names} is not LIBERO's Panda, whose torque limits records have", remedy=remedy)
    return domain


# The scene, from the model and the BDDL goal


_JOINT_GOALS = ("open", "close", "turnon", "turnoff")


def goal_predicates(domain: BDDLBaseDomain) -> tuple[tuple[str, ...], ...]:
    """Return the goal's predicates, such as `("on", "akita_black_bowl_1", "plate_1")`; all of them must hold."""
    return tuple(tuple(predicate) for predicate in domain.parsed_problem["goal_state"])


def goal_targets(domain: BDDLBaseDomain) -> tuple[str, ...]:
    """Return the first movable argument of each goal predicate, each once, in goal order; the first is primary."""
    movable = ([name for name in arguments if name in domain.objects_dict] for _, *arguments in goal_predicates(domain))
    return tuple(dict.fromkeys(names[0] for names in movable if names))


def _goal_moved_fixtures(domain: BDDLBaseDomain) -> frozenset[str]:
    predicates = goal_predicates(domain)
    names = [argument for kind, *arguments in predicates if kind in _JOINT_GOALS for argument in arguments]
    owners = {name: getattr(domain.object_sites_dict.get(name), "parent_name", None) for name in names}
    return frozenset(str(owner or name) for name, owner in owners.items())


def read_scene(domain: BDDLBaseDomain) -> Scene:
    """Return names and roles of the domain's present model; every reset makes a new one.

    Movable objects go by their BDDL name with all their bodies, everything else by MuJoCo's body names. Links of
    articulated fixtures are tracked unless the goal moves the fixture (docs/fidelity.md, bystanders).
    """
    model = domain.sim.model._model
    objects = {name: int(domain.obj_body_id[name]) for name in domain.objects_dict}
    body_name = name_bodies(model, objects)
    links = {
        body_name[body]: body
        for fixture in domain.fixtures_dict
        if fixture not in _goal_moved_fixtures(domain)
        for body in moving_links(model, int(domain.obj_body_id[fixture]))
    }
    robot = domain.robots[0]
    geoms = robot.gripper.important_geoms
    robot_bodies = subtree_bodies(model, int(model.body(robot.robot_model.root_body).id))
    targets = goal_targets(domain)
    return Scene(
        body_name=body_name,
        roles=assign_roles(model, body_name, objects=objects, links=links, targets=targets, robot=robot_bodies),
        objects=objects,
        links=links,
        fingers=(geom_ids(model, geoms["left_finger"]), geom_ids(model, geoms["right_finger"])),
        eef_site=int(model.site(robot.gripper.important_sites["grip_site"]).id),
        arm_dofs=tuple(int(dof) for dof in robot._ref_joint_vel_indexes),
    )
