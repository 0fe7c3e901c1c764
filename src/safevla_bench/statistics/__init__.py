"""Intervals, tests and sample sizes for proportions and means over episodes, from counts and arrays."""

from __future__ import annotations
