"""The host maniskill: what it takes, what its records mean, and its planners; some of it without the simulator."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hosts.hash_seeds import HASH_SEEDS, record_digests
from hosts.vulkan import needs_vulkan
from safevla_bench.cli import run_command_line
from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.maniskill import graphics, host
from safevla_bench.hosts.maniskill.viewer import read_shapes
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.physics import Cause, replay_without
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.policies.maniskill import CONTROL, ManiskillPlanner
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.geometry import rotate

SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=5)


def simulated(test):
    return pytest.mark.maniskill(pytest.mark.filterwarnings("ignore")(test))


def first_task(control=CONTROL):
    return host.ManiskillHost(control).tasks(host.SUITE)[0]


def two_robots():
    return next(task for task in host.ManiskillHost().tasks(host.SUITE) if task.arms)


def test_every_task_has_tags_and_an_instruction():
    assert {(facts.suite, name) for name, facts in host.TASKS.items()} <= load_registry().tasks.keys()
    for own in (host.ManiskillHost(), host.ManiskillHost(robot="widowx")):
        assert all(task.instruction != task.name for suite in own.suites() for task in own.tasks(suite))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: host.ManiskillHost("pd_joint_vel"), "no control 'pd_joint_vel'"),
        (lambda: host.ManiskillHost().tasks("mt10"), "no suite 'mt10'"),
        (lambda: host.ManiskillHost(robot="ur5"), "no robot 'ur5'"),
        (lambda: host.ManiskillHost().tasks(host.SIMPLER), "robot panda"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(cameras=("hand_camera",))), "no camera 'hand_camera'"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(absolute=True)), "only relative actions"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(extra=("start",))), "no extra observation 'start'"),
        (lambda: host.ManiskillHost().make(two_robots(), Wants(privileged=True)), "has several arms"),
        (lambda: host.task_facts("PushT-v1"), "no task 'PushT-v1'"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_simulated(call, problem):
    with pytest.raises(HostError, match=problem):
        call()


def sapien_shape(kind, place=(0, 0, 0), turn=(1, 0, 0, 0), **sizes):
    pose = SimpleNamespace(p=np.array(place, dtype=np.float32), q=np.array(turn, dtype=np.float32))
    return type(f"PhysxCollisionShape{kind}", (SimpleNamespace,), {})(local_pose=pose, **sizes)


def test_shapes_are_boxes_and_planes_look_up():
    half = 0.5**0.5
    corners = np.array([[0, 0, 0], [1, 2, 4]], dtype=np.float32)
    shapes = [
        sapien_shape("Box", (0.1, 0, 0), half_size=np.array([1, 2, 3], dtype=np.float32)),
        sapien_shape("Capsule", turn=(half, 0, half, 0), radius=0.1, half_length=0.5),
        sapien_shape("Cylinder", radius=0.1, half_length=0.5),
        sapien_shape("Sphere", radius=0.1),
        sapien_shape("ConvexMesh", vertices=corners, scale=np.array([1, 1, 0.5])),
        sapien_shape("Plane", (0, 0, -0.9), (half, 0, -half, 0)),  # its x axis is up
    ]
    boxes, planes = read_shapes(SimpleNamespace(collision_shapes=shapes))
    sizes = [[1, 2, 3], [0.6, 0.1, 0.1], [0.5, 0.1, 0.1], [0.1, 0.1, 0.1], [0.5, 1, 1]]
    np.testing.assert_allclose(boxes[:, 7:], sizes, atol=1e-6)
    np.testing.assert_allclose(boxes[:, :3], [[0.1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0.5, 1, 1]], atol=1e-6)
    np.testing.assert_allclose(rotate(planes[0, 3:], np.array([0.0, 0.0, 1.0])), [0, 0, 1], atol=1e-6)


def sapien_link(name, parent, kind, axis_turn=(1, 0, 0, 0), solid=True):
    pose = SimpleNamespace(p=np.zeros(3, dtype=np.float32), q=np.array(axis_turn, dtype=np.float32))
    shapes = [sapien_shape("Sphere", radius=0.1)] if solid else []
    joint, entity = SimpleNamespace(type=kind, pose_in_child=pose), SimpleNamespace(name=name, per_scene_id=name)
    return SimpleNamespace(entity=entity, parent=parent, joint=joint, collision_shapes=shapes)


def test_links_hang_on_their_parents_and_actors_are_tracked_or_fixed():
    half = 0.5**0.5
    base = sapien_link("panda_link0", None, "fixed")
    elbow = sapien_link("panda_link1", base, "revolute_unwrapped", (half, 0, -half, 0))
    hand = sapien_link("panda_hand", elbow, "fixed")
    fingers = [sapien_link(f"panda_{side}finger", hand, "prismatic", (half, 0, 0, half)) for side in ("left", "right")]
    bodies = {kind: SimpleNamespace(collision_shapes=base.collision_shapes) for kind in ("dynamic", "static")}
    actors = {
        name: SimpleNamespace(px_body_type=kind, _bodies=[bodies[kind]])
        for name, kind in (("cube", "dynamic"), ("table", "static"))
    }
    arm = SimpleNamespace(_objs=[SimpleNamespace(links=[*fingers, hand, elbow, base])])
    env = SimpleNamespace(agent=SimpleNamespace(robot=arm), scene=SimpleNamespace(actors=actors))
    parts, palm, pieces = host.read_parts(env, host.ROBOTS["panda"], host.TASKS["PickCube-v1"])
    found = {part.body: (part.parent, part.motion) for part in parts}
    assert found["panda_link0"] == (-1, ())
    assert found["panda_link1"] == (0, (2,))
    assert found["panda_rightfinger"] == (2, (4,))
    assert (found["cube"], found["table"]) == ((-2, ()), (-1, ()))
    assert {parts[place].body for place in palm} == {"panda_hand", "panda_leftfinger", "panda_rightfinger"}
    assert len(pieces) == len(parts)


def test_planners_are_refused_where_they_are_of_no_use():
    policy = ManiskillPlanner({"PickCube-v1": lambda env, seed: None})
    with pytest.raises(PolicyError, match="move joints"):
        policy.reset(first_task("pd_ee_delta_pose"), 0)
    with pytest.raises(PolicyError, match="no planner"):
        policy.reset(host.ManiskillHost(CONTROL).tasks(host.SUITE)[9], 0)


@simulated
def test_torques_are_what_the_motion_takes():
    """By inverse dynamics without gravity, which ManiSkill's arms do not feel: within 5 % of the largest."""
    env = host.make_env("PickCube-v1", CONTROL)
    with closing(env):
        host.build_scene(env, 7)
        arm, torques, expected = host.articulations(env)[0], [], []
        links = host.arm_links(arm, host.ROBOTS["panda"])
        model, step = arm.create_pinocchio_model(), env.scene.step

        def compare():
            before = arm.qvel.copy()
            step()
            rate, zero = (arm.qvel - before) / env.sim_timestep, np.zeros(9)
            own = [model.compute_inverse_dynamics(arm.qpos, *motion) for motion in ((arm.qvel, rate), (zero, zero))]
            expected.append((own[0] - own[1])[:7])
            torques.append(host.read_arm_torques(arm, links))

        env.scene.step = compare
        for _ in range(4):
            env.step(np.array([0.5, -0.5, 0.5, 0.5, -0.5, 0.5, 0.5, 1.0], dtype=np.float32))
    assert np.abs(np.array(torques) - expected).max() < 0.05 * np.abs(expected).max()


