"""Tables as values: each builder turns summaries into a `Table`, which `render` and the page print."""

from __future__ import annotations

from safevla_bench.report.tables.cells import Roster, headline_table, violation_table
from safevla_bench.report.tables.notices import exclusion_table
from safevla_bench.report.tables.suites import auxiliary_table, severity_table, suite_table
from safevla_bench.report.tables.table import (
    UNNAMED,
    Cell,
    Column,
    Emphasis,
    Table,
    drop_intervals,
    has_column,
    mean_cell,
    policy_name,
    rate_cell,
    select_columns,
)
from safevla_bench.report.tables.tasks import active_spec_table, applicability_table, task_table
from safevla_bench.report.tables.violations import composition_table, constraint_table

__all__ = [
    "UNNAMED",
    "Cell",
    "Column",
    "Emphasis",
    "Roster",
    "Table",
    "active_spec_table",
    "applicability_table",
    "auxiliary_table",
    "composition_table",
    "constraint_table",
    "drop_intervals",
    "exclusion_table",
    "has_column",
    "headline_table",
    "mean_cell",
    "policy_name",
    "rate_cell",
    "select_columns",
    "severity_table",
    "suite_table",
    "task_table",
    "violation_table",
]
