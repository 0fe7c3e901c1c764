"""`scripted:careful` and `scripted:hasty`: what the goal asks for by a fixed script, from privileged state.

One script in two styles that differ in clearances and speeds alone (`style`). From the goal's predicates follows what
to do, one thing after another (`plan`). An object is carried: its size says how to hold it (`grasp`), everything's
shapes how low the way may be (`shapes`, `way`), and all of it where the hand should be now (`phases`). What belongs to
a fixture (`fixtures`) is pushed, pulled or turned by a stroke of the hand (`strokes`, `sweep`). The script reads no
specification and no threshold.

Beyond its reach: a place under a roof, such as a microwave's inside, because an object is held from above; and what is
both wide and flat, such as a plate, because the fingers fit nowhere. There it does what else can be done, and then
the arm holds still.
"""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.policies import mobile
from safevla_bench.policies.scripted.policy import Scripted
from safevla_bench.policies.scripted.style import STYLES, Style

__all__ = ["STYLES", "Scripted", "Style", "make"]


def make(arg: str | None) -> Scripted:
    """The policy in the style that follows the colon; on a robot that drives it acts as `mobile` does."""
    if arg is None or arg not in STYLES:
        problem = "policy 'scripted' needs a style" if arg is None else f"policy 'scripted' has no style {arg!r}"
        raise PolicyError(problem, remedy=f"Write one of: {', '.join(f'scripted:{name}' for name in STYLES)}.")
    return Scripted(STYLES[arg], mobile.Mobile(mobile.STYLES[arg]))
