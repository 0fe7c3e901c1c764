"""Writes what a run's replays under varied physics say into docs/firmness.md: python docs/tools/firmness.py RUN

RUN holds the replays, which `safevla sensitivity RUN --physics` makes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from made_page import format_table

from safevla_bench.jobs.evaluation.judgement import find_rules, judge
from safevla_bench.report.tables.firmness import describe_firmness, firmness_tables
from safevla_bench.report.tables.table import Table
from safevla_bench.sensitivity.firmness import PhysicsFile

PAGE = Path(__file__).parents[1] / "firmness.md"
MADE = re.compile(r"(<!-- firmness: begin -->\n).*(<!-- firmness: end -->)", re.DOTALL)
LEFT_OUT = {"Change", "Failed", "Flips %", "ρ spread, median"}
"""Columns that `safevla sensitivity` shows and the page does not."""


def build_page(run: Path) -> str:
    """The page with the answer and the tables of a run."""
    file = PhysicsFile.read(run)
    if file is None:
        sys.exit(f"{run} holds no replays: safevla sensitivity {run} --physics")
    specs = judge([run], find_rules([run])).scores.specs
    (clauses, *_), (_, variations, *_) = (firmness_tables(file, specs, full=full) for full in (False, True))
    versions = ", ".join(f"{name} {version}" for name, version in file.versions.items())
    answer = "\n".join(f"- {line}" for line in describe_firmness(file.episodes()).split("\n"))
    made = f"{versions}.\n\n{answer}\n\n{format_shown(variations)}\n\n{format_shown(clauses)}\n"
    return MADE.sub(lambda found: found[1] + made + found[2], PAGE.read_text(encoding="utf-8"))


def format_shown(table: Table) -> str:
    """Return a table in Markdown, without the columns that the page leaves out."""
    shown = [k for k, column in enumerate(table.columns) if column.name not in LEFT_OUT]
    rows = [[row[k].text for k in shown] for row in table.rows]
    return format_table([table.columns[k].name for k in shown], rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    PAGE.write_text(build_page(Path(sys.argv[1])), encoding="utf-8")
