"""How often the intervals, tests and gates of this package are right, by simulation and by exact sums.

Each table sets what is printed now beside what was printed before, or beside the usual choice. Run it on an idle
machine for the figures of docs/comparing.md:

    python benchmarks/interval_coverage.py --replicates 4000 --write docs/comparing.md

Without --write it prints the tables. With the default number of replicates it takes about two minutes.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from safevla_bench import statistics
from safevla_bench.compare.sample_size import SampleSizeRequest, plan_sample_size

Row = Sequence[str]
Floats = NDArray[np.float64]
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
LEVEL = 0.05


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def share(hits: int | np.integer | Floats, of: int) -> str:
    """Format a share of replicates with its standard error in the last digit's place."""
    return f"{100 * float(hits) / of:.1f} %"


# Intervals


def tabulate_rates(replicates: int) -> tuple[str, Row, list[Row]]:
    """Coverage of rates' intervals, summed exactly over rates from 2 to 98 %."""
    rates, rows = np.linspace(0.02, 0.98, 97), []
    for n in (20, 50, 200):
        chances = stats.binom.pmf(np.arange(n + 1)[:, None], n, rates)
        for name, interval in (("Wilson", statistics.wilson_interval), ("exact (gates)", statistics.exact_interval)):
            covered = coverage_of([interval(k, n) for k in range(n + 1)], chances, rates)
            rows.append([name, str(n), f"{100 * covered.mean():.1f} %", f"{100 * covered.min():.1f} %"])
    return "Intervals of a rate, nominal 95 %", ("Interval", "Episodes", "Average", "Least"), rows


def coverage_of(intervals: Sequence[statistics.Interval | None], chances: Floats, rates: Floats) -> Floats:
    """Return the coverage at each rate, given the interval of each count, [R]."""
    ends = np.array([[one.low, one.high] for one in intervals if one])
    inside = (ends[:, :1] <= rates) & (rates <= ends[:, 1:])
    return np.asarray((chances * inside).sum(axis=0))


DEPTHS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "all 1": lambda rng, shape: np.ones(shape),
    "all 0.3": lambda rng, shape: np.full(shape, 0.3),
    "even, 0 to 1": lambda rng, shape: rng.uniform(0, 1, shape),
    "mostly small": lambda rng, shape: rng.beta(0.5, 4, shape),
}
RATES = (0.02, 0.05, 0.1, 0.3, 0.7)


