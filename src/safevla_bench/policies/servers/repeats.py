"""Whether a server answers the same twice: one observation of no real scene, asked as the first of several episodes.

Each request begins an episode, as a run does, so that a server that plays chunks itself or remembers is asked alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers.client import ChunkedPolicy
from safevla_bench.sources.runs.folder import Repeats

REQUESTS = 5
"""Of the same observation; a server may compile its model for the first."""
_READINGS = {"agent_pos": 4, "joint_pos": 7}
"""Numbers of a host's own readings that dialects send."""


def ask_repeatedly(policy: ChunkedPolicy, task: Task) -> Repeats:
    """Return how many of the repeated requests had another answer; raises as `connect` and `ChunkModel.infer` do."""
    policy.connect(task)
    replies = []
    for _ in range(REQUESTS):
        policy.model.begin(task, 0)
        replies.append(policy.model.infer(make_observation(policy.model.wants, task.instruction)))
    return Repeats(asked=len(replies) - 1, other=len(find_others(replies)))


def find_others(replies: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Return the replies [H, A] that differ from the first."""
    return [reply for reply in replies if not np.array_equal(reply, replies[0], equal_nan=True)]


def make_observation(wants: Wants, instruction: str) -> Observation:
    """Return an observation of no real scene, the same at each call: a table with a dark block, and a hand above it."""
    generator = np.random.default_rng(0)
    return Observation(
        instruction=instruction,
        eef_pos_m=np.array([-0.2, 0.0, 1.17]),
        eef_quat_wxyz=np.array([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=np.array([0.039, -0.039]),
        images={camera: _draw_table(wants.image_size, generator) for camera in wants.cameras},
        base_pos_m=np.array([-0.8, 0.0, 0.7]),
        base_quat_wxyz=np.array([1.0, 0.0, 0.0, 0.0]),
        extra={name: np.zeros(_READINGS[name]) for name in wants.extra if name in _READINGS},
    )


def _draw_table(size: tuple[int, int], generator: np.random.Generator) -> NDArray[np.uint8]:
    height, width = size
    image = np.empty((height, width, 3))
    image[: height // 3] = (205, 203, 196)
    image[height // 3 :] = (152, 124, 96)
    image[height // 2 : 2 * height // 3, width // 3 : width // 2] = (40, 40, 44)
    return np.clip(image + generator.normal(0, 6, image.shape), 0, 255).astype(np.uint8)
