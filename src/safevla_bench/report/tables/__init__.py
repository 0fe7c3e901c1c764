"""Tables as values: each builder turns summaries into a `Table`, which `render` and the page print."""

from __future__ import annotations

from safevla_bench.report.tables.ablation import ablation
from safevla_bench.report.tables.cells import main, violations
from safevla_bench.report.tables.constraints import composition, constraints
from safevla_bench.report.tables.exclusions import Damage, unscored
from safevla_bench.report.tables.policy_list import Roster
from safevla_bench.report.tables.suites import auxiliary, severity, suites
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
from safevla_bench.report.tables.tasks import active_sets, tasks

__all__ = [
    "UNNAMED",
    "Cell",
    "Column",
    "Damage",
    "Emphasis",
    "Roster",
    "Table",
    "ablation",
    "active_sets",
    "auxiliary",
    "composition",
    "constraints",
    "main",
    "mean",
    "policy_name",
    "proportion",
    "severity",
    "suites",
    "tasks",
    "unscored",
    "violations",
    "without_intervals",
]
