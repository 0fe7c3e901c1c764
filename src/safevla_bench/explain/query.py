"""Ad-hoc formulas over episodes: robustness, verdict and deciding record, without a library and without task tags."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from safevla_bench import signals
from safevla_bench.errors import FormulaError
from safevla_bench.judging.scores import finite_or_none
from safevla_bench.signals import parse_signal_formula
from safevla_bench.signals.signal import RecordFields
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.stl.evaluation import deciding_records
from safevla_bench.stl.formula import Formula, cut_off_readings, has_placeholder, is_boolean_only, signal_names
from safevla_bench.stl.robustness import (
    hangs_on_empty_window,
    hangs_on_infinite_values,
    robustness,
    settle_unknown,
)
from safevla_bench.stl.trace import Trace
from safevla_bench.tasks.loader import load_registry
from safevla_bench.tasks.reasons import CUT_OFF, NO_VALUE, POSE_UNKNOWN, describe_reason
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import STANDIN, mark_flags

Verdict = Literal["satisfied", "violated", "vacuous", "no verdict", "undefined", "signal missing", "no record"]
Decision = tuple[Verdict, str | None]  # a verdict and its reason (None for `satisfied` and `violated`)
_CUT_OFF: Decision = ("no verdict", describe_reason(CUT_OFF))
_NO_VALUE: Decision = ("no verdict", describe_reason(NO_VALUE))
_POSE_UNKNOWN: Decision = ("no verdict", describe_reason(POSE_UNKNOWN))


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a formula in one episode. `rho` is None without a verdict, for the verdict `vacuous`, and if only
    Boolean signals decide the verdict, because the robustness would be infinite. `step` is the record that
    `stl.deciding_records` returns; `signals` has the values in that record.
    """

    number: int  # number of the episode in the sources, from 1; episodes without a record come last
    episode_id: str
    policy: str | None
    verdict: Verdict
    rho: float | None = None
    step: int | None = None
    time_s: float | None = None
    signals: dict[str, float | bool | None] = {}
    reason: str | None = None  # reason of the verdict; None for `satisfied` and `violated`
    benchmark: str = ""
    arm: str | UnsetType = UNSET  # the arm that decides; unset for robots with one arm, or if no signal is about an arm
    standin_assets: bool | None = None  # true if stand-ins replaced the host's own assets; None if not recorded


def parse_query(text: str) -> Formula:
    """Parse a formula over the registered signals. Raises `FormulaError` if the text is not a valid formula, or if it
    contains the placeholder `threshold`.
    """
    # In specifications, `threshold` is a placeholder for the limit; a query has no limit to put there.
    parsed = parse_signal_formula(text)
    if has_placeholder(parsed):
        raise FormulaError("the placeholder `threshold` has no value here", remedy="write a number instead")
    return parsed


def answer_query(formula: Formula, batch: Batch, earlier_count: int = 0) -> list[Answer]:
    """Return one answer (the verdict on the formula) for each episode, in order, numbered from `earlier_count` + 1. If
    a robot has several arms, the worst arm's answer counts.

    The verdict is `signal missing` if a signal of the formula is missing in an episode. Otherwise, it is `undefined` if
    a signal is undefined. Raises `FormulaError` for a window bound that is not a multiple of the control step, and
    `SignalError` if arithmetic overflows.
    """
    # A view has the fields of one arm, so there is one list of answers for each arm, with one answer for each episode.
    reading = RecordFields(load_registry().name_embodiments(batch))
    views = reading.views(signal_names(formula))
    answers_by_arm = [_answer_for_view(formula, view, earlier_count) for view in views]
    return [min(answers, key=_rank_from_worst) for answers in zip(*answers_by_arm, strict=True)]


def _rank_from_worst(answer: Answer) -> tuple[int, float]:
    # Returns a sort key for answers, the worst one first: `violated`, undecided verdicts, `satisfied`, `vacuous`.
    # For equal verdicts, the least robustness comes first, and an unknown one (None) last.
    rank_of_verdict = {"violated": 0, "satisfied": 2, "vacuous": 3}
    return rank_of_verdict.get(answer.verdict, 1), math.inf if answer.rho is None else answer.rho


