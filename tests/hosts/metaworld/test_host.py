"""Meta-World's tasks, tags, goals and scripts, beside what upstream says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.hash_seeds import HASH_SEEDS, record_digests
from safevla_bench.cli import run_command_line
from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.metaworld import host as metaworld_host
from safevla_bench.hosts.metaworld.host import CAMERAS, MetaworldHost, suite_tasks
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.physics import Cause, replay_without
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.policies import make_policy
from safevla_bench.rollout.found import read_suite
from safevla_bench.tasks.loader import load_registry

pytestmark = [pytest.mark.metaworld, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
START = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
_FLAT_M = 0.03
"""Goals of pushes are no higher above the object than this."""


def test_suites_are_upstream_s_lists_in_its_order():
    lists = metaworld_host.import_metaworld().env_dict
    for size in (10, 25, 50):
        assert [task.name for task in suite_tasks(f"mt{size}")] == list(getattr(lists, f"MT{size}_V3"))
    for size in (10, 25, 45):
        for half in ("train", "test"):
            expected = list(getattr(lists, f"ML{size}_V3")[half])
            assert [task.name for task in suite_tasks(f"ml{size}-{half}")] == expected


@pytest.mark.parametrize("task", suite_tasks("mt50"), ids=lambda task: task.name)
def test_each_task_s_bodies_exist_and_a_push_s_goal_lies_where_the_object_does(task):
    env, rules = metaworld_host.make_env(task.name), metaworld_host.metaworld_task(task.name)
    names = {str(env.model.body(body).name) for body in range(env.model.nbody)} | set(
        metaworld_host._read_tasks().names.values()
    )
    assert {*rules.targets, *([rules.moves] if rules.moves else [])} <= names
    tags = load_registry().task_tags("mt50", task.name)
    assert ("manipulated_target" in tags) == bool(rules.targets)
    moves_fixture = bool(tags & {"goal_moves_articulated_fixture", "goal_moves_small_fixture"})
    assert moves_fixture == bool(rules.moves)
    if "held_target" not in tags and rules.targets:
        low, high = env._random_reset_space.low, env._random_reset_space.high
        goal_z = env.goal_space.high[2]
        assert goal_z <= max(float(high[2]), float(low[2]), 0.0) + _FLAT_M
    env.close()


def test_an_initial_state_is_the_goal_of_that_number_that_upstream_draws():
    task = suite_tasks("mt10")[1]
    env = MetaworldHost().make(task, Wants(privileged=True))
    state = env.reset(EpisodeSeed(3, 11, 0)).extra["state"]
    goals = metaworld_host.import_metaworld().MT1(task.name, seed=11)
    own = goals.train_classes[task.name]()
    own.set_task(goals.train_tasks[3])
    np.testing.assert_array_equal(state, own.reset()[0])
    for index in (-1, 50):
        with pytest.raises(HostError, match="0 to 49"):
            env.reset(EpisodeSeed(index, 11, 0))
    recorded = RecordedEpisode("episode", "file", 3, state=(0.0,))
    with pytest.raises(HostError, match="a recorded state"):
        env.reset(EpisodeSeed(0, 7, 0, recorded=recorded))
    env.close()


def test_a_drawn_start_is_the_first_goal_of_a_draw_of_its_own_and_its_stage_has_it():
    """The peg's box stands where the goal is: the model, not the state, holds it."""
    host, task = MetaworldHost(), next(task for task in suite_tasks("mt10") if task.name == "peg-insert-side-v3")
    env = host.make(task, Wants(privileged=True))
    seed = EpisodeSeed(73, 11, 0, drawn=True)
    state = env.reset(seed).extra["state"]
    goals = metaworld_host.import_metaworld().MT1(task.name, seed=drawn_reset_seed(seed))
    own = goals.train_classes[task.name]()
    own.set_task(goals.train_tasks[0])
    np.testing.assert_array_equal(state, own.reset()[0])
    stage = host.stage(task, env.recorded())
    np.testing.assert_array_equal(stage._model.body("box").pos, env._env.model.body("box").pos)
    for index in range(2):
        env.reset(EpisodeSeed(index, 11, 0))
        assert not np.array_equal(stage._model.body("box").pos, env._env.model.body("box").pos)
    stage.close()
    env.close()


