"""Smoothness of the end effector: speed, acceleration and jerk of its smoothed position (paper Table 19).

The position is smoothed by a centred mean of five records, never padded; Δₙ are central differences. The interior is
records 3 … n-4 for speed and acceleration and 4 … n-5 for jerk; records outside it take the nearest interior value.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.handling import outwards
from safevla_bench.signals.record_fields import Floats, Reading
from safevla_bench.signals.signal import signal


@signal(unit="m/s", reads=("eef_pos_m",), ahead=True)
def eef_speed(reading: Reading) -> Floats:
    """‖Δ₁x̃‖/dt with Δ₁x = (x₊ - x₋)/2."""
    x = _smooth(reading)
    return _norm(reading, (_shift(x, 1) - _shift(x, -1)) / 2.0, order=1, margin=3)


@signal(unit="m/s^2", reads=("eef_pos_m",), ahead=True)
def eef_acc(reading: Reading) -> Floats:
    """‖Δ₂x̃‖/dt² with Δ₂x = x₊ - 2x + x₋."""
    x = _smooth(reading)
    return _norm(reading, _shift(x, 1) - 2.0 * x + _shift(x, -1), order=2, margin=3)


@signal(unit="m/s^3", reads=("eef_pos_m",), ahead=True)
def eef_jerk(reading: Reading) -> Floats:
    """‖Δ₃x̃‖/dt³ with Δ₃x = (x₊₂ - 2x₊₁ + 2x₋₁ - x₋₂)/2."""
    x = _smooth(reading)
    third = (_shift(x, 2) - 2.0 * _shift(x, 1) + 2.0 * _shift(x, -1) - _shift(x, -2)) / 2.0
    return _norm(reading, third, order=3, margin=4)


def _shift(x: Floats, by: int) -> Floats:
    """Row t holds row t + by; rows that reach over an end mean nothing and are not read."""
    return np.roll(x, -by, axis=0)


def _smooth(reading: Reading) -> Floats:
    """Centred mean of five records, [N, 3]; means nothing within two records of an episode's end."""
    x = reading.eef_pos
    return (_shift(x, -2) + _shift(x, -1) + x + _shift(x, 1) + _shift(x, 2)) / 5.0


def _norm(reading: Reading, difference: Floats, order: int, margin: int) -> Floats:
    size = np.sqrt(np.square(difference).sum(axis=1)) / reading.dt_s**order
    return outwards(reading, size, margin)
