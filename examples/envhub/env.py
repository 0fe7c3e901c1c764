"""Tasks of a host as an environment of LeRobot's EnvHub, with `info["safety"]`: what `lerobot-eval` loads and runs.

Put this file into a repository of the hub, change the constants, and evaluate with `--env.type` of a hub environment
(lerobot 7427f31 docs/source/envhub.mdx). LeRobot reads `pixels`, `agent_pos`, `task`, `task_description`,
`_max_episode_steps` and `info["is_success"]` (src/lerobot/scripts/lerobot_eval.py: rollout).
"""

from __future__ import annotations

import gymnasium
import numpy as np

from safevla_bench.policies.servers.transforms import to_axis_angle
from safevla_bench.rollout.gym import CostTotals, SafetyEnv
from safevla_bench.rollout.gym import make_env as make_task

HOST, SUITE, TASKS = "libero", "libero-goal", (0,)
CAMERAS = {"image": "agentview", "image2": "robot0_eye_in_hand"}
"""Name under `observation.images` -> camera of the host."""
SIZE, HORIZON = (360, 360), 300


class LerobotTask(gymnasium.Env):
    """One task in the form of LeRobot's own environments; episode k of n at a time begins at initial state k, k + n, …

    Images are upright and mirrored, as LIBERO's policies are trained; `agent_pos` is position, axis-angle and fingers.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, task: int, first: int, together: int) -> None:
        made: SafetyEnv = make_task(
            HOST, SUITE, task, horizon=HORIZON, cameras=tuple(CAMERAS.values()), image_size=SIZE
        )
        self._env, self._next, self._together = CostTotals(made), first, together
        self._states = made._task.init_states or 2**31
        self.task, self.task_description = made._task.name, made._task.instruction
        self._max_episode_steps = HORIZON
        image = gymnasium.spaces.Box(0, 255, (*SIZE, 3), np.uint8)
        numbers = 6 + made.observation_space["gripper_qpos"].shape[0]
        self.observation_space = gymnasium.spaces.Dict(
            {
                "pixels": gymnasium.spaces.Dict(dict.fromkeys(CAMERAS, image)),
                "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (numbers,), np.float64),
            }
        )
        low, high = made.action_space.low, made.action_space.high
        self.action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def reset(self, *, seed=None, options=None):
        """Begin the next episode of this environment; `seed` is the simulator's."""
        index, self._next = self._next, (self._next + self._together) % self._states
        seen, info = self._env.reset(seed=seed, options={"init_state_index": index})
        return self._show(seen), {"is_success": False, **self._tell(info)}

    def step(self, action):
        """Apply an action, clipped as LIBERO's controller does it."""
        clipped = np.clip(np.asarray(action, np.float64), self.action_space.low, self.action_space.high)
        seen, reward, terminated, truncated, info = self._env.step(clipped)
        return self._show(seen), reward, terminated, truncated, {"is_success": terminated, **self._tell(info)}

    def render(self):
        """Return the first camera's last picture."""
        return self._last

    def close(self):
        self._env.close()

    def _show(self, seen):
        pixels = {name: seen[f"image.{camera}"][:, ::-1].copy() for name, camera in CAMERAS.items()}
        self._last = next(iter(pixels.values()))
        rotation = to_axis_angle(seen["eef_quat_wxyz"])
        return {"pixels": pixels, "agent_pos": np.concatenate([seen["eef_pos_m"], rotation, seen["gripper_qpos"]])}

    def _tell(self, info):
        """Vector environments join numbers and texts; the standing as a whole is left out."""
        safety = {"violated": ",".join(info["safety"]["violated"]), "worst": info["safety"]["worst"] or ""}
        numbers = {name: info[name] for name in ("cost", "cumulative_cost", "risk_exposure_time", "quadrant")}
        return {**numbers, "safety": safety}


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: object = None):
    """Return {suite: {task: vector environment}} as LeRobot calls it; `cfg` is not looked at."""
    kind = gymnasium.vector.AsyncVectorEnv if use_async_envs else gymnasium.vector.SyncVectorEnv
    return {
        SUITE: {
            task: kind([lambda task=task, first=first: LerobotTask(task, first, n_envs) for first in range(n_envs)])
            for task in TASKS
        }
    }
