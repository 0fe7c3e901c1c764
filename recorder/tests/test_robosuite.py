"""Recording robosuite's own Lift changes nothing and gives a record a step, in whichever robosuite is installed."""

from __future__ import annotations

import numpy as np
import pytest

from recorder_builders import count_calls, header
from safevla_recorder.episode import encode_episode
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.recorder import Scene, assign_roles, attach_recorder, subtree_bodies
from safevla_recorder.mujoco.speed import speed_up

robosuite = pytest.importorskip("robosuite")
pytestmark = [pytest.mark.robosuite, pytest.mark.filterwarnings("ignore")]
STEPS = 20


def make_lift(**options):
    renderers = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False}
    try:
        return robosuite.make("Lift", robots="Panda", control_freq=20, ignore_done=True, **renderers, **options)
    except AssertionError:  # robosuite 1.4 compares joint types in a way that newer bindings of MuJoCo break
        pytest.skip("this robosuite cannot make its own tasks with this MuJoCo")


@pytest.fixture(scope="module")
def env():
    lift = make_lift()
    yield lift
    lift.close()


@pytest.fixture(scope="module")
def operational():
    """As `env`, but with operational space control, which robosuite 1.5 has by default."""
    load = getattr(robosuite, "load_controller_config", None)
    lift = make_lift(**({} if load is None else {"controller_configs": load(default_controller="OSC_POSE")}))
    yield lift
    lift.close()


def read_scene(env):
    model, robot = env.sim.model._model, env.robots[0]
    names = tuple(str(model.body(body).name) for body in range(model.nbody))
    links = subtree_bodies(model, model.body(robot.robot_model.root_body).id)
    roles = assign_roles(model, names, objects=["cube_main"], targets=["cube_main"], robot=links)
    geoms = robot.gripper.important_geoms
    fingers = tuple(tuple(model.geom(name).id for name in geoms[side]) for side in ("left_finger", "right_finger"))
    return Scene(
        body_name=names,
        roles=roles,
        objects={"cube_main": model.body("cube_main").id},
        links={},
        fingers=fingers,
        eef_site=model.site(robot.gripper.important_sites["grip_site"]).id,
        arm_dofs=tuple(robot._ref_joint_vel_indexes),
    )


def run_episode(env, *, is_recorded):
    """Return the simulator's state after each step of the same episode, and its recording."""
    np.random.seed(3)
    env.reset()
    method = "step2" if hasattr(env.sim, "step2") and getattr(env, "lite_physics", False) else "step"
    recorder, detach = attach_recorder(env.sim, method, read_scene(env), "lift") if is_recorded else (None, None)
    states = []
    for action in np.random.default_rng(5).uniform(-1, 1, (STEPS, env.action_dim)):
        env.step(action.copy())
        if recorder is not None:
            recorder.record_step(action)
        states.append(env.sim.get_state().flatten())
    if recorder is None:
        return np.stack(states), None
    detach()
    return np.stack(states), recorder.build_recording(header(success=False, target_object=None))


def test_the_states_are_the_same_with_and_without_recording(env):
    plain, _ = run_episode(env, is_recorded=False)
    recorded, recording = run_episode(env, is_recorded=True)
    np.testing.assert_array_equal(plain, recorded)
    assert recording.records == STEPS + 1
    assert recording.body_pos_m.shape == (STEPS + 1, 1, 3)
    assert recording.joint_torque_nm.shape == (STEPS + 1, 7)
    np.testing.assert_array_equal(recording.sim_state[1:, 1:], recorded[:, 1:])
    assert encode_episode(recording)


@pytest.fixture
def calls(monkeypatch):
    """How often robosuite's controllers and the faster ones call two of MuJoCo's functions."""
    mujoco = pytest.importorskip("mujoco")
    return count_calls(monkeypatch, mujoco, "mj_fullM", "mj_forwardSkip", "mj_jacSite")


def drive(env, actions):
    """Return the states, all observations and the rewards of an episode, bit for bit."""
    np.random.seed(3)
    env.reset()
    seen = []
    for action in actions:
        observation, reward, *_ = env.step(action.copy())
        bits = {name: np.asarray(values).tobytes() for name, values in observation.items()}
        robot = env.robots[0]
        seen.append(
            (
                env.sim.get_state().flatten().tobytes(),
                bits,
                reward,
                np.asarray(getattr(robot, "torques", 0.0)).tobytes(),
            )
        )
    return seen


@pytest.mark.parametrize("control", ["env", "operational"])
def test_a_faster_environment_does_the_same_until_it_is_undone(request, calls, control):
    env = request.getfixturevalue(control)
    actions = np.random.default_rng(5).uniform(-1, 1, (6, env.action_dim))
    plain, own = drive(env, actions), {*vars(env)}
    before, _ = dict(calls), calls.update(dict.fromkeys(calls, 0))
    undo = speed_up(env)
    faster = drive(env, actions)
    undo()
    for step, (first, second) in enumerate(zip(plain, faster)):
        assert first == second, f"step {step}"
    assert calls["mj_fullM"] * 4 < before["mj_fullM"]
    assert calls["mj_forwardSkip"] > 100 or env.lite_physics  # which robosuite 1.4 does not have
    assert {*vars(env)} == own
    calls.update(dict.fromkeys(calls, 0))
    assert drive(env, actions) == plain
    assert calls["mj_forwardSkip"] == before["mj_forwardSkip"] == 0
    assert calls["mj_fullM"] * 4 > before["mj_fullM"] * 3


def test_only_an_environment_of_a_known_robosuite_can_be_made_faster(env, monkeypatch):
    with pytest.raises(HostError, match="object cannot be sped up"):
        speed_up(object())
    for version in ("1.3.0", "1.6.0", "14.0"):
        monkeypatch.setattr(robosuite, "__version__", version)
        with pytest.raises(HostError, match="robosuite 1"):
            speed_up(env)
