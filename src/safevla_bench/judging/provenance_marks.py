"""Warnings that every output shows with its numbers, for example on stand-in assets, versions, and clauses left out.

Records mark episodes with placeholders for the simulator's own objects and fixtures (`standin_assets`), and name the
simulator's versions. Scores keep this mark and the versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeVar

import numpy as np

from safevla_bench.judging.action_statistics import FEWEST, ActionStatistics, find_oddities, join_changes
from safevla_bench.judging.metrics import Summary, cell_members
from safevla_bench.judging.scores import INACTIVE, Scores, collect_versions
from safevla_bench.tasks.identity import OFFICIAL, is_own_task
from safevla_bench.tasks.reasons import LEFT_OUT, describe_reason, read_reason
from safevla_bench.text import count_noun, join_lines
from safevla_bench.trajectory import marks
from safevla_recorder.simulator_versions import PHYSICS, find_differences

STANDIN = "stand-in assets"
Cell = tuple[str | None, str]
T = TypeVar("T")
_SAMPLE = re.compile(r"sample of (\d[\d,]{0,11}) of ")  # marks versions of a package with a sample of tasks


def warn_of_cells(cells: Iterable[Summary]) -> tuple[str, ...]:
    """Return the warnings to show with the numbers of these cells (policy × suite)."""
    summaries = list(cells)
    summary_of_cell = {(summary.policy, summary.suite or ""): summary for summary in summaries}
    # (id of the specification, reason) -> number of episodes in which it is inactive for this reason
    left_out: Counter[tuple[str, str]] = Counter()
    scored_specs = (spec for summary in summaries for spec in summary.specs if spec.tier == "safe")
    for spec in scored_specs:
        left_out.update({(spec.spec_id, reason): count for reason, count in spec.inactive.items()})
    # Subtract crashed episodes, which have no record.
    recorded_count = sum(sum(summary.outcomes.values()) - summary.crashed for summary in summaries)
    return (
        *warn_of_choice(suite for _, suite in summary_of_cell),
        *warn_of_identities({cell: summary.task_identity for cell, summary in summary_of_cell.items()}),
        *warn_of_standins({cell: summary.standin_assets for cell, summary in summary_of_cell.items()}),
        *warn_of_mixtures({cell: summary.simulator for cell, summary in summary_of_cell.items()}),
        *warn_of_divergence({cell: summary.diverged_replays for cell, summary in summary_of_cell.items()}),
        *_describe_log_cells(summaries),
        *_describe_left_out(left_out, recorded_count),
    )


def warn_of_episodes(episodes: Iterable[tuple[str | None, str, bool | None]]) -> tuple[str, ...]:
    """Return the warnings on stand-in assets. Each episode is a tuple: policy, suite, and whether the episode was
    simulated with stand-in assets (None without a record).
    """
    has_cell_standins: dict[Cell, bool] = {}
    for policy, suite, has_standins in episodes:
        # A cell has stand-ins if at least one of the cell's episodes has.
        if has_standins is not None:
            has_cell_standins[policy, suite] = has_standins or has_cell_standins.get((policy, suite), False)
    return warn_of_standins(has_cell_standins)


def warn_of_scores(scores: Scores) -> tuple[str, ...]:
    """Return the warnings to show with the numbers of these scores, one line for each warning."""
    # `members` are the indices of a cell's (policy × suite) recorded episodes, [n]. Leave out cells without a record.
    cells = {cell: members for cell, members in cell_members(scores).items() if len(members)}
    # Two masks [E]: episodes with stand-in assets; replays that left, or may have left, their recordings
    standins, diverged = scores.is_marked(marks.STANDIN), scores.is_marked(marks.DIVERGED)
    return (
        *warn_of_choice(suite for _, suite in cells),
        *warn_of_identities(
            {cell: Counter(identities) for cell, identities in _group_by_cell(scores, scores.task_identity).items()}
        ),
        *warn_of_standins({cell: bool(standins[members].any()) for cell, members in cells.items()}),
        *warn_of_mixtures(simulator_by_cell(scores)),
        *warn_of_divergence({cell: int(diverged[members].sum()) for cell, members in cells.items()}),
        *warn_of_records(scores),
        *warn_of_logs(scores),
        *warn_of_left_out(scores),
    )


def warn_of_records(scores: Scores) -> tuple[str, ...]:
    """Return the warnings that need each episode's scores, such as warnings of unknown poses or suspicious actions."""
    differences, unknown = warn_of_differences(scores), warn_of_unknown_poses(scores)
    return *differences, *unknown, *warn_of_actions(scores), *describe_changes(scores), *warn_of_samples(scores)


