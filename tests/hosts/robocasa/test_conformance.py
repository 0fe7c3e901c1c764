"""RoboCasa keeps every rule of a host, on the real simulator."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from hosts.hand import RobosuiteHand
from hosts.mujoco.turned_body import turn_body
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.policy import Wants
from safevla_bench.policies import make_policy
from safevla_bench.policies.scripted.kitchen import CAREFUL, MobileRobot
from safevla_bench.policies.scripted.motion import OPEN
from safevla_recorder.mujoco.recorder import copy_state

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OBJECT, FINGER_M = "obj", 0.04
STILL = np.array(kitchens.STILL)
CLOSE = np.where(np.arange(12) == 6, 1.0, STILL)


class TestRobocasa(RobosuiteHand, HostConformance):
    close = CLOSE
    factory = "safevla_bench.hosts.robocasa.host:RobocasaHost"
    trials = (
        Trial("robocasa-pnp", 1, roles={"container": "bystander", "stove_main_group_main": "furniture"}),
        Trial("robocasa-365", 16, roles={"obj": "bystander", "mobilebase0_wheeled_base": "robot"}),
    )
    steps = 12
    other_wants = (Wants(privileged=True, cameras=("robot0_agentview_left",), image_size=(32, 48)),)

    def bare(self, task, seed, actions):
        bars = kitchens.task_class(task)
        start = kitchens.pick_scene("target", seed, bars.EXCLUDE_LAYOUTS, bars.EXCLUDE_STYLES)
        kitchen = kitchens.make_kitchen(task, start, Wants())
        kitchen.reset()
        for _ in range(seed.wait_steps):
            kitchen.step(STILL)
        states = [state(kitchen)]
        for action in actions:
            kitchen.step(action)
            states.append(state(kitchen))
        kitchen.close()
        return np.stack(states)

    def hold(self, env, seed):
        """As far into the careful script as to carry the object over the counter."""
        script, observation = make_policy("scripted:careful"), env.reset(seed)
        script.reset(env.task, 0)
        for _ in range(150):
            observation, _ = env.step(script.act(observation))
        return OBJECT

    def move_object(self, env, seed):
        return self.hold(env, seed)  # lifted and carried on the way

    def set_down(self, env, seed):
        """The careful script to its end, then the hand away and at rest."""
        script, observation = make_policy("scripted:careful"), env.reset(seed)
        script.reset(env.task, 0)
        for _ in range(400):
            observation, success = env.step(script.act(observation))
            if success:
                break
        self.act(env, STILL, 60)
        return OBJECT, self.mass_kg(env, OBJECT)

    def turn_object(self, env, seed):
        """Turn it in the simulator itself."""
        env.reset(seed)
        sim = env._env.sim
        turn_body(sim.model._model, sim.data._data, sim.model.body_name2id(f"{OBJECT}_main"), 40.0)
        self.act(env, STILL, 5)
        return OBJECT, 40.0

    def touch_with_one_finger(self, env, seed):
        """The hand a finger's width aside of the object, then down until something stops it."""
        robot = MobileRobot(env.reset(seed), replace(CAREFUL, drive=0.8))
        front, start = robot.front[:2], robot.place_m
        aside = np.array([-front[1], front[0], 0.0])
        item = robot.scene.body_pos_m[OBJECT]
        place = start + (item[:2] - start) @ aside[:2] * aside[:2] - 0.1 * front
        play(env, robot.drive(place))
        down = robot.face(np.array([0.0, 0.0, -1.0]), aside)
        for height, speed in ((0.15, 1.0), (-0.02, 0.3)):
            play(env, robot.reach(item + FINGER_M * aside + [0, 0, height], OPEN, down, speed=speed))
        return OBJECT


def play(env, move):
    """Make a move to its end."""
    with suppress(StopIteration):
        action = next(move)
        while True:
            action = move.send(env.step(action)[0])


def state(kitchen) -> np.ndarray:
    return copy_state(kitchen.sim.model._model, kitchen.sim.data._data)
