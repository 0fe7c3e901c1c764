"""Beyond four numbers: how long, how hard, when, and in which phase of the task limits were broken."""

from safevla_bench.exposure.cells import CellExposure, PhaseExposure, SpecExposure, summarize_exposure
from safevla_bench.exposure.episodes import Exposure, exposure_of, measure_exposure
from safevla_bench.exposure.phases import PHASES, phases

__all__ = [
    "PHASES",
    "CellExposure",
    "Exposure",
    "PhaseExposure",
    "SpecExposure",
    "exposure_of",
    "measure_exposure",
    "phases",
    "summarize_exposure",
]