def warn_of_samples(scores: Scores) -> tuple[str, ...]:
    """If a package's version names a sample of tasks, return a sentence for each policy that ran fewer tasks."""
    # (package, policy, size of the sample as text) -> tasks that the policy ran
    tasks_by_sample: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    # `simulator` is empty if the versions are unknown.
    for policy, suite, task, simulator in zip(
        scores.policy, scores.benchmark, scores.task_id, scores.simulator, strict=False
    ):
        for package, version in simulator.items():
            # A version such as `... sample of 300 of 2,500 ...` matches; `sample[1]` is the size.
            if sample := _SAMPLE.search(version):
                tasks_by_sample.setdefault((package, policy or "(unnamed)", sample[1]), set()).add((suite, task))
    return tuple(
        f"{policy} ran {len(tasks)} of the {size} tasks in the sample of {package}; the numbers cover only those tasks."
        for (package, policy, size), tasks in tasks_by_sample.items()
        if len(tasks) < int(size.replace(",", ""))
    )


def warn_of_left_out(scores: Scores) -> tuple[str, ...]:
    """Return a line (or none) on scored clauses that could not judge some of the episodes to which they apply."""
    # (id of the specification, reason) -> number of episodes in which it is inactive for this reason
    left_out = Counter(
        (scores.specs[k].spec_id, scores.reasons[int(reason)])
        for k in scores.scored_columns
        for reason in scores.reason[k, scores.state[k] == INACTIVE]
    )
    return _describe_left_out(left_out, len(scores))


def _describe_left_out(counts: Mapping[tuple[str, str], int], recorded_count: int) -> tuple[str, ...]:
    # Return a line (or none) on clauses that apply but could not judge some episodes.
    # `counts` maps (specification, reason) to the number of episodes in which the specification is inactive.
    # Use only reasons with a code in `LEFT_OUT`, such as a missing signal. Otherwise, the clause does not apply.
    parts = [
        f"{spec_id} in {count} of {recorded_count} episodes ({describe_reason(reason)})"
        for (spec_id, reason), count in counts.items()
        if not LEFT_OUT.isdisjoint(read_reason(reason))
    ]
    return (f"Left out of the judgement: {'; '.join(parts)}.",) if parts else ()


def warn_of_choice(suites: Iterable[str]) -> tuple[str, ...]:
    """Return a warning (or none) on suites whose initial states were tried or found by a search.

    >>> warn_of_choice(["fake", "found:edge:fake"])[0].split(". ")[0]
    'Chosen starts: the starts of found:edge:fake were chosen for their outcomes'
    """
    chosen = [suite for suite in dict.fromkeys(suites) if marks.is_chosen(suite)]
    if not chosen:
        return ()
    return (
        f"Chosen starts: the starts of {', '.join(chosen)} were chosen for their outcomes. The rates "
        "only hold for the chosen starts, and are not rates of the benchmark.",
    )


def warn_of_identities(cells: Mapping[Cell, Mapping[str, int]]) -> tuple[str, ...]:
    """Return a line for each reason why episodes did not run, or may not have run, the official tasks that they name.

    `cells` maps (policy, suite) to a mapping: identity (a result of `judge_identity`) -> number of episodes.

    >>> warn_of_identities({("a", "libero-object"): {"differs:task definition": 2, "official": 1}})
    ('Not the official tasks: 2 episodes of a on libero-object (differs in task definition).',)
    """
    cells_by_identity: dict[str, dict[Cell, int]] = {}
    for cell, counts in cells.items():
        # "" means that the episode names no official task.
        for identity, count in counts.items():
            if identity not in ("", OFFICIAL):
                cells_by_identity.setdefault(identity, {})[cell] = count
    lines = []
    for identity, count_by_cell in cells_by_identity.items():
        policies = ", ".join(dict.fromkeys(policy or "unnamed" for policy, _ in count_by_cell))
        suites = ", ".join(dict.fromkeys(suite for _, suite in count_by_cell))
        claim = "Not the official tasks" if is_own_task(identity) else "Not known to be the official tasks"
        episodes = count_noun(sum(count_by_cell.values()), "episode")
        lines.append(f"{claim}: {episodes} of {policies} on {suites} ({describe_reason(identity)}).")
    return tuple(lines)


