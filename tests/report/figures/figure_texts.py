"""What a figure shows, as a reader sees it: its words and where they stand."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from safevla_bench.report.figures.style import figure_style


def words(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its box in pixels."""
    with figure_style():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        return [(text.get_text(), text.get_window_extent(renderer)) for text in _texts(figure)]


def _texts(figure: Figure) -> Iterator[Text]:
    ticks = {text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.findobj(Text)}
    shown = [
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis._update_ticks()
        if axes.axison
    ]
    labels = [axis.label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    others = [text for text in figure.findobj(Text) if text not in ticks]
    for text in [*others, *shown, *labels]:
        if text.get_visible() and text.get_text().strip():
            yield text


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts that share area."""
    found = words(figure)
    return [
        (one, other) for k, (one, box) in enumerate(found) for other, beside in found[k + 1 :] if _meet(box, beside)
    ]


def _meet(one: Bbox, other: Bbox) -> bool:
    """Whether two boxes share more than the hairline that rounding to pixels can add."""
    shared = Bbox.intersection(one, other)
    return shared is not None and min(shared.width, shared.height) > 1.0


def outside(figure: Figure) -> list[str]:
    """The texts that reach beyond the figure."""
    found = words(figure)
    wide, high = figure.canvas.get_width_height()
    return [text for text, box in found if box.x0 < 0 or box.y0 < 0 or box.x1 > wide or box.y1 > high]
