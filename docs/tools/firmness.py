"""Writes what a run's replays under varied physics say into docs/firmness.md: python docs/tools/firmness.py RUN

RUN holds the replays, which `safevla sensitivity RUN --physics` makes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from safevla_bench.jobs.evaluation.judgement import find_rules, judge
from safevla_bench.report.render import render_tables
from safevla_bench.report.tables.firmness import describe_firmness, firmness_tables
from safevla_bench.sensitivity.firmness import PhysicsFile

PAGE = Path(__file__).parents[1] / "firmness.md"
MADE = re.compile(r"(<!-- firmness: begin -->\n).*(<!-- firmness: end -->)", re.DOTALL)


def build_page(run: Path) -> str:
    """The page with the answer and the tables of a run."""
    file = PhysicsFile.read(run)
    if file is None:
        sys.exit(f"{run} holds no replays: safevla sensitivity {run} --physics")
    specs = judge([run], find_rules([run])).scores.specs
    pooled, by_suite = (firmness_tables(file, specs, full=full) for full in (False, True))
    versions = ", ".join(f"{name} {version}" for name, version in file.versions.items())
    answer = "\n".join(f"- {line}" for line in describe_firmness(file.episodes()).split("\n"))
    tables = render_tables([by_suite[1], pooled[0], by_suite[0]], "md")
    made = f"{versions}.\n\n{answer}\n\n{tables}"
    return MADE.sub(lambda found: found[1] + made + found[2], PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    PAGE.write_text(build_page(Path(sys.argv[1])), encoding="utf-8")
