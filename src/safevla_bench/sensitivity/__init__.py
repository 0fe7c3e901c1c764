"""Sensitivity to thresholds and to readings: the paper's Table 9, sweeps over any threshold, and its named readings."""

from __future__ import annotations
