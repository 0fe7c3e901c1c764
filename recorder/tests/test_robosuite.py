"""Recording robosuite's own Lift changes nothing and gives a record a step, in whichever robosuite is installed."""

from __future__ import annotations

import numpy as np
import pytest

from recorder_builders import header
from safevla_recorder.episode import encode_episode
from safevla_recorder.mujoco.recorder import Scene, assign_roles, attach_recorder, subtree_bodies

robosuite = pytest.importorskip("robosuite")
pytestmark = [pytest.mark.robosuite, pytest.mark.filterwarnings("ignore")]
STEPS = 20


@pytest.fixture(scope="module")
def env():
    renderers = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False}
    try:
        lift = robosuite.make("Lift", robots="Panda", control_freq=20, ignore_done=True, **renderers)
    except AssertionError:  # robosuite 1.4 compares joint types in a way that newer bindings of MuJoCo break
        pytest.skip("this robosuite cannot make its own tasks with this MuJoCo")
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
