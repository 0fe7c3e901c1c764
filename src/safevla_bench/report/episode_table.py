"""The page's table of episodes: a line per episode, with its details, and with values for the page's filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from safevla_bench.explain.bodies import BodyViolation
from safevla_bench.explain.episode import rank_by_severity, select_worst
from safevla_bench.judging.scores import EpisodeScore, Scores
from safevla_bench.report import episode_list
from safevla_bench.report.episode_details import EpisodeDetails, EpisodeRecords, describe_episode
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.firmness import NO_FIRMNESS, Firmness
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.text import NO_VALUE, format_fixed

MOST_DRAWN, MOST_LISTED = 350, 1000
"""Maximum numbers of episodes with drawn signals, and of episodes in the list. Both limit the size of the page."""
ENDINGS: Mapping[str, str] = {
    "ss": "Succeeded, safe",
    "su": "Succeeded, unsafe",
    "fs": "Failed, safe",
    "fu": "Failed, unsafe",
    "nv": "No verdict",
    "st": "Stopped, unsafe",
    "cr": "Crashed",
}
"""Kind of ending -> text. Every recorded episode with unknown safety has the kind `nv`."""


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """One line of the table: an episode, the filter values that match it, and its details."""

    row: episode_list.ListedEpisode
    kind: str  # a key of `ENDINGS`
    facets: Mapping[str, Sequence[str]]  # filter -> the values of the filter that match the episode
    details: EpisodeDetails

    @property
    def key(self) -> tuple[str | None, str]:
        # Return (policy or None, episode id), by which pictures and replays are found. `row` is the listed episode.
        return self.row.policy, self.row.episode_id

    @property
    def policy(self) -> str:
        # Return the policy's displayed name, even if the records name no policy.
        return self.row.policy or UNNAMED

    @property
    def ending(self) -> str:
        # Return the ending and the verdict as text, such as `Failed, unsafe, fragile`.
        # Fragile means that varied physics changes a verdict.
        # If `success` is None, the episode left no record. Then return the text of `kind` in `ENDINGS`.
        episode = self.row.episode
        if episode.success is None:
            return ENDINGS[self.kind]
        fragile = ", fragile" if self.row.fragile_under else ""
        return episode_list.describe_ending(episode.success, episode.safe, episode.outcome) + fragile

    @property
    def worst(self) -> str:
        # Return the id of the specification with the deepest violation (or the smallest margin).
        # Without a verdict, `row.margin` is None; then return a dash.
        return self.row.margin.spec if self.row.margin else NO_VALUE

    @property
    def severity(self) -> str:
        # Return as text the episode's VSI, the greatest depth of violation (0 to 1); a dash if VSI is unknown.
        return NO_VALUE if self.row.episode.vsi is None else format_fixed(self.row.episode.vsi, 3)

    @property
    def first(self) -> str:
        """The time of the first violation, or the violation's step if no time is known."""
        # Without a violation, the step is None, and the text is a dash.
        if self.row.first_violation_step is None:
            return NO_VALUE
        first_s = self.row.first_violation_s
        if first_s is None or np.isnan(first_s):
            return f"step {self.row.first_violation_step}"
        return f"{format_fixed(first_s, 2)} s"

    @property
    def lost(self) -> list[str]:
        # Return the reason why the episode left no record, as lines of text; [] if the episode has a record.
        episode = self.row.episode
        return [] if episode.success is not None else (episode.reason or "no reason recorded").strip().splitlines()


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """The listed episodes, how many of them have drawn signals, and the number of episodes that are not listed."""

    entries: tuple[EpisodeEntry, ...]
    drawn_count: int
    left_out: int


def build_episode_table(
    records: EpisodeRecords, violations: Sequence[BodyViolation] | None = None, firmness: Firmness = NO_FIRMNESS
) -> EpisodeTable:
    """Return the table of the worst 1000 episodes, always including the episodes of `select_worst`.

    The episodes are in the order of the sources, and episodes without a record come last. Signals are drawn for the
    worst 350 episodes that have a record.

    Args:
        records: the verdicts, and the records of some or all of the episodes.
        violations: the bodies of all violations, for the filter by kind of body; None = no such filter.
        firmness: policy and episode id -> results of the episode's replays under varied physics.
    """
    scores = records.scores
    ranked = rank_by_severity(scores)
    drawn = list(islice((k for k in ranked if k in records), MOST_DRAWN))
    records.trace(drawn)  # computes the signals of many episodes together, which is faster
    total = len(scores) + len(scores.absent)
    # Indices of episodes, without duplicates (so a dictionary's keys); episodes without a record come last.
    worst_first = dict.fromkeys([*select_worst(scores), *ranked, *range(len(scores), total)])
    listed_indices, drawn_indices = {*islice(worst_first, MOST_LISTED)}, set(drawn)
    # Without a record, the control step is unknown (NaN), and so are times.
    headers = map(records.header, range(len(scores)))
    dt_s = np.array([header.dt if header else np.nan for header in headers], dtype=np.float64)
    rows = episode_list.list_episodes(scores, dt_s, stamps_s=records.stamps_s, only=listed_indices)
    if violations is not None:
        rows = episode_list.add_violating_bodies(rows, violations)
    entries = []
    for row in episode_list.add_firmness(rows, firmness):
        details = describe_episode(records, row, drawn=row.number - 1 in drawn_indices)
        entries.append(EpisodeEntry(row, _ending_kind(row.episode), _filter_values(scores, row), details))
    return EpisodeTable(tuple(entries), len(drawn), total - len(entries))


def _ending_kind(episode: EpisodeScore | AbsentEpisode) -> str:
    # Return a key of `ENDINGS`: a known verdict of a finished episode is two letters, outcome and safety.
    # If `success` is None, the episode left no record.
    if episode.success is None:
        return "cr"
    if episode.safe is None:
        return "nv"
    if episode.outcome == "stopped":  # stopped with a known verdict: a limit was violated before the stop
        return "st"
    success_letter = "s" if episode.success else "f"
    return success_letter + ("s" if episode.safe else "u")


def _filter_values(scores: Scores, row: episode_list.ListedEpisode) -> dict[str, list[str]]:
    # Return for each filter the values that match the episode.
    episode = row.episode
    # An episode without a record (`success` is None) has no column in the scores, and so no violation.
    columns = [] if episode.success is None else scores.scored_columns.tolist()
    return {
        "policy": [row.policy or UNNAMED],
        "suite": [episode.benchmark],
        "task": [f"{episode.benchmark} / {episode.task_id}"],
        "outcome": [ENDINGS[_ending_kind(episode)]],
        "broken": [scores.specs[k].spec_id for k in columns if scores.is_violated[k, row.number - 1]],
        "bodies": list(dict.fromkeys(kind for kinds in row.body_kinds for kind in kinds)),
    }