def warn_of_standins(cells: Mapping[Cell, bool]) -> tuple[str, ...]:
    """Return a warning (or none) on stand-in assets. `cells` maps (policy, suite) to whether stand-ins were used.

    >>> warn_of_standins({("a", "kitchen"): True, ("a", "table"): False})[0].split(":")[1].split(" was")[0]
    ' kitchen'
    """
    policies_by_suite: dict[str, list[str]] = {}
    for (policy, suite), has_standins in cells.items():
        if has_standins:
            policies_by_suite.setdefault(suite, []).append(policy or "unnamed")
    # Suites in which some policy has no stand-ins; for these suites, name the policies with stand-ins.
    mixed_suites = {suite for (_, suite), has_standins in cells.items() if not has_standins}
    suites = [
        f"{suite} ({', '.join(names)})" if suite in mixed_suites else suite
        for suite, names in policies_by_suite.items()
    ]
    if not suites:
        return ()
    was, it = ("was", "it") if len(suites) == 1 else ("were", "them")
    return (
        f"Stand-in assets: {', '.join(suites)} {was} simulated with placeholders for the simulator's own objects and "
        f"fixtures. These numbers are not results on {it}.",
    )


def warn_of_divergence(cells: Mapping[Cell, int]) -> tuple[str, ...]:
    """Return a warning (or none) on replays that left their recordings. `cells` maps (policy, suite) to a count.

    >>> warn_of_divergence({("replay:a", "table"): 2})[0].split(".")[0]
    'Diverged replays: 2 episodes of replay:a on table left their recordings, or may have left them'
    """
    parts = [
        f"{count_noun(count, 'episode')} of {policy or 'unnamed'} on {suite}"
        for (policy, suite), count in cells.items()
        if count
    ]
    if not parts:
        return ()
    return (
        f"Diverged replays: {', '.join(parts)} left their recordings, or may have left them. "
        "The verdicts on diverged replays are not verdicts on the recordings.",
    )


# The simulator's versions


def simulator_by_cell(scores: Scores) -> dict[Cell, dict[str, tuple[str, ...]]]:
    """Return the versions of each package that affects physics, by (policy, suite); {} if unknown."""
    # `simulators` has the versions in each episode of a cell, and `collect_versions` the distinct versions by package.
    return {cell: collect_versions(simulators) for cell, simulators in _group_by_cell(scores, scores.simulator).items()}


def _group_by_cell(scores: Scores, facts: Sequence[T]) -> dict[Cell, list[T]]:
    # Group `facts`, one per episode, by (policy, suite). If `facts` is empty, the facts are unknown: return {}.
    if not facts:
        return {}
    return {cell: [facts[k] for k in members] for cell, members in cell_members(scores).items() if len(members)}


def describe_simulators(cells: Mapping[Cell, Mapping[str, Sequence[str]]]) -> str:
    """Return the simulator versions as one sentence, grouping suites with equal versions; "" if none is known.

    >>> describe_simulators({("a", "table"): {"mujoco": ["3.2.3"]}, ("b", "table"): {"mujoco": ["3.2.3"]}})
    'Simulated with mujoco 3.2.3.'
    """
    if not any(cells.values()):
        return ""
    suites_by_versions: dict[str, dict[str, None]] = {}
    for (_, suite), versions in cells.items():
        text = ", ".join(
            f"{package} {' and '.join(package_versions)}" for package, package_versions in versions.items()
        )
        suites_by_versions.setdefault(text or "versions that the records do not name", {})[suite] = None
    parts = [*suites_by_versions]
    if len(parts) > 1:  # name the suites only if their versions differ
        parts = [f"{text} ({', '.join(suites)})" for text, suites in suites_by_versions.items()]
    return f"Simulated with {'; '.join(parts)}."


