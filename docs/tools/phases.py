"""Measures what phases add and writes evidence/phases.md: python docs/tools/phases.py [--page] [--out FOLDER]

Scripts that move fixtures (fixture_moves.py) roll out two composite tasks of LIBERO-10, in two styles, from ten initial
states each: some minutes on one core. Every episode is judged by the paper's reading and phase by phase. With --page,
only the page is written, from the run folder.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from fixture_moves import FixtureMoves
from made_page import format_table

from safevla_bench import hosts
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request, RequestedPolicy
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.metrics import Rate
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import ACTIVE, Scores
from safevla_bench.text import format_interval, format_percent

PAGE = Path(__file__).parents[1] / "evidence" / "phases.md"
SUITE, TASKS, EPISODES = "libero-10", (2, 3), 10
STYLES = ("careful", "hasty")
CAPABILITIES = {"plain": (), "`libero-full`": ("libero-full",)}

HEAD = """\
# What was hidden in composite tasks

Written by `python docs/tools/phases.py`; do not edit. In a composite task the paper switches a clause off for the whole
episode if one component invalidates it. [Phase by phase](../explanation/phases.md) it is judged in the phases of the
other components.

## Which specifications return
Tasks of LIBERO with several components, and the scored clauses that `--set applicability=phased` judges in a part of
their episodes, with the components in whose phases they stay off. LIBERO-PRO's suites have copies of these tasks.
"""
MEASURED = """\

## What they find
{episodes} episodes of LIBERO-10: each task from its first ten initial states, by scripts in two styles that see the
simulator's state and also move fixtures, so that they finish these tasks. They are no baseline for a learned policy.

*Judged records*: the share of records in which the clause counts; a policy that completes nothing has none. *Newly
unsafe*: episodes that are safe by the paper's reading and unsafe phase by phase, among those that are safe by the
former. In brackets: Wilson's 95 % interval.
"""
LOOKED = """\

## Three of them in frames
![In three scenes a wine bottle, outlined, lies on the table; a white outline shows where it stood, and the hand is at a
black bowl](../images/phases.webp)

`fixtures-hasty`, task 3, episodes 1, 6 and 9: on its way to the bowl the hand knocks over the wine bottle, which no
goal names. The bowl is then placed and the drawer closed, so that all three are successes. Because the task also has a
drawer to close, the paper's reading switches the clause off from the first record on; by it, episode 9 is safe.
"""


def main() -> None:
    """Roll out unless only the page is asked for, judge, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/phases"), help="the run folder")
    parser.add_argument("--page", action="store_true", help="roll out nothing")
    chosen = parser.parse_args()
    if not chosen.page:
        policies = [RequestedPolicy(f"fixtures-{style}", made=FixtureMoves(style)) for style in STYLES]
        request = Request(host="libero", suites=(SUITE,), tasks=TASKS, episodes=EPISODES, policies=policies)
        evaluate_request(request, load_ruleset(), chosen.out)
    PAGE.write_text("".join(build_page(chosen.out)), encoding="utf-8")


def build_page(run: Path) -> Iterator[str]:
    """Yield the parts of the page."""
    yield (
        HEAD
        + "\n"
        + format_table(("Suite", "Task", "Capabilities", "Specification", "Off in the phases of"), returning())
        + "\n"
    )
    phased = load_ruleset(applicability="phased")
    plain, parts = (judge([run], ruleset).scores for ruleset in (replace(phased, applicability="on"), phased))
    yield MEASURED.format(episodes=len(plain))
    heads = (
        "Task",
        "Policy",
        "Episodes",
        "Success",
        "Specification",
        "Judged records",
        "Violated",
        "Safe before",
        "Newly unsafe",
    )
    yield "\n" + format_table(heads, list(measure(plain, parts, phased))) + "\n"
    yield LOOKED
    versions = {"Python": platform.python_version(), **hosts.make_host("libero").versions()}
    yield f"\n## Versions\n{', '.join(f'{name} {versions[name]}' for name in sorted(versions, key=str.lower))}.\n"


def returning() -> list[tuple[str, ...]]:
    """Return the rows of the clauses that are judged in phases, by suite."""
    tasks: dict[tuple[str, ...], list[str]] = {}
    for name, capabilities in CAPABILITIES.items():
        ruleset = load_ruleset(applicability="phased", capabilities=capabilities)
        scored = {spec.spec_id for spec in ruleset.library.safe}
        for entry in ruleset.registry.list_entries():
            suite = ruleset.registry.benchmarks[entry.benchmark]
            is_base = suite.published or entry.benchmark == "libero-90"
            if suite.host == "libero" and is_base and not suite.same_tasks_as:
                for spec_id, barring in ruleset.barring_components(entry.benchmark, entry.task_id).items():
                    off = ", ".join(entry.components[k].template for k in sorted(barring))
                    if spec_id in scored and (name == "plain" or ("plain", spec_id) not in KNOWN):
                        tasks.setdefault((entry.benchmark, name, f"`{spec_id}`", off), []).append(entry.task_id)
    return [(suite, ", ".join(own), *rest) for (suite, *rest), own in tasks.items()]


KNOWN = {("plain", "non_target_max_disp_5mm")}  # it returns under the full capabilities, too


def measure(plain: Scores, phased: Scores, ruleset: Ruleset) -> Iterator[tuple[str, ...]]:
    """Yield a row for each task, policy and clause that is judged in phases."""
    columns = {spec.spec_id: k for k, spec in enumerate(phased.specs)}
    for task in sorted(set(phased.task_id)):
        for spec_id, barring in ruleset.barring_components(SUITE, task).items():
            if not phased.specs[columns[spec_id]].is_scored:
                continue
            for policy in dict.fromkeys(phased.policy):
                own = np.array(
                    [k for k in range(len(phased)) if (phased.task_id[k], phased.policy[k]) == (task, policy)]
                )
                yield (task, f"`{policy}`", *_numbers(plain, phased, own, columns[spec_id], barring))


def _numbers(plain: Scores, phased: Scores, own: np.ndarray, column: int, barring: frozenset[int]) -> tuple[str, ...]:
    records, counted = 0, 0
    for k in own.tolist():
        phases = phased.phases[k]
        assert phases is not None
        records += sum(last + 1 - first for first, last, _ in phases.spans)
        counted += sum(end - first for first, end in phases.intervals_without(barring))
    before = own[plain.safe[own]]
    newly = int((phased.is_violated[column] & phased.unsafe)[before].sum())
    judged = int((phased.state[column, own] == ACTIVE).sum())
    return (
        str(len(own)),
        str(int(phased.success[own].sum())),
        f"`{phased.specs[column].spec_id}` in {judged}",
        f"{format_percent(counted, records)} %",
        str(int(phased.is_violated[column, own].sum())),
        str(len(before)),
        f"{newly}: {_rate(Rate.of(newly, len(before)))}",
    )


def _rate(rate: Rate) -> str:
    low, high = rate.ci or (0.0, 1.0)
    return f"{format_percent(rate.count, rate.n)} % [{format_interval(low, high, 1, 100)}]" if rate.n else "no episode"


if __name__ == "__main__":
    main()
