"""What may reach a simulator: actions of the right length, all finite."""

from __future__ import annotations

import numpy as np

from safevla_bench.errors import InvalidActionError
from safevla_bench.interface import Action


def checked(action: Action, size: int, meaning: str) -> Action:
    """The action [size] as float64; `meaning` says, in the error, what its numbers are.

    Raises:
        InvalidActionError: it has another shape, or a number that is not finite.
    """
    taken = np.asarray(action, dtype=np.float64)
    if taken.shape != (size,):
        raise InvalidActionError(f"an action of shape {taken.shape}", remedy=f"Give {size} numbers: {meaning}.")
    if not np.isfinite(taken).all():
        raise InvalidActionError(f"the action {taken.tolist()} is not finite", remedy="Mend the policy's output.")
    return taken
