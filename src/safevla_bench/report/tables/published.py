"""Tables of the paper's printed results next to measured results. They are not paired and have no verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from safevla_bench.errors import RunError
from safevla_bench.judging.metrics import SpecSummary, Summary
from safevla_bench.judging.rates import SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, VSI_UNSAFE, Mean, Metric, Rate
from safevla_bench.judging.scores import Scores
from safevla_bench.report import published
from safevla_bench.report.published import PAPER, PREFIX, PublishedCell, load_published, printed_rate
from safevla_bench.report.tables.cells import Cells, suite_mean
from safevla_bench.report.tables.columns import DASH, policy_name
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.statistics.intervals import CONFIDENCE, Interval, combine_intervals
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import count_noun, format_fixed

PUBLISHED_TABLES = "main, auxiliary, violations"
COMPARED_RATES = (SAFETY, SR, SBU, UNSAFE_SUCCESS)
"""The metrics in the comparison of a policy with a published policy."""
_NO_MEAN = Mean(0, None, None, 0, published.NOT_PRINTED)  # a mean that the paper does not print


def paper_policies() -> dict[str, dict[str, str]]:
    """Return `paper:NAME` -> suite -> kind of training ("" = not printed), for all of the paper's policies in order."""
    # The prefix `paper:` distinguishes the paper's policies from recorded policies.
    policies: dict[str, dict[str, str]] = {}
    for cell in load_published(PAPER).cells:
        policies.setdefault(f"{PREFIX}{cell.policy}", {})[cell.benchmark] = cell.training or ""
    return policies


def summarize_paper(cells: Sequence[Summary], policies: Collection[str]) -> list[Summary]:
    """Return the paper's results for these policies on the suites of `cells`, as summaries. If the paper prints
    violations, the summaries contain the specifications of `cells`.
    """
    # A cell is one policy on one suite: measured in `cells`, printed in `load_published(PAPER).cells`.
    # Only the paper's numbers on the measured suites are returned.
    suites = {cell.suite for cell in cells}
    specs = {spec.spec_id: spec for cell in cells for spec in cell.specs if spec.tier == "safe"}
    return [
        _summarize_cell(cell, list(specs.values()))
        for cell in load_published(PAPER).cells
        if cell.benchmark in suites and f"{PREFIX}{cell.policy}" in policies
    ]


def _summarize_cell(cell: PublishedCell, specs: Sequence[SpecSummary]) -> Summary:
    # Return a published cell (policy on suite) as a summary, with counts that fit the printed percentages.
    # `specs` are the measured specifications, for the rows of violations.
    rates = {metric.key: printed_rate(getattr(cell, metric.key), cell.n) for metric in (SR, SAFETY, SBU)}
    # Numbers of episodes that succeeded, that are safe, and that succeeded but are unsafe.
    success, safe, sbu = (rates[metric.key].count for metric in (SR, SAFETY, SBU))
    # P[U|S] is known only if exactly one count fits each printed percentage (SR and SBU).
    has_unique_counts = all(len(published.matching_counts(printed, cell.n)) == 1 for printed in (cell.sr, cell.sbu))
    rates[UNSAFE_SUCCESS.key] = (
        Rate.of(sbu, success) if has_unique_counts else Rate.without_value(published.NOT_PRINTED)
    )
    # A printed VSI has no interval. Fields that the paper does not print get neutral values.
    vsi = _NO_MEAN if cell.vsi is None else Mean(cell.n, cell.vsi, ci=None, skipped_resamples=0)
    rate_values: dict[str, Any] = {key: rate.value for key, rate in rates.items()}
    return Summary(
        policy=f"{PREFIX}{cell.policy}",
        suite=cell.benchmark,
        n=cell.n,
        **rate_values,
        vsi=vsi.value,
        vsi_given_unsafe=None,
        success_safe=success - sbu,
        success_unsafe=sbu,
        failure_safe=safe - success + sbu,
        failure_unsafe=cell.n - safe - sbu,
        judged=cell.n,
        no_verdict={},
        rates=rates,
        means={VSI.key: vsi, VSI_UNSAFE.key: _NO_MEAN},
        axes={},
        specs=[] if cell.violations is None else [_summarize_spec(cell.violations, spec, cell.n) for spec in specs],
        outcomes={},
        stopped=0,
        crashed=0,
    )


def _summarize_spec(printed: Mapping[str, float], spec: SpecSummary, n: int) -> SpecSummary:
    # Return the printed violations of one specification. `printed` is specification -> percentage of n episodes.
    # A specification without a printed rate counts as inactive in all episodes.
    rate = printed_rate(printed.get(spec.spec_id), n)
    active = n if spec.spec_id in printed else 0
    return SpecSummary(
        spec_id=spec.spec_id, axis=spec.axis, tier=spec.tier, active=active, vacuous=0, inactive={}, violations=rate,
        violations_when_active=rate, unsafe_success=0, nsv=_NO_MEAN, rho=_NO_MEAN,
    )  # fmt: skip


