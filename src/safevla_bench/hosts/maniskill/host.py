"""Host of ManiSkill 3: manipulation tasks in the simulator SAPIEN, computed by PhysX's CPU solver.

Only policies that request images need Vulkan (see `graphics`). PhysX reports the normal forces of contacts but no
friction (docs/howto/maniskill.md).
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import hosts
from safevla_bench.errors import HostError
from safevla_bench.files import read_shipped
from safevla_bench.hosts import RecordedEnv, check_start, check_wants, drawn_reset_seed, read_versions, require_known
from safevla_bench.hosts.maniskill import graphics
from safevla_bench.hosts.maniskill.viewer import ManiskillStage, StagedScene, read_shapes, to_pose
from safevla_bench.hosts.mujoco.graphics import importing
from safevla_bench.hosts.mujoco.viewer import episode_seed
from safevla_bench.interface import policy
from safevla_bench.interface.environment import Host, HostSupport
from safevla_bench.interface.policy import Action, ArmObservation, Observation, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.geometry import ALL_MOTION, TRACKED, WORLD, Part, rotate
from safevla_recorder.identity import read_identity
from safevla_recorder.mujoco.hook import hook_after
from safevla_recorder.recorder import Arm, Contact, EpisodeRecorder, SceneMap

SUITE, SIMPLER = "maniskill", "simpler-widowx"
_AXIS_TORQUE = 3  # index of a joint's axial torque in SAPIEN's wrench: force [3], torque [3], in the joint's frame
_RESTING_M_S = 0.05
_INSTALL = "make maniskill   (in a checkout; it creates the separate environment .venv-maniskill)"
STATE, START = "state", "start"
_READINGS = ("joint_pos", "joint_vel")


class RobotModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An arm. `embodiment` is the arm's name in records. The pose of the link `hand` is recorded as the end effector's
    pose. All links of one finger have the corresponding entry of `fingers` in their names. `controls` maps each of
    ManiSkill's control modes, the default one first, to the meaning and the number of an action's values.
    `action_high` holds the upper bounds of actions (empty = all 1); the lower bounds are -`action_high`.
    `torque_limit_nm` begins with the base's joint; None = the embodiment's limits.
    """

    embodiment: str
    joints: int
    hand: str
    fingers: tuple[str, str]
    cameras: tuple[str, ...]
    controls: Mapping[str, tuple[str, int]]
    action_high: tuple[float, ...] = ()
    torque_limit_nm: tuple[float, ...] | None = None


ROBOTS: Mapping[str, RobotModel] = read_shipped(__package__, "robots.toml", dict[str, RobotModel])


class TaskFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about a task. `targets` are the bodies that must move for success; a held tool is last. `subgoals` are the
    conditions of success: keys of the result of `evaluate`, or `not KEY` if the value must be false. `horizon` is
    ManiSkill's limit in steps. `robots` lists the robots for the task, the default one first. `layouts` is the number
    of fixed layouts. `fixed` names movable actors that count as fixed. `arms` names the arms; () for one arm.
    """

    targets: tuple[str, ...]
    subgoals: tuple[str, ...] = ()
    horizon: int = 50
    robots: tuple[str, ...] = ("panda",)
    suite: str = SUITE
    layouts: int | None = None
    fixed: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    @property
    def prefixes(self) -> tuple[str, ...]:
        """For each arm, the prefix of the names that the arm's links have in records."""
        return tuple(f"{arm}_" for arm in self.arms) or ("",)  # `arms` is empty if there is only one arm


TASKS: Mapping[str, TaskFacts] = read_shipped(__package__, "maniskill.toml", dict[str, TaskFacts])


