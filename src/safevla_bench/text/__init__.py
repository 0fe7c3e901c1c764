"""Tables as HTML fragments, for values that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from safevla_bench.text.sanitize import escape_controls


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", notes: Sequence[str] = ()
) -> str:
    """Return a `<table>` with every text escaped, and its notes as paragraphs below it.

    >>> html_table(["policy"], [["<b>"]])
    '<table><thead><tr><th>policy</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    title = f"<caption>{_escape_text(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{_escape_text(name)}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_escape_text(text)}</td>' for text in row)}</tr>" for row in rows)
    below = "".join(f"<p>{_escape_text(note)}</p>" for note in notes if note)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _escape_text(text: str) -> str:
    return escape(escape_controls(text))
