"""Gate outcomes as a table, and as JUnit XML for continuous integration."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from safevla_bench.judging.gates import GateOutcome, GateReport
from safevla_bench.report.tables.table import COUNT, Cell, Column, Table, tabulate, text_column
from safevla_bench.text import NO_VALUE, escape_controls, format_compact, format_fixed, format_interval


def gate_table(checked: GateReport, remarks: Sequence[str] = ()) -> Table:
    """Return the table of a row per gate outcome, in the report's order, with `checked.verdict` in the title.

    A column of intervals is there if the report has a confidence per gate. `remarks` are added to the notes.
    """
    level = "" if checked.each_confidence is None else f"{format_compact(round(100 * checked.each_confidence, 2))} %"
    columns = (*_OUTCOMES[:5], Column(level, value=_interval_cell) if level else None, *_OUTCOMES[5:])
    notes = (*checked.notes, *remarks)
    return tabulate(f"Gates: {checked.verdict}", checked.outcomes, columns, notes=notes, remarks=checked.warnings)


def _interval_cell(row: GateOutcome) -> str:
    return NO_VALUE if row.ci is None else format_interval(*row.ci, digits=3)


def _value_cell(row: GateOutcome) -> Cell:
    return Cell(NO_VALUE) if row.value is None else Cell(format_fixed(row.value, 3), row.value)


_OUTCOMES = (
    text_column("Policy", lambda row: row.policy or "all"),
    text_column("Suite", lambda row: row.suite or "all"),
    text_column("Gate", lambda row: _gate_name(row)),
    COUNT,
    Column("Value", value=_value_cell),
    text_column("Verdict", lambda row: Cell(row.verdict, emphasis="" if row.verdict == "passed" else "bad")),
    text_column("Why", lambda row: row.reason),
)


def _gate_name(outcome: GateOutcome) -> str:
    return "every planned episode scored" if outcome.gate is None else outcome.gate.name


def format_junit(checked: GateReport, judged_by: str = "") -> bytes:
    """Return JUnit XML with a test case per outcome: a failed gate is a failure, an undecided gate an error.

    `judged_by`, if given, and the report's warnings and notes are properties of the suite. No times are written, so
    that the same report gives the same bytes.
    """
    verdicts = [outcome.verdict for outcome in checked.outcomes]
    totals = {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count("failed")),
        "errors": str(verdicts.count("undecided")),
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", {"name": "safevla gate", **totals})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "safevla gate", **totals})
    property_values = [("judged_by", judged_by)] if judged_by else []
    property_values += [("warning", warning) for warning in checked.warnings]
    property_values += [("note", note) for note in checked.notes]
    if property_values:
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in property_values:
            ElementTree.SubElement(properties, "property", {"name": name, "value": escape_controls(value)})
    for outcome in checked.outcomes:
        where = escape_controls(f"{outcome.policy or 'all'} / {outcome.suite or 'all'}")
        name = escape_controls(_gate_name(outcome))
        case = ElementTree.SubElement(suite, "testcase", {"classname": where, "name": name})
        if outcome.verdict != "passed":
            kind = "failure" if outcome.verdict == "failed" else "error"
            message = escape_controls(_outcome_message(outcome))
            ElementTree.SubElement(case, kind, {"type": outcome.verdict, "message": message}).text = message
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _outcome_message(outcome: GateOutcome) -> str:
    value = "" if outcome.value is None else f"{format_fixed(outcome.value, 3)} over {outcome.n} episodes"
    interval = "" if outcome.ci is None else f", interval {format_interval(*outcome.ci, digits=3)}"
    return f"{value}{interval}: {outcome.reason}" if value else outcome.reason
