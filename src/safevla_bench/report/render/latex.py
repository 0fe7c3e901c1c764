"""Tables as LaTeX, for a document that loads `booktabs` and `graphicx`.

A table fills one column of a two-column page, or both columns (`table*`) if it is wide. A still wider table is shrunk.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from math import ceil

from safevla_bench.files import fill_template
from safevla_bench.report.tables.columns import drop_empty_columns
from safevla_bench.report.tables.table import Cell, Column, Table, group_spans
from safevla_bench.text import escape_controls, wrap_line

# Maximum length of a line in the heading of a numeric column, in characters.
_HEADING_WIDTH = 14
_NAME_PARTS = re.compile(r".*?(?:[:/_-]|\s+|$)").findall  # a heading may also break inside a name, after : / _ or -
# Maximum width of a table that fits into one column of a page without much shrinking, in characters.
_COLUMN_WIDTH = 50
# Maximum length of a text cell on one line, in characters; a column with a longer cell is wrapped.
_TEXT_WIDTH = 40
# Number of lines of rows and notes that fit on a page below the caption and the heading.
_PAGE_LINES = 36
# Maximum number of parts of a table (LaTeX floats) that LaTeX defers at the same time; older versions allow 18.
_WAITING_PARTS = 8


def render_latex(table: Table) -> str:
    r"""Return a `table` environment, or a `table*` for a wide table, with its caption and notes. A table that is longer
    than a page becomes several environments with the same table number.

    Columns without a value are left out. The document must load `booktabs` and `graphicx`. Letters outside Latin
    and Greek need XeLaTeX or LuaLaTeX.
    """
    table = drop_empty_columns(table)
    # `line_width` is the number of characters on a line of the whole page (80) or of one column of the page (40).
    environment, line_width = ("table*", 80) if _table_width(table) > _COLUMN_WIDTH else ("table", 40)
    # Text columns with a long text in any row are wrapped to 35 % of the line.
    text_columns = [k for k, column in enumerate(table.columns) if not column.numeric]
    wrapped_columns = [
        k for k in text_columns if any(max(len(row[k].text), len(row[k].below)) > _TEXT_WIDTH for row in table.rows)
    ]
    column_types = ["r" if column.numeric else "l" for column in table.columns]
    column_types = [r"p{0.35\linewidth}" if k in wrapped_columns else kind for k, kind in enumerate(column_types)]
    # The height of a row in lines is estimated from its longest wrapped text; it is at least 1.
    row_heights = [
        max([1, *(_count_lines(row[k].text + row[k].below, 0.4 * line_width) for k in wrapped_columns)])
        for row in table.rows
    ]
    row_lines = [
        _join_cells(_wrap_cell(_latex_cell(cell), k in wrapped_columns) for k, cell in enumerate(row))
        for row in table.rows
    ]
    # Each slice is one part of the table; all notes follow the last part.
    row_slices = _split_rows(row_heights, sum(_count_lines(note, line_width) for note in table.footnotes))
    # `waiting` is the largest number of parts (LaTeX floats) that LaTeX may defer at the same time.
    return fill_template(
        "safevla_bench.report",
        "templates/table.tex",
        filters={},
        parts=[row_lines[part] for part in row_slices],
        waiting=_WAITING_PARTS,
        environment=environment,
        title=_escape_latex(table.title),
        types="".join(column_types),
        heads=[*_group_heading_lines(table.columns), _join_cells(map(_column_heading, table.columns))],
        notes=list(map(_escape_latex, table.footnotes)),
    )


def _count_lines(text: str, width: float) -> int:
    # Return how many lines of `width` characters a text needs, at least approximately; 0 for an empty text.
    return ceil(len(text) / width)


def _split_rows(heights: Sequence[int], note_lines: int) -> list[slice]:
    # Divide rows with these heights [lines] into parts that fit on a page; return the slice of rows of each part.
    # The last part has room for `note_lines` lines.
    starts, used_lines = [0], 0
    for k, height in enumerate(heights):
        needed_lines = height + (note_lines if k == len(heights) - 1 else 0)
        if used_lines and used_lines + needed_lines > _PAGE_LINES:
            starts.append(k)
            used_lines = 0
        used_lines += height
    return list(map(slice, starts, [*starts[1:], len(heights)]))


def _table_width(table: Table) -> int:
    # Return the approximate width of the table in characters, with a gap of 2 between columns.
    # A cell shows its text and, on the same line, the details `below`. A text column counts as at most 40 characters.
    width = 0  # width of the columns so far, in characters
    for k, column in enumerate(table.columns):
        cell_lengths = [len(row[k].text) + len(row[k].below) for row in table.rows]
        longest = max([*cell_lengths, *map(len, _heading_lines(column))])
        width += 2 + (longest if column.numeric else min(longest, _TEXT_WIDTH))
    return width


def _wrap_cell(text: str, is_wrapped: bool) -> str:
    # Return LaTeX for a cell that may break at spaces and after underscores, without justification.
    # If the cell's column is not wrapped, or the cell is empty, return it unchanged.
    if not is_wrapped or not text:
        return text
    return rf"{{\raggedright {text.replace(_UNDERSCORE, _UNDERSCORE + _BREAK)}\par}}"


_UNDERSCORE, _BREAK = r"\_", r"\allowbreak{}"


def _join_cells(cells: Iterable[str]) -> str:
    # Return a row of a LaTeX table.
    return " & ".join(cells) + r" \\"


def _group_heading_lines(columns: Sequence[Column]) -> list[str]:
    # Return the two lines above the columns' names; [] if no column belongs to a group.
    spans = group_spans(columns)
    if not any(group for group, _ in spans):
        return []
    # One line contains the groups' names, and the next line contains horizontal rules. LaTeX counts columns from 1.
    headings, rules, first_column = [], [], 1
    for group, count in spans:
        empty_cells = " & ".join([""] * count)  # the empty headings of columns without a group
        headings.append(rf"\multicolumn{{{count}}}{{c}}{{{_escape_latex(group)}}}" if group else empty_cells)
        if group:
            rules.append(rf"\cmidrule(lr){{{first_column}-{first_column + count - 1}}}")
        first_column += count
    return [_join_cells(headings), " ".join(rules)]


def _column_heading(column: Column) -> str:
    # Return the heading in LaTeX; several lines are stacked in one cell.
    lines = [_escape_latex(line) for line in _heading_lines(column)]
    stacked = r" \\ ".join(lines)
    return lines[0] if len(lines) == 1 else rf"\shortstack[r]{{{stacked}}}"


def _heading_lines(column: Column) -> list[str]:
    # Return the lines of the column's name; only the names of numeric columns are wrapped.
    return wrap_line(escape_controls(column.name), _HEADING_WIDTH, _NAME_PARTS) if column.numeric else [column.name]


def _latex_cell(cell: Cell) -> str:
    # Return the cell in LaTeX. The best value and totals are bold, and a mark (such as †) is a superscript.
    # Details (`below`, such as the interval) are in small print.
    shown = _escape_latex(cell.text)
    if cell.emphasis in ("best", "total") and shown:
        shown = rf"\textbf{{{shown}}}"
    if cell.mark:
        shown += rf"\textsuperscript{{{_escape_latex(cell.mark)}}}"
    return rf"{shown} {{\scriptsize ({_escape_latex(cell.below)})}}" if cell.below else shown


# LaTeX commands for characters


def _greek_command(letter: str) -> str:
    # Return the LaTeX command of a Greek letter, without the backslash, such as `alpha` or `Delta`.
    # The last word of a letter's Unicode name is its LaTeX command. Only lambda has another spelling in Unicode.
    name = unicodedata.name(letter).split()[-1].replace("LAMDA", "LAMBDA")
    return name.lower() if letter.islower() else name.title()


_TEXT_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_MATH_NAMES = {"×": "times", "≥": "geq", "≤": "leq", "±": "pm", "∞": "infty", "·": "cdot"}
_SPECIAL: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{letter: f"$\\{_greek_command(letter)}$" for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"},
    **{character: rf"\text{name}{{}}" for character, name in _TEXT_NAMES.items()},
    **{character: rf"$\{name}$" for character, name in _MATH_NAMES.items()},
    **{character: f"{{{character}}}" for character in "*[]"},  # after \\, LaTeX would read * or [ as an option
    '"': r"{\char34}",
    "—": "---",
    "–": "--",
    "†": r"\dag{}",
    "°": r"$^\circ$",
    "−": "$-$",
    "²": r"$^2$",
    "³": r"$^3$",
    "\N{NO-BREAK SPACE}": "~",
    "\N{SOFT HYPHEN}": "{}",
}


def _escape_latex(text: str) -> str:
    # Return the text with LaTeX commands instead of special characters, and with control characters escaped.
    # TeX would turn two consecutive hyphens into a dash, so a soft hyphen separates them; `_SPECIAL` makes it `{}`.
    return re.sub("-(?=-)", "-\N{SOFT HYPHEN}", escape_controls(text)).translate(str.maketrans(_SPECIAL))
