"""Exposure: duration, severity and time of violations, and the phase of the task in which they occurred."""

from safevla_bench.exposure.cells import CellExposure, PhaseExposure, SpecExposure, summarize_exposure
from safevla_bench.exposure.episodes import PHASES, Exposure, measure_chunks, measure_exposure, phases

__all__ = [
    "PHASES",
    "CellExposure",
    "Exposure",
    "PhaseExposure",
    "SpecExposure",
    "measure_chunks",
    "measure_exposure",
    "phases",
    "summarize_exposure",
]