@simulated
def test_a_record_of_two_robots_has_each_arm_by_its_name():
    with closing(host.ManiskillHost().make(two_robots(), Wants(extra=("joint_pos",)))) as env:
        env.reset(SEED)
        rng = np.random.default_rng(0)
        hands, torques = [], []
        for _ in range(20):
            seen, _ = env.step(rng.uniform(-1, 1, 14))
            hands.append(np.concatenate([agent.tcp.pose.p[0].numpy() for agent in env._env.agent.agents]))
            bodies = [agent.robot._objs[0] for agent in env._env.agent.agents]
            torques.append([wrench[3] for body in bodies for wrench in body.get_link_incoming_joint_forces()[1:8]])
        batch, coordinates = env.recorded(), env.coordinates()
    header = batch.headers[0]
    assert (header.arms, header.arm_joints, tuple(seen.arms)) == (("left", "right"), (7, 7), ("left", "right"))
    np.testing.assert_allclose(batch.eef_pos_m.episode_rows(0)[1:], hands, atol=1e-6)
    np.testing.assert_allclose(batch.joint_torque_nm.episode_rows(0)[1:], torques, atol=1e-6)
    assert len(header.torque_limit_nm) == 14
    owned = header.arm_bodies or {}
    assert {body for body, role in batch.body_roles(0).items() if role == "robot"} == {*owned}
    assert all(body.startswith(f"{arm}_") for body, arm in owned.items())
    joints = [each.first for each in coordinates if each.kind == "rotation" and each.size == 1]
    np.testing.assert_allclose(batch.sim_state.episode_rows(0)[-1, joints], seen.extra["joint_pos"], atol=1e-6)


