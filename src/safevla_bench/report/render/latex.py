"""Tables as LaTeX, for a document that loads `booktabs`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

from safevla_bench.report.render.text import wrap
from safevla_bench.report.tables import Cell, Column, Table
from safevla_bench.text.sanitize import inert

_WIDEST = 14
"""Characters of a heading over numbers before it is broken into lines."""


def tex(table: Table) -> str:
    """A `table` environment with its caption and notes; needs `booktabs` and nothing else.

    Letters outside Latin and Greek need XeLaTeX or LuaLaTeX.
    """
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(table.title)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if column.numeric else 'l' for column in table.columns)}}}",
        r"\toprule",
        *_groups(table.columns),
        _row(_head(column) for column in table.columns),
        r"\midrule",
        *(_row(_cell(cell) for cell in row) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\smallskip {{\footnotesize {_escaped(note)}}}" for note in table.said),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"


def _groups(columns: Sequence[Column]) -> list[str]:
    """The line of headings above the headings, and a rule below each; nothing where there are no groups."""
    spans = [(group, len(list(those))) for group, those in groupby(columns, key=lambda column: column.group)]
    if not any(group for group, _ in spans):
        return []
    heads, rules, at = [], [], 1
    for group, many in spans:
        heads.append(rf"\multicolumn{{{many}}}{{c}}{{{_escaped(group)}}}" if group else " & ".join([""] * many))
        rules += [rf"\cmidrule(lr){{{at}-{at + many - 1}}}"] if group else []
        at += many
    return [_row(iter(heads)), " ".join(rules)]


def _head(column: Column) -> str:
    lines = wrap(inert(column.name), _WIDEST) if column.numeric else [column.name]
    shown = [_escaped(line) for line in lines]
    stacked = r" \\ ".join(shown)
    return shown[0] if len(shown) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _cell(cell: Cell) -> str:
    shown = _escaped(cell.text)
    if cell.emphasis in ("best", "total") and shown:
        shown = rf"\textbf{{{shown}}}"
    shown += rf"\textsuperscript{{{_escaped(cell.mark)}}}" if cell.mark else ""
    return rf"{shown} {{\scriptsize ({_escaped(cell.detail)})}}" if cell.detail else shown


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


def _escaped(text: str) -> str:
    # Two hyphens in a row are a dash to TeX.
    return "".join(_character(c) for c in re.sub("-(?=-)", "-\N{SOFT HYPHEN}", inert(text)))


def _character(c: str) -> str:
    if c in "&%$#_{}":
        return f"\\{c}"
    if c in _SPECIAL or c.isascii():
        return _SPECIAL.get(c, c)
    return _greek(c) or c


def _greek(c: str) -> str:
    """The command of a plain Greek letter; empty for all else."""
    found = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(c, ""))
    if found is None or found[2] in ("OMICRON", "FINAL") or (found[1] == "CAPITAL" and found[2] not in _CAPITALS):
        return ""
    name = {"LAMDA": "LAMBDA"}.get(found[2], found[2])
    return f"$\\{name.lower() if found[1] == 'SMALL' else name.title()}$"
