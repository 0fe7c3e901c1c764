"""The golden files of tables. Write them anew, after a change that is meant to move them:

.venv/bin/python tests/report/golden_tables.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from safevla_bench import demo, evaluate
from safevla_bench.metrics import cells
from safevla_bench.report import tables
from safevla_bench.report.published import PAPER, counts, published
from safevla_bench.report.published.synthetic_scores import counted
from safevla_bench.report.render import Form, rendered
from safevla_bench.report.tables import catalog
from safevla_bench.specs import library

FOLDER = Path(__file__).parents[1] / "golden" / "tables"
DEMO: dict[str, Form] = {"demo.md": "md", "demo.tex": "tex", "demo.json": "json"}


def golden() -> Iterator[tuple[str, str]]:
    """Name and contents of each golden file."""
    found = demonstrated()
    for name, form in DEMO.items():
        yield name, rendered(found, form)
    for table in found:
        yield f"demo-{table.name}.csv", rendered([table], "csv")
    yield "paper.md", rendered(papers(), "md")


def demonstrated() -> list[tables.Table]:
    """Every table that the shipped archive allows."""
    judge = evaluate.Judge()
    with tempfile.TemporaryDirectory() as folder:
        judged = evaluate.judge([demo.unpack(Path(folder) / "demo")], judge)
        return catalog.build(evaluate.material(judged, judge))


def papers() -> list[tables.Table]:
    """The tables of the paper that its counts allow, made from them."""
    axes = {spec.spec_id: spec.axis for spec in library().safe}
    found = [one for one in map(counts, published(PAPER).cells) if one is not None]
    summaries = cells(counted(found, axes))
    libero = [cell for cell in summaries if str(cell.suite).startswith("libero")]
    robocasa = [cell for cell in summaries if cell.suite == "robocasa-365"]
    roster = tables.Roster(
        training={cell.policy: cell.training or "" for cell in published(PAPER).cells if cell.training}
    )
    made = [tables.suites(libero, roster, "LIBERO"), tables.suites(robocasa, roster, "RoboCasa-365")]
    made += [tables.auxiliary(summaries, roster)]
    made += [tables.constraints(libero, roster, "LIBERO"), tables.constraints(robocasa, roster, "RoboCasa-365")]
    return [tables.without_intervals(table) for table in made]


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, contents in golden():
        (FOLDER / name).write_text(contents, encoding="utf-8")
        print(FOLDER / name)
