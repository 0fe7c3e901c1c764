"""Tables for tests: those of the shipped archive, and those of the paper made from its counts."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from report.published.synthesis import episode_counts, synthesize_scores
from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation import judgement
from safevla_bench.jobs.evaluation.outputs import table_material
from safevla_bench.judging.metrics import cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report.published import PAPER, load_published
from safevla_bench.report.tables import catalog
from safevla_bench.report.tables.cells import Roster, auxiliary_table, constraint_table, suite_table
from safevla_bench.report.tables.columns import drop_intervals
from safevla_bench.report.tables.table import Table
from safevla_bench.specs.loader import load_library


def demo_tables(names: Sequence[str] = (), roster: Roster | None = None) -> list[Table]:
    """Return the named tables of the shipped archive, or all that it allows."""
    judge = load_ruleset()
    with tempfile.TemporaryDirectory() as folder:
        judged = judgement.judge([demo.unpack_archive(Path(folder) / "demo")], judge)
        material = table_material(judged)
        return catalog.build_tables(replace(material, roster=roster) if roster else material, names)


def paper_tables() -> list[Table]:
    """Return the tables of the paper that can be made from its counts."""
    axes = {spec.spec_id: spec.axis for spec in load_library().safe}
    counts = [count for count in map(episode_counts, load_published(PAPER).cells) if count is not None]
    summaries = cells(synthesize_scores(counts, axes))
    libero = [cell for cell in summaries if str(cell.suite).startswith("libero")]
    robocasa = [cell for cell in summaries if cell.suite == "robocasa-365"]
    roster = Roster(
        training={cell.policy: cell.training or "" for cell in load_published(PAPER).cells if cell.training}
    )
    tables = [suite_table(libero, roster, "LIBERO"), suite_table(robocasa, roster, "RoboCasa-365")]
    tables += [auxiliary_table(summaries, roster)]
    tables += [
        constraint_table(libero, roster, "LIBERO"),
        constraint_table(robocasa, roster, "RoboCasa-365"),
    ]
    return [drop_intervals(table) for table in tables]
