"""Host of LIBERO, which runs in robosuite 1.4: LIBERO's suites and your own task files.

The docstring of `LiberoEnv.reset` explains how this host makes LIBERO's episodes repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants, drawn_reset_seed
from safevla_bench.hosts.libero import noise
from safevla_bench.hosts.libero import plus as libero_plus
from safevla_bench.hosts.libero import tasks as libero_tasks
from safevla_bench.hosts.mujoco.environment import ROBOSUITE_SUPPORT, MujocoHost, RawObservation, RobosuiteEnv
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION, Action, Observation, Wants
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode, SearchSpace, Task
from safevla_bench.text import spell_suite, warn_once
from safevla_bench.trajectory.marks import ABSOLUTE, DRAWN, EARLIER_RESETS
from safevla_recorder.attachment import read_poses
from safevla_recorder.episode import Floats, add_header_field, add_header_mark
from safevla_recorder.libero import ALL_SUITES, GoalWatch, goal_predicates, goal_targets, read_scene, task_identity
from safevla_recorder.mujoco.recorder import Scene

CAMERAS = ("agentview", "robot0_eye_in_hand")


class LiberoHost(MujocoHost):
    """The host `libero`. Without the pip extra `libero`, it can list only suites.

    `plus` is the number of LIBERO-plus variants to run in each suite and category, or `all`.
    """

    name = "libero"
    supports = replace(ROBOSUITE_SUPPORT, cameras=CAMERAS, absolute=True, drawn=True, states=True, placed=True)

    def __init__(self, plus: str = str(libero_plus.PER_STRATUM)) -> None:
        # `plus` is the number of LIBERO-plus variants to run per suite and category, as a text; `all` = every variant.
        self._plus = libero_plus.parse_count(plus)  # an integer; None = every variant
        self._sample: dict[str, str] = {}  # from `libero_plus.describe_sample`; {} until LIBERO-plus's tasks are listed

    def suites(self) -> tuple[str, ...]:
        """Return the names of the suites of LIBERO and LIBERO-PRO, and of LIBERO-plus if its files are installed."""
        try:
            libero_plus.data_folder()
        except HostError:  # LIBERO-plus's files are not installed
            return tuple(ALL_SUITES)
        # `BENCHMARKS` maps a name to a pair: LIBERO's suite and the category of changes.
        # `CATEGORIES` are the categories for which the package has all files.
        benchmarks = libero_plus.BENCHMARKS.items()
        variant_suites = [name for name, (_, category) in benchmarks if category in libero_plus.CATEGORIES]
        return (*ALL_SUITES, *variant_suites)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks in LIBERO's order; for `libero-plus` and its categories, only the sampled tasks.
        `libero-long` means `libero-10`, and `libero_goal` means `libero-goal`.

        Instead of a suite's name, `suite` may be the path of your own tasks: a BDDL file, or a folder of BDDL files,
        which are sorted by name. The folder's name is the benchmark. Raises `HostError` for an unknown suite or file,
        or if LIBERO is not installed or cannot be imported.
        """
        if spell_suite(suite) in (libero_plus.SUITE, *libero_plus.BENCHMARKS):
            libero_tasks.require_libero()
            self._sample = libero_plus.describe_sample(self._plus)  # `versions` later returns this text
            return libero_plus.list_tasks(suite, self._plus)
        benchmark = libero_tasks.find_benchmark(suite)
        if benchmark is not None:
            libero_tasks.require_libero()
            return libero_tasks.suite_tasks(benchmark)
        if libero_tasks.is_task_path(suite):
            libero_tasks.require_libero()
            return libero_tasks.tasks_at_path(Path(suite))
        # The installed LIBERO may have suites that this package does not know.
        with suppress(HostError):  # if LIBERO is missing, the error below lists the known suites instead
            libero_tasks.require_libero()
            if tasks := libero_tasks.registered_tasks(suite):
                return tasks
        remedy = f"Suites: {libero_tasks.SUITE_LIST}. Or give a `.bddl` file, or a folder of such files."
        raise HostError(f"LIBERO has no suite {suite!r}", remedy=remedy)

    def make(self, task: Task, wants: Wants) -> LiberoEnv:
        """Return a new environment of one task; it has a renderer and a GL context only if a policy wants a camera."""
        check_wants(wants, self.supports, "LIBERO")
        # `sample` maps LIBERO-plus's package to a text that describes the chosen variants; {} if the task is LIBERO's.
        # `_plus` is the number of chosen variants per suite and category. `CAMERAS[0]` is `agentview`.
        sample = libero_plus.describe_sample(self._plus) if task.benchmark in libero_plus.BENCHMARKS else {}
        if task.benchmark.endswith(("-camera", "-noise")) and sample and CAMERAS[0] not in wants.cameras:
            effect = f"{task.benchmark} only changes images of {CAMERAS[0]}, which the policy does not use"
            warn_once(f"{effect}, so for this policy each variant equals the original task")
        return LiberoEnv(task, wants, {**libero_tasks.versions(), **sample})

    def search_space(self, task: Task, start: EpisodeSeed) -> SearchSpace:
        """Return the search space: x and y of objects on table or floor, within the regions of the task's BDDL file."""
        # LIBERO's regions are the same for all starts of a task, so `start` is not used.
        # The environment provides LIBERO's samplers of positions and the task's initial states.
        with closing(self.make(task, Wants())) as env:
            return libero_tasks.placement_space(env._robosuite_env(), env._init_states)

    def versions(self) -> dict[str, str]:
        """Return the versions of all packages in use, including LIBERO-plus if its tasks were listed before."""
        # `_sample` maps LIBERO-plus's package to a text with its version; {} if its tasks were not listed.
        return {**libero_tasks.versions(), **self._sample}


