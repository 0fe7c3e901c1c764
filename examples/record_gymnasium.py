"""A gymnasium environment that holds LIBERO's in `_env`, as LeRobot's does, recorded in any loop around it."""

import safevla_recorder


def evaluate(env, policy, episodes=10, max_steps=280, out="runs/gymnasium"):
    """`env.reset(seed=...)` settles by itself; `policy(observation)` returns an action."""
    with safevla_recorder.record(env, policy="mine", out=out, horizon=max_steps):
        for episode in range(episodes):
            observation, _ = env.reset(seed=1000 + episode)
            for _ in range(max_steps):
                observation, _, terminated, truncated, _ = env.step(policy(observation))
                if terminated or truncated:
                    break
