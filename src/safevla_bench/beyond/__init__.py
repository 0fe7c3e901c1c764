"""Beyond four numbers: how long, how hard, when, and in which phase of the task limits were broken."""

from safevla_bench.beyond.cells import CellExposure, PhaseExposure, SpecExposure, exposures
from safevla_bench.beyond.episodes import Exposure, exposure, exposure_of
from safevla_bench.beyond.phases import PHASES, phases

__all__ = [
    "PHASES",
    "CellExposure",
    "Exposure",
    "PhaseExposure",
    "SpecExposure",
    "exposure",
    "exposure_of",
    "exposures",
    "phases",
]