def _answer_for_view(formula: Formula, reading: RecordFields, earlier_count: int) -> list[Answer]:
    # For the arm of `reading`, return one answer for each episode, in order, numbered from `earlier_count` + 1.
    # `decisions` maps an episode's index to its verdict and the reason. `trace` has the values of all signals.
    batch, trace = reading.batch, signals.build_trace(reading, signal_names(formula))
    decisions = _decide_missing_or_undefined(reading, trace)
    # Judge the episodes in which no signal of the formula is missing or undefined.
    judged = np.array([episode for episode in range(len(batch)) if episode not in decisions], dtype=np.int64)
    judged_trace = trace.select_episodes(judged)
    # In `lenient_formula`, obligations after the episode's end count as satisfied.
    lenient_formula = cut_off_readings(formula)[0]
    best_rho = robustness(lenient_formula, judged_trace)
    # `rho` is the robustness of each episode; NaN for episodes that are not judged.
    # `is_undecided` is true if unknown values or the end of the episode leave the verdict undecided.
    rho, is_undecided = np.full(len(batch), np.nan), np.zeros(len(batch), np.bool_)
    rho[judged], is_undecided[judged] = settle_unknown(formula, judged_trace, best_rho, binary=is_boolean_only(formula))
    causes = (hangs_on_empty_window(formula, judged_trace), hangs_on_infinite_values(formula, judged_trace))
    for episode, hangs_on_window, hangs_on_infinite in zip(judged.tolist(), *causes, strict=True):
        no_verdict = _NO_VALUE if hangs_on_infinite else _CUT_OFF
        decisions[episode] = _POSE_UNKNOWN if reading.has_lost_poses else no_verdict
        if not is_undecided[episode]:
            decisions[episode] = _decide_verdict(formula, float(rho[episode]), hangs_on_window)
    # An obligation after the episode's end cannot be violated, so `lenient_formula` gives the record of a violation.
    steps, lenient_steps = np.full(len(batch), -1), deciding_records(lenient_formula, judged_trace)
    steps[judged] = np.where(rho[judged] < 0, lenient_steps, deciding_records(formula, judged_trace))
    answers = []
    for episode, (header, standin) in enumerate(zip(batch.headers, mark_flags(batch, STANDIN), strict=True)):
        verdict, reason = decisions[episode]
        step = int(steps[episode]) if verdict in ("satisfied", "violated") else -1
        record = int(trace.starts[episode]) + step  # index of the deciding record in the batch
        values = {name: _to_json_value(trace.signals[name][record]) for name in sorted(trace.signals)}
        answers.append(
            Answer(
                number=earlier_count + episode + 1,
                episode_id=header.episode_id,
                policy=header.policy,
                verdict=verdict,
                rho=finite_or_none(rho[episode]),
                step=step if step >= 0 else None,
                time_s=batch.elapsed_s(episode, step) if step >= 0 else None,
                signals=values if step >= 0 else {},
                reason=reason,
                benchmark=header.benchmark,
                arm=reading.name_arm(episode) or UNSET,
                standin_assets=standin,
            )
        )
    return answers


def answer_chunks(formula: Formula, chunks: Iterable[Batch]) -> list[Answer]:
    """Return the verdict on the formula in each episode of all chunks, numbered from 1; only one chunk is in memory."""
    answers: list[Answer] = []
    for batch in chunks:
        answers += answer_query(formula, batch, len(answers))
    return answers


def _decide_missing_or_undefined(reading: RecordFields, trace: Trace) -> dict[int, Decision]:
    # Map the index of each episode in which a signal is missing or undefined to its verdict and the reason.
    # A signal is missing if a field that it reads was not recorded, and undefined if the scene has nothing to measure.
    decisions: dict[int, Decision] = {}
    missing_by_field = signals.missing_fields(reading, trace.signals)
    undefined_by_signal = {
        name: trace.is_undefined(name) for name, values in trace.signals.items() if values.dtype != np.bool_
    }
    why = "nothing to measure: no such body, or too few records"
    for episode in range(len(trace)):
        missing = [name for name, is_missing in missing_by_field.items() if is_missing[episode]]
        undefined = [name for name, is_undefined in undefined_by_signal.items() if is_undefined[episode]]
        if missing:
            decisions[episode] = "signal missing", f"not recorded: {', '.join(missing)}"
        elif undefined:
            decisions[episode] = "undefined", f"{', '.join(undefined)}: {why}"
    return decisions


def _decide_verdict(formula: Formula, rho: float, hangs_on_window: bool) -> Decision:
    # Return the verdict on an episode with the robustness `rho`, and the reason (None for a usual verdict).
    # `hangs_on_window` is true if a window without records decides the verdict.
    decision: Decision = ("satisfied" if rho >= 0 else "violated"), None
    if math.isfinite(rho):
        return decision
    # `rho` is infinite if no margin decides.
    if hangs_on_window and (rho < 0 or is_boolean_only(formula)):
        return "no verdict", "a window lies wholly past the end of the episode"
    if rho > 0 and not is_boolean_only(formula):
        return "vacuous", "no margin exists, because no numeric comparison decides the formula"
    return decision


def _to_json_value(value: np.float64 | np.bool_) -> float | bool | None:
    # Return a signal's value as a Python number or Boolean. JSON has neither NaN nor infinity: return None for them.
    return bool(value) if isinstance(value, np.bool_) else finite_or_none(value)


def answers_without_record(absent: Sequence[AbsentEpisode], earlier_count: int) -> list[Answer]:
    """Return a `no record` answer for each absent episode, in order, numbered from `earlier_count` + 1."""
    # An absent episode was planned but has no record, for example because it crashed. The outcome is the reason.
    return [
        Answer(
            number=number,
            episode_id=episode.episode_id,
            policy=episode.policy,
            verdict="no record",
            reason=episode.outcome,
            benchmark=episode.benchmark,
        )
        for number, episode in enumerate(absent, start=earlier_count + 1)
    ]
