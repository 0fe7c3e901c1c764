"""Camera sensors of a robosuite environment that render only when their picture will be looked at.

robosuite renders every camera at the first physics substep of every control step, and three times at a reset. A policy
that answers with several actions looks at one picture in that many steps. The gate wraps the sensors and leaves the
observables around them alone: their timers run on, so that a picture which is rendered is sampled at the same instant,
from the same state, as without the gate. Switching an observable off (`modify_observable(enabled=False)`) resets its
timer and shifts that instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
Sensor = Callable[[Mapping[str, Any]], Any]


class CameraGate:
    """The gate of one environment's cameras; `renders` counts the pictures that were rendered.

    It takes hold at the environment's next reset, which makes its sensors anew. A closed sensor gives a black picture,
    which must not be shown: `is_open` says whether pictures may be, and `is_fresh` whether there is one.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self.is_open = True
        self.is_fresh = False
        """Whether a picture was rendered since the gate was last opened."""
        self.renders = 0
        self._blank: Image = np.zeros((*size, 3), dtype=np.uint8)

    def set_open(self, wanted: bool) -> None:
        """Open or close the gate for the samples to come."""
        self.is_fresh = self.is_fresh and self.is_open and wanted
        self.is_open = wanted

    def install(self, env: Any) -> None:
        """Wrap the sensors that robosuite's environment makes, in versions 1.4 and 1.5; a second call does nothing."""
        create = env._create_camera_sensors
        if getattr(create, "gate", None) is self:
            return

        @wraps(create)
        def create_gated(*args: Any, **options: Any) -> tuple[list[Sensor], list[str]]:
            sensors, names = create(*args, **options)
            return [self._wrap_sensor(env, sensor) for sensor in sensors], names

        create_gated.gate = self  # type: ignore[attr-defined]
        env._create_camera_sensors = create_gated

    def _wrap_sensor(self, env: Any, sensor: Sensor) -> Sensor:
        @wraps(sensor)  # with robosuite's mark of its modality
        def sample(cache: Mapping[str, Any]) -> Any:
            # robosuite tries each new sensor for its shape, with an empty cache; what is observed has the environment's
            if not self.is_open or cache is not env._obs_cache:
                return self._blank
            self.renders, self.is_fresh = self.renders + 1, True
            return sensor(cache)

        return sample
