"""Tables in every form: escaped for it, with the marks of the table and no others, exact where programs read."""

from __future__ import annotations

import csv as reader
import io
import json as parser
import re
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from report.scenes import joined, verdicts
from safevla_bench.errors import RunError
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.report.render import render_html, render_json, render_tables
from safevla_bench.report.render.latex import render_latex
from safevla_bench.report.render.text import render_csv, render_markdown, render_text
from safevla_bench.report.tables.cells import Roster, headline_table, suite_table
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.text import NO_VALUE, escape_controls

HOSTILE = '=cmd|"/C calc"!A0\x1b[31m\x9b\ud800<script>alert(1)</script>&%$#_{}~^\\|\u202e'
MARKED = Table(
    "A title",
    (Column("Name", numeric=False), Column("Value %", group="Group"), Column("n", group="Group")),
    (
        (
            Cell("a|b", detail="privileged state"),
            Cell("83.5", 83.5, "77.7–88.0", "best", interval=(77.7, 88.0)),
            Cell("3", 3),
        ),
        (Cell("-1+1"), Cell("-2.0", -2.0, "-3.0–1.0", mark="†", interval=(-3.0, 1.0)), Cell("4", 4)),
        (Cell("c"), Cell(NO_VALUE, detail="no success"), Cell("0", 0)),
    ),
    ("A note.",),
)


def single(name: str, value: str = "x") -> Table:
    return Table("t", (Column(name, numeric=False), Column("v")), ((Cell(value), Cell("1", 1)),), (value,))


def rows(printed: str) -> list[list[str]]:
    return list(reader.reader(io.StringIO(printed)))


def test_csv_numbers_are_exact_and_have_their_ends_beside_them():
    head, *body = rows(render_csv(MARKED))
    assert head == [
        "Name",
        "Name note",
        "Group Value %",
        "Group Value % low",
        "Group Value % high",
        "Group Value % note",
        "Group n",
    ]
    assert body[0] == ["a|b", "privileged state", "83.5", "77.7", "88.0", "", "3"]
    assert body[1] == ["'-1+1", "", "-2.0", "-3.0", "1.0", "", "4"]
    assert body[2] == ["c", "", "", "", "", "no success", "0"]


@pytest.mark.parametrize("start", list("=+-@") + ["\t", "\r"])
def test_csv_text_is_not_a_formula(start):
    ((head, _), (value, _)) = rows(render_csv(single(start + "SUM(A1)", start + "1+1")))
    assert not head.startswith(tuple("=+-@\t\r"))
    assert not value.startswith(tuple("=+-@\t\r"))


