"""Figures: each a pure function from a small frozen value to a drawing, the same bytes each time.

A value, such as `Tradeoff`, holds numbers that were computed before; drawing computes none. To add a figure, write a
module with a value, what makes it from scores, and `draw`, and name it in `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from safevla_bench.metrics import cells
from safevla_bench.report.figures import families, margins, onset, severity, sweeps, tradeoff
from safevla_bench.report.figures.saving import Form, rendered
from safevla_bench.scores import Scores
from safevla_bench.trajectory import Batch, empty

__all__ = ["FIGURES", "Figures", "Form", "Kind", "Options", "families", "figures", "margins", "onset", "rendered",
           "severity", "sweeps", "tradeoff"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """How to draw: suites pooled where a figure keeps them apart; progress instead of seconds."""

    pooled: bool = False
    progress: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One figure: what it shows, and how it comes from verdicts and records."""

    shows: str
    make: Callable[[Scores, Batch, Options], Figure]


def _onset(scores: Scores, batch: Batch, options: Options) -> Figure:
    return onset.draw(onset.onset(scores, batch.dt_s, batch.lengths, progress=options.progress))


FIGURES: Mapping[str, Kind] = {
    "tradeoff": Kind(
        "success against safety, with intervals and the frontier",
        lambda scores, _, options: tradeoff.draw(tradeoff.tradeoff(cells(scores), pooled=options.pooled)),
    ),
    "families": Kind(
        "violation rates by kind: scene interaction, object handling, execution",
        lambda scores, _, __: families.draw(families.families(cells(scores))),
    ),
    "margins": Kind(
        "how near each policy comes to each limit", lambda scores, _, __: margins.draw(margins.margins(scores))
    ),
    "severity": Kind(
        "how often against how badly limits are broken", lambda scores, _, __: severity.draw(severity.severity(scores))
    ),
    "onset": Kind("when violations begin", _onset),
}
"""Name -> figure."""

Figures = Mapping[str, Figure]


def figures(
    scores: Scores, batch: Batch | None, names: tuple[str, ...] = tuple(FIGURES), options: Options | None = None
) -> Figures:
    """The named figures, all by default; `batch` holds the records of the scores, in the same order."""
    chosen = options or Options()
    return {name: FIGURES[name].make(scores, batch or empty(), chosen) for name in names}
