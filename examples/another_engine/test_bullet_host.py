"""Every rule of a host, on the one in PyBullet."""

import bullet_host
import numpy as np
from bullet_host import make_world, read_state

from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial

CLOSE, DOWN, UP = np.array([0, 0, 1.0]), np.array([0, -1, -1.0]), np.array([0, 1, 1.0])


class TestBulletHost(HostConformance):
    factory = "bullet_host:BulletHost"
    trials = (Trial("bullet", 0, roles={"left": "robot", "table": "furniture"}),)
    registries = (bullet_host.REGISTRY,)
    state_begins_with_time = False

    def bare(self, task, seed, actions):
        env = self.host().make(task, self.other_wants[0])
        p, goal = env.p, np.zeros(2)
        make_world(p, seed)
        for _ in range(seed.wait_steps):
            bullet_host.control(p, goal, bullet_host.STILL)
        states = [read_state(p)]
        for action in actions:
            bullet_host.control(p, goal, action)
            states.append(read_state(p))
        env.close()
        return np.stack(states)

    def hold(self, env, seed):
        self.lower(env, seed)
        for _ in range(20):
            env.step(CLOSE)
        return "box"

    def move_object(self, env, seed):
        body = self.hold(env, seed)
        for _ in range(10):
            env.step(UP)
        return body

    turn_object = None  # the gantry turns nothing

    def set_down(self, env, seed):
        body = self.hold(env, seed)
        for action, steps in ((UP, 5), (DOWN + [0, 0, 2], 6), (CLOSE * -1, 10), (UP * [1, 1, -1], 20)):
            for _ in range(steps):
                env.step(action)
        return body, 0.05

    def close_on_nothing(self, env, seed):
        env.reset(seed)
        for _ in range(20):
            env.step(CLOSE)

    def touch_with_one_finger(self, env, seed):
        self.lower(env, seed)
        before = len(env.recorded().contacts.a)
        while len(env.recorded().contacts.a) == before:  # the box is off the middle, so one finger comes first
            env.step(np.array([0, 0, 0.3]))
        return "box"

    def lower(self, env, seed):
        env.reset(seed)
        for _ in range(21):
            env.step(DOWN)
