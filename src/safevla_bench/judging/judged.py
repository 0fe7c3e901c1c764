"""Run folders and archives that were judged, with their scores, rules and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import RunError
from safevla_bench.files import decode_json, read_input
from safevla_bench.judging import metrics, provenance_marks, registration, scoring
from safevla_bench.judging.ruleset import Provenance, Ruleset
from safevla_bench.judging.scores import ACTIVE, Scores
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs.episode_index import EpisodeIndex
from safevla_bench.sources.runs.policy_names import PolicyNames, describe_names
from safevla_bench.sources.runs.sources import LeftOut
from safevla_bench.specs.spec import Library
from safevla_bench.tasks.loader import load_registry
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import count_noun, describe_lookalikes, format_percent, shorten_name
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header
from safevla_recorder.channels import NET_FORCE

INTERRUPTED = "These numbers cover only the finished episodes of an interrupted run."


@dataclass(frozen=True)
class JudgedSource:
    """One run folder or archive that was judged."""

    description: Mapping[str, object]
    """run.json without times and machine names, so that equal runs give equal reports. For an archive: its name."""
    archive_sha256: str | None
    policy_names: PolicyNames = field(default_factory=dict)
    """Recorded name -> new name, for policies that were renamed because several policies had the same name."""

    @classmethod
    def from_run(cls, path: Path, run: Mapping[str, object], policy_names: PolicyNames | None = None) -> JudgedSource:
        """Describe the source at `path`. `run` is the content of the run folder's run.json, or empty for an archive."""
        # `volatile` has times and names of machines. Without it, equal runs have equal descriptions.
        # `policy_names` maps the recorded names of renamed policies to their new names.
        repeatable = {name: value for name, value in run.items() if name != "volatile"}
        return cls(repeatable or {"archive": path.name}, run_folder.archive_digest(path), policy_names or {})

    @property
    def is_interrupted(self) -> bool:
        """True if run.json says that the run is not complete, so that planned episodes may be missing."""
        # `description` is the content of run.json. Archives have no `complete`, so they are not interrupted.
        return self.description.get("complete") is False

    @property
    def protocol(self) -> Mapping[str, object] | None:
        """The rules by which the run's episodes start and end; None if unknown."""
        protocol = self.description.get("protocol")
        return protocol if isinstance(protocol, Mapping) else None

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies in run.json. A renamed policy has its new name."""
        return tuple(name for name, _ in self._policy_rows())

    @property
    def privileged(self) -> tuple[str, ...]:
        """Names (new names if renamed) of the policies that run.json marks as privileged: they see simulator state."""
        return tuple(name for name, policy in self._policy_rows() if policy.get("privileged") is True)

    def _policy_rows(self) -> Iterator[tuple[str, Mapping[str, object]]]:
        # For each policy in run.json, yield the name after renaming and the entry in run.json.
        for row in run_folder.policy_rows(self.description):
            yield self.policy_names.get(row["policy"], row["policy"]), row

    def describe_couplings(self) -> Iterator[tuple[str, str]]:
        """Yield pairs: a policy's name, and a sentence on the policy's filter or on the policy's delay."""
        for name, policy in self._policy_rows():
            if name_of_filter := policy.get("filter"):
                yield name, f"The actions of {name} go through the filter {name_of_filter}."
            delay = str(policy.get("delay", "0"))  # a number of control steps, a duration, or "measured"
            if delay == "measured":
                yield name, f"The answers of {name} are delayed by the time to compute them, so repeated runs differ."
            elif delay != "0":
                duration = count_noun(int(delay), "control step") if delay.isdecimal() else delay
                yield name, f"The answers of {name} arrive {duration} late."

    def to_document(self) -> dict[str, object]:
        """Return the source for scores.json and the report: the archive's digest, and the description with only the
        digest of a registration. `policy_names` is added if policies were renamed ("" = recorded without a name).
        """
        # JSON has no null key, so "" is the key for a recorded policy of None.
        names = {recorded or "": name for recorded, name in self.policy_names.items()}
        new_names = {"policy_names": names} if names else {}
        return {
            **registration.shorten_registration(self.description),
            **new_names,
            "archive_sha256": self.archive_sha256,
        }


