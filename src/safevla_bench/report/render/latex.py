"""Tables as LaTeX, for a document that loads `booktabs`.

A table takes the widest place and the largest type that it needs: a column of a two-column page, else both (`table*`).
Widths are estimated from the characters, so that no TeX is needed here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from safevla_bench.report.render.text import wrap_line
from safevla_bench.report.tables.columns import drop_empty_columns
from safevla_bench.report.tables.table import Cell, Column, Table, group_spans
from safevla_bench.text import escape_controls

_HEAD_WIDTHS = (14, 10, 8)
"""Longest line of a heading over numbers, in characters: the usual one, and less where that is too wide."""
COLUMN_PT, PAGE_PT = 234.0, 487.0
"""A column and both columns of ICML's page, the narrowest of the usual two-column ones, in points."""


class _TypeSize(NamedTuple):
    """A size of type: its command and width of an em, and those of what stands beside or below a value."""

    command: str
    points: float
    detail: str
    detail_points: float


_SIZES = (
    _TypeSize(r"\normalsize", 10.0, r"\scriptsize", 7.5),
    _TypeSize(r"\small", 9.0, r"\scriptsize", 7.5),
    _TypeSize(r"\footnotesize", 8.0, r"\tiny", 6.4),
    _TypeSize(r"\scriptsize", 7.5, r"\tiny", 6.4),
    _TypeSize(r"\tiny", 6.4, r"\tiny", 6.4),
)
"""The sizes of a document set in 10 pt, largest first. Computer Modern's small sizes are wider than their points."""
_GAPS_PT = (6.0, 3.0, 1.5)
"""Half the space between columns: LaTeX's own, and less where that is too much."""

_LEAST_PT = 40.0
"""The narrowest column of wrapped text."""


@dataclass(frozen=True, slots=True)
class LatexLayout:
    r"""The place of tables on the page: details below their values if `stacked`; `label` is what `\ref` takes."""

    stacked: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Fit:
    """The place and the type of one table."""

    wide: bool
    size: _TypeSize
    gap_pt: float
    stacked: bool
    head_width: int
    wrapped_pt: Mapping[int, float] = field(default_factory=dict)
    fits: bool = True


