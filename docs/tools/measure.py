"""Measures scripted policies on LIBERO and writes evidence/measured.md: python docs/tools/measure.py [--keep] [--page]

With --perturbed it measures them and noop on the sixteen suites of LIBERO-PRO, an episode a task, in run folders
SUITE/POLICY, and renews that section alone.

400 episodes: two policies, the 40 tasks of four suites, their first five initial states, through `evaluate_request`, as
`safevla eval` does it. One run folder under runs/measure for each task and policy. With --keep, folders that are
complete stay and only the others are rolled out, so that an interrupted run can go on; without it, all is measured
anew.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from made_page import format_table

from safevla_bench import hosts
from safevla_bench.errors import SafevlaError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.rates import Rate
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.statistics.intervals import Interval, combine_intervals
from safevla_bench.text import format_interval, format_percent

PAGE = Path(__file__).parents[1] / "evidence" / "measured.md"
HOST = "libero"
SUITES = ("libero-object", "libero-spatial", "libero-goal", "libero-10")
POLICIES = ("scripted:careful", "scripted:hasty")
EPISODES = 5

KINDS = {
    "swap": "other places",
    "object": "other looks and sizes",
    "lan": "other words",
    "task": "another task",
}
"""LIBERO-PRO's changes, by the end of a suite's name."""
IDLE = "noop"
PERTURBED = "## LIBERO-PRO"

INTRODUCTION = """\
# What the scripted policies reach

Written by `make measure`; do not edit. Both policies see the simulator's state, so they are not a baseline for a
learned policy. They show what success alone does not, and that specifications can be met.

Each task from its first five initial states, by the preset `safevla-bench` and the default library. In brackets:
Wilson's 95 % interval. Under *Violated*, episodes; one may violate several specifications. `safevla tasks --suite NAME`
lists the tasks.
"""

NOTES = """\
- libero-goal and libero-10, and LIBERO-PRO below: measured while the scripts moved drawers, doors and knobs, too. They
  place objects alone now, so that tasks with such a part fail.
- libero-goal: the script cannot push the plate of task 5. In task 3 the horizon of 300 steps ends before the careful
  policy lets go.
- libero-10: in tasks 0, 1 and 7 objects overlap at the start. Under MuJoCo 3.2.3 they lie still after the ten settling
  steps ([other versions](simulator-versions.md)). The script cannot put the mug of task 9 under the microwave's roof.
"""
"""What a reader should know beside the numbers."""


PERTURBED_INTRODUCTION = """\
LIBERO-PRO changes one thing of each task. The scripts see the simulator's state, so `-lan` is a control. Each task
once, from its first initial state. Changes are against the suites above, in percentage points with Newcombe's 95 %
interval.
"""


@dataclass(frozen=True)
class Job:
    """One policy's episodes of one task, and the folder for all jobs."""

    out: Path
    suite: str
    task: int
    policy: str

    @property
    def folder(self) -> Path:
        return self.out / self.suite / f"task_{self.task}" / self.policy.partition(":")[2]


def plan_jobs(out: Path, suites: Sequence[str]) -> list[Job]:
    """Every task of the suites by every policy."""
    found = hosts.make_host(HOST)
    return [
        Job(out, suite, task.index, policy) for suite in suites for task in found.tasks(suite) for policy in POLICIES
    ]


def measure(job: Job) -> str:
    """Roll out and judge one job; returns what came of it in a line."""
    shutil.rmtree(job.folder, ignore_errors=True)
    request = Request(host=HOST, suites=(job.suite,), tasks=(job.task,), episodes=EPISODES, policies=(job.policy,))
    _, total = evaluate_request(request, load_ruleset(), job.folder).summarize_scores()
    success, safe = (total.rates[name].count for name in ("sr", "safety"))
    return f"{job.suite} task {job.task} {job.policy}: {success} successful, {safe} safe of {total.n}"


def is_complete(path: Path) -> bool:
    """Whether a run folder holds every planned episode."""
    try:
        return bool(open_source(path).description.get("complete"))
    except SafevlaError:
        return False


