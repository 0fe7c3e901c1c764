"""Tables as LaTeX, for a document that loads `booktabs`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

from safevla_bench.report.render.text import wrap_line
from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.text.sanitize import escape_controls

_MAX_HEAD_WIDTH = 14
"""Longest line of a heading over numbers, in characters."""


def render_latex(table: Table) -> str:
    """Return a `table` environment with its caption and notes; the document must load `booktabs`.

    Letters outside Latin and Greek need XeLaTeX or LuaLaTeX.
    """
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}",
        r"\toprule",
        *_group_lines(table.columns),
        _join_cells(_column_head(column) for column in table.columns),
        r"\midrule",
        *(_join_cells(_latex_cell(cell) for cell in row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip {{\footnotesize {_escape_latex(note)}}}" for note in table.footnotes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _join_cells(cells: Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"


def _group_lines(columns: Sequence[Column]) -> list[str]:
    """Return the line of group names above the headings and the rules below it; empty without groups."""
    spans = [
        (group, len(list(group_columns))) for group, group_columns in groupby(columns, key=lambda column: column.group)
    ]
    if not any(group for group, _ in spans):
        return []
    heads, rules, position = [], [], 1
    for group, count in spans:
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{_escape_latex(group)}}}" if group else " & ".join([""] * count))
        rules += [rf"\cmidrule(lr){{{position}-{position + count - 1}}}"] if group else []
        position += count
    return [_join_cells(iter(heads)), " ".join(rules)]


def _column_head(column: Column) -> str:
    lines = wrap_line(escape_controls(column.name), _MAX_HEAD_WIDTH) if column.numeric else [column.name]
    shown = [_escape_latex(line) for line in lines]
    stacked = r" \\ ".join(shown)
    return shown[0] if len(shown) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _latex_cell(cell: Cell) -> str:
    shown = _escape_latex(cell.text)
    if cell.emphasis in ("best", "total") and shown:
        shown = rf"\textbf{{{shown}}}"
    shown += rf"\textsuperscript{{{_escape_latex(cell.mark)}}}" if cell.mark else ""
    return rf"{shown} {{\scriptsize ({_escape_latex(cell.below)})}}" if cell.below else shown


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
    """Return the LaTeX command of a Greek letter without accents; empty for all other characters."""
    match = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, ""))
    if match is None or match[2] in ("OMICRON", "FINAL") or (match[1] == "CAPITAL" and match[2] not in _CAPITALS):
        return ""
    name = {"LAMDA": "LAMBDA"}.get(match[2], match[2])
    return f"$\\{name.lower() if match[1] == 'SMALL' else name.title()}$"