def render_latex(table: Table, layout: LatexLayout | None = None) -> str:
    r"""Return a `table` environment, or a `table*` where a column is too narrow, with its caption and notes.

    Columns without a value are left out. Where a page is too narrow too, the table is stacked, and then columns of text
    are wrapped. The document must load `booktabs`. Letters outside Latin and Greek need XeLaTeX or LuaLaTeX. A table
    that fits no page begins with a comment that says so.
    """
    layout, table = layout or LatexLayout(), drop_empty_columns(table)
    fit = _fit_table(table, layout.stacked)
    environment = "table*" if fit.wide else "table"
    lines = [
        *([] if fit.fits else ["% wider than a page: --columns or --style intervals=no make it narrower"]),
        rf"\begin{{{environment}}}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.title)}}}",
        *([rf"\label{{{layout.label}}}"] if layout.label else []),
        r"\smallskip",
        *([] if fit.size is _SIZES[0] else [fit.size.command]),
        *([] if fit.gap_pt == _GAPS_PT[0] else [rf"\setlength{{\tabcolsep}}{{{fit.gap_pt:g}pt}}"]),
        rf"\begin{{tabular}}{{{''.join(_column_type(k, column, fit) for k, column in enumerate(table.columns))}}}",
        r"\toprule",
        *_group_lines(table.columns),
        _join_cells(_column_head(column, fit.head_width) for column in table.columns),
        r"\midrule",
        *(line for row in table.rows for line in _row_lines(row, fit)),
        r"\bottomrule",
        r"\end{tabular}",
        *_note_lines(table.footnotes),
        rf"\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def _column_type(place: int, column: Column, fit: _Fit) -> str:
    if place in fit.wrapped_pt:
        return f"p{{{fit.wrapped_pt[place]:.0f}pt}}"
    return "r" if column.numeric else "l"


def _row_lines(row: Sequence[Cell], fit: _Fit) -> list[str]:
    detail = fit.size.detail
    if not fit.stacked:
        shown = [_latex_cell(cell, detail) for cell in row]
        return [_join_cells(_wrap_cell(text, k, fit) for k, text in enumerate(shown))]
    values = _join_cells(_wrap_cell(_latex_value(cell), k, fit) for k, cell in enumerate(row))
    details = [rf"{{{detail} {_escape_latex(cell.below)}}}" if cell.below else "" for cell in row]
    below = _join_cells(_wrap_cell(text, k, fit) for k, text in enumerate(details))
    return [values, below, r"\addlinespace"] if any(details) else [values]


def _wrap_cell(text: str, place: int, fit: _Fit) -> str:
    if place not in fit.wrapped_pt or not text:
        return text
    return rf"{{\raggedright {text.replace(_UNDERSCORE, _UNDERSCORE + _BREAK)}\par}}"


_UNDERSCORE, _BREAK = r"\_", r"\allowbreak{}"


def _note_lines(notes: Sequence[str]) -> list[str]:
    paragraphs = [rf"{{\footnotesize\raggedright {_escape_latex(note)}\par}}" for note in notes]
    return [r"\par\smallskip", *paragraphs] if notes else []


def _join_cells(cells: Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"


def _group_lines(columns: Sequence[Column]) -> list[str]:
    """Return the line of group names above the headings and the rules below these names; [] without groups."""
    spans = group_spans(columns)
    if not any(group for group, _ in spans):
        return []
    heads, rules, position = [], [], 1
    for group, count in spans:
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{_escape_latex(group)}}}" if group else " & ".join([""] * count))
        rules += [rf"\cmidrule(lr){{{position}-{position + count - 1}}}"] if group else []
        position += count
    return [_join_cells(iter(heads)), " ".join(rules)]


def _column_head(column: Column, width: int) -> str:
    shown = [_escape_latex(line) for line in _head_lines(column, width)]
    stacked = r" \\ ".join(shown)
    return shown[0] if len(shown) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _head_lines(column: Column, width: int) -> list[str]:
    return wrap_line(escape_controls(column.name), width) if column.numeric else [column.name]


def _latex_value(cell: Cell) -> str:
    shown = _escape_latex(cell.text)
    if cell.emphasis in ("best", "total") and shown:
        shown = rf"\textbf{{{shown}}}"
    return shown + (rf"\textsuperscript{{{_escape_latex(cell.mark)}}}" if cell.mark else "")


def _latex_cell(cell: Cell, detail: str) -> str:
    shown = _latex_value(cell)
    return rf"{shown} {{{detail} ({_escape_latex(cell.below)})}}" if cell.below else shown


# How wide a table is


def _fit_table(table: Table, stacked: bool) -> _Fit:
    for fit in _possible_fits(stacked):
        if sum(_column_widths(table, fit)) <= (PAGE_PT if fit.wide else COLUMN_PT):
            return fit
    wrapped = _wrap_columns(table, fit)
    return wrapped if wrapped.fits else _wrap_columns(table, replace(fit, size=_SIZES[-1]))


def _possible_fits(stacked: bool) -> Iterator[_Fit]:
    widest, *narrower = _HEAD_WIDTHS
    for size, gap_pt in product(_SIZES[:3], _GAPS_PT[:2]):
        yield _Fit(False, size, gap_pt, stacked, widest)
    for is_stacked in dict.fromkeys((stacked, True)):
        for size, gap_pt in product(_SIZES[:4], _GAPS_PT[:2]):
            yield _Fit(True, size, gap_pt, is_stacked, widest)
        for width in narrower:
            yield _Fit(True, _SIZES[3], _GAPS_PT[-1], is_stacked, width)