def tabulate_severities(replicates: int) -> tuple[str, Row, list[Row]]:
    """Coverage of the intervals of VSI over rates of unsafe episodes and laws of their depth."""
    rows = []
    for n in (20, 200):
        found: dict[str, list[float]] = {"percentile bootstrap (paper)": [], "printed now": []}
        for k, (rate, law) in enumerate((rate, law) for rate in RATES for law in DEPTHS.values()):
            rng = generator(100 + k)
            depths = law(rng, (replicates, n))
            values = np.where(rng.random((replicates, n)) < rate, depths, 0.0)
            mean = rate * float(law(generator(1), (1000, 1000)).mean())
            boot = [statistics.bootstrap_means(row[None], rng, 500)[0] for row in values[: max(50, replicates // 4)]]
            found["percentile bootstrap (paper)"].append(covering(boot, mean))
            found["printed now"].append(covering([statistics.bounded_mean_interval(row) for row in values], mean))
        for name, covered in found.items():
            few = min(covered[: 2 * len(DEPTHS)])
            rows.append([name, str(n), *(f"{100 * value:.1f} %" for value in (np.mean(covered), min(covered), few))])
    return (
        "Intervals of VSI, nominal 95 %, over unsafe rates of 2 to 70 % and four laws of depth",
        ("Interval", "Episodes", "Average", "Least", "Least at 2 and 5 % unsafe"),
        rows,
    )


def covering(intervals: Sequence[statistics.Interval | None], mean: float) -> float:
    return float(np.mean([one is not None and one.low - 1e-9 <= mean <= one.high + 1e-9 for one in intervals]))


def tabulate_suite_means(replicates: int) -> tuple[str, Row, list[Row]]:
    """Coverage of the mean over suites of rates that differ."""
    rows = []
    for n in (10, 50):
        for rates in (np.array([0.75, 0.98, 0.86, 0.9]), np.array([0.5, 0.6, 0.4, 0.7])):
            counts = generator(7).binomial(n, rates, size=(replicates, 4))
            limits = {k: statistics.wilson_interval(k, n) for k in range(n + 1)}
            found = [statistics.rate_mean_interval([(k / n, limits[k]) for k in row]) for row in counts.tolist()]
            label = ", ".join(f"{rate:.2f}" for rate in rates)
            rows.append([label, str(n), f"{100 * covering(found, float(rates.mean())):.1f} %"])
    return "Intervals of a mean over four suites (MOVER), nominal 95 %", ("Rates", "Episodes a suite", "Covers"), rows


# Gates


def tabulate_gates(replicates: int) -> tuple[str, Row, list[Row]]:
    """The chance of a wrong verdict on a policy exactly at the limit, one side at a time: nominal 2.5 %."""
    rows = []
    for limit, n in ((0.99, 17), (0.9, 20), (0.95, 50), (0.9, 200)):
        chances = stats.binom.pmf(np.arange(n + 1), n, limit)
        cells = [f"{limit:g}", str(n)]
        for interval in (statistics.wilson_interval, statistics.exact_interval):
            found = [interval(k, n) for k in range(n + 1)]
            failed = sum(chance for chance, one in zip(chances, found, strict=True) if one and one.high < limit)
            passed = sum(chance for chance, one in zip(chances, found, strict=True) if one and one.low > limit)
            cells.append(f"{100 * max(failed, passed):.1f} %")
        rows.append(cells)
    return (
        "A gate on a policy at its limit: the likelier wrong verdict, nominal 2.5 %",
        ("Limit", "Episodes", "Wilson (before)", "exact (now)"),
        rows,
    )


def tabulate_rechecks(replicates: int) -> tuple[str, Row, list[Row]]:
    """The chance of a wrong verdict at some look, for a policy at the limit; looks every ten episodes."""
    rows, looks = [], np.arange(10, 501, 10)
    for limit in (0.9, 0.5):
        hits = (generator(3).random((replicates, 500)) < limit).cumsum(axis=1)[:, looks - 1]
        cells = [f"{limit:g}"]
        for interval in (statistics.wilson_interval, statistics.exact_interval):
            wrong = np.zeros(hits.shape, dtype=bool)
            for k, n in enumerate(looks.tolist()):
                found = [interval(count, n) for count in range(n + 1)]
                excluded = np.array([one is not None and not one.low <= limit <= one.high for one in found])
                wrong[:, k] = excluded[hits[:, k]]
            cells.append(share(wrong.any(axis=1).sum(), replicates))
        numbers = np.broadcast_to(looks, hits.shape)
        excluded = statistics.log_wealth_of_counts(hits, numbers, limit) >= -np.log(LEVEL)
        cells.append(share(excluded.any(axis=1).sum(), replicates))
        rows.append(cells)
    return (
        "A wrong verdict at some look, checking every ten episodes up to 500 at the limit; nominal 5 %",
        ("Limit", "Wilson at each look", "exact at each look", "--sequential"),
        rows,
    )


def tabulate_gate_seeds(replicates: int) -> tuple[str, Row, list[Row]]:
    """Wrong verdicts at the limit where a state has several seeds that mostly agree; the likelier side."""
    limit, states, alike, rows = 0.9, 100, 0.7, []
    spread = (1 - alike) / alike
    for seeds in (1, 2, 5):
        rates = generator(4).beta(spread * limit, spread * (1 - limit), (replicates, states))
        hits = generator(5).binomial(seeds, rates)
        apart = [statistics.exact_interval(int(row.sum()), states * seeds) for row in hits]
        together = [statistics.bounded_mean_interval(row / seeds) for row in hits]
        rows.append([str(seeds), *(share(likelier_error(found, limit), replicates) for found in (apart, together))])
    return (
        "A gate at its limit of 0.9, 100 initial states whose seeds correlate by 0.7: the likelier wrong verdict",
        ("Seeds a state", "taken as independent", "state means (now)"),
        rows,
    )


def likelier_error(intervals: Sequence[statistics.Interval | None], limit: float) -> int:
    """Return how many intervals lie above the limit or below it, whichever is more."""
    return max(sum(one.low > limit for one in intervals if one), sum(one.high < limit for one in intervals if one))


def tabulate_gate_crashes(replicates: int) -> tuple[str, Row, list[Row]]:
    """How often a policy at 0.87 passes a limit of 0.9 where 60 % of its unsafe episodes crash; nominal 2.5 %."""
    limit, rows = 0.9, []
    for n in (100, 200, 500):
        unsafe = generator(6).binomial(n, 0.13, replicates)
        crashed = generator(7).binomial(unsafe, 0.6)
        left_out = [statistics.exact_interval(int(n - u), int(n - c)) for u, c in zip(unsafe, crashed, strict=True)]
        at_worst = [statistics.exact_interval(int(n - u), n) for u in unsafe]
        passes = [sum(one.low >= limit for one in found if one) for found in (left_out, at_worst)]
        rows.append([str(n), *(share(count, replicates) for count in passes)])
    return (
        "A gate of 0.9 passed by a policy at 0.87 of whose unsafe episodes 60 % crash",
        ("Episodes", "crashes left out", "at both extremes (now)"),
        rows,
    )


def tabulate_suggestions(replicates: int) -> tuple[str, Row, list[Row]]:
    """How often the suggested number of episodes decides a gate, summed exactly, at the true rate and after a pilot."""
    rows = []
    for rate, limit in ((0.95, 0.9), (0.8, 0.9), (0.98, 0.95), (0.6, 0.5)):
        cells = [f"{rate:g}", f"{limit:g}"]
        needed = statistics.rate_sample_size(rate, limit)
        assert needed is not None
        cells.append(f"{needed}: {100 * statistics.rate_power(needed, rate, limit):.0f} %")
        cells += [f"{100 * decides_after_pilot(pilot, rate, limit):.0f} %" for pilot in (20, 50)]
        rows.append(cells)
    return (
        "How often the suggested number of episodes decides a gate, meant are 80 %",
        ("True rate", "Limit", "the measured rate is the true one", "after a pilot of 20", "after a pilot of 50"),
        rows,
    )


def decides_after_pilot(pilot: int, rate: float, limit: float) -> float:
    """Return the chance that a new run decides rightly, of the number that a pilot suggests which does not decide."""
    chance, undecided = 0.0, 0.0
    for count in range(pilot + 1):
        found = statistics.exact_interval(count, pilot)
        assert found is not None
        if found.low < limit <= found.high:
            likelihood = float(stats.binom.pmf(count, pilot, rate))
            undecided += likelihood
            if needed := statistics.rate_sample_size(count / pilot, limit):
                chance += likelihood * statistics.rate_power(needed, rate, limit)
    return chance / undecided


# Comparisons


def tabulate_tasks(replicates: int) -> tuple[str, Row, list[Row]]:
    """Policies that are equal over tasks like these, each better on some: how often a test tells them apart at 5 %."""
    rows = []
    for tasks, episodes, spread in ((10, 20, 0.1), (10, 50, 0.1), (10, 50, 0.2), (40, 20, 0.1)):
        rng = generator(20)
        apart = np.zeros(4)
        for _ in range(replicates):
            base, shift = rng.uniform(0.3, 0.8, tasks), rng.normal(0, spread, tasks) / 2
            first, second = np.clip(base + shift, 0.01, 0.99), np.clip(base - shift, 0.01, 0.99)
            luck = rng.random((tasks, episodes))
            values = (luck < first[:, None]).astype(float) - (rng.random((tasks, episodes)) < second[:, None])
            means = values.mean(axis=1)
            resampled = means[rng.integers(0, tasks, (1000, tasks))].mean(axis=1)
            low, high = np.percentile(resampled, [2.5, 97.5])
            p_values = [
                statistics.mcnemar_mid_p(int((values > 0).sum()), int((values < 0).sum())),
                stats.ttest_1samp(means, 0).pvalue,
                0.0 if not low <= 0 <= high else 1.0,
                statistics.flip_task_p(means, np.ones(tasks)),
            ]
            apart += np.array(p_values) <= LEVEL
        rows.append([f"{tasks} x {episodes}", f"{spread:g}", *(share(count, replicates) for count in apart)])
    return (
        "Policies equal over tasks like these, told apart at 5 %",
        ("Tasks x episodes", "SD between tasks", "on these tasks (McNemar)", "t of task means", "bootstrap by task",
         "on tasks like these (sign flips)"),
        rows,
    )  # fmt: skip


def tabulate_strata(replicates: int) -> tuple[str, Row, list[Row]]:
    """Independent episodes of the same tasks, one policy ten points better on each: power at 5 %, and coverage."""
    rows = []
    for tasks, episodes in ((10, 20), (10, 5), (40, 5), (10, 50)):
        rng, found, covered, widths = generator(31), np.zeros(2), np.zeros(2), np.zeros(2)
        sizes = np.full(tasks, episodes)
        for _ in range(replicates):
            base = rng.beta(0.8, 0.8, tasks) * 0.8 + 0.1
            first, second = rng.binomial(episodes, base + 0.05), rng.binomial(episodes, base - 0.05)
            total = tasks * episodes
            pooled = statistics.newcombe_interval(int(first.sum()), total, int(second.sum()), total)
            by_task = statistics.mean_rate_difference_interval(
                first.astype(np.float64), sizes, second.astype(np.float64), sizes
            )
            p_values = (
                stats.fisher_exact([[first.sum(), total - first.sum()], [second.sum(), total - second.sum()]]).pvalue,
                statistics.cmh_mid_p(first, sizes, second, sizes),
            )
            found += np.array(p_values) <= LEVEL
            for k, interval in enumerate((pooled, by_task)):
                assert interval is not None
                covered[k] += interval.low <= 0.1 <= interval.high
                widths[k] += interval.high - interval.low
        spans = [f"{share(hits, replicates)}, ± {100 * width / replicates / 2:.1f}"
                 for hits, width in zip(covered, widths, strict=True)]  # fmt: skip
        rows.append([f"{tasks} x {episodes}", *(share(hits, replicates) for hits in found), *spans])
    return (
        "Independent episodes of the same tasks, ten points apart on each: told apart at 5 %, and intervals",
        ("Tasks x episodes", "pooled (Fisher)", "over tasks (mid-p)", "Newcombe, pooled",
         "over tasks"),
        rows,
    )  # fmt: skip


def tabulate_means(replicates: int) -> tuple[str, Row, list[Row]]:
    """Size of re-labelling tests of two equal means with unequal variances, at 5 %."""
    rows = []
    for n, m in ((10, 40), (40, 10), (30, 30)):
        rng, plain, studentized = generator(5), 0, 0
        for _ in range(replicates):
            first, second = rng.choice([0.0, 1.0], n, p=[0.8, 0.2]), rng.uniform(0.15, 0.25, m)
            pooled = np.concatenate([first, second])
            shuffled = rng.permuted(np.tile(pooled, (199, 1)), axis=1)
            differences = shuffled[:, :n].mean(axis=1) - shuffled[:, n:].mean(axis=1)
            observed = abs(first.mean() - second.mean())
            plain += (1 + (np.abs(differences) >= observed - 1e-12).sum()) / 200 <= LEVEL
            studentized += statistics.permute_task_means([first], [second], rng, tries=199).p_value <= LEVEL
        rows.append([f"{n}, {m}", share(plain, replicates), share(studentized, replicates)])
    return (
        "Equal mean severities, one policy all or nothing, the other even: told apart at 5 %",
        ("Episodes", "plain means (before)", "studentized (now)"),
        rows,
    )


def tabulate_many(replicates: int) -> tuple[str, Row, list[Row]]:
    """Two equal policies, four suites and all pooled, SR, Safety, SBU and VSI: any difference, and the primary one."""
    rng, some, primary = generator(9), 0, 0
    suites, n = 4, 50
    for _ in range(replicates):
        success = rng.random((2, suites, n)) < 0.7
        unsafe = rng.random((2, suites, n)) < 0.3
        severity = np.where(unsafe, rng.uniform(0, 1, unsafe.shape), 0.0)
        p_values = []
        for scope in (*range(suites), slice(None)):
            for values in (success, ~unsafe, success & unsafe):
                difference = values[0, scope].astype(int) - values[1, scope]
                p_values.append(statistics.mcnemar_mid_p(int((difference > 0).sum()), int((difference < 0).sum())))
            difference = (severity[0, scope] - severity[1, scope]).ravel()
            p_values.append(statistics.flip_task_p(difference, np.ones(difference.size)))
        some += min(p_values) <= LEVEL
        primary += p_values[-3] <= LEVEL
    shares = (share(count, replicates) for count in (some, primary))
    rows = [["four suites and pooled, four metrics", *shares]]
    return (
        "Two equal policies, told apart at 5 % somewhere",
        ("Verdicts", "any of them", "the primary one (pooled Safety)"),
        rows,
    )


def tabulate_sequential(replicates: int) -> tuple[str, Row, list[Row]]:
    """Comparing two rates on ten tasks while pairs come, at most 200: --until, and --sequential after every round."""
    rows, tasks, rounds = [], 10, 20
    cases = [(0.9, 0.9), (0.5, 0.5), (0.98, 0.98), (0.9, 0.8), (0.8, 0.7), (0.9, 0.7)]
    for first, second in cases:
        rng = generator(13)
        safe = rng.random((2, replicates, rounds, tasks)) < np.reshape([first, second], (2, 1, 1, 1))
        rows.append([f"{first:g}, {second:g}", *_race_cells(safe)])
    rng, swing = generator(14), np.linspace(-0.25, 0.25, tasks)
    safe = rng.random((2, replicates, rounds, tasks)) < np.reshape([0.7 + swing, 0.7 - swing], (2, 1, 1, tasks))
    rows.append(["0.7 on average, 0.45 to 0.95 by task, each better on some", *_race_cells(safe)])
    return (
        "Comparing two rates on these tasks, ten tasks and at most 200 pairs",
        ("Rates", "told apart, all pairs", "--until", "pairs on average", "--sequential", "pairs on average"),
        rows,
    )


def _race_cells(safe: NDArray[np.bool_]) -> list[str]:
    """Return shares told apart and mean pairs, given who was safe [2, replicates, rounds, tasks]."""
    _, replicates, rounds, tasks = safe.shape
    won, lost = ((safe[k] & ~safe[1 - k]).sum(axis=2) for k in (0, 1))
    at_end = [
        statistics.mcnemar_mid_p(b, c) <= LEVEL for b, c in zip(*(x.sum(1).tolist() for x in (won, lost)), strict=True)
    ]
    shares = [(k + 1) / rounds for k in range(rounds)]
    limits = [list(statistics.sum_limits([[1] * int(k) for k in row], 0.5, shares)) for row in (won + lost)]
    sums, ends = won.cumsum(axis=1), np.array(limits)
    until = (sums <= ends[..., 0]) | (sums >= ends[..., 1])
    betting = statistics.log_wealth_of_counts(sums, (won + lost).cumsum(axis=1), 0.5) >= -np.log(LEVEL)
    cells = [share(sum(at_end), replicates)]
    for decided in (until, betting):
        cells += [share(decided.any(axis=1).sum(), replicates), f"{tasks * mean_rounds(decided):.0f}"]
    return cells


def mean_rounds(decided: NDArray[np.bool_]) -> float:
    """Return the mean number of rounds of a run, given which looks decide, [replicates, rounds]."""
    return float(np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, decided.shape[1]).mean())


def tabulate_until_rates(replicates: int) -> tuple[str, Row, list[Row]]:
    """A rate against a limit while episodes come, ten tasks: --until, in part with episodes that crash where unsafe."""
    rows, tasks = [], 10
    cases = [(0.9, 0.9, 20, 0.0), (0.5, 0.5, 20, 0.0), (0.9, 0.9, 50, 0.0), (0.95, 0.9, 25, 0.0), (0.95, 0.9, 35, 0.0),
             (0.97, 0.9, 20, 0.0), (0.8, 0.9, 20, 0.0), (0.87, 0.9, 50, 0.6), (0.95, 0.9, 50, 0.6)]  # fmt: skip
    for rate, limit, rounds, crash in cases:
        rng = generator(17)
        safe = rng.random((replicates, rounds, tasks)) < rate
        lost = ~safe & (rng.random(safe.shape) < crash)
        shares = [(k + 1) / rounds for k in range(rounds)]
        low, high = np.array(list(statistics.sum_limits([[1] * tasks] * rounds, limit, shares))).T
        worst, best = (counted.sum(axis=2).cumsum(axis=1) for counted in (safe, safe | lost))
        passed, failed = worst >= high, best <= low
        first = np.where((passed | failed).any(axis=1), (passed | failed).argmax(axis=1), rounds - 1)
        outcomes = [share(side[np.arange(replicates), first].sum(), replicates) for side in (passed, failed)]
        power = (
            f"{100 * statistics.rate_power(rounds * tasks, rate, limit):.0f} %" if rate != limit and not crash else ""
        )
        crashed = f", {100 * crash:.0f} % of unsafe crash" if crash else ""
        rows.append([f"{rate:g}{crashed}", f"{limit:g}", str(rounds * tasks), *outcomes,
                     f"{tasks * mean_rounds(passed | failed):.0f}", power])  # fmt: skip
    return (
        "A rate against a limit with --until, a look after each round of ten episodes",
        (
            "True rate",
            "Limit",
            "Most episodes",
            "passed",
            "failed",
            "episodes on average",
            "decided by one look at all",
        ),
        rows,
    )


def tabulate_plans(replicates: int) -> tuple[str, Row, list[Row]]:
    """The power that planned episodes have in simulated comparisons by task; meant are 80 %."""
    rows = []
    for tasks in (6, 7, 10, 14, 40):
        for rate, difference in ((0.8, 0.05), (0.95, 0.05), (0.9, 0.1), (0.6, 0.2)):
            plan = plan_sample_size(SampleSizeRequest(baseline=rate, difference=difference, tasks=tasks))
            rng, n = generator(23), plan.episodes
            assert n is not None
            counts = rng.binomial(n, np.reshape(plan.rates, (2, 1, 1)), size=(2, replicates, tasks))
            p_values = [statistics.flip_task_p(row, np.ones(tasks)) for row in (counts[0] - counts[1]).astype(float)]
            found = share((np.array(p_values) <= LEVEL).sum(), replicates)
            first, second = plan.rates
            rows.append([str(tasks), f"{first:g}, {second:g}", str(n), str(n * tasks), found])
    return (
        "Planned episodes (`compare --plan`): how often the difference is found; meant are 80 %",
        ("Tasks", "Rates", "Episodes of each task", "Of each policy", "found"),
        rows,
    )


def tabulate_barnard(replicates: int) -> tuple[str, Row, list[Row]]:
    """Barnard's test: the supremum, and the time it takes."""
    rows = []
    for table in ((9, 10, 3, 10), (45, 50, 38, 50), (1600, 2000, 1540, 2000)):
        start = time.process_time()
        mine = statistics.barnard_p(*table)
        spent = time.process_time() - start
        count, n, other, m = table
        theirs, their_time = "not run", ""
        if n <= 100:
            start = time.process_time()
            theirs = f"{stats.barnard_exact([[count, other], [n - count, m - other]]).pvalue:.5f}"
            their_time = f"{time.process_time() - start:.2f} s"
        rows.append([f"{count}/{n}, {other}/{m}", f"{mine:.5f}", f"{spent:.2f} s", theirs, their_time])
    return "Barnard's p-value, and its CPU time", ("Table", "here", "time", "SciPy", "time"), rows


TABLES = (
    tabulate_rates,
    tabulate_severities,
    tabulate_suite_means,
    tabulate_gates,
    tabulate_rechecks,
    tabulate_gate_seeds,
    tabulate_gate_crashes,
    tabulate_suggestions,
    tabulate_tasks,
    tabulate_strata,
    tabulate_means,
    tabulate_many,
    tabulate_sequential,
    tabulate_until_rates,
    tabulate_plans,
)


def format_markdown(title: str, heads: Row, rows: Sequence[Row]) -> Iterator[str]:
    yield from (f"**{title}**", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=300, help="simulated runs for each figure")
    parser.add_argument("--only", help="a part of a table's name, such as severities")
    parser.add_argument("--barnard", action="store_true", help="also compare Barnard's test with SciPy's, and time it")
    parser.add_argument("--write", type=Path, help="put the tables between the marks in this page")
    options = parser.parse_args()
    chosen = [table for table in (*TABLES, *([tabulate_barnard] if options.barnard else []))
              if options.only is None or options.only in table.__name__]  # fmt: skip
    lines = [f"With {options.replicates} simulated runs for each figure that is not summed exactly.", ""]
    for table in chosen:
        lines += format_markdown(*table(options.replicates))
        print(f"{table.__name__} done", flush=True)
    text = "\n".join(lines).rstrip()
    if options.write is None:
        print(text)
        return
    page = options.write.read_text()
    block = f"{BEGIN}\n{text}\n{END}"
    options.write.write_text(re.sub(f"{BEGIN}.*{END}", lambda match: block, page, flags=re.S))


if __name__ == "__main__":
    main()
