"""Sensitivity to thresholds and to readings of the paper: its Table 9, sweeps over any threshold, named readings."""

from __future__ import annotations
