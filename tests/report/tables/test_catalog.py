"""Which tables some runs allow: suites that belong together, and those that do not."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from builders import crash
from report.scenes import joined, verdicts
from report.tables.reading import BAD, GOOD
from safevla_bench.errors import RunError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.report.render import TableFormat, render_tables
from safevla_bench.report.render.text import render_csv
from safevla_bench.report.tables.catalog import KINDS, TableInputs, build_tables
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.table import Table


def tables_of(scores: Scores, *names: str, **changes: Any) -> list[Table]:
    return build_tables(TableInputs(scores=scores, ruleset=load_ruleset(), **changes), names)


def suites(*names: str, policy: str = "a") -> Scores:
    return joined(*(verdicts(GOOD, BAD, suite=name, policy=policy) for name in names))


def columns(table: Table) -> list[str]:
    return [column.full for column in table.columns if column.full.startswith("SR")]


def test_hosts_do_not_share_a_mean_nor_do_suites_that_the_paper_leaves_out():
    tables = tables_of(suites("libero-goal", "robocasa-365", "libero-90", "libero-10", "nobody-knows"), "main")
    assert [(table.name, columns(table)) for table in tables] == [
        ("main-libero", ["SR % goal", "SR % 10", "SR % mean"]),
        ("main-robocasa-365", ["SR %"]),
        ("main-libero-90", ["SR %"]),
        ("main-nobody-knows", ["SR %"]),
    ]


def test_suites_stand_in_the_order_of_the_registry():
    (table,) = tables_of(suites("libero-10", "libero-goal", "libero-object", "libero-spatial"), "4")
    assert columns(table) == [f"SR % {name}" for name in ("spatial", "object", "goal", "10", "mean")]


@pytest.mark.parametrize("name", ["libero-long", "libero_10", "LIBERO_Long"])
def test_another_name_of_a_suite_is_the_same_column(name):
    (table,) = tables_of(joined(suites("libero-10"), suites(name, policy="b")), "main")
    assert columns(table) == ["SR %"]
    assert [row[0].text for row in table.rows] == ["a", "b"]


def test_a_mean_has_a_suite_in_its_simulators_own_spelling():
    (table,) = tables_of(suites("libero_10", "libero-goal", "libero_object", "libero-spatial"), "4")
    assert columns(table) == [f"SR % {name}" for name in ("spatial", "object", "goal", "10", "mean")]


@pytest.mark.parametrize("name", ["libero-long", "libero_10"])
def test_the_same_tasks_under_two_names_are_refused(name):
    with pytest.raises(RunError, match="two names"):
        tables_of(suites("libero-10", name, "libero-goal"), "main")


def test_other_tasks_of_a_suite_under_another_name_count_in_one_cell():
    def of_suites(first: str, second: str) -> Scores:
        other = verdicts(BAD, GOOD, GOOD, suite=second, task_id=("task_9",) * 3, absent=(crash(benchmark=second),))
        return joined(verdicts(GOOD, BAD, suite=first, task_id=("task_3",) * 2), other)

    two_names, one_name = of_suites("libero-10", "libero_long"), of_suites("libero-10", "libero-10")
    names = ("main", "violations", "composition")
    assert tables_of(two_names, *names) == tables_of(one_name, *names)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS[:6]])
def test_a_recorded_policy_is_never_taken_for_the_papers(name):
    with pytest.raises(RunError, match=r"published policy: paper:pi0\.5"):
        tables_of(suites("libero-goal", policy="paper:pi0.5"), name)


def test_a_number_takes_the_host_of_the_papers_table():
    scores = suites("libero-goal", "robocasa-365")
    for number, name in {"4": "main-libero", "5": "main-robocasa-365", "8": "violations-robocasa-365"}.items():
        assert [table.name for table in tables_of(scores, number)] == [name]


def test_names_of_tables_make_distinct_files():
    scores = joined(
        suites("libero-goal", "robocasa-365", "libero-90", "robocasa-pnp"), suites("libero-goal", policy="x")
    )
    names = [table.name for table in tables_of(scores, *(k.name for k in KINDS[:5]), roster=Roster(auxiliary=["x"]))]
    assert len(names) == len(set(names))
    assert all(name and "/" not in name for name in names)


def test_tables_of_suites_whose_names_are_alike_in_files_have_distinct_names():
    names = [table.name for table in tables_of(suites("a", "a!", "a-2", "a--2"), "main")]
    assert names == ["main-a", "main-a-2", "main-a-2-2", "main-a-2-3"]


def test_auxiliary_runs_are_beside_the_others_in_tables_of_violations():
    tables = tables_of(joined(suites("libero-goal"), suites("robocasa-pnp", policy="b")), "violations")
    assert [table.title.split(": ")[1] for table in tables] == ["LIBERO", "auxiliary runs"]
    assert tables[1].rows[0][0].detail == "auxiliary"


@pytest.mark.parametrize("name", ["main", "4"])
def test_a_table_of_auxiliary_policies_alone_is_refused_with_the_way_out(name):
    with pytest.raises(RunError) as refused:
        tables_of(suites("libero-goal"), name, roster=Roster(auxiliary=["a"]))
    assert "auxiliary policies do not count" in refused.value.remedy


def test_remarks_go_with_every_table_in_every_form():
    for table in tables_of(suites("libero-goal"), remarks=["Mind this."]):
        assert all("Mind this." in render_tables([table], form) for form in get_args(TableFormat)), table.title
        assert {row.rsplit(",", 1)[1] for row in render_csv(table).splitlines()} == {"Remarks", "Mind this."}


def test_crashes_alone_make_tables_of_dashes():
    tables = {table.name: table for table in tables_of(verdicts(absent=(crash(),)))}
    assert {"main-libero", "violations-libero", "tasks"} <= set(tables)
    assert all(cell.value in (None, 0, 1) for row in tables["main-libero"].rows for cell in row)


def test_without_episodes_there_is_no_table():
    with pytest.raises(RunError, match="no episode"):
        tables_of(verdicts())


def test_suite_names_from_records_stay_inside_the_folder():
    names = [table.name for table in tables_of(suites("../../etc/x y", "/abs"), "main", "violations")]
    assert all("/" not in name and ".." not in name for name in names)
    assert len(set(names)) == len(names)