def warn_of_published(cells: Sequence[Summary]) -> tuple[str, ...]:
    """Return the source of the paper's results in `cells`, and why they are not comparable; () without such results."""
    # The paper's results are recognized by the names of policy and suite.
    shown_keys = {(cell.policy, cell.suite) for cell in cells}
    shown = [cell for cell in load_published(PAPER).cells if (f"{PREFIX}{cell.policy}", cell.benchmark) in shown_keys]
    if not shown:
        return ()
    source = load_published(PAPER).source
    labeled = ((cell, f"{cell.policy} on {cell.benchmark}") for cell in shown)
    cell_reasons = published.list_reasons(labeled)
    return (
        f"{PREFIX}NAME was not run here; its results come from {source.name} ({source.reference}, {source.date}). A "
        "published policy has other initial states and no records: it is not paired, has no intervals by task, and is "
        "never marked as best.",
        *(f"Not comparable: {reason}" for reason in (*cell_reasons, *source.incomparable)),
    )


def warn_of_tasks(cells: Sequence[Summary], scores: Scores, registry: Registry) -> tuple[str, ...]:
    """Return a warning that names policies that ran only some tasks of a paper's suite; () if there are none."""
    # A published number is over the whole suite, so a run of some tasks is not comparable with it.
    tasks_run: dict[tuple[str | None, str | None], set[str]] = {(cell.policy, cell.suite): set() for cell in cells}
    # A summary may have the name of another suite with the same tasks.
    canonical_names = {suite: registry.canonical_suite(suite) for suite in set(scores.benchmark)}
    for policy, suite, task in zip(scores.policy, scores.benchmark, scores.task_id, strict=True):
        name = canonical_names[suite]
        benchmark = registry.benchmarks.get(name)
        if benchmark and benchmark.published:
            tasks_of_cell = tasks_run.get((policy, name))
            if tasks_of_cell is not None:
                tasks_of_cell.add(task)
    # Suite -> its number of tasks.
    task_counts = {suite: len(list(registry.list_entries(suite))) for (_, suite), tasks in tasks_run.items() if tasks}
    incomplete = [
        f"{policy or UNNAMED} {len(tasks)} of {task_counts[suite]} of {suite}"
        for (policy, suite), tasks in tasks_run.items()
        if 0 < len(tasks) < task_counts[suite]  # 0 for other suites and for the paper's results
    ]
    return (f"Fewer tasks than in the paper's suite: {', '.join(incomplete)}.",) if incomplete else ()


# Comparison of a policy with one of the paper's policies


@dataclass(frozen=True, slots=True)
class PublishedDifference:
    """A measured and a published rate [%]. Both are on one suite, or are unweighted means over several suites."""

    suites: tuple[str, ...]
    metric: Metric
    here: Cell
    published: Cell
    difference: Cell  # `here` minus `published`, with an interval for independent samples (MOVER)
    episodes: tuple[int, int]  # numbers of episodes of `here` and `published`; 0 = unknown

    @property
    def place(self) -> str:
        # Return the name of the only suite, or the number of suites over which the rates are averaged.
        return self.suites[0] if len(self.suites) == 1 else f"mean of {len(self.suites)} suites"

    def to_document(self) -> dict[str, object]:
        """Return the row as a JSON object; rates are fractions from 0 to 1, and unknown numbers are None."""
        # `here` is the measured rate, `published` the printed one. Cells are in percent.
        # If the interval is missing (None), `and` keeps None.
        cells = {"here": self.here, "published": self.published, "difference": self.difference}
        numbers = {name: {"value": _to_share(cell.value), "ci": cell.interval and [*map(_to_share, cell.interval)]}
                  for name, cell in cells.items()}  # fmt: skip
        return {"suites": self.suites, "metric": self.metric.key, **numbers, "episodes": self.episodes}


def _to_share(percent: float | None) -> float | None:
    # Return a fraction from 0 to 1; None stays None.
    return None if percent is None else percent / 100


