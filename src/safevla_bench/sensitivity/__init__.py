"""Sensitivity of results to thresholds (the paper's Table 9, sweeps), interpretations of the paper, and physics."""

from __future__ import annotations