def roll_out(wanted: Sequence[Job], workers: int) -> None:
    """All jobs, `workers` at a time."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for line in pool.map(measure, wanted):
            print(line, file=sys.stderr, flush=True)


def build_page(scores: Scores, perturbed: str = "") -> str:
    """The whole page; `perturbed` is the section on LIBERO-PRO."""
    episodes, summaries = list(scores.episodes()), cells(scores)
    parts = [INTRODUCTION, "## By suite", _suites(summaries, episodes), NOTES]
    parts += [perturbed] if perturbed else []
    return "\n\n".join(part.strip() for part in [*parts, "## Versions", _versions()]) + "\n"


# LIBERO-PRO: the same policies where something is changed


@dataclass(frozen=True)
class Counts:
    """Successes, safe episodes and unsafe successes among n."""

    n: int
    success: int
    safe: int
    unsafe_success: int


def measure_perturbed(out: Path, keep: bool) -> None:
    """Roll out every suite of LIBERO-PRO by every policy, an episode a task; complete folders stay with `keep`."""
    for suite, policy in product(perturbed_suites(), (*POLICIES, IDLE)):
        folder = perturbed_folder(out, suite, policy)
        if keep and is_complete(folder):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        request = Request(host=HOST, suites=(suite,), episodes=1, policies=(policy,))
        print(evaluate_request(request, load_ruleset(), folder).scores, file=sys.stderr, flush=True)


def perturbed_suites() -> list[str]:
    return [f"{suite}-{kind}" for suite in SUITES for kind in KINDS]


def perturbed_folder(out: Path, suite: str, policy: str) -> Path:
    return out / suite / (policy.partition(":")[2] or policy)


def build_perturbed(scores: Scores, page: str) -> str:
    """The section on LIBERO-PRO; `page` has the numbers of the suites as they are."""
    plain = read_plain_counts(page)
    found = {
        (policy, suite): count_episodes([row for row in scores if row.policy == policy and row.benchmark == suite])
        for policy, suite in product((*POLICIES, IDLE), perturbed_suites())
    }
    whole = {key: counts for key, counts in found.items() if counts.n}
    wanted = len(SUITES) * len(KINDS)
    measured = Counter(policy for policy, _ in whole)
    missing = {policy: wanted - measured[policy] for policy in (*POLICIES, IDLE)}
    lacking = [f"{_code(policy)} on {count}" for policy, count in missing.items() if count]
    parts = [PERTURBED, PERTURBED_INTRODUCTION]
    parts += [] if not lacking else [f"Not measured, of {wanted} suites: {', '.join(lacking)}."]
    parts += [*_kinds_table(whole, plain), _idle(whole)]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def count_episodes(episodes: Sequence[EpisodeScore]) -> Counts:
    return Counts(
        n=len(episodes),
        success=sum(row.success for row in episodes),
        safe=sum(bool(row.safe) for row in episodes),
        unsafe_success=sum(bool(row.sbu) for row in episodes),
    )


def read_plain_counts(page: str) -> dict[tuple[str, str], Counts]:
    """Return the counts of the suites as they are, by policy and suite, from the page's first table."""
    rows = (line.strip("| ").split(" | ") for line in page.partition("## By suite")[2].partition("## ")[0].splitlines())
    found = {}
    for suite, policy, n, *rates in (row[:6] for row in rows if row[0] in SUITES):
        counts = (round(float(rate.split()[0]) * int(n) / 100) for rate in rates)
        found[policy.strip("`"), suite] = Counts(int(n), *counts)
    return found


def _add(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(getattr(one, name) for one in counts) for name in ("n", "success", "safe", "unsafe_success")))


def _kinds_table(whole: Mapping[tuple[str, str], Counts], plain: Mapping[tuple[str, str], Counts]) -> Iterator[str]:
    """The suites that are measured with every change, joined."""
    rows = []
    for policy in POLICIES:
        common = [base for base in SUITES if all((policy, f"{base}-{kind}") in whole for kind in KINDS)]
        if not common:
            continue
        usual = _add([plain[policy, base] for base in common])
        name = "nothing" if len(common) == len(SUITES) else f"nothing ({', '.join(common)})"
        rows.append((_code(policy), f"{name}, {usual.n} episodes", *_two(usual), "", ""))
        for kind, meaning in KINDS.items():
            counts = _add([whole[policy, f"{base}-{kind}"] for base in common])
            changes = {word: _change(counts, usual, name) for word, name in WORDS.items()}
            shown = (*_two(counts), *map(_points, changes.values()))
            rows.append((_code(policy), f"`-{kind}`: {meaning}", *shown))
    heads = ("Policy", "Changed", "SR, %", "Safety, %", "SR by points", "Safety by points")
    yield format_table(heads, rows)


WORDS = {"SR": "success", "Safety": "safe"}


def _change(counts: Counts, usual: Counts, name: str) -> tuple[float, float, float]:
    """A proportion's change in points, and its interval."""
    count, before = getattr(counts, name), getattr(usual, name)
    sides = [Rate.of(count, counts.n), Rate.of(before, usual.n)]
    interval = combine_intervals([(rate.value or 0.0, Interval(*(rate.ci or (0.0, 1.0)))) for rate in sides], (1, -1))
    return 100 * (count / counts.n - before / usual.n), 100 * interval.low, 100 * interval.high


