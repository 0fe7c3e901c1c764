"""What the gates said: as a table, and as JUnit XML for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from safevla_bench.gates import Checked, Outcome
from safevla_bench.report.tables import Cell, Column, Emphasis, Table
from safevla_bench.text.numbers import NONE, fixed, short, span
from safevla_bench.text.sanitize import inert


def table(found: Checked, remarks: Sequence[str] = ()) -> Table:
    """One row a scope and gate, and one for whatever was not scored."""
    level = "" if found.confidence is None else f"{short(100 * found.confidence)} %"
    columns = (
        Column("Policy", numeric=False),
        Column("Suite", numeric=False),
        Column("Gate", numeric=False),
        Column("n"),
        Column("Value"),
        *([Column(level)] if level else []),
        Column("Verdict", numeric=False),
        Column("Why", numeric=False),
    )
    rows = tuple(_row(one, bool(level)) for one in found.outcomes)
    return Table(
        title=f"Gates: {found.verdict}", columns=columns, rows=rows, notes=tuple(remarks), remarks=found.warnings
    )


def _row(one: Outcome, with_interval: bool) -> tuple[Cell, ...]:
    emphasis: Emphasis = "" if one.verdict == "passed" else "bad"
    interval = Cell(NONE) if one.ci is None else Cell(span(*one.ci, digits=3))
    return (
        Cell(one.policy or "all"),
        Cell(one.suite or "all"),
        Cell(_name(one)),
        Cell(str(one.n), one.n),
        Cell(NONE) if one.value is None else Cell(fixed(one.value, 3), one.value),
        *([interval] if with_interval else []),
        Cell(one.verdict, emphasis=emphasis),
        Cell(one.reason),
    )


def _name(one: Outcome) -> str:
    return "every planned episode scored" if one.gate is None else one.gate.name


def junit(found: Checked, judged_by: str = "") -> bytes:
    """JUnit XML: a test case an outcome; a failed gate is a failure, an undecided one an error.

    With what was judged is a property of the suite.

    No times, so that the same run gives the same bytes.
    """
    count = {verdict: sum(one.verdict == verdict for one in found.outcomes) for verdict in ("failed", "undecided")}
    totals = {
        "tests": str(len(found.outcomes)),
        "failures": str(count["failed"]),
        "errors": str(count["undecided"]),
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", {"name": "safevla gate", **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "safevla gate", **totals})
    told = [("judged_by", judged_by)] if judged_by else []
    told += [("warning", warning) for warning in found.warnings]
    if told:
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in told:
            ElementTree.SubElement(properties, "property", {"name": name, "value": inert(value)})
    for one in found.outcomes:
        where = f"{one.policy or 'all'} / {one.suite or 'all'}"
        case = ElementTree.SubElement(suite, "testcase", {"classname": inert(where), "name": inert(_name(one))})
        if one.verdict != "passed":
            kind = "failure" if one.verdict == "failed" else "error"
            said = inert(_said(one))
            ElementTree.SubElement(case, kind, {"type": one.verdict, "message": said}).text = said
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _said(one: Outcome) -> str:
    value = "" if one.value is None else f"{fixed(one.value, 3)} over {one.n} episodes"
    interval = "" if one.ci is None else f", interval {span(*one.ci, digits=3)}"
    return f"{value}{interval}: {one.reason}" if value else one.reason
