"""What the conformance classes of several hosts do with a robot's hand."""

from __future__ import annotations

import numpy as np


class Hand:
    """Motions of a hand whose action `close` closes the gripper and moves nothing else."""

    close: np.ndarray

    def act(self, env, action, steps):
        for _ in range(steps):
            env.step(np.array(action, dtype=float))

    def close_on_nothing(self, env, seed):
        env.reset(seed)
        self.act(env, self.close, 20)


class RobosuiteHand(Hand):
    """What is read of an object in robosuite's simulation."""

    def heading_deg(self, env, name):
        turned = env._env.sim.data.get_body_xmat(f"{name}_main")
        return float(np.degrees(np.arctan2(turned[1, 0], turned[0, 0])))

    def mass_kg(self, env, name):
        model = env._env.sim.model
        return float(model.body_subtreemass[model.body_name2id(f"{name}_main")])