class _WrittenTotal(msgspec.Struct, frozen=True):
    safety: float | None = None


class _WrittenSource(msgspec.Struct, frozen=True):
    archive_sha256: str | None = None


class _WrittenScores(msgspec.Struct):
    judged_by: msgspec.Raw
    aggregate: msgspec.Raw = msgspec.Raw(b"{}")
    cells: msgspec.Raw = msgspec.Raw(b"[]")
    sources: msgspec.Raw = msgspec.Raw(b"[]")
    scores_version: int = 1


class ScoresFile(msgspec.Struct, frozen=True):
    """Fields of a scores.json file of unknown origin. `read` checks all of them except `cells`."""

    judged_by: Provenance
    aggregate: _WrittenTotal
    cells: msgspec.Raw
    sources: msgspec.Raw
    scores_version: int

    @classmethod
    def read(cls, folder: Path) -> ScoresFile:
        """Read the scores.json of a folder. Raises `RunError` if it is missing or damaged."""
        path = folder / run_folder.SCORES
        with run_folder.readable(path, "Judge the run again: safevla score RUN --out DIR."):
            # The parts of the file are still JSON text. Decode the parts that all commands need.
            written = msgspec.json.decode(read_input(path, run_folder.MAX_SCORES_BYTES), type=_WrittenScores)
            judged_by = decode_json(written.judged_by, Provenance)
            aggregate = decode_json(written.aggregate, _WrittenTotal)
            scores_file = cls(judged_by, aggregate, written.cells, written.sources, written.scores_version)
            scores_file.list_archives()  # raises an error if `sources` is damaged
            return scores_file

    def list_cells(self) -> list[metrics.Summary]:
        # Return the summary of each cell (policy × suite). Raise an error if the JSON text `cells` is damaged.
        # `read` does not decode `cells`, because only some commands need it.
        return decode_json(self.cells, list[metrics.Summary])

    def list_archives(self) -> list[str | None]:
        # Return the SHA-256 digest of each source's archive, or None if the file has no digest. `sources` is JSON text.
        return [source.archive_sha256 for source in decode_json(self.sources, list[_WrittenSource])]


def describe_maker(path: Path, ruleset: Ruleset, safety: float | None = None) -> list[str]:
    """If a run folder was originally judged by rules other than `ruleset`, return a sentence on the original Safety.
    If given, the sentence also has `safety`, the Safety by `ruleset`. Return [] if the rules are equal or unknown.
    """
    provenance = ruleset.provenance()
    # `original` is the content of the run folder's scores.json, including the rules that judged the run.
    try:
        original = ScoresFile.read(path)
    except RunError:
        return []
    if original.judged_by.rules == provenance.rules:
        return []
    compared = "" if safety is None else f"; Safety by the current rules: {safety:.3f}"
    original_safety = "unknown" if original.aggregate.safety is None else f"{original.aggregate.safety:.3f}"
    original_rules = original.judged_by.describe_rules()
    return [f"{path.resolve().name}: originally judged with {original_rules}: Safety {original_safety}{compared}."]


def is_judged_by(path: Path, rules: Provenance) -> bool:
    """Return whether a run folder's scores were judged by these rules; false if the scores cannot be read."""
    try:
        return ScoresFile.read(path).judged_by.rules == rules.rules
    except RunError:
        return False


def _score_records(records: EpisodeIndex, rules: Ruleset) -> Scores:
    # Read the records chunk by chunk, and return the scores of all episodes, judged by `rules`.
    return scoring.score_chunks(records.read_chunks(), rules)


