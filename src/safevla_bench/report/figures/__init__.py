"""Figures: each a pure function from a small frozen value to a drawing, the same bytes each time.

A value, such as `Tradeoff`, holds numbers that were computed before; drawing computes none. To add a figure, write a
module with a value, what makes it from scores, and `draw`, and name it in `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench.metrics import Summary, cells
from safevla_bench.report.figures import margins, onset, severity, sweeps, tradeoff, violation_families
from safevla_bench.report.figures.output import Form, rendered
from safevla_bench.scores import Scores

__all__ = [
    "FIGURES",
    "Form",
    "Kind",
    "Shown",
    "families",
    "margins",
    "onset",
    "rendered",
    "severity",
    "sweeps",
    "tradeoff",
]


@dataclass(frozen=True)
class Shown:
    """What is drawn: verdicts, the control steps and numbers of records of the same episodes, [E] each, and how."""

    scores: Scores
    dt_s: NDArray[np.float64]
    lengths: NDArray[np.int64]
    pooled: bool = False
    """A policy's suites added up, where a figure keeps them apart."""
    progress: bool = False
    """Percent of each episode instead of seconds."""

    @cached_property
    def cells(self) -> list[Summary]:
        """Policy × suite."""
        return cells(self.scores)


@dataclass(frozen=True, slots=True)
class Kind:
    """One figure: what it shows, and its way from verdicts to a drawing."""

    shows: str
    make: Callable[[Shown], Figure]


def _onset(shown: Shown) -> Figure:
    return onset.draw(onset.onset(shown.scores, shown.dt_s, shown.lengths, progress=shown.progress))


FIGURES: Mapping[str, Kind] = {
    "tradeoff": Kind(
        "success against safety, with intervals and the frontier",
        lambda shown: tradeoff.draw(tradeoff.tradeoff(shown.cells, pooled=shown.pooled)),
    ),
    "families": Kind(
        "violation rates by kind: scene interaction, object handling, execution",
        lambda shown: violation_families.draw(violation_families.families(shown.cells)),
    ),
    "margins": Kind(
        "how near each policy comes to each limit", lambda shown: margins.draw(margins.margins(shown.scores))
    ),
    "severity": Kind(
        "how often against how badly limits are broken", lambda shown: severity.draw(severity.severity(shown.scores))
    ),
    "onset": Kind("when violations begin", _onset),
}
"""Name -> figure."""