def find_mixtures(cells: Mapping[Cell, Mapping[str, Sequence[str]]]) -> list[str]:
    """Return a text for each suite and package with several versions: each version, and the policies recorded with it.

    A record without the package's version does not count as mixed, since the unknown version may be the same.

    >>> find_mixtures({("a", "table"): {"mujoco": ["3.2.3"]}, ("b", "table"): {"mujoco": ["3.17.0"]}})
    ['table: mujoco 3.2.3 (a) and 3.17.0 (b)']
    """
    # (suite, package) -> version -> policies; a dict with values None keeps the policies in order.
    policies_by_version: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for (policy, suite), versions in cells.items():
        for package, package_versions in versions.items():
            for version in package_versions:
                by_version = policies_by_version.setdefault((suite, package), {})
                by_version.setdefault(version, {})[policy or "unnamed"] = None
    # Only keep packages with several versions in the same suite.
    return [
        f"{suite}: {package} "
        + " and ".join(f"{version} ({', '.join(policies)})" for version, policies in by_version.items())
        for (suite, package), by_version in policies_by_version.items()
        if len(by_version) > 1
    ]


def warn_of_mixtures(cells: Mapping[Cell, Mapping[str, Sequence[str]]]) -> tuple[str, ...]:
    """Return a warning (or none) on numbers that come from several physics versions."""
    mixtures = find_mixtures(cells)
    if not mixtures:
        return ()
    return (f"Several physics versions: {'; '.join(mixtures)}. Numbers of different simulators cannot be compared.",)


def warn_of_unknown_poses(scores: Scores) -> tuple[str, ...]:
    """Return a line (or none) on episodes in which some records were not judged because a pose is unknown."""
    if scores.unknown is None:
        return ()
    # `unknown` [S, E] counts the records that a specification did not judge because of an unknown pose.
    # For each episode, take the maximum of these numbers over the scored specifications.
    counts = scores.unknown[scores.scored_columns].max(axis=0, initial=0)
    if not counts.any():
        return ()
    affected = count_noun(int((counts > 0).sum()), "episode")
    return (
        f"Poses are unknown in {affected} of {len(scores)}. Clauses do not judge records that lack a needed pose. "
        f"Largest number of such records in an episode: {int(counts.max())}; total number: {int(counts.sum())}. "
        "The field `unknown_records` in scores.json counts such records by clause.",
    )


def warn_of_actions(scores: Scores) -> tuple[str, ...]:
    """Return a line for each policy and suite with suspicious actions: what is suspicious, and the likely cause."""
    lines = []
    # `cell_statistics` has the action statistics of each episode; None if the episode's actions are not checked.
    for (policy, suite), cell_statistics in _group_by_cell(scores, scores.actions).items():
        known_statistics = [statistics for statistics in cell_statistics if statistics is not None]
        if not known_statistics:
            continue
        statistics = reduce(ActionStatistics.join, known_statistics)
        findings = [f"{oddity.found} ({oddity.cause})" for oddity in find_oddities(statistics)]
        # With fewer actions in total, findings may be due to chance.
        if findings and statistics.count >= FEWEST:
            lines.append(f"Odd actions of {policy or 'unnamed'} on {suite}: {'; '.join(findings)}.")
    return tuple(lines)


def describe_changes(scores: Scores) -> tuple[str, ...]:
    """Return a line for each policy and suite with actions that a filter changed: how many, and by how much."""
    totals = {cell: join_changes(changes) for cell, changes in _group_by_cell(scores, scores.changes).items()}
    # `total` as text says how many actions were changed, and gives the mean size of a change.
    return tuple(
        f"{policy or 'unnamed'} on {suite}: a filter {total}."
        for (policy, suite), total in totals.items()
        if total.changed
    )


def warn_of_logs(scores: Scores) -> tuple[str, ...]:
    """Return a line (or none) on scored specifications that are inactive in all logs of real robots."""
    # The number of logs, and for each scored specification the number of logs in which it is inactive
    log_count, inactive_counts = scores.count_logs(np.arange(len(scores)))
    suites = dict.fromkeys(scores.benchmark[k] for k in np.flatnonzero(scores.is_marked(marks.FOREIGN_LOG)))
    return _describe_logs(inactive_counts, log_count, suites)


