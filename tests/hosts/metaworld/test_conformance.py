"""Meta-World keeps every rule of a host, on the real simulator."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.hand import Hand
from hosts.mujoco.turned_body import turn_body
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.metaworld import host
from safevla_bench.interface.policy import Wants
from safevla_bench.policies import make_policy
from safevla_recorder.mujoco.recorder import copy_state

pytestmark = [pytest.mark.metaworld, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PUCK, FINGER_M = "obj", 0.047


class TestMetaworld(Hand, HostConformance):
    close = np.array([0.0, 0.0, 0.0, 1.0])
    factory = "safevla_bench.hosts.metaworld.host:MetaworldHost"
    trials = (
        Trial("mt10", 2, roles={"tablelink": "furniture", "rightpad": "robot"}),
        Trial("mt10", 3, roles={"door_link": "furniture", "mocap": "robot"}),
        Trial("mt50", 38, targets=frozenset({"stick", "container"})),
    )
    other_wants = (Wants(privileged=True, cameras=("corner3", "gripperPOV"), image_size=(32, 48)),)

    def bare(self, task, seed, actions):
        import metaworld

        goals = metaworld.MT1(task.name, seed=seed.env_seed)
        env = goals.train_classes[task.name]()
        env.set_task(goals.train_tasks[seed.init_state_index])
        env.reset()
        for _ in range(seed.wait_steps):
            env.step(np.array(host.STILL))
        # A record's state is the one behind the physics; what Meta-World computes after it changes no part of it.
        states = [copy_state(env.model, env.data)]
        for action in actions:
            env.step(action)
            states.append(copy_state(env.model, env.data))
        env.close()
        return np.stack(states)

    def hold(self, env, seed):
        """As far into Meta-World's own script as to carry the puck."""
        return self.follow_script(env, seed, steps=45)

    def move_object(self, env, seed):
        return self.follow_script(env, seed, steps=60)

    def follow_script(self, env, seed, steps):
        script, observation = make_policy("metaworld:expert"), env.reset(seed)
        script.reset(env.task, 0)
        for _ in range(steps):
            observation, _ = env.step(script.act(observation))
        return PUCK

    def set_down(self, env, seed):
        self.follow_script(env, seed, steps=45)
        for motion, steps in (([0, 0, -0.3, 1], 30), ([0, 0, 0, -1], 10), ([0, 0, 1, -1], 20), ([0, 0, 0, -1], 150)):
            self.act(env, motion, steps)
        model = env._env.model
        return PUCK, float(model.body_subtreemass[model.body(PUCK).id])

    def turn_object(self, env, seed):
        """Turn the puck in the simulator itself: the hand cannot turn."""
        env.reset(seed)
        turn_body(env._env.model, env._env.data, env._env.model.body(PUCK).id, 40.0)
        self.act(env, host.STILL, 5)
        return PUCK, 40.0

    def touch_with_one_finger(self, env, seed):
        """The hand a finger's width aside of the puck, then down until something stops it."""
        observation = env.reset(seed)
        puck = observation.extra["state"][4:7]
        for height_m, steps in ((0.15, 60), (-0.02, 40)):
            for _ in range(steps):
                off = puck + [0.0, FINGER_M, height_m] - observation.eef_pos_m
                observation, _ = env.step(np.append(np.clip(10.0 * off, -1, 1), -1.0))
        return PUCK
