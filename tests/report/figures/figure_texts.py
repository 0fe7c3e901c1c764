"""What a figure shows, as a reader sees it: its words and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from safevla_bench.report.figures.sheet import figure_style


@lru_cache(maxsize=1)
def words(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, with its box in pixels; of the last figure kept, so that it is laid out once."""
    with figure_style():
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw_without_rendering()
        return [(text.get_text(), text.get_window_extent(renderer)) for text in _texts(figure)]


def read(figure: Figure) -> list[str]:
    """The texts of a figure, their lines joined."""
    return [text.replace("\n", " ") for text, _ in words(figure)]


def _texts(figure: Figure) -> Iterator[Text]:
    ticks = {text for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for text in axis.findobj(Text)}
    tick_labels = [
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis._update_ticks()
        if axes.axison
    ]
    labels = [axis.label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    others = [text for text in figure.findobj(Text) if text not in ticks]
    for text in [*others, *tick_labels, *labels]:
        if text.get_visible() and text.get_text().strip():
            yield text


def misplaced(figure: Figure) -> list[tuple[str, ...]]:
    """The pairs of texts that share area, and the texts that reach beyond the figure."""
    wide, high = figure.canvas.get_width_height()
    boxes = words(figure)
    beyond = [(text,) for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > wide or box.y1 > high]
    return [
        *(
            (text, other)
            for k, (text, box) in enumerate(boxes)
            for other, beside in boxes[k + 1 :]
            if _meet(box, beside)
        ),
        *beyond,
    ]


def _meet(box: Bbox, other: Bbox) -> bool:
    """Whether two boxes share more than the hairline that rounding to pixels can add."""
    shared = Bbox.intersection(box, other)
    return shared is not None and min(shared.width, shared.height) > 1.0
