"""`scripted:careful` and `scripted:hasty`: pick and place by a fixed script, from privileged state.

One script in two styles that differ in clearances and speeds alone (`style`). From the goal's predicates follows what
to bring where (`plan`), from the objects' sizes how to hold them (`grasp`), from everything's shapes how
low the way may be (`shapes`, `way`), and from all of it where the hand should be now (`phases`). The script reads no
specification and no threshold.

Only placing is acted on. Where a goal asks to open, close, push or turn on something, the arm holds still after what
can be done.
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
