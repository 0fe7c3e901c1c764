"""The figures, listed in `FIGURES`. Pure functions draw them, so that the same verdicts give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from matplotlib.figure import Figure

from safevla_bench.errors import RunError
from safevla_bench.explain.exposure import measure_onsets
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.scores import Scores
from safevla_bench.report.figures import curves, tradeoff, violations
from safevla_bench.report.figures.sheet import COLUMN, NARROWEST_IN, PAGE, Page, figure_style
from safevla_bench.trajectory.batch import Stamps
from safevla_recorder.episode import Floats, Ints

FigureFormat = Literal["svg", "pdf", "png"]
# Metadata keys under which matplotlib would write the date and the name of the program.
_STAMPED_KEYS: Mapping[FigureFormat, tuple[str, ...]] = {
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}


@dataclass(frozen=True)
class FigureInput:
    """The input of all figures: the verdicts on `E` episodes, and the layout of the trade-off figure. The episodes have
    control steps `dt_s` [s], [E], numbers of records `lengths`, [E], and time stamps `stamps_s` (see `Batch`).
    """

    scores: Scores
    dt_s: Floats
    lengths: Ints
    tradeoff_layout: tradeoff.TradeoffLayout = "suites"
    stamps_s: Stamps = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[Summary]:
        # Return the summary of each cell (policy × suite), computed once for all figures. `scores` are the verdicts.
        return cells(self.scores)


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One figure: its description, and the function that draws it."""

    description: str
    draw: Callable[[FigureInput], Figure]


FIGURES: Mapping[str, FigureKind] = {
    "tradeoff": FigureKind(
        "success against safety, with intervals and the frontier",
        lambda inputs: tradeoff.draw_tradeoff(tradeoff.compute_tradeoff(inputs.cells, inputs.tradeoff_layout)),
    ),
    "families": FigureKind(
        "violation rates by kind: scene, handling, execution", lambda inputs: violations.draw_families(inputs.cells)
    ),
    "margins": FigureKind(
        "how close each policy comes to each limit",
        lambda inputs: violations.draw_margins(violations.compute_margins(inputs.scores)),
    ),
    "onset": FigureKind(
        "when violations begin",
        lambda inputs: curves.draw_onset(
            measure_onsets(inputs.scores, inputs.dt_s, inputs.lengths, inputs.stamps_s),
            provenance_marks.warn_of_scores(inputs.scores),
        ),
    ),
}
"""Name of a figure -> the figure."""


def draw_figure(draw: Callable[[], Figure], page: Page = COLUMN) -> Figure:
    """Return the figure that `draw` returns with the layout of `page`. Raises `RunError` if the page is too narrow."""
    if page.width_in < NARROWEST_IN:
        raise RunError(
            f"the width is too small ({page.width_in:g} inches)",
            remedy=f"The minimum width in inches is {NARROWEST_IN}.",
        )
    context = copy_context()  # `PAGE` is set only in this copy, so the caller's `PAGE` is unchanged
    context.run(PAGE.set, page)
    return context.run(draw)


def render_figure(figure: Figure, form: FigureFormat) -> bytes:
    """Return a figure as the bytes of a file, without a date, a program name or random identifiers. The same figure
    gives the same bytes with the same version of matplotlib.
    """
    stream = io.BytesIO()
    with figure_style():
        # `_STAMPED_KEYS` lists the entries that matplotlib adds to a format, such as the date; None omits an entry.
        figure.savefig(stream, format=form, metadata=dict.fromkeys(_STAMPED_KEYS[form]))
    return stream.getvalue()
