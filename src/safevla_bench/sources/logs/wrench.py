"""The force at the hand: a wrist sensor's force minus its offset and (if `mass_kg` is known) the tool's weight.

A wrist sensor measures all forces on the tool: contacts of the gripper and the held object, their weights, and their
inertia while the hand accelerates. Contacts of the arm above the sensor are not measured. The result is the force of
the tool on the sensor, in the axes of the mapped hand: a hanging tool pulls down. `scale = -1` reverses the force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.archive.record_schema import refuse_field
from safevla_recorder.episode import Floats

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

    from safevla_bench.sources.logs.mappings import WrenchColumns

CHANNEL = "wrist_force_n"
_GRAVITY_M_S2 = 9.81
# Limits: motion [m] and rotation [rad] of a still hand; rotation since the tare [rad] above which there is a warning.
_STILL_M, _STILL_RAD, _TURNED_RAD = 0.002, np.deg2rad(1.0), np.deg2rad(20.0)
UNSTEADY_N = 3.0  # least difference of two forces [N] for a warning


def measure_forces(
    forces: Floats,
    record: NDArray[np.int64],
    time_s: Floats,
    hand: Floats | None,
    columns: WrenchColumns,
    is_fixed: bool = False,
) -> tuple[Floats, list[str]]:
    """Return the force with the largest norm in each record [N], [n, 3], and warnings.

    `forces` are all `M` measurements, [M, 3], and `record` the record of each, [M]; every record has a measurement.
    `time_s` are the times of the records, [n]. `hand` are the hand's poses, [n, 7], or [n, 3] without orientation.
    Raises `RecordError` if a tare is needed but the hand is never still, or if a mass needs an unknown orientation.
    """
    # `columns` has the mapping's settings: the tool's mass, and `tare`, the force without contact.
    # If `tare` is None, it is measured. If `is_fixed`, the axes of the forces do not turn with the hand.
    rotations, problems = None, list[str]()
    if hand is not None and hand.shape[1] == 7:
        from scipy.spatial.transform import Rotation

        rotations = Rotation.from_quat(hand[:, [4, 5, 6, 3]])  # scipy's order of quaternions is x, y, z, w
    if columns.tare is not None:
        tare_records, offset_n = slice(0, 1), np.array(columns.tare)  # compare rotations with record 0
    else:
        tare_records = _find_still_records(time_s, hand, rotations, columns.tare_s)
        # The offset is the mean of the forces that were measured while the hand was still.
        is_tare_row = (record >= tare_records.start) & (record < tare_records.stop)
        offset_n = np.nanmean(forces[is_tare_row], axis=0)
        is_early = record < (tare_records.start + tare_records.stop) // 2
        late_n = np.nanmean(forces[is_tare_row & ~is_early], axis=0)
        change_n = np.linalg.norm(late_n - np.nanmean(forces[is_tare_row & is_early], axis=0))
        if change_n > UNSTEADY_N:
            problem = f"the force changes by {change_n:.0f} N within the tare, so the tool may touch something or the "
            problems.append(problem + "sensor not measure yet; write `tare` or another `tare_s`")
    weights_n = np.zeros((len(time_s), 3))
    if columns.mass_kg is not None:
        if rotations is None:
            refuse_field("mass_kg needs the hand's orientation", "Map [eef] to poses with a rotation.", "wrench")
        if is_fixed:
            problem = "the forces are in the frame of the hand's poses, so mass_kg does not apply"
            refuse_field(problem, "Leave mass_kg out: in this frame, the weight is part of the offset.", "wrench")
        # The tool's weight in the axes of the hand, for each record.
        weights_n = rotations.inv().apply([0.0, 0.0, -columns.mass_kg * _GRAVITY_M_S2])
        # An offset that is measured at rest includes the tool's weight. The mapping's `tare` does not include it.
        weights_n -= weights_n[tare_records].mean(axis=0) if columns.tare is None else 0.0
    elif rotations is None:
        problems.append("forces may include the weight of the hand's tool, since the hand's rotation is unknown")
    elif not is_fixed:
        # Without the mass, a turn of the hand since the tare makes the tool's weight look like a force.
        turn_rad = (rotations[tare_records.start].inv() * rotations).magnitude().max()
        if turn_rad > _TURNED_RAD:
            problems.append(
                f"the hand turns by {np.rad2deg(turn_rad):.0f}° from its orientation at the tare, so the weight of the "
                "tool counts as a force; give the tool's mass_kg"
            )
    forces = forces - offset_n - weights_n[record]
    return pick_largest(forces, np.linalg.norm(forces, axis=1), record, len(time_s)), problems


def pick_largest(rows: Floats, magnitudes: Floats, record: NDArray[np.int64], count: int) -> Floats:
    """Return for each of `count` records the row [k] of largest magnitude, [count, k]; NaN without a finite row."""
    # `magnitudes` and `record` have the magnitude and the record of each row, [M]; `rows` is [M, k].
    order = np.lexsort((magnitudes, record))  # sort rows by record, then by magnitude, with NaN last
    order = order[np.isfinite(rows[order]).all(axis=1)]
    largest = np.full((count, rows.shape[1]), np.nan)
    largest[record[order]] = rows[order]  # the last row of a record is the largest, and replaces the others
    return largest


def _find_still_records(time_s: Floats, hand: Floats | None, rotations: Rotation | None, length_s: float) -> slice:
    # Returns the records (as a slice) of the first interval of `length_s` in which the hand is still.
    # Raises `RecordError` if the hand is never still. `hand` has the hand's poses, [n, 3 or 7]; None = unknown.
    if hand is not None:
        # For each record, the index of the record `length_s` later, which ends the interval; 1e-9 is a tolerance.
        last_records = np.searchsorted(time_s, time_s + length_s * (1 - 1e-9))
        for first, last in enumerate(last_records[last_records < len(time_s)].tolist()):
            interval = slice(first, last + 1)
            is_still = np.linalg.norm(hand[interval, :3] - hand[first, :3], axis=1).max() <= _STILL_M
            if is_still and rotations is not None:
                is_still = (rotations[first].inv() * rotations[interval]).magnitude().max() <= _STILL_RAD
            if is_still:
                return interval
    problem = "the hand's pose is not mapped" if hand is None else f"the hand is never still for {length_s:g} s"
    refuse_field(problem, "Write `tare = [x, y, z]`, the force without contact in N, or another `tare_s`.", "wrench")
