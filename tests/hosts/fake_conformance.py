"""What the conformance class needs to know of the fake host."""

from __future__ import annotations

import numpy as np

from hosts.hand import Hand
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.fake import host
from safevla_bench.interface.policy import Wants

ROLES = {"gripper": "robot", "cup": "bystander"}

STILL, CLOSE = np.array([0, 0, 0, 0, 0, 0, -1.0]), np.array([0, 0, 0, 0, 0, 0, 1.0])


class FakeConformance(Hand, HostConformance):
    close = CLOSE
    factory = "safevla_bench.hosts.fake.host:FakeHost"
    trials = (Trial("fake", 0, roles=ROLES), Trial("fake", 1, roles=ROLES))
    other_wants = (Wants(privileged=True), Wants(cameras=(host.CAMERA,), image_size=(32, 48)))

    def actions(self, env):
        """Down into the table, and about."""
        return super().actions(env) * [1, 1, 0.3, 1, 1, 1, 1] - [0, 0, 0.7, 0, 0, 0, 0]

    def bare(self, task, seed, actions):
        world = host._initial_world(task.index, seed)
        states = [world.to_state(0.0)]
        for step, action in enumerate(actions, start=1):
            host._advance_world(world, action)
            states.append(world.to_state(step * host.DT_S))
        return np.stack(states)

    def over_the_block(self, env, seed):
        """Reset, then move the open gripper to where the block is."""
        block = env.reset(seed).privileged.body_pos_m["block"]
        for _ in range(10):
            gap = block - env.step(STILL)[0].eef_pos_m
            env.step(np.array([*np.clip(gap / 0.05, -1, 1), 0, 0, 0, -1]))
        return "block"

    def hold(self, env, seed):
        self.over_the_block(env, seed)
        self.act(env, CLOSE, 3)
        return "block"

    def move_object(self, env, seed):
        body = self.hold(env, seed)
        self.act(env, [0.5, 0, 1, 0, 0, 0, 1], 4)
        return body

    def upright(self, task, episode, camera, size):
        """The block as seen from above, x running down."""
        image = np.zeros((*size, 3), dtype=np.uint8)
        row, column = ((0.5 + episode.body_pos_m.episode_poses(0)[1][0, 0, :2]) * size).astype(int)
        image[row - 2 : row + 3, column - 2 : column + 3] = 255
        return image
