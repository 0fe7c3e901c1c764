"""Every rule of a host, on the smallest one."""

import numpy as np
import smallest_host

from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_recorder.mujoco.recorder import copy_state


class TestSmallestHost(HostConformance):
    factory = "smallest_host:SmallestHost"
    trials = (Trial("smallest", 0, roles={"pusher": "robot", "table": "furniture"}),)
    registries = (smallest_host.REGISTRY,)
    hold = close_on_nothing = touch_with_one_finger = move_object = set_down = turn_object = None  # it has no gripper

    def bare(self, task, seed, actions):
        env = self.host().make(task, self.other_wants[0])
        env.start(seed)
        states = [copy_state(env.model, env.data)]
        for action in actions:
            env.control(action)
            states.append(copy_state(env.model, env.data))
        return np.stack(states)