def _subtract_published(here: Cells, paper: Cells, metric: Metric) -> PublishedDifference:
    # Return the measured rate minus the printed rate, each averaged over the suites of `here`.
    # `here` and `paper` map each suite to the summary of a policy. `exact` is a rate without rounding, as a fraction.
    # The difference is a dash if either rate has no value or interval.
    suites = tuple(here)
    measured, printed = suite_mean(metric, here, suites), suite_mean(metric, paper, suites)
    difference = Cell.dash()
    if measured.exact is not None and printed.exact is not None and measured.cell.interval and printed.cell.interval:
        points = 100 * (measured.exact - printed.exact)  # percentage points
        estimates = (measured.exact, measured.cell.interval), (printed.exact, printed.cell.interval)
        # The weights 1 and -1 give the interval of the difference.
        interval = combine_intervals([(float(100 * value), Interval(*ends)) for value, ends in estimates], (1, -1))
        points_text, low, high = (
            format_fixed(value, 1).replace("-", "\N{MINUS SIGN}") for value in (points, interval.low, interval.high)
        )
        difference = Cell(points_text, float(points), f"{low} to {high}", interval=(interval.low, interval.high))
    episodes = [sum(cell.rates[metric.key].n for cell in side.values()) for side in (here, paper)]
    return PublishedDifference(suites, metric, measured.cell, printed.cell, difference, (episodes[0], episodes[1]))


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A comparison of a policy with a policy of the paper, by metric and group of suites. There is no verdict."""

    policy: str
    paper: str
    rows: tuple[PublishedDifference, ...]
    warnings: tuple[str, ...]

    def to_document(self) -> dict[str, object]:
        # Return the comparison as a JSON object, without a verdict: initial states differ, so episodes are not paired.
        # `policy` was measured, and `paper` is the name of the printed policy.
        return {
            "policy": self.policy, "published": self.paper, "source": load_published(PAPER).source, "paired": False,
            "exploratory": True, "confidence": CONFIDENCE, "rows": [row.to_document() for row in self.rows],
            "warnings": self.warnings,
        }  # fmt: skip


def compare_published(
    groups: Sequence[Sequence[Summary]],
    name: str,
    warn: Callable[[Sequence[Summary]], Sequence[str]] = warn_of_published,
) -> PublishedComparison:
    """Compare the rates of one policy with the rates that the paper prints for `paper:NAME`, on their common suites.

    Args:
        groups: the policy's cells, in groups of suites. Rates are averaged over the suites of a group.
        name: `paper:NAME`.
        warn: function that returns the warnings for given cells; it is called with the cells of both policies.

    Raises:
        RunError: the paper has no policy `name`, or no results of this policy on these suites.
    """
    printed_suites = [cell.benchmark for cell in published.find_paper_cells(name)]
    rows: list[PublishedDifference] = []
    shared: list[Summary] = []
    for group in groups:
        # Suite -> summary, of the measured policy and of the paper's policy.
        measured = {cell.suite or "": cell for cell in group if cell.suite in printed_suites}
        paper = {cell.suite or "": cell for cell in summarize_paper(list(measured.values()), [name])}
        # A group adds no row if the paper reports none of its suites.
        rows += [_subtract_published(measured, paper, metric) for metric in COMPARED_RATES if measured]
        shared += [*measured.values(), *paper.values()]
    cells = [cell for group in groups for cell in group]
    if not rows:
        suites = ", ".join(cell.suite or "" for cell in cells)
        remedy = f"The paper has results on {', '.join(printed_suites)}."
        raise RunError(f"{name} and {policy_name(cells[0])} have no suite in common: {suites}", remedy=remedy)
    return PublishedComparison(policy_name(cells[0]), name, tuple(rows), tuple(warn(shared)))


def describe_published(compared: PublishedComparison) -> str:
    """Return as text, for each group of suites, both rates of the first metric and their difference."""
    # `rows` contains a row per group of suites and metric. The text is about the first metric (Safety).
    rows = [row for row in compared.rows if row.metric is compared.rows[0].metric]
    return " ".join(
        [
            *(_describe_row(row, compared) for row in rows),
            "This comparison is exploratory: initial states differ, so episodes are not paired.",
        ]
    )


def _describe_row(row: PublishedDifference, compared: PublishedComparison) -> str:
    # Return a sentence with the measured rate, the printed rate and their difference.
    # `here` and `published` are the rates, and `episodes` their numbers of episodes.
    # A rate's `detail` says why it has no value; the difference's `detail` is its interval.
    measured, paper = (
        f"{cell.text} % ({count_noun(n, 'episode')})" if cell.value is not None else cell.detail
        for cell, n in zip((row.here, row.published), row.episodes, strict=True)
    )
    text = f"{row.metric.label}, {row.place}: {compared.policy} {measured}, {compared.paper} {paper} as published"
    if row.difference.interval:
        text += f"; difference {row.difference.text} points ({row.difference.detail})"
    return f"{text}."


def published_table(compared: PublishedComparison) -> Table:
    """Return the table of both rates and their difference, with a row per group of suites and metric."""
    # In a row, `here` is the measured rate, `published` the printed one, and `place` the suite or number of suites.
    return tabulate(
        f"{compared.policy} and {compared.paper}, as published",
        compared.rows,
        text_column("Suite", lambda row: row.place),
        text_column("Metric", lambda row: row.metric.heading),
        Column("value", group=compared.policy, value=lambda row: row.here),
        # Item 0 of `episodes` is the measured number, item 1 the printed one; 0 = unknown.
        Column("n", group=compared.policy, value=lambda row: row.episodes[0] or Cell.dash()),
        Column("value", group=compared.paper, value=lambda row: row.published),
        Column("n", group=compared.paper, value=lambda row: row.episodes[1] or Cell.dash()),
        Column("points", group="difference", value=lambda row: row.difference),
        notes=(
            "95 % intervals of independent samples: Wilson for rates, exact for means, MOVER for differences. If an "
            "initial state has several episodes: Gaffke for rates, and MOVER for means.",
        ),
        dash=DASH,
        remarks=compared.warnings,
        name="beside-paper",
    )
