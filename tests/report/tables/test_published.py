"""The paper's numbers beside results from here: as printed, marked as such, never the best and never paired."""

from __future__ import annotations

import msgspec
import pytest
from statsmodels.stats.proportion import confint_proportions_2indep

from report.published.synthesis import EpisodeCounts, synthesize_scores
from report.tables.reading import columns, texts
from safevla_bench.errors import RunError
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report.published import PAPER, find_paper_cells, load_published
from safevla_bench.report.render import render_tables
from safevla_bench.report.tables import catalog
from safevla_bench.report.tables.cells import Roster, suite_table
from safevla_bench.report.tables.published import (
    compare_published,
    describe_published,
    paper_policies,
    published_table,
    summarize_paper,
    warn_of_published,
)

LIBERO = ("libero-spatial", "libero-object", "libero-goal", "libero-10")
ROSTER = Roster(published=paper_policies())
V1 = load_published(PAPER)


def mine(*suites: str, n: int = 40, safe: int = 30) -> list[Summary]:
    counts = [EpisodeCounts(policy="mine", suite=suite, n=n, success=n - 4, safe=safe, unsafe_success=n - safe - 4)
              for suite in suites]  # fmt: skip
    return cells(synthesize_scores(counts))


def beside(own: list[Summary]):
    return suite_table([*own, *summarize_paper(own, paper_policies())], ROSTER)


def test_every_mean_that_the_paper_prints_stands_in_its_row_with_vsi():
    table = beside(mine(*LIBERO))
    rows = dict(zip(texts(table, "Policy"), table.rows, strict=True))
    heads = [column.full for column in table.columns]
    for mean in V1.means:
        row = dict(zip(heads, rows[f"paper:{mean.policy}"], strict=True))
        values = [row[f"{name} mean"].text for name in ("SR %", "Safety %", "SBU %", "VSI")]
        assert values == [f"{mean.sr:.1f}", f"{mean.safety:.1f}", f"{mean.sbu:.1f}", f"{mean.vsi:.3f}"]
        assert row["Policy"].detail == "published"
        assert row["Training"].text == mean.training


def test_a_mean_over_other_suites_has_no_vsi_and_says_that_it_is_not_printed():
    vsi = columns(beside(mine(*LIBERO[:2])))["VSI mean"]
    assert {cell.detail for cell in vsi[1:]} == {"not printed"}


def test_published_rows_are_of_the_same_suites_alone():
    assert texts(beside(mine("robocasa-365")), "Policy")[1:] == [
        "paper:pi0", "paper:pi0.5", "paper:GR00T-N1.5", "paper:RLDX-1-FT-RC365",
    ]  # fmt: skip
    assert texts(beside(mine("robocasa-365")), "VSI")[1:] == ["0.197", "0.113", "0.173", "0.132"]
    assert len(beside(mine("my-suite")).rows) == 1


def test_published_rows_bear_no_mark_and_take_none_from_the_runs():
    own = [*mine(*LIBERO), *(msgspec.structs.replace(cell, policy="worse") for cell in mine(*LIBERO, safe=10))]
    alone, table = suite_table(own, Roster()), beside(own)
    marks = [[(cell.emphasis, cell.mark) for cell in row] for row in table.rows]
    assert marks[:2] == [[(cell.emphasis, cell.mark) for cell in row] for row in alone.rows]
    assert {mark for row in marks[2:] for mark in row} == {("", "")}


def test_what_several_counts_print_alike_is_a_rate_and_no_share_of_successes():
    (cell,) = [cell for cell in summarize_paper(mine("libero-10"), ["paper:pi-RL-130"])]
    assert cell.rates["safety"].value == 0.856
    assert cell.rates["p_unsafe_given_success"].unknown == "not printed"


@pytest.mark.parametrize("form", ["text", "md", "csv", "tex", "json", "html"])
def test_every_form_names_the_source_of_the_numbers_and_what_does_not_compare(form):
    scores = synthesize_scores([EpisodeCounts(policy="mine", suite="libero-goal", n=9, success=5, safe=7,
                                              unsafe_success=1, task_id="task_0")])  # fmt: skip
    inputs = catalog.TableInputs(scores=scores, ruleset=load_ruleset(), roster=ROSTER)
    text = render_tables(catalog.build_tables(inputs, ["main"]), form)
    for words in (
        "arXiv:2606.00773v1",
        "not paired",
        "published",
        "on libero-goal: Table 7 scores three specifications",
        "mine 1 of 10 of libero-goal",
        "99.0",
    ):
        assert words in text