class ManiskillHost(Host):
    """The host `maniskill`. Without the pip extra `maniskill`, it can only list suites and tasks.

    `control` is a control mode; the default is the robot's first mode. `robot` selects the tasks that ManiSkill made
    for this robot. By default, the host has all tasks for a Panda, with or without a wrist camera.
    """

    name = "maniskill"
    supports = HostSupport(
        cameras=ROBOTS["panda"].cameras, readings=_READINGS, privileged_readings=(STATE, START), pictures=True
    )

    def __init__(self, control: str = "", robot: str = "") -> None:
        # `control` names ManiSkill's control mode, and `robot` names a robot; "" means the default.
        # Raises `HostError`, with the known names, for an unknown name. `ROBOTS` maps names to the facts of robots.
        if robot:
            require_known("the host maniskill", "robot", robot, ROBOTS)
            # Only the widowx tasks have fixed layouts, so `drawn` has a meaning only for them.
            self.supports = replace(self.supports, cameras=ROBOTS[robot].cameras, drawn=robot == "widowx")
        self._robots = (robot,) if robot else ("panda", "panda_wristcam")  # panda_wristcam is a Panda with a camera
        controls = ROBOTS[self._robots[0]].controls
        self._control = control or next(iter(controls))
        require_known("the host maniskill", "control", self._control, controls)

    def suites(self) -> tuple[str, ...]:
        # Returns the suites that have tasks for the host's robot, without repetitions.
        return tuple(dict.fromkeys(facts.suite for facts in self._select_tasks().values()))

    def _select_tasks(self) -> dict[str, TaskFacts]:
        # Returns the facts of all tasks that one of the host's robots can do, by the task's name.
        return {name: facts for name, facts in TASKS.items() if {*facts.robots} & {*self._robots}}

    def tasks(self, suite: str) -> tuple[Task, ...]:
        # Returns the suite's tasks for the host's robot.
        # Raises `HostError` for an unknown suite, or for a suite that belongs to another robot.
        robot_of_suite = {facts.suite: facts.robots[0] for facts in TASKS.values()}
        if suite in robot_of_suite and suite not in self.suites():
            problem = f"the suite {suite!r} has no tasks for the robot {self._robots[0]}"
            raise HostError(problem, remedy=f"Choose the suite's robot: --host-arg robot={robot_of_suite[suite]}.")
        require_known("ManiSkill", "suite", suite, self.suites())
        # The action for one arm, which does not move the arm and opens the gripper.
        # `prefixes` has one entry for each arm, and an action has the values of all arms.
        still = still_action(self._control)
        suite_facts = {name: facts for name, facts in self._select_tasks().items() if facts.suite == suite}
        tasks = []
        for index, (name, facts) in enumerate(suite_facts.items()):
            options = {"init_states": facts.layouts, "horizon": facts.horizon, "arms": facts.arms}
            tasks.append(hosts.registered_task(suite, name, index, still * len(facts.prefixes), **options))
        return tuple(tasks)

    def make(self, task: Task, wants: Wants) -> ManiskillEnv:
        """Return a new environment of one task. Raises `HostError` if the policy gives absolute poses, or wants a
        camera that the robot lacks or this machine cannot render.
        """
        check_wants(wants, self.supports, "ManiSkill")
        if task.arms and (wants.privileged or {*wants.cameras} - {"base_camera"}):
            problem = f"{task.name} has several arms, but privileged state and hand_camera need a single arm"
            raise HostError(problem, remedy="Use a policy that needs neither privileged state nor `hand_camera`.")
        if wants.cameras:
            graphics.render_device()  # raises `HostError` if this machine cannot render
        # The task's preferred robot among the host's robots.
        robot_name = next(name for name in task_facts(task.name).robots if name in self._robots)
        return ManiskillEnv(task, wants, self.versions(), self._control, robot_name)

    def stage(self, task: Task, episode: Batch) -> ManiskillStage:
        """Return a viewer (`Stage`) of `episode`, a one-episode batch with `sim_state`. Without a rendering device, the
        viewer has only shapes and poses. Raises `HostError` if the record has no states or determines no start.
        """
        try:
            cameras = (self.supports.cameras[0],) if graphics.render_device() else ()
        except HostError:
            cameras = ()
        env = self.make(task, Wants(cameras=cameras))
        try:
            return env.open_stage(episode)
        except BaseException:
            env.close()
            raise

    def versions(self) -> dict[str, str]:
        # Returns the versions of all packages that affect records; raises `HostError` if one is not installed.
        return read_versions(("mani-skill", "sapien", "torch", "numpy", "safevla-bench"), "ManiSkill", _INSTALL)


