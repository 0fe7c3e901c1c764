"""Starting from a recorded state: is it one of this simulation?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from safevla_bench.errors import HostError
from safevla_recorder.episode import Floats


def flat_state(recorded: Sequence[float], size: int) -> Floats:
    """A recorded flat state as an array, [size].

    Raises:
        HostError: it is of another size, so of another scene or version, or not finite.
    """
    state = np.array(recorded, dtype=np.float64)
    if state.shape != (size,):
        problem = f"the recorded state has {state.size} numbers, this simulation has {size}"
        raise HostError(problem, remedy="It was recorded of another task, or with another version of the simulator.")
    if not np.isfinite(state).all():
        raise HostError("the recorded state is not finite", remedy="Mend the recording.")
    return state
