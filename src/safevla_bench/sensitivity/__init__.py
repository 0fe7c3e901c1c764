"""Sensitivity of results to thresholds (the paper's Table 9, sweeps), to readings of the paper, and to the physics."""

from __future__ import annotations
