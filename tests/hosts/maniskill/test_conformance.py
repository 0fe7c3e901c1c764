"""ManiSkill keeps every rule of a host, on the real simulator."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.hand import Hand
from hosts.vulkan import MISSING, needs_vulkan
from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.maniskill import host
from safevla_bench.interface.policy import Wants

pytestmark = [pytest.mark.maniskill, pytest.mark.filterwarnings("ignore")]

CUBE, OPEN, CLOSE = "cube", 1.0, -1.0
CUBE_KG = 0.064


def go(env, observation, place_m, fingers, steps=15, turn=0.0):
    """Move the fingers' middle to a place, and turn the hand about the vertical by `turn` units a step."""
    for _ in range(steps):
        move = np.clip(10.0 * (place_m - observation.eef_pos_m), -1, 1)
        observation, _ = env.step(np.array([*move, 0.0, 0.0, turn, fingers]))
    return observation


def cube(env):
    return env._env.cube.pose.p[0].numpy().astype(np.float64)


def yaw_deg(env):
    """Return ManiSkill's own angle of the cube about the vertical, of its [1, 4, 4] matrix."""
    turn = env._env.cube.pose.to_transformation_matrix()[0]
    return float(np.degrees(np.arctan2(turn[1, 0], turn[0, 0])))


def play(env, actions):
    """Return the states of upstream's environment before the actions and after each, and close it."""
    states = [host.read_state(env)]
    for action in actions:
        env.step(action.astype(np.float32))
        states.append(host.read_state(env))
    env.close()
    return np.stack(states)


class TestManiskill(Hand, HostConformance):
    close = np.array([0, 0, 0, 0, 0, 0, CLOSE])
    factory = "safevla_bench.hosts.maniskill.host:ManiskillHost"
    trials = (
        Trial("maniskill", 0, roles={"table-workspace": "furniture", "panda_leftfinger": "robot"}),
        Trial("maniskill", 3, roles={"cubeB": "bystander"}),
        Trial("maniskill", 5, roles={"box_with_hole_0": "furniture"}),
        Trial("maniskill", 6, targets=frozenset({"cube", "peg"})),
    )
    other_wants = (
        Wants(privileged=True, extra=("joint_pos", "joint_vel")),
        *(() if MISSING else (Wants(cameras=("base_camera",), image_size=(96, 128)),)),
    )
    state_begins_with_time = False

    @needs_vulkan
    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, run):
        super().test_a_recorded_episode_can_be_looked_at_as_it_was(run)

    def bare(self, task, seed, actions):
        env = host.make_env(task.name, "pd_ee_delta_pose")
        host.build_scene(env, drawn_reset_seed(seed))
        for _ in range(seed.wait_steps):
            env.step(np.array(task.still, dtype=np.float32))
        return play(env, actions)

    def hold(self, env, seed):
        observation, place = env.reset(seed), cube(env)
        observation = go(env, observation, place + [0, 0, 0.1], OPEN)
        observation = go(env, observation, place, OPEN)
        go(env, observation, place, CLOSE, steps=8)
        return CUBE

    def move_object(self, env, seed):
        body = self.hold(env, seed)
        observation, _ = env.step(self.close)
        go(env, observation, cube(env) + [0, 0, 0.08], CLOSE)
        return body

    def set_down(self, env, seed):
        self.move_object(env, seed)
        observation, _ = env.step(self.close)
        place = observation.eef_pos_m
        observation = go(env, observation, place - [0, 0, 0.079], CLOSE)
        observation = go(env, observation, observation.eef_pos_m, OPEN, steps=5)
        go(env, observation, place, OPEN, steps=20)
        return CUBE, CUBE_KG

    def turn_object(self, env, seed):
        env.reset(seed)
        first = yaw_deg(env)
        body = self.hold(env, seed)
        observation, _ = env.step(self.close)
        go(env, observation, observation.eef_pos_m + [0, 0, 0.05], CLOSE, turn=-0.5)
        return body, yaw_deg(env) - first

    def close_on_nothing(self, env, seed):
        env.reset(seed)
        for _ in range(20):
            env.step(self.close)

    def touch_with_one_finger(self, env, seed):
        """A closed hand's width aside of the cube, then towards it."""
        observation, place = env.reset(seed), cube(env)
        aside = place + [0, 0.08, 0]
        observation = go(env, observation, aside + [0, 0, 0.1], CLOSE)
        observation = go(env, observation, aside, CLOSE)
        while not len(env.latest().contacts.a):
            observation = go(env, observation, place, CLOSE, steps=1)
        return CUBE
