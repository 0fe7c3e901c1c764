"""Gate outcomes as a table."""

from __future__ import annotations

from safevla_bench import gates
from safevla_bench.report.tables import gates as gating
from safevla_bench.text.numbers import NO_VALUE


def test_a_gate_of_what_was_not_scored_has_no_value():
    lost = gates.GateOutcome(policy=None, suite=None, gate=None, verdict="undecided", reason="crashed", n=2)
    table = gating.gate_table(gates.GateReport(verdict="undecided", per="all", confidence=None, outcomes=(lost,)))
    assert [cell.text for cell in table.rows[0]] == [
        "all",
        "all",
        "every planned episode scored",
        "2",
        NO_VALUE,
        "undecided",
        "crashed",
    ]
