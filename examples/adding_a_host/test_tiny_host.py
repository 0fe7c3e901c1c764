"""Every rule of a host, on the tiny one."""

import numpy as np
import tiny_host

from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial


class TestTinyHost(HostConformance):
    factory = "tiny_host:TinyHost"
    trials = (Trial("tiny", 0, roles={"left": "robot", "table": "furniture"}),)
    registries = (tiny_host.REGISTRY,)

    def bare(self, task, seed, actions):
        env = self.host().make(task, self.other_wants[0])
        model, data = env.model, env.data
        tiny_host.start(model, data, seed)
        for _ in range(seed.wait_steps):
            tiny_host.control(model, data, tiny_host.STILL)
        states = [np.concatenate([[data.time], data.qpos, data.qvel])]
        for action in actions:
            tiny_host.control(model, data, action)
            states.append(np.concatenate([[data.time], data.qpos, data.qvel]))
        return np.stack(states)

    def hold(self, env, seed):
        self.lower(env, seed)
        for _ in range(20):
            env.step(np.array([0, 0, 1.0]))
        return "box"

    def move_object(self, env, seed):
        body = self.hold(env, seed)
        for _ in range(10):
            env.step(np.array([0, 1, 1.0]))
        return body

    turn_object = None  # the gantry turns nothing

    def set_down(self, env, seed):
        body = self.hold(env, seed)
        for action, steps in (([0, 1, 1.0], 5), ([0, -1, 1.0], 6), ([0, 0, -1.0], 10), ([0, 1, -1.0], 20)):
            for _ in range(steps):
                env.step(np.array(action))
        return body, float(env.model.body(body).mass[0])

    def close_on_nothing(self, env, seed):
        env.reset(seed)
        for _ in range(20):
            env.step(np.array([0, 0, 1.0]))

    def touch_with_one_finger(self, env, seed):
        self.lower(env, seed)
        before = len(env.recorded().contacts.a)
        while len(env.recorded().contacts.a) == before:  # the box is off the middle, so one finger comes first
            env.step(np.array([0, 0, 0.3]))
        return "box"

    def lower(self, env, seed):
        env.reset(seed)
        for _ in range(21):
            env.step(np.array([0, -1, -1.0]))
