"""The fake host keeps every rule of a host."""

from __future__ import annotations

import numpy as np

from safevla_bench.hosts import fake
from safevla_bench.hosts.conformance import HostConformance, Trial
from safevla_bench.interface import Wants

ROLES = {"gripper": "robot", "cup": "bystander", "tray": "bystander", "table": "furniture"}


class TestFakeHost(HostConformance):
    factory = "safevla_bench.hosts.fake:FakeHost"
    trials = (Trial("fake", 0, roles=ROLES), Trial("fake", 1, roles=ROLES))
    other_wants = (Wants(privileged=True), Wants(cameras=(fake.CAMERA,), image_size=(32, 48)))
    touch_with_one_finger = None  # the gripper is a point

    def bare(self, task, seed, actions):
        world = fake._start(task.index, seed)
        states = [world.flat(0.0)]
        for step, action in enumerate(actions, start=1):
            fake._advance(world, action)
            states.append(world.flat(step * fake.DT_S))
        return np.stack(states)

    def hold(self, env, seed):
        env.reset(seed)
        block = env.reset(seed).privileged.body_pos_m["block"]
        for _ in range(20):
            gap = block - env.step(np.array([0, 0, 0, 0, 0, 0, -1.0]))[0].eef_pos_m
            env.step(np.array([*np.clip(gap / 0.05, -1, 1), 0, 0, 0, -1]))
        env.step(np.array([0, 0, 0, 0, 0, 0, 1.0]))
        return "block"

    def close_on_nothing(self, env, seed):
        env.reset(seed)
        for _ in range(5):
            env.step(np.array([0, 0, 0, 0, 0, 0, 1.0]))
