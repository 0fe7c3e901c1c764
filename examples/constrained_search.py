"""A constrained search on the fake host: the cross-entropy method, with a Lagrange multiplier for the cost.

The task is to put a block on a tray behind a cup. Reward: 1 for success, less a hundredth a step. The cost of a step is
1 where it breaks a safety limit. Without a multiplier the search learns to drag the block through the cup, which is
shorter; with it, to lift.

    python examples/constrained_search.py
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
from numpy.typing import NDArray

from safevla_bench.rollout.gym import CostStep

Floats = NDArray[np.float64]
TRAINING, HELD_OUT = (0, 1), (2, 3, 4)
"""Initial states that the search sees, and those that it is judged by."""
CLOSE_M = 0.012


@dataclass(frozen=True)
class Episode:
    """What one episode, or the mean of some, came to."""

    reward: float
    cost: float
    success: float


def make_env() -> CostStep:
    """Make the environment; its `step` gives six values, with the cost after the reward."""
    options = {"host": "fake", "suite": "fake", "task": 1, "horizon": 40, "extra": ("state",)}
    return CostStep(gymnasium.make("safevla_bench.rollout.gym:safevla/Task-v0", **options))


def act(seen: dict[str, Floats], parameters: Floats) -> Floats:
    """Return the action of a policy of two parameters: the height at which it carries, and its speed."""
    state = seen["extra.state"]
    held, hand, block, tray = state[1] >= 0, state[2:5], state[5:8], state[11:14]
    height, speed = 0.3 / (1 + np.exp(-parameters[0])), 1 / (1 + np.exp(-parameters[1]))
    target = tray if held else block
    over_it = np.linalg.norm(target[:2] - hand[:2]) < CLOSE_M
    if held and not over_it:
        goal = np.array([*hand[:2], height]) if hand[2] < height - CLOSE_M else np.array([*tray[:2], hand[2]])
    else:
        goal = block if over_it else np.array([*target[:2], hand[2]])
    grip = 1.0 if (held and not over_it) or (not held and np.linalg.norm(block - hand) < CLOSE_M) else -1.0
    return np.array([*np.clip((goal - hand) / 0.05, -speed, speed), 0.0, 0.0, 0.0, grip])


def run_episode(env: CostStep, parameters: Floats, init_state: int) -> Episode:
    """Run one episode from an initial state."""
    seen, _ = env.reset(options={"init_state_index": init_state})
    reward = cost = success = 0.0
    over = False
    while not over:
        seen, succeeded, paid, terminated, truncated, _ = env.step(act(seen, parameters))
        reward, cost, success = reward + float(succeeded) - 0.01, cost + paid, max(success, float(succeeded))
        over = terminated or truncated
    return Episode(reward, cost, success)


def average(env: CostStep, parameters: Floats, init_states: tuple[int, ...]) -> Episode:
    """Return the mean over initial states."""
    episodes = [run_episode(env, parameters, state) for state in init_states]
    return Episode(
        *(float(np.mean([getattr(one, name) for one in episodes])) for name in ("reward", "cost", "success"))
    )


def search(
    env: CostStep,
    *,
    constrained: bool,
    budget: float = 0.0,
    rounds: int = 5,
    candidates: int = 8,
    elites: int = 3,
    rate: float = 0.2,
    seed: int = 0,
) -> Floats:
    """Return the parameters that earn most while a mean episode costs at most `budget`.

    Each round draws candidates, keeps those with the most reward less multiplier times cost, and raises the multiplier
    by `rate` for each unit of cost above the budget.
    """
    random = np.random.default_rng(seed)
    mean, spread, multiplier = np.array([-2.0, 0.0]), np.array([1.5, 1.5]), 0.0
    for k in range(rounds):
        drawn = mean + spread * random.standard_normal((candidates, len(mean)))
        found = [average(env, parameters, TRAINING) for parameters in drawn]
        worth = [one.reward - multiplier * max(0.0, one.cost - budget) for one in found]
        best = np.argsort(worth)[::-1][:elites]
        mean, spread = drawn[best].mean(axis=0), drawn[best].std(axis=0) + 0.2
        cost = float(np.mean([found[j].cost for j in best]))
        if constrained:
            multiplier = max(0.0, multiplier + rate * (cost - budget))
        reward = float(np.mean([found[j].reward for j in best]))
        print(f"round {k + 1}: elites' reward {reward:.2f}, cost {cost:.1f}, multiplier {multiplier:.2f}")
    return mean


def main() -> dict[str, Episode]:
    """Search without the constraint and with it, and return how both fare from held-out initial states."""
    env = make_env()
    found = {}
    for name, constrained in (("free", False), ("constrained", True)):
        print(f"\n{name}")
        found[name] = average(env, search(env, constrained=constrained), HELD_OUT)
    env.close()
    print()
    for name, one in found.items():
        print(f"{name:12} success {one.success:.2f}, reward {one.reward:.2f}, cost {one.cost:.1f}")
    return found


if __name__ == "__main__":
    main()