@dataclass(frozen=True)
class Judged:
    """The result of judging sources: the scores of all their episodes, in order, and all other data of a report."""

    scores: Scores
    ruleset: Ruleset
    provenance: Provenance
    """The field `judged_by` of scores.json: names and digests of the rules, and the episodes that were left out."""
    sources: tuple[JudgedSource, ...]
    records: EpisodeIndex
    net_changes: NDArray[np.int8]
    """How each episode's verdict changes if net forces replace single contact forces: one of `NET_CHANGES`, [E]."""
    paths: tuple[Path, ...] = ()
    makers: tuple[str, ...] = ()
    """A sentence for each run folder that was originally judged by other rules: the original and the new Safety."""
    score_records: Callable[[EpisodeIndex, Ruleset], Scores] = _score_records  # a lambda cannot be pickled
    """Function that judges the records again by another ruleset."""

    @property
    def library(self) -> Library:
        """The specifications by which episodes were judged."""
        return self.ruleset.library

    @property
    def headers(self) -> Sequence[Header]:
        """The header of each episode, [E]."""
        return self.records.headers

    @cached_property
    def batch(self) -> Batch | None:
        """All records in one batch, read on first use; None if there are no records. `records` needs less memory."""
        return self.records.read_all()

    @property
    def has_net_forces(self) -> bool:
        """True if every episode's record has net forces between bodies."""
        # Records may have the net force between two bodies, the largest force at a single contact, or both.
        return all(NET_FORCE in header.recorded_forces for header in self.headers)

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw simulator state. No real robot has access to such state."""
        # None means an unnamed policy.
        return self.records.privileged

    @property
    def protocols(self) -> list[Mapping[str, object]]:
        """The protocol of each source that has one."""
        return [source.protocol for source in self.sources if source.protocol is not None]

    @property
    def left_out(self) -> LeftOut:
        """The episodes of the sources that are not judged: invalid episodes, and episodes lost in damaged files."""
        return self.records.left_out

    @property
    def interrupted_run_count(self) -> int:
        """Number of run folders whose run.json says that the run is not complete."""
        return sum(source.is_interrupted for source in self.sources)

    @property
    def is_complete(self) -> bool:
        """True if the sources have all planned episodes, and no episode was left out of the judgement."""
        # `left_out` is false if no episode was left out and no file is damaged.
        return not (self.interrupted_run_count or self.left_out)

    @property
    def started(self) -> str:
        """Start time of the run that began last, as ISO 8601; "" if no run folder has a start time."""
        # A run folder has a run.json, an archive has none.
        runs = [path for path in self.paths if (path / run_folder.RUN).is_file()]
        times = [run_folder.read_volatile(run_folder.read_description(run)).get("started") for run in runs]
        return max((time for time in times if isinstance(time, str)), default="")

    def cells_by_source(self) -> list[set[tuple[str | None, str]]]:
        """Return, for each source, the set of pairs (policy, suite) of all recorded and absent episodes."""
        # `indices` are the indices of the source's recorded episodes. An absent episode was planned but has no record.
        return [
            {(self.scores.policy[k], self.scores.benchmark[k]) for k in indices}
            | {(absent.policy, absent.benchmark) for absent in source.absent}
            for source, indices in self.records.by_source()
        ]

    def select_cells(self, policies: Collection[str | None] = (), suites: Collection[str] = ()) -> Judged:
        """Select the episodes of these policies and suites (() = all). Raises `RunError` if a name fits no episode."""
        # A cell is a pair (policy, suite); the policy is None if it has no name.
        # An absent episode was planned but has no record.
        recorded_cells = [*zip(self.scores.policy, self.scores.benchmark, strict=True)]
        absent_cells = [(episode.policy, episode.benchmark) for episode in self.scores.absent]
        recorded_suites = {suite for _, suite in recorded_cells + absent_cells}
        # A suite in another spelling than in the records becomes the recorded names; an unknown suite stays.
        find_recorded = self.ruleset.registry.find_recorded
        suites = [name for suite in suites for name in find_recorded(suite, recorded_suites) or [suite]]
        for wanted, kind, present in (
            (policies, "policy", {policy for policy, _ in recorded_cells + absent_cells}),
            (suites, "suite", recorded_suites),
        ):
            if unknown := [name for name in wanted if name not in present]:
                remedy = f"Choose from: {', '.join(sorted(name or '(unnamed)' for name in present))}."
                raise RunError(f"unknown {kind} {unknown[0]!r}: there is no such episode", remedy=remedy)

        def is_chosen(policy: str | None, suite: str) -> bool:
            # Without given policies, all policies are chosen; without given suites, all suites are chosen.
            return (not policies or policy in policies) and (not suites or suite in suites)

        chosen = self.select_episodes([k for k, cell in enumerate(recorded_cells) if is_chosen(*cell)])
        absent = tuple(episode for episode in self.scores.absent if is_chosen(episode.policy, episode.benchmark))
        return replace(chosen, scores=replace(chosen.scores, absent=absent))

    def select_episodes(self, indices: Sequence[int]) -> Judged:
        """Return a selection: the recorded episodes at these ascending indices, and all absent episodes."""
        index_array = np.array(indices, dtype=np.int64)
        # `net_changes` [E] says how net forces would change each episode's verdict.
        return replace(
            self,
            scores=self.scores.select_episodes(index_array),
            net_changes=self.net_changes[index_array],
            records=self.records.select_episodes(indices),
        )

    def summarize_scores(self) -> tuple[list[metrics.Summary], metrics.Summary]:
        """Return the summary of each cell (policy × suite), and the summary of all episodes."""
        # In the summary of all episodes, policy and suite are None.
        return self._summaries

    @cached_property
    def _summaries(self) -> tuple[list[metrics.Summary], metrics.Summary]:
        # The result of `summarize_scores`, computed on first use
        return metrics.cells(self.scores), metrics.aggregate(self.scores)

    def describe_policies(self) -> list[str]:
        """Return sentences on policies renamed because of equal names, then the result of `describe_couplings`."""
        names = describe_names([source.policy_names for source in self.records.sources])
        return [*names, *self.describe_couplings()]

    def describe_couplings(self) -> list[str]:
        """Return sentences on similar names, policies' filters and delays, and servers' response times and answers."""
        return [
            *self.describe_lookalikes(),
            *self.describe_filters(),
            *self.describe_latencies(),
            *self.describe_repeats(),
        ]

    def describe_filters(self) -> list[str]:
        """Return a sentence on each filter and on each delay of the policies with recorded or absent episodes."""
        policies = {*self.scores.policy, *(episode.policy for episode in self.scores.absent)}
        # A pair is (policy's name, sentence on the policy's filter or delay). Several sources may give equal sentences.
        pairs = (pair for source in self.sources for pair in source.describe_couplings())
        distinct_sentences = dict.fromkeys(sentence for policy, sentence in pairs if policy in policies)
        return list(distinct_sentences)

    def describe_lookalikes(self) -> list[str]:
        """Return a sentence for each group of policies, suites or tasks with names that look the same."""
        names_by_kind = {
            "policies": {header.policy or "" for header in self.headers},
            "suites": {header.benchmark for header in self.headers},
            "tasks": {header.task_id for header in self.headers},
        }
        return [
            sentence for kind, names in names_by_kind.items() for sentence in describe_lookalikes(kind, sorted(names))
        ]

    def describe_repeats(self, *, with_unequal: bool = True) -> Iterator[str]:
        """Yield a sentence on each server's answers to repeated requests; unequal answers only if `with_unequal`."""
        for source in self.records.sources:
            if "policies" not in source.description:  # an archive, not a run folder
                continue
            # `repeats` counts the repeated requests; `repeats.other` counts the requests with a different answer.
            # `BY_CHANCE` is a hint on comparisons of policies whose answers vary.
            for policy, repeats in run_folder.read_facts(source.path).repeated_answers.items():
                name = source.policy_names.get(policy, policy)
                note = f" {run_folder.BY_CHANCE}" if repeats.other else ""
                if with_unequal or not repeats.other:
                    requests = "all requests were sent after the run, with a made-up scene"
                    yield f"{name}: {repeats.describe()}; {requests}.{note}"

    def describe_latencies(self) -> Iterator[str]:
        """Yield a sentence for each policy server: its response times, and the duration of a control step."""
        distinct_dt_s = dict.fromkeys(header.dt for header in self.headers)
        steps_ms = " or ".join(f"{1000 * dt_s:.3g}" for dt_s in distinct_dt_s)  # "" if every episode crashed
        period = f"; a control step lasts {steps_ms} ms." if steps_ms else "."
        for source in self.records.sources:
            # `latencies` has the response times of each episode: the median and the 95th percentile.
            for policy, latencies in run_folder.served_latencies(source.path, source.description).items():
                p50_ms, p95_ms = np.median([row.p50_ms for row in latencies]), max(row.p95_ms for row in latencies)
                name = source.policy_names.get(policy, policy)
                yield f"{name} answered in {p50_ms:.3g} ms (median); worst 95th percentile: {p95_ms:.3g} ms{period}"

    def describe_simulators(self) -> list[str]:
        """Return one sentence with the simulators' versions; [] if the records do not name versions."""
        sentence = provenance_marks.describe_simulators(provenance_marks.simulator_by_cell(self.scores))
        return [sentence] if sentence else []

    def describe_limits(self) -> list[str]:
        """Return sentences on limits calibrated on rollouts, assumed torque limits of robots, and unused tags."""
        # In libraries that `safevla specs --calibrate` wrote, the value of `source` begins with `quantile`.
        calibrated = [spec.spec_id for spec in self.library.safe if spec.source.startswith("quantile ")]
        sentences = []
        if calibrated:
            sentences.append(
                f"Limits calibrated on rollouts, unlike the paper's (Section 3.1): {', '.join(calibrated)}."
            )
        # A record without a robot and torque limits is judged by the torque limits of the benchmark's robot.
        for robot, suites in self._find_suites_by_assumed_robot().items():
            judged_by = f"torque is judged by the limits of {robot}, the benchmark's robot"
            sentences.append(f"{', '.join(suites)}: the records name neither a robot nor torque limits; {judged_by}.")
        # Tags of the user's files that no episode has, perhaps because a task's id is misspelt.
        tasks = dict.fromkeys(zip(self.scores.benchmark, self.scores.task_id, strict=True))
        recipe = self.ruleset.recipe
        built_in = load_registry(recipe.host_registry if recipe else ())
        for suite, ids in self.ruleset.registry.list_unused(built_in, tasks).items():
            own_ids, task_ids = (shorten_name(", ".join(dict.fromkeys(names)), 100) for names in ids)
            problem = f"{suite}: the built-in tags judge {task_ids}, although your files have tags for {own_ids}"
            sentences.append(f"{problem}. Write a [[tasks]] table with the task_id of each task.")
        return sentences

    def describe_activity(self) -> list[str]:
        """Return sentences on progress, engagement and unknown phases."""
        cells, _ = self.summarize_scores()
        sentences = [sentence for cell in cells for sentence in metrics.describe_activity(cell)]
        # Count the episodes with unknown phases by reason.
        # `phases` is None for tasks without phases, and has a `reason` only if the phases are unknown.
        reasons = Counter(phases.reason for phases in self.scores.phases if phases and phases.reason)
        if reasons:
            sentences.append(f"Not judged phase by phase: {metrics.describe_unjudged(reasons)}.")
        return sentences

    def describe_forces(self) -> list[str]:
        """Return sentences on records that have only net forces, and on verdicts that net forces would change."""
        only_net_count = sum(header.recorded_forces == (NET_FORCE,) for header in self.headers)
        sentences = []
        if only_net_count:
            sentences.append(
                f"{only_net_count} of {len(self.headers)} records have only net forces between bodies. There, "
                "specifications of force use net forces, so their values cannot be compared with forces of single "
                "contacts."
            )
        # `net_changes` [E] says how net forces would change each episode's verdict.
        # `counts` has the number of episodes for each change: `UNKNOWN` = 0, `SAME`, `SAFE` or `UNSAFE`.
        counts = np.bincount(self.net_changes, minlength=len(scoring.NET_CHANGES)).tolist()
        change_words = ((scoring.UNSAFE, "more"), (scoring.SAFE, "fewer"))
        changes = [f"{counts[change]} {word}" for change, word in change_words if counts[change]]
        if changes:
            comparable_count = sum(counts[scoring.SAME :])  # the episodes whose change is known
            condition = "the net force between two bodies is judged instead of their largest single contact force"
            changed_verdicts = f"{' and '.join(changes)} of {comparable_count} episodes are unsafe"
            sentences.append(f"If {condition}, {changed_verdicts} (library net-force).")
        return sentences

    def describe_vacuous(self) -> list[str]:
        """Return a sentence (or none) on unchanged scored specifications that were vacuous whenever they applied."""
        changed_ids = {spec.spec_id for spec in self.ruleset.changed_specs()}
        _, total = self.summarize_scores()
        # A row summarizes one specification. Only the tier `safe` is scored.
        # `active` counts the episodes to which the specification applied, even if it judged no record (`vacuous`).
        unchanged_rows = [row for row in total.specs if row.tier == "safe" and row.spec_id not in changed_ids]
        always_vacuous = [row.spec_id for row in unchanged_rows if row.active and row.vacuous == row.active]
        problem = "These specifications judged nothing, since they are vacuous in every episode to which they apply"
        return [f"{problem}: {', '.join(always_vacuous)}."] if always_vacuous else []

    def _find_suites_by_assumed_robot(self) -> dict[str, list[str]]:
        # Return a mapping: benchmark's robot -> suites for which this robot's torque limits were assumed.
        # Limits are assumed if a record names neither a robot nor torque limits.
        torque_signals = {name for name in SIGNALS if "joint_torque_limit_nm" in SIGNALS[name].reads}
        torque_columns = [k for k, spec in enumerate(self.library.specs) if spec.signals & torque_signals]
        uses_limits = (self.scores.state[torque_columns] == ACTIVE).any(axis=0)  # [E]: whether torque limits matter
        suites = {
            header.benchmark
            for header, uses_limit in zip(self.headers, uses_limits, strict=True)
            if uses_limit and header.names_no_robot
        }
        suites_by_robot: dict[str, list[str]] = {}
        for suite in sorted(suites):
            # `embodiment` is the name of the robot whose torque limits are assumed.
            benchmark = self.ruleset.registry.benchmarks[self.ruleset.registry.find_suite(suite)]
            suites_by_robot.setdefault(benchmark.embodiment or "", []).append(suite)
        return suites_by_robot

    def describe_changed_specs(self) -> Iterator[str]:
        """Yield a sentence for each added or changed specification: changed limits, and the number of episodes in which
        the specification applied, was vacuous, or was violated.
        """
        changed = self.ruleset.changed_specs()
        if not changed:
            return
        cells, total = self.summarize_scores()
        row_of_spec = {row.spec_id: row for row in total.specs}
        for spec in changed:
            # `active` counts the episodes to which the specification applied, even if it judged no record (`vacuous`).
            row = row_of_spec[spec.spec_id]
            tier = "" if spec.tier == "safe" else f" (not scored: {spec.tier})"
            if not row.active:
                result = f": {'; '.join(self._distinct_inactive_reasons(cells, row.spec_id))}"
            elif row.vacuous == row.active:
                result = ", but always vacuous, so no record was judged. Check that its conditions and bodies occur"
            else:
                result = f", vacuous in {row.vacuous}, violated in {row.violations_when_active.count}"
                # `held` is the number of records in which the condition held, out of all examined `records`.
                if row.condition and row.condition.share is not None:
                    share = format_percent(row.condition.held, row.condition.records)
                    never = count_noun(row.condition.never, "episode")
                    result += f"; its condition held in {share} % of records; the condition never held in {never}"
            moved_limits = self.ruleset.describe_moved_limits(spec)
            name = f"{spec.spec_id} ({moved_limits})" if moved_limits else spec.spec_id
            yield f"{name}{tier}: applied to {row.active} of {count_noun(len(self.scores), 'episode')}{result}."

    def _distinct_inactive_reasons(self, cells: Sequence[metrics.Summary], spec_id: str) -> Iterable[str]:
        # Return in words, over all cells, the distinct reasons why a specification is inactive.
        # A dictionary's keys are distinct and keep the order of insertion.
        return dict.fromkeys(
            describe_reason(reason, self.ruleset.registry, cell.suite or "")
            for cell in cells
            for row in cell.specs
            if row.spec_id == spec_id
            for reason in row.inactive
        )

    def check_registrations(self) -> list[registration.RegistrationCheck]:
        """Compare the runs of the sources with their registrations. Return [] if there are no registrations."""
        # A registration fixes, before a run, the plan of the run and the rules that will judge the run.
        return registration.check_registrations(self.records.sources, self.provenance)

    def describe_registrations(self) -> list[str]:
        """Return sentences on each registration, and on unregistered sources; [] if there are no registrations."""
        return registration.describe_registrations(self.records.sources, self.provenance)

    def describe_origin(self) -> dict[str, object]:
        """Return the origin of the scores as plain values for a page: the provenance, then the sources."""
        provenance: dict[str, object] = msgspec.to_builtins(self.provenance)
        return {**provenance, "sources": [source.to_document() for source in self.sources]}