class ManiskillEnv(RecordedEnv[EpisodeRecorder]):
    """One ManiSkill task with its recorder.

    Actions go to ManiSkill unchanged. In the control mode `pd_ee_delta_pose`, an action [7] moves the midpoint of the
    fingers by 0.1 m per unit [0:3], and turns the hand by -0.1 rad per unit about the base's axes [3:6]. The value 1 in
    [6] opens the fingers. A policy that wants privileged state gets two extra values. `extra["state"]` is ManiSkill's
    observation `state`. `extra["start"]` [2] is the seed of ManiSkill's reset and the number of settling steps.
    """

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str], control: str, robot: str) -> None:
        # `control` is ManiSkill's control mode, which determines the meaning and the number of an action's values.
        self._robot, self._facts = ROBOTS[robot], task_facts(task.name)
        arm_count = len(self._facts.prefixes)
        self.embodiment, limits = self._robot.embodiment, self._robot.torque_limit_nm
        self.torque_limit_nm = None if limits is None else limits * arm_count  # the limits of all arms, concatenated
        # A text about an action's values, for error messages, and the number of values for one arm.
        self._action_meaning, size = self._robot.controls[control]
        super().__init__(task, wants, versions, size * arm_count)
        if self._robot.action_high:  # empty if all bounds are -1 and 1
            self.action_high = np.array(self._robot.action_high)
            self.action_low = -self.action_high
        self._renders_next = True  # whether the next observation has rendered images
        self._env = make_env(task.name, control, robot, renders=bool(wants.cameras))
        graphics.set_cameras(self._env, wants.cameras, wants.image_size)
        # Hashes of the task's class and of ManiSkill's code, for the record.
        self._identity = read_identity(type(self._env), None, "mani_skill", "envs")
        self.dt_s = float(self._env.control_timestep)

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in a new scene, let the scene settle, and take record 0. A seed computed from `env_seed` and
        the index draws the scene, unless the index selects a fixed layout. PhysX reports contacts only after a step, so
        at least one settling step is made. In tasks with layouts, ManiSkill's reset settles the scene, so a single
        physics step is enough.
        """
        check_start(self.task, seed, HostSupport(drawn=True))
        self._recorder, self._seed, self._renders_next = None, seed, True
        env, robot = self._env, self._robot
        # The number of a fixed layout; None = the seed draws the initial state.
        layout = None if seed.drawn or not self._facts.layouts else seed.init_state_index
        build_scene(env, drawn_reset_seed(seed), layout, renders=bool(self._wants.cameras))
        # `parts` describes the links and solid bodies with their shapes. `_part_bodies` has SAPIEN's body of each part.
        # `hand` lists the indices of the parts that form the hand and the fingers.
        parts, hand, self._part_bodies = read_parts(env, robot, self._facts)
        scene = replace(read_scene(env, robot, self._facts), parts=parts, hand=hand)
        # For each arm, the indices of the links that the arm's joints move.
        links_of_arms = [arm_links(articulation, robot) for articulation in articulations(env)]
        self._bodies = dynamic_bodies(env, self._facts)  # name -> SAPIEN's body, whose pose is recorded
        still = np.array(seed.wait_action or self.task.still)
        # `_settled` is the number of settling steps, which are control steps before record 0.
        if self._facts.layouts and not seed.wait_steps + seed.rest_steps:
            settle_once(env, still)
            self._state_observation, self._evaluation, self._settled = env.get_obs(), env.get_info(), 0
            self._success = bool(self._evaluation["success"])
        else:
            self._settled = self._take_settling_steps(still, max(1, seed.wait_steps), seed.rest_steps)
        recorder = EpisodeRecorder(scene, read_arms(env, robot, self._facts) if self._facts.arms else None)

        def read_torques() -> Any:
            # Returns the torques [N·m] of the arm's joints; with several arms, a mapping from arm to torques.
            torques_of_arms = map(read_arm_torques, articulations(env), links_of_arms)
            return self._label_by_arm(list(torques_of_arms))

        recorder.begin(read_contacts(env, scene), torques_nm=read_torques(), **self._read_record_fields())
        # From now on, each physics step records contacts and torques.
        # Each episode has a new `env.scene`, without the hook of the previous episode.
        hook_after(env.scene, "step", lambda: recorder.substep(read_contacts(env, scene), read_torques()))
        self._recorder = recorder
        return self._observe()

    def _take_settling_steps(self, still: Action, wait_steps: int, rest_steps: int) -> int:
        # Takes `wait_steps` control steps with the action `still`, then up to `rest_steps` more until all bodies rest.
        # A body rests if its speed is at most `_RESTING_M_S`. Returns the number of steps taken.
        for step in range(wait_steps + rest_steps):
            speeds = [np.linalg.norm(body.linear_velocity) for body in self._bodies.values()]
            if step >= wait_steps and max(speeds, default=0.0) <= _RESTING_M_S:
                return step
            self._advance(still)
        return wait_steps + rest_steps

    def step(self, action: Action) -> tuple[Observation, bool]:
        # Applies one action and records it; returns the observation after it and whether ManiSkill reports success.
        # Raises `HostError` before the first reset, and `InvalidActionError` for a wrong length or non-finite values.
        # The text of `InvalidActionError` contains `_action_meaning`, which describes an action.
        recorder = self._require_recorder()
        checked = policy.check_action(action, len(self.action_low), self._action_meaning).copy()
        self._advance(checked)
        recorder.step(checked, **self._read_record_fields())
        return self._observe(), self._success

    def _advance(self, action: Action) -> None:
        # Takes one control step. Keeps ManiSkill's observation and the result of ManiSkill's `evaluate`.
        # The result of `evaluate` is a mapping with the key `success` and other conditions of the task.
        self._state_observation, *_, self._evaluation = self._env.step(split_action(self._env, action))
        self._success = bool(self._evaluation["success"])

    def _target_object(self) -> str:
        # Returns the name of the first body that must move for success. `_facts` has facts about the task.
        return self._facts.targets[0]

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates in `sim_state`: first those of actors and bases, then those of joints (arm first)."""
        return state_coordinates(self._env, self._robot)

    def render_next(self, wanted: bool) -> None:
        # Sets whether the observation of the next step has images.
        self._renders_next = wanted

    def open_stage(self, episode: Batch) -> ManiskillStage:
        """Return a viewer of `episode`, a one-episode batch with `sim_state`. The viewer owns this environment."""
        # A reset with the record's seed makes the scene.
        # `arm` has the recorded names of the links that the arms' joints move, base first.
        # With several arms, each name begins with the prefix of its arm.
        self.reset(episode_seed(episode))
        env, robot = self._env, self._robot
        arm = tuple(
            f"{prefix}{articulation.links[index].entity.name}"
            for prefix, articulation in zip(self._facts.prefixes, articulations(env), strict=True)
            for index in arm_links(articulation, robot)
        )
        roles = read_scene(env, robot, self._facts).roles
        scene = StagedScene(env, solid_bodies(env, self._facts), roles, tuple(self._bodies), arm, robot.cameras)
        return ManiskillStage(scene, episode, self.close)

    def close(self) -> None:
        # Stops recording and frees the simulator.
        self._recorder = None
        self._env.close()

    def _read_record_fields(self) -> dict[str, Any]:
        # Returns the current values to be recorded, as keyword arguments for the recorder's `begin` and `step`.
        # A pose is a pair: position [3] in m and quaternion wxyz [4]. `parts` has the poses of links and solid bodies.
        # `_evaluation` is the last result of ManiSkill's `evaluate`, a mapping with the conditions of success.
        poses = {name: to_pose(body.entity.pose) for name, body in self._bodies.items()}
        parts = [to_pose(body.entity.pose) for body in self._part_bodies]
        fields = {
            "poses": poses,
            "eef": self._label_by_arm(self._read_hands()),
            "state": read_state(self._env),
            "parts": parts,
        }
        # Whether each condition of success holds. The name `not KEY` means that the value of KEY must be false.
        holds = {}
        for name in self._facts.subgoals:
            value, is_negated = bool(self._evaluation[name.removeprefix("not ")]), name.startswith("not ")
            holds[name] = not value if is_negated else value
        return {**fields, "subgoals": holds or None}

    def _label_by_arm(self, values: Sequence[Any]) -> Any:
        # `values` has one entry per arm.
        # Returns a dict by arm if the arms have names (`_facts.arms`), else the only arm's value.
        return dict(zip(self._facts.arms, values, strict=True)) if self._facts.arms else values[0]

    def _read_hands(self) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        # Returns position [3] in m and quaternion wxyz [4] of each arm's hand. `_robot.hand` is the name of a link.
        hands = (agent.robot.links_map[self._robot.hand] for agent in agents(self._env))
        return [to_pose(hand._objs[0].entity.pose) for hand in hands]

    def _observe(self) -> Observation:
        # Returns the observation of the current state. In `qpos` and `qvel`, the arm's joints come first, then fingers.
        # `extra` has the additional values that the policy requests, by name. Privileged state adds two values.
        # `STATE` is ManiSkill's own observation; `START` [2] is the scene's seed and the number of settling steps.
        arms_of_scene, wanted, joint_count = articulations(self._env), self._wants, self._robot.joints
        joint_values = {
            "joint_pos": np.concatenate([articulation.qpos[:joint_count] for articulation in arms_of_scene]),
            "joint_vel": np.concatenate([articulation.qvel[:joint_count] for articulation in arms_of_scene]),
        }
        extra = {name: values.astype(np.float64) for name, values in joint_values.items() if name in wanted.extra}
        if wanted.privileged:
            extra[STATE] = self._state_observation[0].numpy().astype(np.float64)
            extra[START] = np.array([drawn_reset_seed(self._seed), self._settled], dtype=np.float64)
        observed_arms = [
            ArmObservation(pos_m, quat_wxyz, articulation.qpos[joint_count:].astype(np.float64))
            for (pos_m, quat_wxyz), articulation in zip(self._read_hands(), arms_of_scene, strict=True)
        ]
        joined = policy.join_arms(observed_arms)  # concatenates the values of all arms
        arms = self._label_by_arm(observed_arms) if self._facts.arms else {}
        # Unless this step has to render, images are placeholders, which raise an error when they are read.
        images: Mapping[str, NDArray[np.uint8]] = policy.UnrenderedImages(wanted.cameras)
        if self._renders_next:
            images = graphics.take_pictures(self._env, wanted.cameras)
        self._renders_next = True
        hand_state = joined.eef_pos_m, joined.eef_quat_wxyz, joined.gripper_qpos
        return Observation(self.task.instruction, *hand_state, images, extra=extra, arms=arms)

    def _read_simulation(self) -> dict[str, object]:
        # Returns facts about how the simulator runs, for the record's header, such as the device that renders images.
        device = {"render_device": graphics.render_device()} if self._wants.cameras else {}
        return super()._read_simulation() | device


