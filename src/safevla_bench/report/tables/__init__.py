"""Tables as values: each builder turns summaries into a `Table`, which `render` and the page print."""

from __future__ import annotations

from safevla_bench.report.tables.cells import main, violations
from safevla_bench.report.tables.leftout import unscored
from safevla_bench.report.tables.table import (
    UNNAMED,
    Cell,
    Column,
    Emphasis,
    Table,
    mean,
    policy_name,
    proportion,
    without_intervals,
)

__all__ = [
    "UNNAMED",
    "Cell",
    "Column",
    "Emphasis",
    "Table",
    "main",
    "mean",
    "policy_name",
    "proportion",
    "unscored",
    "violations",
    "without_intervals",
]
