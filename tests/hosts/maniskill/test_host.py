"""The host maniskill: what it takes, what its records mean, and its planners; some of it without the simulator."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts.maniskill import host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.policies.maniskill import CONTROL, ExpertPolicy
from safevla_bench.tasks.loader import registry

SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=5)


def simulated(test):
    return pytest.mark.maniskill(pytest.mark.filterwarnings("ignore")(test))


def first_task(control=CONTROL):
    return host.ManiskillHost(control).tasks(host.SUITE)[0]


def test_every_task_has_tags_and_an_instruction():
    assert {(host.SUITE, name) for name in host.TASKS} <= registry().tasks.keys()
    assert all(task.instruction != task.name for task in host.ManiskillHost().tasks(host.SUITE))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: host.ManiskillHost("pd_joint_vel"), "no control 'pd_joint_vel'"),
        (lambda: host.ManiskillHost().tasks("mt10"), "no suite 'mt10'"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(cameras=("base_camera",))), "renders nothing"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(absolute=True)), "takes changes of pose"),
        (lambda: host.ManiskillHost().make(first_task(), Wants(extra=("start",))), "no reading 'start'"),
        (lambda: host.task_targets("PushT-v1"), "no task 'PushT-v1'"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_simulated(call, problem):
    with pytest.raises(HostError, match=problem):
        call()


def test_planners_are_refused_where_they_are_of_no_use():
    policy = ExpertPolicy({"PickCube-v1": lambda env, seed: None})
    with pytest.raises(PolicyError, match="move joints"):
        policy.reset(first_task("pd_ee_delta_pose"), 0)
    with pytest.raises(PolicyError, match="no planner"):
        policy.reset(host.ManiskillHost(CONTROL).tasks(host.SUITE)[9], 0)


@simulated
def test_torques_are_what_the_motion_takes():
    """By inverse dynamics without gravity, which ManiSkill's arms do not feel: within 5 % of the largest."""
    env = host.make_env("PickCube-v1", CONTROL)
    with closing(env):
        host.start(env, 7)
        arm, torques, expected = host.robot(env), [], []
        model, step = arm.create_pinocchio_model(), env.scene.step

        def compare():
            before = arm.qvel.copy()
            step()
            rate, zero = (arm.qvel - before) / env.sim_timestep, np.zeros(9)
            own = [model.compute_inverse_dynamics(arm.qpos, *motion) for motion in ((arm.qvel, rate), (zero, zero))]
            expected.append((own[0] - own[1])[:7])
            torques.append(host.read_torques(env))

        env.scene.step = compare
        for _ in range(4):
            env.step(np.array([0.5, -0.5, 0.5, 0.5, -0.5, 0.5, 0.5, 1.0], dtype=np.float32))
    assert np.abs(np.array(torques) - expected).max() < 0.05 * np.abs(expected).max()


@simulated
def test_the_stand_ins_of_visuals_are_taken_back():
    import sapien.render

    real = sapien.render.RenderMaterial
    host.make_env("PegInsertionSide-v1").close()
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
        assert success
        plans.append(np.array(actions))
    assert plans[0].tobytes() == plans[1].tobytes()
