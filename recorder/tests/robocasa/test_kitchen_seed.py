"""A kitchen's seed is known where its generator has drawn nothing; goals say what is target. Without RoboCasa."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from recorder_builders import KITCHEN, PADS, Cutter
from safevla_recorder import robocasa
from safevla_recorder.errors import HostError
from safevla_recorder.loop import find_recordable
from safevla_recorder.robocasa import (
    _find_goal,
    find_robocasa,
    fresh_seed,
    goal_target,
    known_goals,
    moved_fixture,
    to_plain,
)


@pytest.mark.parametrize("seed", [0, 7, 7001, 2**32, np.int64(5)])
def test_the_seed_of_a_generator_is_known_until_it_draws(seed):
    generator = np.random.default_rng(seed)
    assert fresh_seed(generator) == int(seed)
    generator.random()
    assert fresh_seed(generator) is None


@pytest.mark.parametrize(
    "generator",
    [
        np.random.default_rng(),  # its entropy is the system's, and no 64-bit number
        np.random.default_rng([1, 2]),
        np.random.Generator(np.random.MT19937(7)),  # its numbers differ from default_rng(7)'s
    ],
    ids=["unseeded", "sequence", "another"],
)
def test_what_was_not_made_by_default_rng_of_a_number_has_no_seed(generator):
    assert fresh_seed(generator) is None


def test_what_is_put_somewhere_is_the_target_and_otherwise_the_fixture_moves():
    for name, goal in known_goals().items():
        assert (goal_target(goal) is None) or (moved_fixture(goal) is None), name
    assert goal_target(("in", "obj", "container")) == "obj"
    assert moved_fixture(("open", "drawer")) == "drawer"
    assert goal_target(("at", "target_fixture")) is moved_fixture(("at", "target_fixture")) is None
    assert len(known_goals()) == 18


def test_without_robocasa_there_is_no_kitchen_and_the_hosts_are_named():
    assert find_robocasa(object()) is None
    with pytest.raises(HostError, match=r"cannot be recorded") as caught:
        find_recordable(object())
    assert "libero, robocasa" in caught.value.remedy


@pytest.mark.parametrize("goal", ["open", ("open",), (), ("in", 3)])
def test_a_goal_that_is_not_a_verb_with_names_is_refused_with_an_example(goal):
    with pytest.raises(HostError, match="valid goal") as caught:
        _find_goal("OpenDrawer", goal)
    assert 'goal=("open", "drawer")' in caught.value.remedy


def test_plain_values_do_not_depend_on_hash_order_or_addresses():
    first = {"object_cfgs": [{"info": {"groups_containing_sampled_obj": ["b", "a"]}}], "colors": {"red", "blue", 3}}
    other = {"object_cfgs": [{"info": {"groups_containing_sampled_obj": ["a", "b"]}}], "colors": {3, "blue", "red"}}
    assert to_plain(first) == to_plain(other)
    assert to_plain({"order": ["b", "a"]}) == {"order": ["b", "a"]}, "other lists keep their order"
    assert to_plain(object()) == to_plain(object())


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.array([[1, 2]]), [[1, 2]]),
        (np.float32(0.5), 0.5),
        ((True, None, 1.5), [True, None, 1.5]),
        ("/home/me/assets/objects/a/objects/cup/model.xml", "cup/model.xml"),
        ("objects/cup", "objects/cup"),
        (SimpleNamespace(name="sink"), "sink"),
        ({1: {"b", "a"}}, {"1": ["a", "b"]}),
    ],
)
def test_values_become_those_of_json_and_paths_those_in_the_assets(value, plain):
    assert to_plain(value) == plain


@pytest.mark.parametrize("entropy", [2**63 - 1, 2**63])
def test_a_seed_of_more_than_63_bits_is_unknown(entropy):
    assert fresh_seed(np.random.default_rng(entropy)) == (entropy if entropy < 2**63 else None)


def test_a_known_goal_is_replaced_by_a_given_one_and_an_unknown_needs_one():
    name, goal = next(iter(known_goals().items()))
    assert _find_goal(name, None) == goal
    assert _find_goal(name, ["in", "cup", "sink"]) == _find_goal("Mine", ("in", "cup", "sink")) == ("in", "cup", "sink")
    with pytest.raises(HostError, match="Mine is unknown") as caught:
        _find_goal("Mine", None)
    assert name in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "is_placeholder"), [(None, False), ("these are the assets", False), ("stand-in assets", True)]
)
def test_assets_are_placeholders_if_their_readme_says_so(tmp_path, text, is_placeholder):
    if text is not None:
        (tmp_path / "README.txt").write_text(text)
    assert robocasa.is_standin(tmp_path) is is_placeholder


class Lab:
    """What a `Kitchen` has of a task, with a generator that `reset` draws from."""

    robot_names = ("PandaOmron",)
    layout_id, style_id = np.int64(3), 4
    obj_instance_split, use_distractors = "target", False
    lite_physics = True

    def __init__(self, seed=7, input_type="delta"):
        controllers = {"right": SimpleNamespace(input_type=input_type)}
        self.robots = [SimpleNamespace(composite_controller=SimpleNamespace(part_controllers=controllers))]
        joints = ["base", "door"]
        model = SimpleNamespace(njnt=2, joint=lambda index: SimpleNamespace(name=joints[index]))
        self.rng = np.random.default_rng(seed)
        self.sim = Simulation(model)
        self.language = "open it"

    def reset(self):
        self.rng.random()
        self.sim = Simulation(self.sim.model._model)
        self.sim.set_state([0.0])

    def step(self, action):
        self.is_solved = action[0] > 1
        return "observation", self.reward(), False, {"cost": 2.0}

    def reward(self):
        return float(self._check_success())

    def _check_success(self):
        return self.is_solved

    def close(self): ...
    def get_ep_meta(self):
        return {"lang": self.language, "layout": np.int64(3)}


class Simulation:
    def __init__(self, model):
        self.model = SimpleNamespace(_model=model)

    def set_state(self, state): ...
    def set_state_from_flattened(self, state): ...


@pytest.fixture
def versions(monkeypatch):
    """The versions that a kitchen of the class `Lab` finds installed."""
    monkeypatch.setitem(sys.modules, "robocasa.environments.kitchen.kitchen", SimpleNamespace(Kitchen=Lab))
    found = {"robocasa-assets": "official"}
    monkeypatch.setattr(robocasa, "installed_versions", lambda: found)
    return found


def test_a_kitchen_is_known_in_a_wrapper_by_its_class_and_goal(versions):
    env = find_robocasa(SimpleNamespace(env=Lab()), ("in", "cup", "sink"))
    assert (env.task.benchmark, env.task.task_id, env.target_object()) == ("robocasa-365", "Lab", "cup")
    assert (env.wait_steps, env.action_size, env.instruction()) == (0, 12, "open it")
    assert find_robocasa(Lab(), ("open", "drawer")).target_object() is None
    with pytest.raises(HostError, match="starts of episodes"):
        env.set_init_states([[0.0]])


@pytest.mark.parametrize("robots", [("PandaMobile",), ("PandaOmron", "PandaOmron"), ()])
def test_a_kitchen_of_another_robot_is_refused(versions, robots):
    kitchen = Lab()
    kitchen.robot_names = robots
    with pytest.raises(HostError, match="not PandaOmron"):
        find_robocasa(kitchen, ("open", "drawer"))


def test_an_action_of_gripper_and_mode_alone_is_still(versions):
    env = find_robocasa(Lab(), ("open", "drawer"))
    assert [index for index, action in enumerate(np.eye(12)) if env.is_still(action)] == [6, 11]


def test_a_kitchen_without_a_text_has_the_tasks_name_as_instruction(versions):
    kitchen = Lab()
    kitchen.language = ""
    assert find_robocasa(kitchen, ("open", "drawer")).instruction() == "Lab"


@pytest.mark.parametrize("assets", ["official", "stand-in"])
def test_the_record_describes_the_kitchen_and_marks_placeholders(versions, assets):
    versions["robocasa-assets"] = assets
    fields = find_robocasa(Lab(), ("open", "drawer")).header_fields()
    assert fields["robocasa"] == {
        "layout": 3,
        "style": 4,
        "joints": ["base", "door"],
        "options": {"obj_instance_split": "target", "use_distractors": False},
        "ep_meta": {"lang": "open it", "layout": 3},
    }
    assert fields.get("standin_assets") == (True if assets == "stand-in" else None)
    assert "absolute_actions" not in fields
    assert find_robocasa(Lab(input_type="absolute"), ("open", "drawer")).header_fields()["absolute_actions"] is True


def test_resets_seeds_states_and_steps_of_a_kitchen_are_told_until_the_hooks_are_removed(versions):
    kitchen, cutter = Lab(), Cutter()
    undo = find_robocasa(kitchen, ("open", "drawer")).subscribe(cutter)
    interruption, state_set = ("on_interruption",), ("on_state_set", None)
    kitchen.sim.set_state([1.0])
    assert cutter.given == [interruption, state_set]
    cutter.given.clear()
    for _ in range(2):  # the second reset draws on, and neither says of the states that it sets itself
        kitchen.reset()
    assert cutter.given == [interruption, ("on_seed", 7), ("on_reset",), interruption, ("on_reset",)]
    cutter.given.clear()
    kitchen.sim.set_state_from_flattened([1.0])
    kitchen.step([2.0])
    assert cutter.given == [interruption, state_set, ("before_step", [2.0]), ("after_step", True, 2.0)]
    cutter.given.clear()
    undo()
    kitchen.sim.set_state([1.0])
    kitchen.reset()
    kitchen.step([2.0])
    assert cutter.given == []


def test_a_shaped_reward_of_a_kitchen_is_no_success(versions):
    kitchen, cutter = Lab(), Cutter()
    find_robocasa(kitchen, ("open", "drawer")).subscribe(cutter)
    kitchen.reward = lambda: -0.5 + kitchen._check_success()
    for number in (0.0, 2.0):
        kitchen.step([number])
    assert [event for event in cutter.given if event[0] == "after_step"] == [
        ("after_step", False, 2.0), ("after_step", True, 2.0),
    ]  # fmt: skip
    kitchen.reward = lambda: -0.5
    kitchen._check_success()
    with pytest.raises(HostError, match="did not check the task's success"):
        kitchen.step([2.0])


@pytest.mark.parametrize(
    ("target", "moved", "objects", "links"),
    [
        ("bowl", None, {"bowl": "bowl_main"}, {"cabinet_drawer", "oven_door", "cup_main", "lid_main"}),
        (None, "drawer", {"bowl": "bowl_main"}, {"oven_door", "cup_main", "lid_main"}),
        ("lid", None, {"bowl": "bowl_main", "lid": "lid_main"}, {"cabinet_drawer", "oven_door", "cup_main"}),
    ],
)
def test_a_kitchens_links_are_all_that_moves_but_robot_objects_and_the_fixture_of_the_goal(
    target, moved, objects, links
):
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(KITCHEN)
    ids = {model.body(k).name: k for k in range(model.nbody)}
    kitchen = SimpleNamespace(
        sim=SimpleNamespace(model=SimpleNamespace(_model=model)),
        obj_body_id={"bowl": ids["bowl_main"]},
        blender=SimpleNamespace(blender_lid=SimpleNamespace(root_body="lid_main")),
        drawer=SimpleNamespace(root_body="cabinet"),
        robots=[SimpleNamespace(gripper={"right": SimpleNamespace(important_geoms=PADS)})],
        control_timestep=0.05,
        model_timestep=0.002,
    )
    scene = robocasa.read_scene(kitchen, target, moved)
    assert scene.objects == {name: ids[body] for name, body in objects.items()}
    assert scene.links == {name: ids[name] for name in links}
    assert [name for name, role in scene.roles.items() if role == "target"] == [target] * (target is not None)
    assert scene.body_name[ids["handle"]] == "cabinet_drawer"
    assert scene.body_name[ids["bowl_rim"]] == "bowl"
    assert {scene.roles[f"robot0_link{k}"] for k in range(1, 8)} == {"robot"}
    assert scene.fingers == ((model.geom("pad_l").id,), (model.geom("pad_r").id,))
    assert (scene.eef_site, scene.arm_dofs, scene.apart_substeps) == (0, tuple(range(6, 13)), 25)