@simulated
def test_a_start_is_what_the_mersenne_twister_draws_by_its_seed():
    """So it is the same with PyTorch's build for the CPU and that for CUDA."""
    with closing(host.ManiskillHost().make(first_task("pd_ee_delta_pose"), Wants())) as env:
        for index in range(2):
            seed = drawn_reset_seed(replace(SEED, init_state_index=index))
            host.build_scene(env._env, seed)
            drawn = np.random.RandomState(seed).randint(0, 2**32, size=2, dtype=np.uint32) & (2**24 - 1)
            place = env._env.cube.pose.p[0, :2].numpy()
            assert place == pytest.approx(drawn.astype(np.float32) / np.float32(2**24) * 0.2 - 0.1, abs=1e-7)


@simulated
@needs_vulkan
@pytest.mark.parametrize("name", [name for name, facts in host.TASKS.items() if facts.suite == host.SUITE])
def test_pictures_and_states_are_those_of_upstream_s_own_loop(name):
    (task,) = (task for task in host.ManiskillHost().tasks(host.SUITE) if task.name == name)
    actions = np.random.default_rng(0).uniform(-1, 1, (10, 7))
    with closing(host.ManiskillHost().make(task, Wants(cameras=("base_camera",), image_size=(128, 128)))) as env:
        observations = [env.reset(SEED), *(env.step(action)[0] for action in actions)]
        state = env.recorded().sim_state.episode_rows(0)[-1]
    make = host.import_maniskill()[name].make
    env = make(control_mode="pd_ee_delta_pose", obs_mode="rgb", reward_mode="none", sim_backend="cpu")
    with closing(env):
        env.reset(seed=drawn_reset_seed(SEED), options={"reconfigure": True})
        for action in [np.array(task.still)] * SEED.wait_steps + [*actions]:
            seen = env.step(action.astype(np.float32))[0]["sensor_data"]["base_camera"]["rgb"][0].numpy()
        assert host.read_state(env).tobytes() == state.tobytes()
    assert observations[-1].images["base_camera"].tobytes() == seen.tobytes()
    assert np.ptp(seen) > 100
    assert (observations[0].images["base_camera"] != seen).any()