def _wrap_columns(table: Table, fit: _Fit) -> _Fit:
    """Return the fit with the widest columns of text wrapped to equal widths, so that the others keep theirs."""
    widths = _column_widths(table, fit)
    texts = [k for k, column in enumerate(table.columns) if not column.numeric]
    room = PAGE_PT - sum(width for k, width in enumerate(widths) if k not in texts)
    wrapped = sorted(texts, key=lambda k: widths[k])
    while wrapped and widths[wrapped[0]] <= room / len(wrapped):
        room -= widths[wrapped.pop(0)]
    share = room / max(len(wrapped), 1) - 2 * fit.gap_pt
    fits = share >= _LEAST_PT if wrapped else room >= 0
    return replace(fit, wrapped_pt=dict.fromkeys(wrapped, max(share, _LEAST_PT)), fits=fits)


def _column_widths(table: Table, fit: _Fit) -> list[float]:
    """Return the estimated width of each column in points, the space beside it included, before any wrapping."""
    widths = [
        2 * fit.gap_pt
        + max(
            [
                fit.size.points * _text_width(_head_lines(column, fit.head_width)),
                *(_cell_width(row[k], fit.size, fit.stacked) for row in table.rows),
            ]
        )
        for k, column in enumerate(table.columns)
    ]
    start = 0
    for group, count in group_spans(table.columns):
        heading = 2 * fit.gap_pt + fit.size.points * _text_width([group])
        widths[start + count - 1] += max(0.0, heading - sum(widths[start : start + count]))
        start += count
    return widths


def _cell_width(cell: Cell, size: _TypeSize, stacked: bool) -> float:
    bold = 1.15 if cell.emphasis in ("best", "total") else 1.0
    value = size.points * (bold * _text_width([cell.text]) + (0.4 if cell.mark else 0.0))
    if not cell.below:
        return value
    detail = size.detail_points * _text_width([cell.below])
    return max(value, detail) if stacked else value + detail + 0.33 * size.points + 0.8 * size.detail_points


def _text_width(lines: Iterable[str]) -> float:
    return max((sum(_character_width(character) for character in line) for line in lines), default=0.0)


def _character_width(character: str) -> float:
    if character in ".,:;'il|!()[]- ":
        return 0.39 if character in "()" else 0.34
    return 0.8 if character.isupper() or character in "mw%_—≥≤±×" else 0.53


# Characters


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "*": "{*}",  # \\* is a command of its own, even across lines
    "[": "{[}",
    "]": "{]}",
    "—": "---",
    "–": "--",
    "†": r"\dag{}",
    "×": r"$\times$",
    "°": r"$^\circ$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "²": r"$^2$",
    "³": r"$^3$",
    "·": r"$\cdot$",
    "\N{NO-BREAK SPACE}": "~",
    "\N{SOFT HYPHEN}": "{}",
}
_CAPITALS = ("GAMMA", "DELTA", "THETA", "LAMDA", "XI", "PI", "SIGMA", "UPSILON", "PHI", "PSI", "OMEGA")


def _escape_latex(text: str) -> str:
    # Two hyphens in a row are a dash to TeX.
    return "".join(
        _escape_character(character) for character in re.sub("-(?=-)", "-\N{SOFT HYPHEN}", escape_controls(text))
    )


def _escape_character(character: str) -> str:
    if character in "&%$#_{}":
        return f"\\{character}"
    if character in _SPECIAL or character.isascii():
        return _SPECIAL.get(character, character)
    return _greek_command(character) or character


def _greek_command(character: str) -> str:
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, ""))
    if match is None or match[2] in ("OMICRON", "FINAL") or (match[1] == "CAPITAL" and match[2] not in _CAPITALS):
        return ""
    name = {"LAMDA": "LAMBDA"}.get(match[2], match[2])
    return f"$\\{name.lower() if match[1] == 'SMALL' else name.title()}$"