def test_the_script_pushes_the_puck_and_squeezes_it_harder_than_the_paper_allows():
    task = suite_tasks("mt10")[1]
    env, script = MetaworldHost().make(task, Wants(privileged=True)), make_policy("metaworld:expert")
    observation, success = env.reset(START), False
    script.reset(task, 0)
    for _ in range(100):
        observation, success = env.step(script.act(observation))
        if success:
            break
    record = env.recorded()
    assert success
    assert record.contacts.force_n.max() > 200
    assert not record.joint_torque_nm.present.any()
    env.close()


def test_the_door_never_strikes_its_own_frame():
    env = MetaworldHost().make(suite_tasks("mt10")[3], Wants(privileged=True))
    env.reset(START)
    assert ("door", "door_link") in env.recorded().headers[0].dropped_pairs
    env.close()


def test_what_is_not_there_is_refused():
    host, task = MetaworldHost(), suite_tasks("mt10")[0]
    with pytest.raises(HostError, match="no suite 'mt11'"):
        host.tasks("mt11")
    with pytest.raises(HostError, match=CAMERAS[0]):
        host.make(task, Wants(cameras=("frontview",)))
    for unmade in ("joint_pos", "state"):  # the state is for privileged policies
        with pytest.raises(HostError, match=f"observation '{unmade}'"):
            host.make(task, Wants(extra=(unmade,)))
    with pytest.raises(HostError, match="changes of position"):
        host.make(task, Wants(absolute=True))
    with pytest.raises(PolicyError, match="metaworld:expert"):
        make_policy("metaworld:amateur")
    with pytest.raises(PolicyError, match="no script"):
        make_policy("metaworld:expert").reset(suite_tasks("mt10")[0].__class__("fake", "f", 0, "f", "", ()), 0)


def test_the_near_camera_shows_what_lerobot_s_does_and_leaves_the_model_as_it_was(monkeypatch):
    """LeRobot moves the camera in the model: src/lerobot/envs/metaworld.py at 7427f31. Edges differ by a pixel."""
    monkeypatch.setenv("MUJOCO_GL", "egl")  # upstream's own renderer tries a window first
    task = suite_tasks("mt50")[40]
    upstream = metaworld_host.import_metaworld().MT1(task.name, seed=START.env_seed)
    moved = upstream.train_classes[task.name](render_mode="rgb_array", camera_name="corner2")
    moved.set_task(upstream.train_tasks[0])
    moved.model.cam_pos[2] = [0.75, 0.075, 0.7]
    moved.reset()
    env = MetaworldHost().make(task, Wants(("corner2-near", "corner2"), (480, 480)))
    images = env.reset(EpisodeSeed(0, START.env_seed, 0)).images
    picture = np.flip(moved.render(), (0, 1))
    assert (picture != images["corner2-near"]).mean() < 0.02
    assert (picture != images["corner2"]).mean() > 0.2
    assert tuple(env._env.data.camera("corner2").xpos) != (0.75, 0.075, 0.7)
    env.close()
    moved.close()


def test_records_have_the_same_bytes_in_processes_that_hash_otherwise():
    assert len({tuple(record_digests(seed, "metaworld", "mt10", "drawer-close-v3")) for seed in HASH_SEEDS[:2]}) == 1


def test_physics_are_varied_where_no_body_is_tracked(tmp_path):
    run = tmp_path / "run"
    command = ["eval", "--host", "metaworld", "--suite", "mt10", "--task", "5", "--policy", "noop", "--episodes", "1"]
    assert run_command_line([*command, "--max-steps", "5", "--out", str(run)]) == 0
    assert run_command_line(["sensitivity", str(run), "--physics", "--episodes", "1"]) == 0
    judged = judge([run], load_ruleset())
    for cause in ("slow", "contact:rightpad,leftpad"):
        assert replay_without(judged, 0, Cause.parse(cause)).recorded


def test_a_search_takes_the_protocol_and_the_horizon(tmp_path):
    command = ["search", "--host", "metaworld", "--suite", "mt10", "--task", "2", "--policy", "metaworld:expert"]
    command += ["--protocol", "lerobot-metaworld", "--method", "random", "--budget", "2", "--max-steps", "5"]
    assert run_command_line([*command, "--out", str(tmp_path / "run")]) == 0
    suite = read_suite(tmp_path / "run/found/run.json")
    assert (suite.protocol, suite.max_steps, suite.tasks[0].trials) == ("lerobot-metaworld", 5, 2)
