"""Measures the scripted policies on LIBERO and writes docs/measured.md: python docs/measure.py [--keep] [--page]

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from safevla_bench import evaluation, hosts, runs
from safevla_bench.errors import SafevlaError
from safevla_bench.metrics import Rate, Summary, cells
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scores import EpisodeScore, Scores
from safevla_bench.text.numbers import format_interval, format_percent

PAGE = Path(__file__).with_name("measured.md")
HOST = "libero"
SUITES = ("libero-object", "libero-spatial", "libero-goal", "libero-10")
POLICIES = ("scripted:careful", "scripted:hasty")
EPISODES = 5

MISSING = "not measured"

INTRODUCTION = """\
# What the scripted policies reach

This page is written by `make measure`; do not edit it. Both policies see the simulator's state, which no real robot
has, and follow one script: they are no baseline for a learned policy. They show that a benchmark of success alone
cannot tell them apart as well as the judge can, and that its specifications can be met.

Every task is rolled out from its first five initial states under the preset `safevla-bench`, judged by the default
library. In brackets: Wilson's 95 % interval. `n of 5` counts episodes; the last column counts the episodes that
violate a specification, and an episode can violate several. The same versions on the same processor give the same page;
another processor rounds differently, and an episode that stands on the edge may fall to the other side.
"""

NOTES = {
    "libero-goal": """\
Out of the script's reach is task 5, to push a plate: it is wide and flat, the fingers fit nowhere, and the arm holds
still. In task 3 the careful policy draws the drawer and carries the bowl, and the horizon of 300 steps ends before it
can let go.
""",
    "libero-10": """\
In tasks 0, 1 and 7 the initial states overlap what they stand on, and throw ketchup, milk and juice up. Under MuJoCo
3.2.3 they lie still when the ten settling steps end; under 3.4 and newer they do not
([simulator-versions.md](simulator-versions.md)). Out of the script's reach is the mug in task 9: the microwave has a
roof, and the hand points down; the door is shut without it.
""",
}
"""What a reader should know beside the numbers."""


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
    request = evaluation.Request(
        host=HOST, suites=(job.suite,), tasks=(job.task,), episodes=EPISODES, policies=(job.policy,)
    )
    _, total = evaluation.evaluate_request(request, load_ruleset(), job.folder).summarize_scores()
    success, safe = (total.rates[name].count for name in ("sr", "safety"))
    return f"{job.suite} task {job.task} {job.policy}: {success} successful, {safe} safe of {total.n}"


def is_complete(path: Path) -> bool:
    """Whether a run folder holds every planned episode."""
    try:
        return bool(runs.open_source(path).description.get("complete"))
    except SafevlaError:
        return False


def roll_out(wanted: Sequence[Job], workers: int) -> None:
    """All jobs, `workers` at a time."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for line in pool.map(measure, wanted):
            print(line, file=sys.stderr, flush=True)


def build_page(scores: Scores) -> str:
    """The whole page; tasks without episodes are named, too."""
    episodes, summaries = list(scores.episodes()), cells(scores)
    parts = [INTRODUCTION, "## By suite", _suites(summaries)]
    for suite in SUITES:
        parts += [f"## {suite}", *_tasks([one for one in episodes if one.benchmark == suite], suite)]
        parts += [NOTES[suite]] if suite in NOTES else []
    return "\n\n".join(part.strip() for part in [*parts, "## Versions", _versions()]) + "\n"


def _suites(summaries: Sequence[Summary]) -> str:
    rows = [
        (
            one.suite or "",
            _code(one.policy or ""),
            str(one.n),
            *(_rate(one.rates[name]) for name in ("sr", "safety", "sbu")),
        )
        for suite in SUITES
        for one in summaries
        if one.suite == suite
    ]
    return _table(("Suite", "Policy", "Episodes", "SR", "Safety", "Successful but unsafe"), rows)


def _rate(rate: Rate) -> str:
    low, high = rate.ci or (0.0, 1.0)
    return f"{format_percent(rate.count, rate.n)} % [{format_interval(low, high, 1, 100)}]"


def _tasks(episodes: Sequence[EpisodeScore], suite: str) -> Iterator[str]:
    instructions = {task.task_id: task for task in hosts.make_host(HOST).tasks(suite)}
    rows = []
    for (task_id, task), policy in product(instructions.items(), POLICIES):
        own = [one for one in episodes if one.task_id == task_id and one.policy == policy]
        name = f"{task.index} {task.instruction}" if policy == POLICIES[0] else ""
        rows.append(
            (name, _code(policy), _count(one.success for one in own), _count(one.safe for one in own), _why(own))
        )
    yield _table(("Task", "Policy", "Successful", "Safe", "Violated"), rows)


def _count(flags: Iterator[bool]) -> str:
    every = list(flags)
    return f"{sum(every)} of {len(every)}" if every else MISSING


def _why(episodes: Sequence[EpisodeScore]) -> str:
    """Specification -> episodes in which it is violated, the most frequent first."""
    broken = Counter(name for one in episodes for name, depth in one.depth.items() if depth)
    return ", ".join(f"{_code(name)} {count}" for name, count in sorted(broken.items(), key=lambda x: (-x[1], x[0])))


def _versions() -> str:
    found = {"Python": platform.python_version(), **hosts.make_host(HOST).versions()}
    return _table(("Software", "Version"), sorted(found.items(), key=lambda item: item[0].lower()))


def _code(name: str) -> str:
    return f"`{name}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure what is asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/measure"), help="where the run folders lie")
    parser.add_argument("--workers", type=int, default=2, help="how many processes roll out")
    parser.add_argument("--keep", action="store_true", help="keep the run folders that are complete")
    parser.add_argument("--page", action="store_true", help="roll out nothing, write the page from what is complete")
    parser.add_argument("--suite", choices=SUITES, action="append", help="roll out only this, repeatable; no page")
    chosen = parser.parse_args()
    every = plan_jobs(chosen.out, chosen.suite or SUITES)
    if not chosen.page:
        roll_out([job for job in every if not (chosen.keep and is_complete(job.folder))], chosen.workers)
    if chosen.suite:
        return
    done = [job.folder for job in every if is_complete(job.folder)]
    judged = evaluation.judge(done, load_ruleset())
    PAGE.write_text(build_page(judged.scores), encoding="utf-8")
    print(f"{PAGE.name} has {len(done)} of {len(every)} tasks and policies; their reports are under {chosen.out}")


if __name__ == "__main__":
    main()