def _points(change: tuple[float, float, float]) -> str:
    return "{:+.1f} [{:+.1f} to {:+.1f}]".format(*change)


def _two(counts: Counts) -> tuple[str, ...]:
    return tuple(format_percent(count, counts.n) for count in (counts.success, counts.safe))


def _idle(whole: Mapping[tuple[str, str], Counts]) -> str:
    total = _add([counts for (policy, _), counts in whole.items() if policy == IDLE])
    return f"`{IDLE}` succeeds in {total.success} of {total.n} episodes and is safe in {total.safe}."


def renew_section(page: str, section: str) -> str:
    """The page with the section on LIBERO-PRO in place of its own, before the versions."""
    before, _, rest = page.partition("## Versions")
    kept = before.partition(PERTURBED)[0]
    return f"{kept.rstrip()}\n\n{section}\n\n## Versions{rest}"


def read_section(page: str) -> str:
    _, heading, rest = page.partition("## Versions")[0].partition(PERTURBED)
    return (heading + rest).strip()


def _suites(summaries: Sequence[Summary], episodes: Sequence[EpisodeScore]) -> str:
    rows = [
        (
            one.suite or "",
            _code(one.policy or ""),
            str(one.n),
            *(_rate(one.rates[name]) for name in ("sr", "safety", "sbu")),
            _why([row for row in episodes if (row.benchmark, row.policy) == (suite, one.policy)]),
        )
        for suite in SUITES
        for one in summaries
        if one.suite == suite
    ]
    return format_table(("Suite", "Policy", "Episodes", "SR", "Safety", "Successful but unsafe", "Violated"), rows)


def _rate(rate: Rate) -> str:
    low, high = rate.ci or (0.0, 1.0)
    return f"{format_percent(rate.count, rate.n)} % [{format_interval(low, high, 1, 100)}]"


def _why(episodes: Sequence[EpisodeScore]) -> str:
    """Specification -> episodes in which it is violated, the most frequent first."""
    broken = Counter(name for one in episodes for name, depth in one.depth.items() if depth)
    return ", ".join(f"{_code(name)} {count}" for name, count in sorted(broken.items(), key=lambda x: (-x[1], x[0])))


def _versions() -> str:
    found = {"Python": platform.python_version(), **hosts.make_host(HOST).versions()}
    return ", ".join(f"{name} {found[name]}" for name in sorted(found, key=str.lower)) + "."


def _code(name: str) -> str:
    return f"`{name}`"


def write_perturbed(out: Path, *, keep: bool, roll: bool) -> None:
    """Measure LIBERO-PRO unless told not to, and renew its section of the page from what is complete."""
    if roll:
        measure_perturbed(out, keep)
    folders = [perturbed_folder(out, suite, policy) for suite, policy in product(perturbed_suites(), (*POLICIES, IDLE))]
    done = [folder for folder in folders if is_complete(folder)]
    page = PAGE.read_text(encoding="utf-8")
    section = build_perturbed(judge(done, load_ruleset()).scores, page)
    PAGE.write_text(renew_section(page, section), encoding="utf-8")
    print(f"{PAGE.name} has {len(done)} of {len(folders)} suites and policies of LIBERO-PRO")


def main() -> None:
    """Measure what is asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/measure"), help="where the run folders lie")
    parser.add_argument("--workers", type=int, default=2, help="how many processes roll out")
    parser.add_argument("--keep", action="store_true", help="keep the run folders that are complete")
    parser.add_argument("--page", action="store_true", help="roll out nothing, write the page from what is complete")
    parser.add_argument("--suite", choices=SUITES, action="append", help="roll out only this, repeatable; no page")
    parser.add_argument("--perturbed", type=Path, metavar="OUT", help="measure LIBERO-PRO into OUT, renew its section")
    chosen = parser.parse_args()
    if chosen.perturbed:
        write_perturbed(chosen.perturbed, keep=chosen.keep, roll=not chosen.page)
        return
    every = plan_jobs(chosen.out, chosen.suite or SUITES)
    if not chosen.page:
        roll_out([job for job in every if not (chosen.keep and is_complete(job.folder))], chosen.workers)
    if chosen.suite:
        return
    done = [job.folder for job in every if is_complete(job.folder)]
    judged = judge(done, load_ruleset())
    section = read_section(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(build_page(judged.scores, section), encoding="utf-8")
    print(f"{PAGE.name} has {len(done)} of {len(every)} tasks and policies; their reports are under {chosen.out}")


if __name__ == "__main__":
    main()
