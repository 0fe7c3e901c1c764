"""Details of an episode in the page: its verdicts with sparklines, and its specifications without a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from safevla_bench import signals
from safevla_bench.explain.bodies import Contributors
from safevla_bench.explain.episode import SpecTrace, judged_columns, trace_specs, vacuous_reasons
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import INACTIVE, VACUOUS, Scores
from safevla_bench.report.charts import Sparkline, draw_sparkline
from safevla_bench.report.episode_list import VACUOUS_REASON, ListedEpisode
from safevla_bench.report.tables.episodes import format_cause
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import count_noun, format_amount, format_fixed
from safevla_bench.trajectory.batch import Batch, Stamps, select_episodes
from safevla_bench.trajectory.header import Header

# Number of episodes whose signals are computed together. A larger number is faster, but needs more memory.
_TRACED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence from one episode's record: traces of judged specifications, and why other specifications are vacuous."""

    traces: tuple[SpecTrace, ...]
    vacuous: Mapping[str, str]

    def trace(self, spec_id: str) -> SpecTrace | None:
        # Return the trace of a specification: the signal, the limit and the verdict.
        # Return None if the specification has no verdict or is not scored.
        return next((trace for trace in self.traces if trace.spec.spec_id == spec_id), None)


class EpisodeRecords:
    """The records of the scored episodes, matched by policy and episode id. Methods identify an episode by its index in
    the scores. Traces are cached, so that an episode is traced once for all sections of a page.
    """

    def __init__(self, scores: Scores, batch: Batch | None, ruleset: Ruleset) -> None:
        """Match the records of `batch`, in any order, to the episodes of `scores`; None = there are no records."""
        self.scores, self.batch, self.ruleset = scores, batch, ruleset
        # A key is (policy, episode id).
        index_by_key = {header.key: k for k, header in enumerate(batch.headers if batch else ())}
        # For each episode of the scores: the index of its record in the batch; None without a record.
        self._batch_indices = [index_by_key.get(key) for key in zip(scores.policy, scores.episode_id, strict=True)]
        self._evidence: dict[int, Evidence] = {}  # index of an episode in the scores -> its evidence, once computed

    def __contains__(self, episode: int) -> bool:
        # Return whether the episode has a record. `_batch_indices` contains the record's index in the batch, or None.
        return self._batch_indices[episode] is not None

    def header(self, episode: int) -> Header | None:
        # Return the header of the episode's record; None if the episode has no record (its index in the batch is None).
        index = self._batch_indices[episode]
        return None if self.batch is None or index is None else self.batch.headers[index]

    @property
    def stamps_s(self) -> Stamps:
        # Return a mapping: index of an episode in the scores -> the episode's time stamps (only if it has time stamps).
        # The keys of `batch.stamps_s` are indices in the batch, and so are the values in `_batch_indices`.
        stamps = self.batch.stamps_s if self.batch else {}
        return {
            episode: stamps[index]
            for episode, index in enumerate(self._batch_indices)
            if index is not None and index in stamps
        }

    def format_facts(self, episode: int) -> str:
        # Return the initial state, the seed, the number of records and the duration as text; "" without a record.
        # `_batch_indices` contains the index of each episode's record in the batch, or None.
        index = self._batch_indices[episode]
        if self.batch is None or index is None:
            return ""
        header, record_count = self.batch.headers[index], int(self.batch.lengths[index])
        # A record of a run contains the initial state and the seed; other records may lack both.
        known_facts = {"initial state": header.init_state_index, "seed": header.seed}
        facts = [f"{name} {value}" for name, value in known_facts.items() if value is not None]
        duration_s = format_fixed(self.batch.elapsed_s(index, record_count - 1), 2)
        return ", ".join([*facts, f"{count_noun(record_count, 'record')}, {duration_s} s"])

    def record(self, episode: int) -> Batch:
        # Return a batch with only the episode's record, which must exist.
        return self._select([episode])

    def evidence(self, episode: int) -> Evidence | None:
        """Return the evidence from an episode's record, computed only once; None if the episode has no record."""
        # `episode in self` is true if the episode has a record.
        if episode in self and episode not in self._evidence:
            self.trace([episode])
        return self._evidence.get(episode)

    def trace(self, episodes: Sequence[int]) -> None:
        """Compute and cache the evidence of episodes, 50 episodes at a time. Every episode must have a record."""
        for start in range(0, len(episodes), _TRACED_AT_ONCE):
            self._trace_together(episodes[start : start + _TRACED_AT_ONCE])

    def _trace_together(self, episodes: Sequence[int]) -> None:
        # Compute and cache the evidence of several episodes, which must have a record.
        scores, library = self.scores, self.ruleset.library
        fields = self.ruleset.read_fields(self._select(episodes))
        # The ids of all specifications with a verdict in any of the episodes.
        judged = {scores.specs[column].spec_id for episode in episodes for column in judged_columns(scores, episode)}
        signal_names = {signal for spec_id in judged if spec_id in library for signal in library[spec_id].signals}
        # Derive the signals of all episodes at once, which is faster. `fields` caches them, also for single episodes.
        # If a robot has several arms, signals of a single arm are derived later, separately for each arm.
        is_single_arm = fields.arm_counts.max(initial=1) == 1
        shared_signals = [name for name in signal_names if is_single_arm or not SIGNALS[name].of_arm]
        signals.derive_signals(fields, shared_signals)
        for position, episode in enumerate(episodes):
            episode_fields = fields.select_episode(position)
            traces = tuple(trace_specs(scores, episode, episode_fields, self.ruleset))
            vacuous = vacuous_reasons(scores.specs_in_state(VACUOUS, episode), library, episode_fields)
            self._evidence[episode] = Evidence(traces, vacuous)

    def _select(self, episodes: Iterable[int]) -> Batch:
        # Return a batch with the records of these episodes, in this order; episodes without a record are skipped.
        # `_batch_indices` contains, for each episode of the scores, the record's index in the batch (None = no record).
        assert self.batch is not None
        indices = [self._batch_indices[episode] for episode in episodes]
        return select_episodes(self.batch, [index for index in indices if index is not None])


