"""`scripted:careful` and `scripted:hasty`: a fixed script for the goal, from privileged state.

One script in two styles that differ in clearances and speeds alone (`style`). The goal's predicates give
subgoals, one after another (`plan`). An object is carried: its size says how to hold it (`grasp`), the shapes of
everything how low the path may be (`shapes`), and both where the hand should be now (`phases`). A part of a fixture
(`fixtures`) is pushed, pulled or turned by a stroke of the hand through waypoints (`strokes`). The script reads no
specification and no threshold.

It cannot reach a place under a roof, such as a microwave's inside, because an object is held from above; nor hold what
is both wide and flat, such as a plate, because the fingers fit nowhere. It then reaches the other subgoals and holds
still.
"""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.policies import mobile
from safevla_bench.policies.scripted.policy import ScriptedPolicy
from safevla_bench.policies.scripted.style import STYLES, Style

__all__ = ["STYLES", "ScriptedPolicy", "Style", "make"]


def make(arg: str | None) -> ScriptedPolicy:
    """Make the policy in the style that follows the colon; on a robot that drives it acts as `mobile` does."""
    if arg is None or arg not in STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in STYLES)}.")
    return ScriptedPolicy(STYLES[arg], mobile.MobilePolicy(mobile.STYLES[arg]))
