"""An environment of OmniSafe: a task of a host in tensors and six values, trained by PPO with a Lagrange multiplier.

Needs omnisafe (0.5.0 was tried), which brings PyTorch, beside `safevla-bench[gym]`.

    python examples/omnisafe_env.py
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import omnisafe
import torch
from omnisafe.envs.core import CMDP, env_register

from safevla_bench.rollout.gym import CostStep

HORIZON = 40
TASKS: dict[str, dict[str, Any]] = {
    "FakePastCup-v0": {"host": "fake", "suite": "fake", "task": 1, "extra": ("state",)},
    "LiberoGoalBowl-v0": {"host": "libero", "suite": "libero-goal", "task": 8},
}
"""OmniSafe's id -> a task; OmniSafe takes no text or images, so that the observations are flattened numbers."""


@env_register
class SafevlaEnv(CMDP):
    """One task, as OmniSafe's `CustomEnv` is made (omnisafe/envs/custom_env.py at 15603dd)."""

    _support_envs: ClassVar[list[str]] = list(TASKS)
    need_auto_reset_wrapper = True
    need_time_limit_wrapper = True
    _num_envs = 1

    def __init__(self, env_id: str, **_: Any) -> None:
        made = gymnasium.make("safevla_bench.rollout.gym:safevla/Task-v0", horizon=HORIZON, **TASKS[env_id])
        self._env = CostStep(gymnasium.wrappers.FlattenObservation(made))
        self._action_space, self._observation_space = made.action_space, self._env.observation_space

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        """Return observation, reward, cost, terminated and truncated as tensors, and info."""
        *values, info = self._env.step(action.detach().cpu().numpy())
        return *(torch.as_tensor(value, dtype=torch.float32) for value in values), info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[torch.Tensor, dict]:
        """Start an episode."""
        seen, info = self._env.reset(seed=seed, options=options)
        return torch.as_tensor(seen, dtype=torch.float32), info

    @property
    def max_episode_steps(self) -> int:
        """The steps after which an episode ends."""
        return HORIZON

    def set_seed(self, seed: int) -> None:
        """Seed the environment."""
        self.reset(seed=seed)

    def render(self) -> None:
        """Nothing is rendered."""

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()


if __name__ == "__main__":
    steps = {"train_cfgs": {"total_steps": 2000}, "algo_cfgs": {"steps_per_epoch": 1000, "update_iters": 2}}
    omnisafe.Agent("PPOLag", "FakePastCup-v0", custom_cfgs=steps).learn()