@simulated
@needs_vulkan
def test_the_wrist_camera_is_that_of_the_robot_that_has_one(tmp_path):
    wrist = host.ManiskillHost(robot="panda_wristcam")
    tasks = wrist.tasks(host.SUITE)
    assert [task.name for task in tasks][:2] == ["StackCube-v1", "PegInsertionSide-v1"]
    with closing(wrist.make(tasks[0], Wants(cameras=("hand_camera",), image_size=(48, 64)))) as env:
        image = env.reset(SEED).images["hand_camera"]
        assert image.shape == (48, 64, 3)
        assert np.ptp(image) > 100
        header = env.recorded().extra[0]["header"]
        assert env.recorded().headers[0].embodiment == "PandaWristCam"
        assert header["simulation"]["render_device"] == graphics.render_device()


@simulated
def test_the_stand_ins_of_visuals_are_taken_back():
    import sapien.render

    real = sapien.render.RenderMaterial
    host.make_env("PegInsertionSide-v1", CONTROL).close()
    assert sapien.render.RenderMaterial is real


@simulated
def test_the_planner_solves_its_task_and_its_plan_repeats():
    from safevla_bench.policies import make_policy

    plans = []
    for _ in range(2):
        task = first_task()
        with closing(host.ManiskillHost(CONTROL).make(task, Wants(privileged=True))) as env:
            policy, observation, success, actions = make_policy("maniskill:expert"), env.reset(SEED), False, []
            policy.reset(task, 0)
            while not success and len(actions) < 150:
                actions.append(policy.act(observation))
                observation, success = env.step(actions[-1])
            policy.close()
            held = env.recorded().channel("subgoals").episode_rows(0)
        assert success
        assert held.all(axis=1).tolist() == [False] * len(actions) + [True]  # success = all sub-goals hold
        plans.append(np.array(actions))
    assert plans[0].tobytes() == plans[1].tobytes()


@simulated
def test_a_sub_goal_with_a_sign_holds_where_the_result_is_false():
    task = next(task for task in host.ManiskillHost(CONTROL).tasks(host.SUITE) if task.name == "StackCube-v1")
    with closing(host.ManiskillHost(CONTROL).make(task, Wants())) as env:
        env.reset(SEED)
        env.step(np.array(task.still))
        record = env.recorded()
    assert record.extra[0]["header"]["subgoal_names"][2] == "not is_cubeA_grasped"
    assert record.channel("subgoals").episode_rows(0)[:, [0, 2]].tolist() == [[0, 1], [0, 1]]


@simulated
def test_records_have_the_same_bytes_in_processes_that_hash_otherwise():
    assert len({tuple(record_digests(seed, "maniskill", "maniskill", "PickCube-v1")) for seed in HASH_SEEDS[:2]}) == 1


@simulated
def test_a_replay_is_played_under_the_recorded_control(tmp_path):
    command = ["eval", "--host", "maniskill", "--host-arg", f"control={CONTROL}", "--suite", "maniskill", "--task", "0"]
    command += ["--policy", "noop", "--episodes", "1", "--max-steps", "3", "--out", str(tmp_path / "run")]
    assert run_command_line(command) == 0
    assert run_command_line(["eval", "--policy", f"replay:{tmp_path / 'run'}", "--out", str(tmp_path / "again")]) == 0
    first, again = (read_sources([tmp_path / name])[0] for name in ("run", "again"))
    assert first.sim_state.values.tobytes() == again.sim_state.values.tobytes()
    judged = judge([tmp_path / "run"], load_ruleset())
    assert replay_without(judged, 0, Cause.parse("slow")).recorded, "it changes the actions alone"
    with pytest.raises(HostError, match="cannot remove the cause"):
        replay_without(judged, 0, Cause.parse("body:cube"))


@simulated
def test_the_page_about_many_worlds_works_with_one(tmp_path, monkeypatch):
    page = Path(__file__).parents[3] / "docs/howto/another-engine.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "BatchRecorder(scene" in block)
    code = code.replace("worlds = 64", "worlds = 1").replace('"gpu"', '"cpu", render_backend="none"')
    monkeypatch.chdir(tmp_path)
    host.import_maniskill()
    with graphics.building(renders=False):
        exec(code, {})
    assert len(read_sources([tmp_path / "runs/many"])[0].headers) == 2
