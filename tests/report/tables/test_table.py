"""Tables as values."""

from __future__ import annotations

import pytest

from report.scenes import joined, verdicts
from safevla_bench.metrics import cells
from safevla_bench.report.tables import (
    Roster,
    constraint_table,
    drop_intervals,
    severity_table,
    suite_table,
)

GOOD, BAD, FAILED = (True, 1, 1), (True, -5, 1), (False, 1, 1)


def two_suites():
    return joined(
        verdicts(GOOD, BAD, suite="libero-goal"),
        verdicts(GOOD, GOOD, GOOD, FAILED, suite="libero-10"),
        verdicts(BAD, BAD, policy="b", suite="libero-goal"),
        verdicts(FAILED, policy="b", suite="libero-10"),
    )


@pytest.mark.parametrize("build", [suite_table, severity_table, constraint_table])
def test_without_intervals_the_values_and_reasons_stay(build):
    full = build(cells(two_suites()), Roster())
    bare = drop_intervals(full)
    assert [[cell.text for cell in row] for row in bare.rows] == [[cell.text for cell in row] for row in full.rows]
    assert not any(cell.interval for row in bare.rows for cell in row)
    assert not any("interval" in note for note in bare.notes)