class LiberoEnv(RobosuiteEnv):
    """One LIBERO task with its recorder.

    Actions are those of the controller OSC_POSE, [7] in [-1, 1]: 0.05 m and 0.5 rad per unit in the robot's base frame;
    gripper -1 opens, +1 closes. robosuite clips other values. The end effector's pose in an observation is LIBERO's
    (`robot0_eef_pos`, `robot0_eef_quat` with w first), as in the training data for LIBERO. The record has the pose of
    the grip site, whose axes are the hand's axes turned by 90 degrees about the approach direction. Images are upright:
    MuJoCo's first row is the bottom row, so this class flips images vertically. Some policies were trained on MuJoCo's
    images, turned by 180 degrees. A policy trained on them must mirror the upright images left to right.

    With `Wants.absolute`, the first six numbers of an action are a pose in the world frame: the grip site's position in
    m, and its rotation as an axis-angle in rad. Settling steps still use changes of pose.
    """

    action_meaning = "position [3], rotation [3], gripper"
    still = libero_tasks.STILL
    substep_method = "step"
    stage_camera = CAMERAS[0]
    embodiment = "Panda"

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        # Makes LIBERO's environment of a task; `reset` starts an episode. The header lists `versions` by package.
        # A LIBERO-plus task is a variant of a LIBERO task (`self._variant`).
        super().__init__(task, wants, versions)
        if wants.absolute:  # the first six numbers of an action are a pose, which has no bounds
            self.action_low[:6], self.action_high[:6] = -np.inf, np.inf
        self._control_steps = 0  # number of control steps since the reset, including settling steps
        suite, _ = libero_plus.BENCHMARKS.get(task.benchmark, ("", ""))  # "" if the task is not from LIBERO-plus
        self._variant = variant = libero_plus.Variant.parse(suite, task.name) if suite else None
        if variant and variant.noise and wants.cameras and wants.image_size != noise.SIZE:
            height, width = noise.SIZE
            problem = f"LIBERO-plus's noise is defined for pictures of {height} x {width}, not {wants.image_size}"
            remedy = "Use a policy that requests pictures of the defined size, or leave out the noise variants."
            raise HostError(problem, remedy=remedy)
        # The initial states, [count, 1 + nq + nv]: time, qpos and qvel of each. None = seeds draw the initial states.
        self._init_states = variant.init_states() if variant else libero_tasks.load_init_states(task)
        file = variant.task_file() if variant else libero_tasks.bddl_file(task)
        methods = variant.domain_methods() if variant else libero_tasks.NO_METHODS
        self._env = libero_tasks.make_control_env(file, wants, methods)
        self._identity = task_identity(file, self._init_states)
        self._scene = libero_tasks.KeptScene(self._env.env)  # keeps model and renderer from one reset to the next
        self._goals = GoalWatch(self._env.env)  # stores the results of LIBERO's own goal checks
        self._goals.attach()

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, let the scene settle, take record 0, and return its observation.

        The same seed gives the same bytes, in this environment or another. LIBERO breaks this rule in three ways. This
        method works around each of them:

        - LIBERO's initial states do not include poses of fixtures. Each reset draws these poses from NumPy's global
          generator, so this method seeds the generator before every reset.
        - In tasks that begin with an open or closed fixture, each reset adds a sampler for the fixture's joint and
          removes none, so that each episode draws more numbers than the previous one. So this method first empties the
          list of samplers, which the reset rebuilds from the BDDL file.
        - Setting an initial state without a reset keeps the solver's warm start and the controller's goal of the
          previous episode. So this method always resets first.

        Recordings of other software may come from an environment that was seeded once and reset several times. For such
        recordings, this method rebuilds the samplers, seeds once and repeats all resets, to place fixtures as recorded.

        NumPy's generator is restored after the reset, because policies may also draw from it.

        In tasks without initial states and in `drawn` episodes, the reset places all objects at random. `env_seed` and
        the index determine the seed of this placement. A recorded state overrides the placement.

        Raises:
            HostError: `check_start` refuses the seed, or the recorded state does not fit the task's simulation.
        """
        check_start(self.task, seed, LiberoHost.supports)
        self._control_steps = 0
        # The recorded episode whose state is the start; None without a recorded state.
        replayed = seed.recorded if seed.recorded and seed.recorded.state is not None else None
        # The initial state to set, [1 + nq + nv]; None if the reset draws the state, or if `replayed` contains it.
        state: Floats | None = None
        if self._init_states is not None and not seed.drawn and not replayed:
            state = self._init_states[seed.init_state_index]
        self._stop_recording()
        self._update_speed_up()
        with libero_tasks.kept_generator():
            return self._start_episode(seed, replayed, state)

    def _start_episode(self, seed: EpisodeSeed, replayed: RecordedEpisode | None, state: Floats | None) -> Observation:
        # Resets the simulation, sets `state` or the state of `replayed`, settles, and takes record 0.
        # If `state` and `replayed` are None, the reset draws the state. The docstring of `reset` explains each step.
        # `state` is a flat simulator state [1 + nq + nv]: time, qpos and qvel.
        # `domain` is robosuite's environment, and `raw` is an observation of robosuite.
        # The cameras render only while the gate is open. The gate is open if the policy gets the next observation.
        # `_scene.reset()` resets LIBERO's environment and reuses the compiled model.
        domain, is_drawn = self._env.env, state is None and replayed is None
        domain.object_property_initializers.clear()  # the samplers of the fixtures' joints
        self._install_gate(is_seen=is_drawn and not seed.wait_steps)
        if seed.earlier_resets is not None:
            domain._load_model()  # rebuilds the list of samplers, as in a new environment
        self._env.seed(drawn_reset_seed(seed) if is_drawn else seed.env_seed)
        for _ in range(seed.earlier_resets or 0):
            self._scene.reset()
        raw = self._scene.reset()
        if replayed is not None:
            state = libero_tasks.starting_state(domain, replayed)
        self._gate.set_open(not seed.wait_steps)
        if seed.placed:
            current_state: Floats = np.array(domain.sim.get_state().flatten()) if state is None else state
            state = libero_tasks.place_objects(domain, current_state, seed.placed)
        if state is not None:
            raw = self._env.set_init_state(state)
        if replayed is not None:  # the simulator's state does not include the state of the controllers
            libero_tasks.restore_controllers(domain)
        observation = self._settle_and_record(seed, raw, bool(self._env.check_success()))
        if self._wants.absolute:
            for robot in domain.robots:
                robot.controller.use_delta = False  # actions are poses; each reset makes a new controller
        return observation

    def fixture_poses(self) -> dict[str, list[float]]:
        # Maps the root body of each fixture, such as a cabinet, to its pose: position [3] in m, quaternion wxyz [4].
        domain = self._robosuite_env()
        return read_poses(domain, (fixture.root_body for fixture in domain.fixtures_dict.values()))

    def close(self) -> None:
        """Free the simulator and make the environment unusable. Closing twice is harmless."""
        self._stop_recording()
        self._scene.release()  # frees the model and the renderer
        if hasattr(self._env, "env"):  # LIBERO's `close` deletes `env`
            self._env.close()

    def _robosuite_env(self) -> Any:
        return self._env.env  # LIBERO's wrapper `_env` holds robosuite's environment

    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        # Simulates one control step. Returns robosuite's observation and whether LIBERO reports success.
        self._control_steps += 1
        raw, _, success, _ = self._env.step(action)
        return raw, bool(success)

    def _read_images(self, raw: RawObservation) -> Mapping[str, NDArray[np.uint8]]:
        """Return the wanted pictures. The noise in a picture depends only on the variant, the episode's seed and index,
        and the control step, not on which pictures are rendered.
        """
        # `raw` is robosuite's observation, whose pictures begin with the bottom row. The pictures returned are upright.
        # Only LIBERO-plus's noise variants have a noise level from 1 to 50. Only the first camera's picture gets noise.
        # An open gate (`_gate`) means that pictures were rendered in this step.
        level = self._variant.noise if self._variant else 0
        image_key = f"{CAMERAS[0]}_image"
        if level and self._gate.is_open and CAMERAS[0] in self._wants.cameras:
            name_hash = crc32(self.task.name.encode())  # the hash distinguishes tasks with the same `env_seed`
            entropy = [self._seed.env_seed, self._seed.init_state_index, self._control_steps, name_hash]
            draws = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy)))
            raw = {**raw, image_key: noise.add_noise(np.asarray(raw[image_key], dtype=np.uint8), level, draws)}
        return super()._read_images(raw)

    def _read_scene(self) -> Scene:
        # Returns the names, roles and MuJoCo ids of the model's bodies, for the recorder.
        return read_scene(self._env.env)

    def _read_subgoals(self) -> Mapping[str, bool]:
        # Maps each predicate of the task's goal to whether it held when LIBERO last checked it.
        # `_goals` stores the results of LIBERO's checks.
        return self._goals.read()

    def _set_substeps(self, count: int) -> None:
        # Sets the number of physics substeps per control step.
        # The gripper's target moves once per substep, so the target's speed must also change.
        super()._set_substeps(count)
        libero_tasks.pace_gripper(self._env.env, count)

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        # Returns a reader of the scene's ground truth, such as poses, sizes and goal.
        # `sites` has the positions [3] in m of goal regions (MuJoCo's sites); MuJoCo updates these arrays in place.
        domain, (model, data) = self._env.env, self._model_and_data()
        sites = {name: data.site(name).xpos for name in domain.object_sites_dict}
        return ScenePrivileged(model, data, scene, goal_predicates(domain), sites)

    def _extra_readings(self) -> dict[str, Floats]:
        # Returns extra observations: the hand's pose in the world as the controller sees it, one physics step late.
        # The pose is a position [3] in m and the rows of a rotation matrix, [9].
        controller = self._robosuite_env().robots[0].controller
        pose = {CONTROLLER_POSITION: controller.ee_pos, CONTROLLER_ROTATION: np.ravel(controller.ee_ori_mat)}
        return {name: np.array(values, dtype=np.float64) for name, values in pose.items()}

    def _extra_fields(self) -> dict[str, object]:
        # Returns host-specific fields for the record. Header marks say if actions are poses and if the start was drawn.
        # If known, a header field has the number of resets between the environment's only seeding and this episode.
        extra = add_header_mark({}, ABSOLUTE) if self._wants.absolute else {}
        extra = add_header_mark(extra, DRAWN) if self._seed.drawn else extra
        # In a replay, the header field about the recording already has the number of earlier resets.
        if self._seed.recorded is None and self._seed.earlier_resets is not None:
            extra = add_header_field(extra, EARLIER_RESETS, self._seed.earlier_resets)
        return extra

    def _read_simulation(self) -> dict[str, object]:
        # Returns facts about how the simulator runs, for the record's header.
        # `as_rendered`: resets give the same results as with a renderer. That is always true if there is a renderer.
        return {**super()._read_simulation(), "as_rendered": self._wants.as_rendered or bool(self._wants.cameras)}

    def _target_object(self) -> str | None:
        # Returns the name of the first object that the goal moves; None if the goal moves only fixtures.
        targets = goal_targets(self._robosuite_env())
        return targets[0] if targets else None