def _describe_log_cells(cells: Iterable[Summary]) -> tuple[str, ...]:
    # Return the same line as `warn_of_logs`, from summaries of cells.
    inactive: Counter[str] = Counter()
    episodes = 0
    suites: dict[str, None] = {}
    # `logs` is unset for cells without a log.
    # `logs.inactive` maps each scored specification to the number of logs in which the specification is inactive.
    for cell in cells:
        if cell.logs:
            inactive.update(cell.logs.inactive)
            episodes += cell.logs.episodes
            suites[cell.suite or "all suites"] = None
    return _describe_logs(inactive, episodes, suites)


def _describe_logs(inactive: Mapping[str, int], episodes: int, suites: Iterable[str]) -> tuple[str, ...]:
    # Return a line (or none) on scored specifications that are inactive in all logs of real robots.
    # `inactive` maps each scored specification to the number of logs in which it is inactive.
    # `episodes` is the number of all logs; `suites` has the logs' suites.
    never_active = [spec_id for spec_id, count in inactive.items() if count == episodes]
    others = [spec_id for spec_id, count in inactive.items() if count < episodes]
    if not episodes or not never_active:
        return ()
    names = ", ".join(suites)
    return (
        f"Logs of real robots ({names}, {count_noun(episodes, 'episode')}): {len(never_active)} of {len(inactive)} "
        "scored specifications are inactive in all logs, because the logs or the tags of their tasks lack what these "
        f"specifications need: {', '.join(never_active)}. "
        f"Safety of {names} covers only these specifications: {', '.join(others) or 'none'}.",
    )


def warn_of_differences(scores: Scores) -> tuple[str, ...]:
    """Return a sentence for each known effect of the recorded physics versions on the scored tasks."""
    tasks_by_version: dict[tuple[str, str], set[str]] = {}
    # Each item of `simulator` maps package -> version, for packages that affect physics. No items if unknown.
    for suite, task, simulator in zip(scores.benchmark, scores.task_id, scores.simulator, strict=False):
        for package, version in simulator.items():
            tasks_by_version.setdefault((package, version), set()).add(f"{suite}/{task}")
    return tuple(
        f"Known difference: {difference.describe(version)}."
        for (package, version), tasks in tasks_by_version.items()
        # None = of any simulator; `PHYSICS` omits the differences that only affect pictures.
        for difference in find_differences(None, {package: version}, PHYSICS)
        if any(map(difference.concerns, tasks))
    )


@dataclass(frozen=True)
class AuditMark:
    """An audit of one policy of one run: episodes are drawn with the auditor's seed, replayed and compared."""

    episodes: int  # number of recorded episodes, from which `drawn` was drawn without replacement
    drawn: tuple[str, ...]
    differing: tuple[str, ...] = ()  # a sentence for each episode whose replay differs from its record
    unreplayed: tuple[str, ...] = ()
    """Sentences: why drawn episodes could not be replayed, or why no episode could be drawn."""
    uncompared: tuple[str, ...] = ()  # channels and fields that were not compared

    @property
    def verdict(self) -> Literal["agrees", "differs", "unchecked"]:
        """`differs` if a replay differs from its record, `agrees` if all drawn episodes agree, or `unchecked`."""
        # `unreplayed` has sentences on why drawn episodes could not be replayed, or why no episode could be drawn.
        if self.differing:
            return "differs"
        return "agrees" if self.drawn and not self.unreplayed else "unchecked"

    @property
    def badge(self) -> str:
        """The result in words. If a sample of episodes agrees, the text gives the probability of detecting forgeries. K
        draws miss m forged episodes among N with probability C(N - m, K) / C(N, K), which is at most (1 - m / N)^K.
        """
        # `drawn` has the ids of the drawn episodes; `episodes` is the number of recorded episodes.
        # `unreplayed` has sentences on why episodes could not be replayed or drawn.
        count = len(self.drawn)
        if self.verdict == "differs":
            return f"audit: {len(self.differing)} of {count} replayed episodes differ from their records"
        if self.verdict == "unchecked":
            return f"not audited: {join_lines(self.unreplayed[0] if self.unreplayed else 'there is no record')}"
        if count == self.episodes:
            coverage = "every recorded episode was replayed"
        else:
            forgery = f"with K = {count} draws, a share f of forged episodes would have been detected"
            coverage = f"{forgery} with probability 1 - (1 - f)^K or more"
        not_compared = f"; not compared: {', '.join(self.uncompared)}" if self.uncompared else ""
        return f"{count} of {count} replayed; {coverage}{not_compared}"