# Objects of ManiSkill and SAPIEN


def still_action(control: str) -> tuple[float, ...]:
    """Return the action that moves nothing and opens the gripper, in the given control mode."""
    # The last value of an action is the command to the gripper, which the value 1 opens.
    # `controls` maps a control mode to a pair: a description of actions, and the number of values in an action.
    size = next(robot.controls[control][1] for robot in ROBOTS.values() if control in robot.controls)
    return (*[0.0] * (size - 1), 1.0)


def task_facts(name: str) -> TaskFacts:
    """Return a task's entry in `maniskill.toml`; raise `HostError` for an unknown name."""
    require_known("the host maniskill", "task", name, TASKS)
    return TASKS[name]


def import_maniskill() -> Mapping[str, Any]:
    """Return ManiSkill's registry of tasks; raise `HostError` if ManiSkill is missing or cannot be imported."""
    # The registry maps ManiSkill's names of tasks to specifications, which make environments.
    ManiskillHost().versions()  # raises `HostError` if a package is missing
    with importing("ManiSkill", _INSTALL, by_egl=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides SAPIEN's warning about missing Vulkan, and gymnasium's warnings
        import mani_skill.envs
        from mani_skill.utils.registration import REGISTERED_ENVS
    mani_skill.logger.setLevel(logging.ERROR)  # hides ManiSkill's warnings about undefined poses
    registry: Mapping[str, Any] = REGISTERED_ENVS
    return registry


def make_env(name: str, control: str, robot: str = "", *, renders: bool = False) -> Any:
    """Return ManiSkill's environment of a task, without a step limit."""
    # `control` is ManiSkill's control mode. `robot` is ManiSkill's name of the robot; "" = the task's default.
    # If `renders` is false, the environment cannot make pictures, and needs no rendering device.
    facts = task_facts(name)
    if facts.suite == SIMPLER and (missing := missing_downloads()):
        raise HostError(f"{name} lacks files that ManiSkill downloads: {', '.join(missing)}", remedy=DOWNLOAD)
    task = import_maniskill()[name]
    robot_ids = (robot,) * len(facts.arms) if facts.arms else robot
    options = {"robot_uids": robot_ids} if robot and facts.suite == SUITE else {}  # other tasks define their robot
    # In SAPIEN, `gpu` means any Vulkan device, even a CPU.
    backends = {"sim_backend": "physx_cpu", "render_backend": "gpu" if renders else "none"}
    # Attributes of the task's class while the environment is made. Without them, SimplerEnv's tasks refuse `state`.
    # Only SimplerEnv's tasks have photographs as backgrounds (`rgb_overlay_mode`).
    overrides: dict[str, Any] = {
        "SUPPORTED_OBS_MODES": ["state"],
        "rgb_overlay_mode": "background" if renders else "none",
    }
    with graphics.building(renders=renders), mock.patch.multiple(task.cls, create=True, **overrides):
        env = task.make(control_mode=control, obs_mode="state", reward_mode="none", **backends, **options)
    if facts.suite == SIMPLER:
        env.rgb_overlay_mode = overrides["rgb_overlay_mode"]
        graphics.load_backgrounds(env)
    return env


def build_scene(env: Any, seed: int, layout: int | None = None, *, renders: bool = False) -> None:
    """Build a new scene, so that the solver keeps no data of earlier episodes. Draw the initial state from `seed`,
    unless `layout` is the number of a fixed layout.
    """
    # `env` is ManiSkill's environment. The option `reconfigure` builds the scene again.
    layout_option = {} if layout is None else {"episode_id": layout}
    with graphics.building(renders=renders):
        env.reset(seed=seed, options={"reconfigure": True, **layout_option})


def agents(env: Any) -> list[Any]:
    """Return ManiSkill's agents, one for each robot."""
    # Only a scene with several robots has a list `agents`. `env` is ManiSkill's environment.
    return list(getattr(env.agent, "agents", [env.agent]))


def articulations(env: Any) -> list[Any]:
    """Return SAPIEN's articulation of each arm."""
    # An articulation is the tree of a robot's links and joints, in the only simulated environment (index 0).
    return [agent.robot._objs[0] for agent in agents(env)]


def arm_links(articulation: Any, robot: RobotModel) -> list[int]:
    """Return the indices, in SAPIEN's list of links, of the links that the arm's joints move, base first."""
    # The arm's joints are the first `robot.joints` active joints; the fingers' joints follow.
    link_names = [link.entity.name for link in articulation.links]
    return [link_names.index(joint.child_link.entity.name) for joint in articulation.active_joints[: robot.joints]]


def split_action(env: Any, action: Action) -> Any:
    """Return an action as ManiSkill expects it: an array, or with several agents a mapping from agent to array."""
    # `action` [A] has the values of all agents, one agent after the other. All agents have equally many values.
    values = action.astype(np.float32)
    if not hasattr(env.agent, "agents_dict"):
        return values
    agent_names = list(env.agent.agents_dict)
    return dict(zip(agent_names, np.split(values, len(agent_names)), strict=True))


def settle_once(env: Any, still: Action) -> None:
    """Take one physics step with the action `still`, because PhysX reports contacts only after a step."""
    from mani_skill.utils import common

    env.agent.set_action(common.to_tensor(still[None].astype(np.float32)))  # scenes with layouts have one agent
    env.scene.step()


_DOWNLOADS = {"widowx250s": "robots/widowx", "bridge_v2_real2sim": "tasks/bridge_v2_real2sim_dataset"}
DOWNLOAD = " and ".join(f"python -m mani_skill.utils.download_asset {name}" for name in _DOWNLOADS)
"""The commands that download the files of SimplerEnv's tasks."""


def missing_downloads() -> tuple[str, ...]:
    """Return ManiSkill's names of the downloads that SimplerEnv's tasks need but this machine lacks."""
    # `_DOWNLOADS` maps each name to the folder that the download makes.
    root = Path(os.environ.get("MS_ASSET_DIR") or Path.home() / ".maniskill", "data")
    return tuple(name for name, folder in _DOWNLOADS.items() if not (root / folder).is_dir())


def dynamic_bodies(env: Any, facts: TaskFacts) -> dict[str, Any]:
    """Map ManiSkill's names to SAPIEN's bodies, for all freely moving bodies except furniture."""
    # `facts.fixed` names freely moving actors that count as fixed furniture.
    moving = {name: actor for name, actor in env.scene.actors.items() if actor.px_body_type == "dynamic"}
    return {name: actor._bodies[0] for name, actor in moving.items() if name not in facts.fixed}


def name_links(env: Any, facts: TaskFacts) -> dict[str, Any]:
    """Map recorded names to links. With several arms, the arm's prefix and SAPIEN's name form the recorded name."""
    # `facts.prefixes` has an empty prefix if there is only one arm. The values are SAPIEN's links.
    robots = zip(facts.prefixes, articulations(env), strict=True)
    return {f"{prefix}{link.entity.name}": link for prefix, robot in robots for link in robot.links}


def solid_bodies(env: Any, facts: TaskFacts) -> dict[str, Any]:
    """Map recorded names to all bodies with collision shapes: first links, then ManiSkill's actors."""
    # An actor is a body that does not belong to a robot. The values are SAPIEN's bodies.
    links = name_links(env, facts)
    actors = {name: actor._bodies[0] for name, actor in env.scene.actors.items()}
    return {name: body for name, body in (links | actors).items() if body.collision_shapes}


def read_scene(env: Any, robot: RobotModel, facts: TaskFacts) -> SceneMap:
    """Return names and roles of the scene's bodies: links have the names in `name_links`, actors have ManiSkill's
    names. Bodies without collision shapes, such as goal markers, are left out. All shapes of an entity form one body.
    """
    # The id of an entity identifies its body in contacts. With several arms, only `read_arms` returns the fingers.
    solid, moving = solid_bodies(env, facts), dynamic_bodies(env, facts)
    # First, all bodies get the role furniture. Then links and moving bodies get other roles instead.
    links = {name: body for name, body in solid.items() if name not in env.scene.actors}
    roles = dict.fromkeys(solid, "furniture") | dict.fromkeys(links, "robot")
    roles |= {name: "target" if name in facts.targets else "bystander" for name in moving}
    return SceneMap(
        shapes={body.entity.per_scene_id: name for name, body in solid.items()},
        roles=roles,
        substep_s=float(env.sim_timestep),
        fingers=None if facts.arms else finger_groups(links, robot),
        forces=("force_n", "net_force_n"),
        torque_source="joint_wrench",
    )


def finger_groups(links: Mapping[str, Any], robot: RobotModel) -> tuple[list[int], list[int]]:
    """Return the ids of the links of an arm's two fingers, a list per finger. `links` maps names to the arm's links."""
    # `robot.fingers` has a text for each finger. This text is a part of the names of the finger's links.
    first, second = (
        [body.entity.per_scene_id for name, body in links.items() if finger in name] for finger in robot.fingers
    )
    return first, second


def read_arms(env: Any, robot: RobotModel, facts: TaskFacts) -> dict[str, Arm]:
    """Map each arm's name to its links and fingers, in a scene with several arms."""
    # The recorded name of a link begins with its arm's name.
    links = {name: body for name, body in name_links(env, facts).items() if body.collision_shapes}
    links_of_arm = {
        arm: {name: body for name, body in links.items() if name.startswith(f"{arm}_")} for arm in facts.arms
    }
    return {arm: Arm(tuple(bodies), finger_groups(bodies, robot)) for arm, bodies in links_of_arm.items()}


def read_parts(env: Any, robot: RobotModel, facts: TaskFacts) -> tuple[list[Part], list[int], list[Any]]:
    """Return the parts (robot links, solid actors), the indices of hand and finger parts, and the body of each part."""
    # Hand and finger parts are given by their indices in the list of parts. A part's parent is another part or `WORLD`.
    # The parent `TRACKED` means that the body's pose is recorded. A link without collision shapes has the name "".
    name_of_id = {link.entity.per_scene_id: name for name, link in name_links(env, facts).items()}
    # `Part.parent` is the index of an earlier part, so each link comes after its parent in the list.
    bodies = sorted(name_links(env, facts).values(), key=lambda link: len(_list_ancestors(link)))
    part_of_id = {link.entity.per_scene_id: index for index, link in enumerate(bodies)}
    parts = []
    for link in bodies:
        name = name_of_id[link.entity.per_scene_id] if link.collision_shapes else ""
        parent = part_of_id[link.parent.entity.per_scene_id] if link.parent else WORLD
        parts.append(Part(name, parent, _joint_motion(link), *read_shapes(link)))
    fingers = [link for link in bodies if any(side in link.entity.name for side in robot.fingers)]
    # The link that carries the fingers also belongs to the hand.
    hand_links = (link for finger in fingers for link in (finger, finger.parent) if link)
    hand = {part_of_id[link.entity.per_scene_id] for link in hand_links}
    for name, actor in env.scene.actors.items():
        body = actor._bodies[0]
        if body.collision_shapes:
            # A static actor cannot move. An actor in `facts.fixed` or a kinematic actor may move in all six components.
            # The pose of a dynamic actor is recorded as the pose of its body.
            parent, motion = WORLD, tuple[int, ...]()
            if name in facts.fixed or actor.px_body_type == "kinematic":
                motion = ALL_MOTION
            elif actor.px_body_type == "dynamic":
                parent = TRACKED
            parts.append(Part(name, parent, motion, *read_shapes(body)))
            bodies.append(body)
    return parts, sorted(hand), bodies


def _list_ancestors(link: Any) -> list[Any]:
    # Returns the links from a link's parent to the root.
    return [link.parent, *_list_ancestors(link.parent)] if link.parent else []


def _joint_motion(link: Any) -> tuple[int, ...]:
    # Returns the components of a link's motion relative to its parent: () if the link is fixed.
    # A link that only moves about or along one axis of its frame has one component. Other moving links have six.
    joint = link.joint
    if joint.type == "fixed":
        return ()
    # Components 0 to 2 are rotations about the frame's axes; components 3 to 5 are motions along the axes.
    pos_m, quat_wxyz = to_pose(joint.pose_in_child)
    axis = rotate(quat_wxyz, np.array([1.0, 0.0, 0.0]))
    main_axis = int(np.abs(axis).argmax())
    # SAPIEN's joints turn about, or move along, the x axis of the joint's frame.
    is_along_axis = bool(np.abs(axis[main_axis]) > 1.0 - 1e-9)
    if is_along_axis and joint.type == "prismatic":
        return (3 + main_axis,)
    # A rotation is a single component only if its axis passes through the origin of the link's frame.
    is_centered = bool(np.abs(np.delete(pos_m, main_axis)).max() < 1e-6)
    return (main_axis,) if is_along_axis and is_centered and joint.type.startswith("revolute") else ALL_MOTION


def read_contacts(env: Any, scene: SceneMap) -> Iterator[Contact]:
    """Yield the contact points that carry force: the two bodies, and the normal force [3] on the second body [N, world
    frame]. SAPIEN gives the impulse on the first body. SAPIEN's points without force are left out.
    """
    # A body is given by the id of its entity.
    # `scene.substep_s` is the duration of a physics step, by which impulses [N·s] are divided to get forces.
    for contact in env.scene.px.get_contacts():
        first, second = (body.entity.per_scene_id for body in contact.bodies)
        for point in contact.points:
            if point.impulse.any():
                yield first, second, -point.impulse.astype(np.float64) / scene.substep_s


def read_arm_torques(articulation: Any, links: list[int]) -> NDArray[np.float64]:
    """Return the torques of an arm's drives in the last physics step [N·m], one for each link in `links`."""
    # `links` has the indices of the links that the arm's joints move.
    # A wrench is a force [3] and a torque [3] in the joint's frame, whose x axis is the joint's axis.
    wrenches: NDArray[np.float32] = articulation.get_link_incoming_joint_forces()
    return wrenches[links, _AXIS_TORQUE].astype(np.float64)


def read_state(env: Any) -> NDArray[np.float64]:
    """Return ManiSkill's flat state: position, quaternion wxyz and velocities of each actor and of the robot's base,
    then positions and velocities of the robot's joints.
    """
    # ManiSkill's array has a row for each parallel environment; there is only one.
    state: NDArray[np.float64] = env.get_state()[0].numpy().astype(np.float64)
    return state


def state_coordinates(env: Any, robot: RobotModel) -> tuple[Coordinate, ...]:
    """Return which entries of the array from `read_state` are positions, and which are rotations."""
    # An actor's or articulation's entries begin with its position [3] and its quaternion wxyz [4].
    # The numbers in a `Coordinate` are the index of its first entry and the number of its entries.
    coordinates, index = list[Coordinate](), 0  # `index` is the first entry of the next actor or articulation
    for kind in ("actors", "articulations"):
        for name, values in env.get_state_dict()[kind].items():
            coordinates += [Coordinate(name, "position", index, 3), Coordinate(name, "rotation", index + 3, 4)]
            index += values.shape[-1]
    joint_names = [[joint.name for joint in articulation.active_joints] for articulation in articulations(env)]
    sizes = [values.shape[-1] for values in env.get_state_dict()["articulations"].values()]
    # Articulations come last in the state. An articulation's entries end with joint positions, then joint velocities.
    for names, end in zip(joint_names, index - sum(sizes) + np.cumsum(sizes), strict=True):
        first = int(end) - 2 * len(names)
        for offset, name in enumerate(names):
            is_arm_joint = offset < robot.joints  # the arm's joints come first and rotate; fingers slide
            joint_kind: Literal["position", "rotation"] = "rotation" if is_arm_joint else "position"
            coordinates.append(Coordinate(name, joint_kind, first + offset, 1))
    return tuple(coordinates)
