"""Figures as bytes: SVG, PDF and PNG, the same for the same figure and version of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Literal

from matplotlib.figure import Figure

from safevla_bench.report.figures.style import styled

Form = Literal["svg", "pdf", "png"]
_SAID: Mapping[Form, tuple[str, ...]] = {
    "svg": ("Date", "Creator"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}
"""What matplotlib would say of the day and of itself."""


def rendered(figure: Figure, form: Form) -> bytes:
    """The bytes of a figure; no date, no name of a program, no identifier drawn by chance."""
    stream = io.BytesIO()
    with styled():
        figure.savefig(stream, format=form, metadata=dict.fromkeys(_SAID[form]))
    return stream.getvalue()