@dataclass(frozen=True, slots=True)
class ClauseVerdict:
    """One specification's verdict on one episode, as text; `spark` is None if the signal is not drawn."""

    spec_id: str
    verdict: str
    violated: bool
    spark: Sparkline | None = None
    contributors: str = ""
    why: str = ""  # how the violation happened


@dataclass(frozen=True, slots=True)
class EpisodeDetails:
    """Details below an episode's line in the page; empty if the episode left no record."""

    clauses: tuple[ClauseVerdict, ...] = ()
    unjudged: tuple[tuple[str, str, str], ...] = ()  # specifications without a verdict: (name, state, reason)
    instruction: str = ""
    facts: str = ""


def describe_episode(records: EpisodeRecords, row: ListedEpisode, *, drawn: bool) -> EpisodeDetails:
    """Return the details of an episode. If `drawn`, add sparklines, and specific reasons for vacuous specifications."""
    # A specification without a verdict is described by its name, its state and the reason.
    if row.episode.success is None:  # the episode left no record
        return EpisodeDetails()
    # `row.number` is the episode's number from 1, and `episode` is its index in the scores, from 0.
    scores, episode = records.scores, row.number - 1
    evidence = records.evidence(episode) if drawn else None
    header = records.header(episode)
    vacuous_specs = scores.specs_in_state(VACUOUS, episode)
    # Without evidence from the record, the reason for every vacuous specification is a general sentence.
    why_vacuous = evidence.vacuous if evidence else dict.fromkeys(vacuous_specs, VACUOUS_REASON)
    unjudged = [(spec_id, "vacuous", why) for spec_id, why in why_vacuous.items()]
    # `reason` is a code such as `signal_missing:contacts`, and `why` is a sentence.
    for spec_id, reason in scores.specs_in_state(INACTIVE, episode).items():
        why = describe_reason(reason, records.ruleset.registry, row.episode.benchmark)
        unjudged.append((spec_id, "inactive", why))
    return EpisodeDetails(
        clauses=tuple(_describe_verdicts(scores, episode, evidence)),
        unjudged=tuple(unjudged),
        instruction=(header.instruction or "") if header else "",
        facts=records.format_facts(episode),
    )


def _describe_verdicts(scores: Scores, episode: int, evidence: Evidence | None) -> Iterator[ClauseVerdict]:
    # Yield the verdict of each judged specification, in the order of the explanations: violated ones first.
    # Without `evidence` (traces of signals), a verdict has no sparkline, no bodies and no cause.
    for column in judged_columns(scores, episode):
        spec_id, violated = scores.specs[column].spec_id, bool(scores.is_violated[column, episode])
        verdict = ClauseVerdict(spec_id, format_verdict(scores, column, episode), violated)
        trace = evidence.trace(spec_id) if evidence else None
        if trace:
            spark, involved, contributors = draw_sparkline(trace.chart), trace.worst.involved, format_cause(trace)
            # If a Boolean signal decided the verdict, `format_cause` has returned a remark, which replaces the bodies.
            if involved and not contributors:
                contributors = format_contributors(involved, spark.caption)
            why = trace.why.sentence if trace.why else ""
            verdict = replace(verdict, spark=spark, contributors=contributors, why=why)
        yield verdict


def format_verdict(scores: Scores, k: int, episode: int) -> str:
    """Return the verdict of the specification in column `k` as text: `violated by 88 N, depth 0.44` or `kept by 12 N`.
    The margin is omitted if it is infinite or the specification is Boolean; the depth is omitted if it is unknown.
    """
    # `rho` (robustness) is the margin to the limit, negative for a violation. `depth` is NaN if it is unknown.
    spec, rho, depth = scores.specs[k], float(scores.rho[k, episode]), float(scores.depth[k, episode])
    margin = "" if spec.binary or np.isinf(rho) else f" by {format_amount(abs(rho), spec.unit, spec.threshold)}"
    if not scores.is_violated[k, episode]:
        return f"kept{margin}"
    depth_text = "" if np.isnan(depth) else f", depth {format_fixed(depth, 2)}"
    return f"violated{margin}{depth_text}"


def format_contributors(contributors: Contributors, caption: str) -> str:
    """Return as text the bodies that determine a signal's value. Add the value if `caption` does not contain it."""
    # `what` is the bodies' role, such as `hardest contact`, and `amount` the value as text with its unit.
    amount = f", {contributors.amount}" if contributors.amount not in caption else ""
    return f"{contributors.what}: {' and '.join(contributors.labels)}{amount}"
