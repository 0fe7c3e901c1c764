"""Policies that plan some actions at a time: `Planner` for the fake host, `Script` for LIBERO.

`Planner` carries the block to the tray by straight lines and knows the arm's motion exactly, so that chunks are as good
as single actions until answers come late. `Script` is the built-in script; in a chunk it sees where the hand would be.

    safevla eval --host fake --suite fake --task 0,1 --episodes 5 --policy python:examples.chunked_planner:Planner \\
        --policy-arg chunk=8 --delay 2 --out runs/late
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from safevla_bench import Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies import make_policy

UNIT_M, CLOSE_M = 0.05, 0.004
OPEN, CLOSED = -1.0, 1.0


class Planner:
    """Goes from waypoint to waypoint; each is a position [m] and what the gripper does on the way."""

    wants = Wants(privileged=True)

    def __init__(self, chunk: str = "1") -> None:
        """Plan `chunk` actions at a time."""
        self.chunk = int(chunk)

    def reset(self, task: Task, seed: int) -> None:
        """Go back to the first waypoint."""
        self.passed = 0

    def act(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next actions, [chunk, 7]."""
        assert observation.privileged is not None
        places = observation.privileged.body_pos_m
        block, tray = places["block"], places["tray"] * [1, 1, 0]
        waypoints = [(block + [0, 0, 0.1], OPEN), (block, OPEN), (block, CLOSED)]
        waypoints += [(tray + [0, 0, 0.15], CLOSED), (tray + [0, 0, 0.06], CLOSED), (tray + [0, 0, 0.06], OPEN)]
        hand, actions = observation.eef_pos_m.copy(), []
        for _ in range(self.chunk):
            goal, gripper = waypoints[min(self.passed, len(waypoints) - 1)]
            move = np.clip((goal - hand) / UNIT_M, -1, 1)
            hand = hand + UNIT_M * move
            actions.append([*move, 0.0, 0.0, 0.0, gripper])
            self.passed += int(np.linalg.norm(goal - hand) < CLOSE_M)
        return np.array(actions)


KEPT, ADDED = 0.65, 0.1
"""Of the hand's last step [m], and of what an action asks for, in the next: fitted to LIBERO's controller, R² 0.98."""


class Script:
    """`scripted:STYLE`, asked once for each action of a chunk, with the hand where the last one would bring it."""

    wants = Wants(privileged=True)

    def __init__(self, style: str = "hasty", chunk: str = "8") -> None:
        """Plan `chunk` actions at a time."""
        self.script, self.chunk = make_policy(f"scripted:{style}"), int(chunk)

    def reset(self, task: Task, seed: int) -> None:
        """Begin an episode at rest."""
        self.script.reset(task, seed)
        self.step_m = np.zeros(3)

    def act(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next actions, [chunk, 7]."""
        hand, actions = observation.eef_pos_m, []
        for _ in range(self.chunk):
            actions.append(self.script.act(replace(observation, eef_pos_m=hand)))
            self.step_m = KEPT * self.step_m + ADDED * UNIT_M * actions[-1][:3]
            hand = hand + self.step_m
        return np.array(actions)
