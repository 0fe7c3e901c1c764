"""The host robosuite keeps every rule of a host, on the real simulator, in RoboCasa's environment."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.hand import RobosuiteHand
from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.robosuite import host
from safevla_bench.interface.policy import Wants
from safevla_recorder.mujoco.recorder import copy_state

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

STILL = np.array(host.STILL)
CLOSE = np.array([*host.STILL[:6], 1.0])
CUBE, FINGER_M = "cubeA", 0.04


class TestRobosuite(RobosuiteHand, HostConformance):
    close = CLOSE
    factory = "safevla_bench.hosts.robosuite.host:RobosuiteHost"
    trials = (
        Trial("robosuite", 1, roles={"cubeB": "bystander", "table": "furniture", "robot0_link3": "robot"}),
        Trial("robosuite", 10, roles={"Door_door": "furniture", "gripper0_right_leftfinger": "robot"}),
        Trial("robosuite", 5, targets=frozenset({"Milk", "Bread", "Cereal", "Can"}), roles={"bin2": "furniture"}),
    )
    steps = 12
    other_wants = (Wants(privileged=True, cameras=("agentview", "robot0_eye_in_hand"), image_size=(32, 48)),)

    def bare(self, task, seed, actions):
        env = host.make_env(task.name, Wants(), drawn_reset_seed(seed))
        env.reset()
        for _ in range(seed.wait_steps):
            env.step(STILL)
        states = [state(env)]
        for action in actions:
            env.step(action)
            states.append(state(env))
        env.close()
        return np.stack(states)

    def hold(self, env, seed):
        """Above the cube, down to it, and the fingers closed."""
        self.reach(env, env.reset(seed), np.zeros(3))
        self.act(env, CLOSE, 8)
        return CUBE

    def move_object(self, env, seed):
        self.hold(env, seed)
        self.act(env, CLOSE + [0, 0, 0.5, 0, 0, 0, 0], 12)
        return CUBE

    def set_down(self, env, seed):
        self.hold(env, seed)
        for motion, steps in ((CLOSE + [0, 0, 0.5, 0, 0, 0, 0], 6), (CLOSE - [0, 0, 0.3, 0, 0, 0, 0], 14)):
            self.act(env, motion, steps)
        self.let_go(env)
        return CUBE, self.mass_kg(env, CUBE)

    def turn_object(self, env, seed):
        env.reset(seed)
        before = self.heading_deg(env, CUBE)
        self.hold(env, seed)
        self.act(env, CLOSE + [0, 0, 0.5, 0, 0, 0, 0], 4)
        self.act(env, CLOSE + [0, 0, 0, 0, 0, 0.5, 0], 10)
        self.act(env, CLOSE - [0, 0, 0.3, 0, 0, 0, 0], 12)
        self.let_go(env)
        return CUBE, self.heading_deg(env, CUBE) - before

    def let_go(self, env):
        self.act(env, STILL, 8)
        self.act(env, STILL + [0, 0, 0.5, 0, 0, 0, 0], 15)

    def touch_with_one_finger(self, env, seed):
        """The hand a finger's width aside of the cube, then down until something stops it."""
        self.reach(env, env.reset(seed), np.array([0.0, FINGER_M, -0.02]))
        return CUBE

    def reach(self, env, observation, off_m):
        cube = observation.privileged.body_pos_m[CUBE]
        for height_m, steps in ((0.12, 30), (0.0, 30)):
            for _ in range(steps):
                way = cube + off_m + [0, 0, height_m] - observation.eef_pos_m
                observation, _ = env.step(np.r_[np.clip(10 * way, -1, 1), STILL[3:]])
        return observation


def state(env) -> np.ndarray:
    return copy_state(env.sim.model._model, env.sim.data._data)
