"""What a script asks of the hand at one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench.policies.scripted.rotation import UPRIGHT


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where the hand should be: place_m [3], yaw, the fingers' distance from the middle, and how fast to get there.

    `lean` [3] is a rotation vector in the world frame that is applied to the downward hand after its yaw.
    """

    place_m: NDArray[np.float64]
    yaw_rad: float
    aperture_m: float
    speed: float
    lean: tuple[float, float, float] = UPRIGHT
