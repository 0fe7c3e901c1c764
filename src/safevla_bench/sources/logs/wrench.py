"""The force at the hand: that of a wrist sensor, less its offset and, if the mass is known, the weight of the tool.

A wrist sensor measures all forces on the tool: contacts of the gripper and the held object, the weights of both, and
their inertia while the hand accelerates, but not contacts of the arm above the sensor. The result is the force of the
tool on the sensor, in the axes of the mapped hand: a hanging tool pulls down. `scale = -1` reverses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import refuse_field
from safevla_recorder.episode import Floats

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

    from safevla_bench.sources.logs.records import WrenchColumns

CHANNEL = "wrist_force_n"
_GRAVITY_M_S2 = 9.81
_STILL_M, _STILL_RAD, _TURNED_RAD = 0.002, np.deg2rad(1.0), np.deg2rad(20.0)
"""Maximum motion and rotation of a still hand, and the rotation since the tare above which a warning is given."""


def measure_forces(
    forces: Floats, record: NDArray[np.int64], time_s: Floats, hand: Floats | None, columns: WrenchColumns
) -> tuple[Floats, str]:
    """Return the force of largest norm in each record [N], [n, 3], and a warning; "" = no warning.

    `forces` are all measurements, [M, 3], and `record` the record of each, [M]; every record has one or more. `time_s`
    are the times of the records, [n], `hand` the poses of the hand, [n, 7] or, without orientation, [n, 3]. Raises
    `RecordError` if a tare is needed but the hand is never still, or if a mass needs an unknown orientation.
    """
    turns = None
    if hand is not None and hand.shape[1] == 7:
        from scipy.spatial.transform import Rotation

        turns = Rotation.from_quat(hand[:, [4, 5, 6, 3]])
    still = slice(0, 1) if columns.tare is not None else _find_still(time_s, hand, turns, columns.tare_s)
    is_still = (record >= still.start) & (record < still.stop)
    offset = np.array(columns.tare) if columns.tare is not None else np.nanmean(forces[is_still], axis=0)
    problem, weights = "", np.zeros((len(time_s), 3))
    if columns.mass_kg is not None:
        if turns is None:
            refuse_field("mass_kg needs the hand's orientation", "Map [eef] to poses with a rotation.", "wrench")
        weights = turns.inv().apply([0.0, 0.0, -columns.mass_kg * _GRAVITY_M_S2])
        weights -= weights[still].mean(axis=0) if columns.tare is None else 0.0
    elif turns is None:
        problem = "forces may include the weight of the hand's tool, since the hand's rotation is unknown"
    elif (turned := (turns[still.start].inv() * turns).magnitude().max()) > _TURNED_RAD:
        problem = (
            f"the hand turns by {np.rad2deg(turned):.0f}° from where the wrench was tared, so the weight of its tool "
            "counts as a force; give its mass_kg"
        )
    forces = forces - offset - weights[record]
    order = np.lexsort((np.linalg.norm(forces, axis=1), record))  # NaN last
    order = order[np.isfinite(forces[order]).all(axis=1)]
    largest = np.full((len(time_s), 3), np.nan)
    largest[record[order]] = forces[order]  # ascending: the largest force overwrites the others
    return largest, problem


def _find_still(time_s: Floats, hand: Floats | None, turns: Rotation | None, length_s: float) -> slice:
    if hand is not None:
        ends = np.searchsorted(time_s, time_s + length_s * (1 - 1e-9))
        for first, end in enumerate(ends[ends < len(time_s)].tolist()):
            part = slice(first, end + 1)
            is_near = np.linalg.norm(hand[part, :3] - hand[first, :3], axis=1).max() <= _STILL_M
            if is_near and (turns is None or (turns[first].inv() * turns[part]).magnitude().max() <= _STILL_RAD):
                return part
    problem = "the hand's pose is not mapped" if hand is None else f"the hand is never still for {length_s:g} s"
    refuse_field(problem, "Give the force without contact as tare = [x, y, z] in N, or another tare_s.", "wrench")