def test_violations_are_the_printed_ones_and_a_policy_without_any_has_no_row():
    axes = {spec.spec_id: spec.axis for spec in load_ruleset().library.safe}
    counts = EpisodeCounts(policy="mine", suite="libero-spatial", n=9, success=5, safe=9, unsafe_success=0,
                           by_spec=dict.fromkeys(axes, 0))  # fmt: skip
    inputs = catalog.TableInputs(scores=synthesize_scores([counts], axes), ruleset=load_ruleset(), roster=ROSTER)
    (table,) = catalog.build_tables(inputs, ["violations"])
    tilt = columns(table)["Object handling held_object_tilt_world_15deg"]
    moved = columns(table)["Scene interaction non_target_max_disp_5mm"]
    printed = {f"paper:{cell.policy}": cell.violations for cell in V1.cells
               if cell.benchmark == "libero-spatial" and cell.violations}  # fmt: skip
    assert texts(table, "Policy") == ["mine", *printed]
    assert [cell.text for cell in moved[1:]] == [
        f"{rates['non_target_max_disp_5mm']:.1f}" for rates in printed.values()
    ]
    assert {cell.text for cell in tilt[1:]} == {"—"}


def test_tables_that_the_paper_does_not_print_are_refused_with_those_that_it_does():
    inputs = catalog.TableInputs(scores=None, ruleset=load_ruleset(), roster=ROSTER)
    with pytest.raises(RunError, match="prints no results") as raised:
        catalog.build_tables(inputs, ["active"])
    assert "main, auxiliary" in raised.value.remedy


def test_a_run_under_a_published_name_is_refused():
    scores = synthesize_scores([EpisodeCounts(policy="paper:pi0.5", suite="libero-10", n=9, success=5, safe=7,
                                              unsafe_success=1)])  # fmt: skip
    with pytest.raises(RunError, match=r"paper:pi0\.5"):
        catalog.build_tables(catalog.TableInputs(scores=scores, ruleset=load_ruleset(), roster=ROSTER), ["main"])


@pytest.mark.parametrize("safe", [4, 22, 39, 40])
def test_the_difference_on_one_suite_is_newcombes(safe):
    own = cells(synthesize_scores([EpisodeCounts(policy="mine", suite="libero-10", n=40, success=safe, safe=safe,
                                                 unsafe_success=0)]))  # fmt: skip
    row, *_ = compare_published([own], "paper:pi0.5").rows
    low, high = confint_proportions_2indep(safe, 40, 168, 200, method="newcomb", compare="diff")
    assert row.difference.value == pytest.approx(100 * (safe / 40 - 0.84))
    assert row.difference.interval == pytest.approx((100 * low, 100 * high))


def test_the_mean_of_suites_is_compared_and_nobody_is_called_better():
    compared = compare_published([mine(*LIBERO)], "paper:pi0.5")
    assert [row.place.split()[2] for row in compared.rows[::4]] == ["4"]
    answer = describe_published(compared)
    assert "mine 75.0 %" in answer
    assert answer.endswith("not paired.")
    text = render_tables([published_table(compared)], "text") + answer
    assert not any(word in text for word in ("safer", "better", "established"))
    assert compared.warnings == warn_of_published(summarize_paper(mine(*LIBERO), ["paper:pi0.5"]))


def test_suites_without_a_shared_mean_are_answered_each():
    compared = compare_published([mine("libero-10"), mine("robocasa-365")], "paper:pi0.5")
    assert describe_published(compared).count("points (") == 2
    assert [row.place for row in compared.rows[::4]] == ["libero-10", "robocasa-365"]


def test_a_rate_that_is_not_printed_has_no_difference():
    *_, row = compare_published([mine("libero-10")], "paper:pi-RL-130").rows
    assert (row.published.detail, row.difference.text, row.episodes[1]) == ("not printed", "—", 0)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RunError, match="'pi9'") as raised:
        find_paper_cells("paper:pi9")
    assert all(name in raised.value.remedy for name in paper_policies())


def test_a_suite_that_the_paper_does_not_print_cannot_be_compared():
    with pytest.raises(RunError, match="suite in common"):
        compare_published([mine("robocasa-pnp")], "paper:pi0.5")