class Page(HTMLParser):
    """The tags of a page and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def test_html_escapes_everything_and_fetches_nothing():
    page = Page(render_html([single(HOSTILE, HOSTILE)], HOSTILE))
    assert "script" not in page.tags
    assert not {"link", "img", "iframe"} & set(page.tags)
    assert "<script>alert(1)</script>" in re.sub("\n", "", "".join(page.texts))


def test_html_shows_groups_marks_and_details():
    page = render_html([MARKED])
    assert '<th scope="colgroup" role="columnheader" colspan="2">Group</th>' in page
    assert re.search(r'class="number best">83\.5 ?<span class="detail">77\.7–88\.0', page)
    assert "<span>-2.0<sup>†</sup></span>" in page
    assert "no success" in page
    assert "A note." in page


def balanced(printed: str) -> bool:
    """No brace is open at the end of a line, but that of the shrunken table."""
    bare = re.sub(r"\\[\\{}]", "", printed.replace("{!}{", "{!}").replace(r"{tabular}}", "{tabular}"))
    return all(line.count("{") == line.count("}") for line in bare.splitlines())


def cells_in(line: str) -> int:
    spans = [int(width) for width in re.findall(r"\\multicolumn\{(\d+)\}", line)]
    return len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans)


@pytest.mark.parametrize("table", [MARKED, single(HOSTILE, HOSTILE)])
def test_tex_is_balanced_and_every_row_has_all_cells(table):
    printed = render_latex(table)
    assert balanced(printed)
    inner = printed[printed.index("\\toprule") : printed.index("\\bottomrule")].splitlines()
    body = [line for line in inner if line.endswith("\\\\")]
    assert {cells_in(line) for line in body} == {len(table.columns)}
    assert printed.count("\\begin") == printed.count("\\end") == 2


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (
            r"a&b%c$d#e_f{g}h~i^j\k<l>m|n",
            r"a\&b\%c\$d\#e\_f\{g\}h\textasciitilde{}i\textasciicircum{}j\textbackslash{}k\textless{}l\textgreater{}"
            r"m\textbar{}n",
        ),
        ("*x", "{*}x"),  # \\* is a command of its own
        ("[1cm]", "{[}1cm{]}"),
        ('a--b---c"', r"a-{}-b-{}-{}-c{\char34}"),
        ("π0.5 Σ ρ 15° 2×3 — – †", r"$\pi$0.5 $\Sigma$ $\rho$ 15$^\circ$ 2$\times$3 --- -- \dag{}"),
    ],
)
def test_tex_takes_no_name_for_a_command(text, escaped):
    printed = render_latex(single("h", text))
    assert f"\n{escaped} & 1 \\\\\n" in printed
    assert printed.isascii()


def test_tex_shows_groups_with_rules_below_them():
    printed = render_latex(MARKED)
    assert r" & \multicolumn{2}{c}{Group} \\" in printed
    assert r"\cmidrule(lr){2-3}" in printed
    assert r"\textbf{83.5} {\scriptsize (77.7--88.0)}" in printed
    assert r"-2.0\textsuperscript{\dag{}}" in printed


def test_markdown_shows_the_marks_and_escapes_pipes():
    printed = render_markdown(MARKED)
    assert r"| a\|b (privileged state) | **83.5** (77.7–88.0) | 3 |" in printed
    assert "| -2.0† (-3.0–1.0) |" in printed
    assert "| Name | Group Value % | Group n |" in printed


def test_text_marks_the_best_and_puts_groups_above():
    lines = render_text(MARKED, 100).splitlines()
    assert "*83.5*" in "\n".join(lines)
    assert "-2.0†" in "\n".join(lines)
    assert lines[2].split() == ["Group", "Group"]
    assert lines[3].split() == ["Name", "Value", "%", "n"]


def test_text_wraps_long_headings_of_numbers_between_words():
    columns = (
        Column("x", numeric=False),
        Column("p in a_long_specification_name", group="One two three four five six"),
    )
    lines = render_text(Table("t", columns, ((Cell("a"), Cell("1", 1)),)), 200).splitlines()
    assert [line[1:].strip() for line in lines[2:6]] == [
        "One two three four five",
        "six",
        "p in",
        "a_long_specification_name",
    ]


@pytest.mark.parametrize("form", ["text", "md", "tex", "html"])
def test_a_note_is_stated_once_in_a_document_and_a_warning_with_each_table(form):
    column, row = Column("A", value=None), (Cell("1"),)
    remarks = ("warned", "Judged by me.")
    tables = [Table(title, (column,), (row,), notes=("shared", title), remarks=remarks) for title in ("b1", "b2")]
    shown = render_tables(tables, form)
    assert (shown.count("shared"), shown.count("warned")) == (1, 2)
    assert shown.count("Judged by me.") == (2 if form == "tex" else 1)
    assert render_tables(tables, "json").count("shared") == 2


def test_an_unknown_format_is_refused_with_the_formats():
    with pytest.raises(RunError, match="format is 'pdf'"):
        render_tables([], "pdf")


def test_json_holds_all_of_a_table():
    (table,) = parser.loads(render_json([MARKED]))
    assert table["rows"][0][1] == {
        "text": "83.5",
        "value": 83.5,
        "detail": "77.7–88.0",
        "emphasis": "best",
        "mark": "",
        "of": None,
        "interval": [77.7, 88.0],
    }
    assert table["rows"][2][1]["value"] is None
    assert table["columns"][1]["group"] == "Group"


@pytest.mark.parametrize("form", ["text", "md", "csv", "tex", "json", "html"])
def test_every_form_has_the_same_bytes_each_time_and_no_control_characters(form):
    scores = joined(verdicts((True, 1, 1)), verdicts((True, -5, 1), policy=HOSTILE))
    table = suite_table(cells(scores), Roster())
    printed = render_tables([table], form)
    assert printed == render_tables([table], form)
    assert not set(printed) & set("\x1b\x07\u202e\x9b\ud800")
    assert "\\x1b" in printed.replace("\\\\", "\\").replace("\n", "") or form in ("tex", "html", "json")


# Layout of text and Markdown


def headline_of(*names: str) -> Table:
    scores = joined(*(verdicts((True, 1, 1), (False, -5, 1), policy=name) for name in names))
    return headline_table(cells(scores), aggregate(scores))


def test_columns_are_aligned_and_numbers_stand_at_the_right():
    lines = render_text(headline_of("short", "a-longer-name"), width=200).splitlines()
    head, rule = lines[2], lines[3]
    rows = [line for line in lines if line.startswith(("short", "a-longer-name"))]
    ends = [match.end() for match in re.finditer("-+", rule)]
    assert len(rows) == 2
    assert head.index("Suite") == rule.index(" -") + 1
    assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in [head, *rows] for end in ends[2:])


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_a_table_too_wide_becomes_several_that_repeat_the_columns_naming_the_rows(width):
    """Names and numbers are never split: split names could not be copied, and split numbers would be wrong."""
    ids = [f"libero-object/task_{k}/ep_000" for k in range(3)]
    columns = (Column("#", numeric=False), Column("Episode", numeric=False), *(Column(f"m_{k}") for k in range(9)))
    rows = tuple(
        (Cell(f":{n}"), Cell(name), *[Cell(f"{k}5.00")] * 9) for n, (k, name) in enumerate(zip("123", ids, strict=True))
    )
    parts = render_text(Table("t", columns, rows), width).split("\n\n")[1:]
    assert all(re.findall(r"^:\d", part, re.M) == [":0", ":1", ":2"] for part in parts)
    assert all(name in parts[0] for name in ids)
    assert max(cell_len(line) for part in parts for line in part.splitlines()) <= max(width, 3 + len(ids[0]))
    assert re.findall(r"m_\d", "".join(parts)) == [f"m_{k}" for k in range(9)]
    assert "".join(parts).count("15.00") == 9


def test_rows_that_only_two_columns_tell_apart_are_named_by_both_in_each_part():
    columns = (Column("Policy", numeric=False), Column("Suite", numeric=False), Column("A"), Column("B"))
    rows = tuple((Cell("p"), Cell(suite), Cell("1" * 14), Cell("2" * 14)) for suite in ("s", "t"))
    printed = render_text(Table("t", columns, rows), 28)
    assert len(re.findall(r"^p +[st]", printed, re.M)) == 4


def test_only_texts_of_several_words_are_wrapped():
    row = (Cell("a-name-of-twenty-two-c"), Cell("a sentence of more words than fit in this line"))
    printed = render_text(Table("t", (Column("x", numeric=False), Column("y", numeric=False)), (row,)), 50)
    assert "a-name-of-twenty-two-c" in printed
    assert max(map(len, printed.splitlines())) <= 50


def test_a_narrow_terminal_cuts_nothing():
    printed = render_text(headline_of("policy-with-a-name"), width=20)
    assert "9.5–90.5" in printed
    assert "…" not in printed


def test_wide_characters_are_measured_as_the_terminal_does():
    printed = render_text(headline_of("日本語の方策", "b"), width=200).splitlines()
    starts = {cell_len(line[: line.index("libero-goal")]) for line in printed if "libero-goal" in line}
    assert len(starts) == 1


@given(st.text(max_size=40))
def test_inert_text_has_no_character_that_acts(name):
    escaped = escape_controls(name)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in escaped)
    assert not set(escaped) & set("\x1b\n\r\x07\u202e\u2066\u200b")
    escaped.encode()


def test_ordinary_text_stays_as_it_is():
    assert escape_controls("π0.5 – naïve 方策") == "π0.5 – naïve 方策"


def test_markdown_escapes_what_would_mark_up():
    printed = render_markdown(Table("t", (Column("a|b", numeric=False),), ((Cell("<img>|*x*_y_`z`[q](u)"),),)))
    (row,) = [line for line in printed.splitlines() if "img" in line]
    assert row == r"| \<img\>\|\*x\*\_y\_\`z\`\[q\](u) |"


@pytest.mark.parametrize("part", ["a@", "a@.", "a", " ", "\\|", ";", "/"])
def test_a_name_of_any_length_is_rendered_in_linear_time(part):
    """A quadratic pattern would take minutes, and the one for addresses was cubic."""
    table = Table("t", (Column("a", numeric=False),), ((Cell("x" + part * 60_000 + "x"),),))
    for render in (render_markdown, render_csv, render_text):
        assert "x" in render(table)
