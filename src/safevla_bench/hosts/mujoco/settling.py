"""Whether the objects of a scene are at rest before an episode begins."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from safevla_bench.interface import EpisodeSeed

if TYPE_CHECKING:
    import mujoco

RESTING_M_S = 0.05
_log = logging.getLogger(__name__)


class Calm:
    """Whether no object has moved faster than 0.05 m/s after this control step and the one before it.

    After one alone is not enough: at the top of its flight a thrown object is slow too.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int]) -> None:
        """Watch the bodies with a free joint that `objects` has by their names."""
        self._model, self._data, self._objects = model, data, objects
        self._steps = 0

    def stepped(self) -> None:
        """Said after each control step."""
        slow = _fastest(self._model, self._data, self._objects)[1] <= RESTING_M_S
        self._steps = self._steps + 1 if slow else 0

    @property
    def lasts(self) -> bool:
        return self._steps > 1


def settling(seed: EpisodeSeed, simulation: Any, objects: Mapping[str, int]) -> Iterator[None]:
    """Comes up once for each settling step to be made in robosuite's `MjSim`, whose `objects` are watched meanwhile.

    These are the seed's `wait_steps`, then up to `rest_steps` until all is at rest.
    """
    calm = Calm(simulation.model._model, simulation.data._data, objects)
    for step in range(seed.wait_steps + seed.rest_steps):
        if step >= seed.wait_steps and calm.lasts:
            return
        yield
        calm.stepped()


def warn_of_motion(model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int], task_id: str) -> None:
    """Log which object is fastest if anything still falls or flies at record 0: its way would count as displacement.

    LIBERO's initial states put some things into the table's top; how high that throws them depends on MuJoCo's version.
    """
    name, speed_m_s = _fastest(model, data, objects)
    if speed_m_s > RESTING_M_S:
        told = "%s still moves at %.2f m/s when the episode begins: it needs more settling steps (%s)"
        _log.warning(told, name, speed_m_s, task_id)


def _fastest(model: mujoco.MjModel, data: mujoco.MjData, objects: Mapping[str, int]) -> tuple[str, float]:
    first = {name: int(model.body_dofadr[body]) for name, body in objects.items()}
    speeds = {name: float(np.linalg.norm(data.qvel[dof : dof + 3])) for name, dof in first.items()}
    return max(speeds.items(), key=lambda one: one[1], default=("", 0.0))
