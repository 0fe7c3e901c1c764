"""Settling: objects come to rest before an episode begins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Iterator, Mapping

import numpy as np

if TYPE_CHECKING:
    import mujoco

RESTING_M_S = 0.05
_log = logging.getLogger(__name__)


class SettleDetector:
    """Detects that no object has moved faster than 0.05 m/s after the last two control steps.

    One step is not enough: a thrown object is slow too at the top of its flight.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int]) -> None:
        """Watch `objects`, name -> body that flies free or slides."""
        self._model, self._data, self._objects = model, data, objects
        self._steps = 0

    def observe_step(self) -> None:
        """Read the speeds after a control step; one object above 0.05 m/s starts the count of slow steps again."""
        slow = _fastest_object(self._model, self._data, self._objects)[1] <= RESTING_M_S
        self._steps = self._steps + 1 if slow else 0

    @property
    def is_settled(self) -> bool:
        """True if all objects were slow after each of the last two steps."""
        return self._steps > 1


def settling_steps(
    model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int], wait_steps: int, rest_steps: int
) -> Iterator[None]:
    """Yield once for each settling step, a control step, that the caller is to make in the simulation of `data`.

    These are `wait_steps`, then up to `rest_steps` until all `objects`, name -> body that flies free or slides, are at
    rest.
    """
    detector = SettleDetector(model, data, objects)
    for step in range(wait_steps + rest_steps):
        if step >= wait_steps and detector.is_settled:
            return
        yield
        detector.observe_step()


def warn_if_moving(model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int], task_id: str) -> None:
    """Log a warning with the fastest object if its speed is above 0.05 m/s, as its way would count as displacement.

    LIBERO's initial states put some things into the table's top; how high that throws them depends on MuJoCo's
    version.
    """
    name, speed_m_s = _fastest_object(model, data, objects)
    if speed_m_s > RESTING_M_S:
        message = "%s still moves at %.2f m/s when the episode begins: it needs more settling steps (%s)"
        _log.warning(message, name, speed_m_s, task_id)


def _fastest_object(model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int]) -> tuple[str, float]:
    first, count = model.body_dofadr, model.body_dofnum
    own = {name: slice(first[body], first[body] + min(count[body], 3)) for name, body in objects.items()}
    speeds = {name: float(np.linalg.norm(data.qvel[dofs])) for name, dofs in own.items()}
    return max(speeds.items(), key=lambda item: item[1], default=("", 0.0))
