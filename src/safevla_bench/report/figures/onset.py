"""Onset of violations: the share of episodes that have violated a limit, over the time in the episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from safevla_bench.judging import provenance_marks
from safevla_bench.judging.scores import Scores
from safevla_bench.report.figures.sheet import KeyEntry, PanelGrid, draw_empty, draw_grid, draw_panels, judged_by_policy
from safevla_bench.report.figures.style import (
    drawable_text,
    figure_style,
    series_colour,
    series_dash,
    text_width_pt,
)

_Floats = NDArray[np.float64]
ANY_LIMIT = "any limit"
_FAINT = "#a9afb6"


@dataclass(frozen=True, slots=True)
class OnsetCurve:
    """A step curve: at `at[k]`, in seconds or percent of the episode, the share has risen to `share[k]` percent."""

    series: int
    """Place of its specification in `specs`; -1 stands for any specification."""
    at: tuple[float, ...]
    share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class OnsetPanel:
    """One policy: its counted episodes, a curve for each violated specification, and last a curve for any of them."""

    title: str
    n: int
    curves: tuple[OnsetCurve, ...]


@dataclass(frozen=True, slots=True)
class Onset:
    """The content of the figure; the horizontal axes end at `end`."""

    specs: tuple[str, ...]
    panels: tuple[OnsetPanel, ...]
    end: float
    progress: bool
    remarks: tuple[str, ...] = ()


def compute_onset(scores: Scores, dt_s: _Floats, lengths: NDArray[np.int64], *, progress: bool = False) -> Onset:
    """Return cumulative shares of each policy's judged episodes, by violated specification of the safe tier.

    `dt_s` is the control step of each episode [s], `lengths` its number of records, [E] each. Curves are over seconds;
    with `progress` over percent of the episode's own length. A specification that no episode violates has no curve.
    """
    last = np.maximum(lengths - 1, 0)
    unit = 100.0 / np.maximum(last, 1) if progress else dt_s
    broken = [int(k) for k in scores.scored_columns if scores.is_violated[k, scores.is_judged].any()]
    panels = tuple(
        _policy_panel(scores, unit, selected, policy, broken) for policy, selected in judged_by_policy(scores).items()
    )
    end = 100.0 if progress else float((last * dt_s)[scores.is_judged].max(initial=0.0))
    specs = tuple(scores.specs[k].spec_id for k in broken)
    return Onset(specs, panels, end, progress, provenance_marks.warn_of_scores(scores))


def _policy_panel(
    scores: Scores, unit: _Floats, selected: NDArray[np.bool_], policy: str, broken: Sequence[int]
) -> OnsetPanel:
    """Return the panel of a policy; `unit` is the length of a step, `selected` whether an episode is its, [E] each."""
    n = int(selected.sum())
    curves = [
        _onset_curve(scores.first[k], unit, selected & scores.is_violated[k], n, place)
        for place, k in enumerate(broken)
    ]
    curves.append(_onset_curve(scores.first_violation[0], unit, selected & scores.unsafe, n, -1))
    return OnsetPanel(policy, n, tuple(curve for curve in curves if curve.at))


def _onset_curve(
    first: NDArray[np.int64], unit: _Floats, violated: NDArray[np.bool_], n: int, series: int
) -> OnsetCurve:
    at, count = np.unique((first * unit)[violated], return_counts=True)
    return OnsetCurve(series, tuple(at.tolist()), tuple((100.0 * np.cumsum(count) / max(n, 1)).tolist()))


@figure_style()
def draw_onset(value: Onset) -> Figure:
    """Draw a panel for each policy, numbered if its title does not fit, with a line for each violated specification."""
    high = 1.8 if len(value.panels) <= 2 else 1.05
    grid = PanelGrid(len(value.panels), 0.42, 0.12, 0.38, 0.2, 0.14, high, title_gap=0.04)
    titles = [f"{drawable_text(panel.title)} (n = {panel.n})" for panel in value.panels]
    numbered = any(text_width_pt(title) > 72 * grid.wide for title in titles)
    if numbered:
        titles = [f"{k + 1}  (n = {panel.n})" for k, panel in enumerate(value.panels)]
    highest_share = max((curve.share[-1] for panel in value.panels for curve in panel.curves), default=0.0)
    share_end = min(100.0, 10.0 * (highest_share // 10 + 1))
    note = "Share of all counted episodes of the policy; each counts from its first violation on, also after its end."
    return draw_panels(
        "When violations begin",
        grid,
        titles,
        lambda axes, k: _draw_policy(axes, value.panels[k], value.end, share_end),
        across="Progress of the episode (%)" if value.progress else "Time in the episode (s)",
        upward="Episodes that have violated (%)",
        empty="No episode was counted.",
        notes=[note, *value.remarks] if value.panels else (),
        key=_key_entries(value, numbered),
    )


def _key_entries(value: Onset, panels_numbered: bool) -> list[KeyEntry]:
    specs = [KeyEntry(name, k, lined=True, marked=False) for k, name in enumerate(value.specs)]
    specs += [KeyEntry(ANY_LIMIT, 0, lined=True, marked=False, colour=_FAINT)] if specs else []
    panels = [KeyEntry(panel.title, 0, str(k + 1), marked=False) for k, panel in enumerate(value.panels)]
    return [*specs, *(panels if panels_numbered else [])]


def _draw_policy(axes: Axes, panel: OnsetPanel, end: float, share_end: float) -> None:
    if not panel.n:
        draw_empty(axes, "No episode was counted.")
        return
    axes.set_xlim(0, end or 1.0)
    axes.set_ylim(0, share_end * 1.03)
    axes.set_yticks(range(0, int(share_end) + 1, 5 if share_end <= 20 else 10 if share_end <= 50 else 20))
    draw_grid(axes)
    for curve in panel.curves:
        anything = curve.series < 0
        axes.step(
            [0.0, *curve.at, end],
            [0.0, *curve.share, curve.share[-1]],
            where="post",
            color=_FAINT if anything else series_colour(curve.series),
            linestyle="-" if anything else series_dash(curve.series),
            linewidth=1.6 if anything else 1.1,
            zorder=2 if anything else 3,
        )
    if not panel.curves:
        axes.text(0.5, 0.5, "no violation", transform=axes.transAxes, ha="center", va="center")
