"""Tables of episodes, clauses of an episode, verdicts on a formula, results of other tools, and replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

from safevla_bench.explain.episode import SpecTrace
from safevla_bench.explain.query import Answer
from safevla_bench.judging import provenance_marks
from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, Rate
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.episode_list import ListedEpisode
from safevla_bench.report.tables.columns import POLICY, describe_rates, rate_cell
from safevla_bench.report.tables.explain import format_kinds
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.sources.foreign import LACKS, ForeignResults
from safevla_bench.stl.formula import Formula, format_formula
from safevla_bench.text import NO_VALUE, count_noun, format_amount, format_fixed, format_significant
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DIVERGED, mark_flags, replay_fields

_STANDIN_FIELDS = attrgetter("policy", "benchmark", "standin_assets")


def episode_list_table(
    selected: Sequence[ListedEpisode], total: int, *, spec_id: str | None = None, most: int | None = None
) -> Table:
    """Return the table of the first `most` rows in `selected` (None = all rows). `total` is the number of episodes
    before the selection. With `spec_id`, the rows are about this specification only. The table has a column of policies
    if the rows have several policies, and a column of bodies if the bodies were computed for any row.
    """
    rows = selected[:most]
    # None = the bodies were not computed; () = no body violates a limit.
    with_bodies = any(row.violating_bodies is not None for row in rows)
    return tabulate(
        _describe_counts(selected, total, spec_id),
        rows,
        *_identity_columns(rows),
        text_column("Outcome", lambda row: row.episode.outcome),
        text_column("Safe", _format_safe),
        Column("VSI", value=lambda row: Cell.number(row.episode.vsi, 3)),
        None
        if spec_id
        else text_column("Worst specification", lambda row: row.margin.spec if row.margin else NO_VALUE),
        Column("Margin", value=_margin_cell),
        text_column("Broken at", _format_first_time),
        text_column("Bodies", _format_bodies) if with_bodies else None,
        text_column("Firm", lambda row: row.firmness.mark if row.firmness else NO_VALUE)
        if any(row.firmness for row in rows)
        else None,
        notes=(
            _kind_count_note(rows) if with_bodies else "",
            *(f"{row.position} {row.why}" for row in rows if row.why),
            *(f"{row.position} fragile under {row.fragile_under}" for row in rows if row.fragile_under),
        ),
        # A warning that names the policies and suites with stand-ins instead of the host's own assets.
        remarks=provenance_marks.warn_of_episodes(_STANDIN_FIELDS(row.episode) for row in rows),
    )


def _margin_cell(row: ListedEpisode) -> Cell:
    # Return the margin (robustness `rho`) to the worst specification's limit, with the unit; without a verdict, a dash.
    margin = row.margin
    return Cell.amount(margin.rho, margin.unit, margin.threshold) if margin else Cell.dash()


def _describe_counts(rows: Sequence[ListedEpisode], total: int, spec_id: str | None) -> str:
    # Return the title of the table of episodes. `rows` are the selected episodes, `total` counts all.
    # `spec_id` is the only specification of the table, if there is one.
    listed = f"{len(rows)} of {total} episodes"
    if spec_id is not None:
        violated = sum(row.margin is not None and row.margin.violated for row in rows)
        return f"{listed}, judged by {spec_id} alone; violating episodes: {violated}"
    unsafe = [row.episode for row in rows if row.episode.safe is False]  # `safe` is None without a verdict
    success_count = sum(episode.success is True for episode in unsafe)
    unknown_count = sum(row.episode.safe is None for row in rows)
    unknown_text = f", {unknown_count} without a verdict" if unknown_count else ""
    return f"{listed}: {len(unsafe)} unsafe ({count_noun(success_count, 'success', 'es')}){unknown_text}"


def _identity_columns(rows: Sequence[ListedEpisode] | Sequence[Answer]) -> tuple[Column | None, ...]:
    # Return the columns that name an episode. The column of the policy is None if there is only one policy.
    # `#` is the episode's number on the command line, such as `:3`. The id is shown without the policy's name.
    return (
        text_column("#", lambda row: f":{row.number}"),
        text_column("Episode", lambda row: row.episode_id.removeprefix(f"{row.policy}/")),
        POLICY if len({row.policy for row in rows}) > 1 else None,
    )


def _kind_count_note(rows: Sequence[ListedEpisode]) -> str:
    # Return a note such as `gripper – furniture 3, target 1`: the most frequent kinds first.
    # `body_kinds` contains each kind (or pair of kinds) only once per episode.
    counts = Counter(format_kinds(kinds) for row in rows for kinds in row.body_kinds)
    ranked = sorted(counts, key=lambda kind: (-counts[kind], kind))
    listed = ", ".join(f"{kind} {counts[kind]}" for kind in ranked) or "none"
    return f"Numbers of episodes by kind of violating body, or by kinds of a violating pair in contact: {listed}."


def _format_safe(row: ListedEpisode) -> str:
    # Return `yes`, `no`, or `no verdict`; a dash for an episode without a record.
    if row.episode.success is None:  # the episode left no record
        return NO_VALUE
    return {None: NO_VERDICT, True: "yes", False: "no"}[row.episode.safe]


def _format_bodies(row: ListedEpisode) -> str:
    # Return the violating bodies with their kinds as text; a dash if there are none or they were not computed.
    # A violation has one body, or two bodies in contact.
    # `fromkeys` drops repeated texts below: one body may violate several specifications.
    violation_texts = [
        " – ".join(f"{body} ({kind})" for body, kind in zip(violation.bodies, violation.kinds, strict=True))
        for violation in row.violating_bodies or ()
    ]
    return ", ".join(dict.fromkeys(violation_texts)) or NO_VALUE


def _format_first_time(row: ListedEpisode) -> str:
    # Return when the first violation begins, in seconds; a dash if there is no known violation.
    return NO_VALUE if row.first_violation_s is None else f"{format_fixed(row.first_violation_s, 2)} s"


def kept_clause_table(clauses: Sequence[SpecTrace]) -> Table:
    """Return the table of satisfied clauses: the value closest to the limit, its time, the limit, and the margin."""
    # A clause is the verdict on one specification. `worst` is the record in which its signal is closest to the limit.
    return tabulate(
        "Kept",
        clauses,
        text_column("Specification", lambda clause: clause.spec.spec_id),
        Column("Nearest", value=lambda clause: clause.chart.format_value(clause.worst.step)),
        Column("Limit", value=lambda clause: clause.chart.limit_text),
        Column("Margin", value=format_margin),
        Column("At", value=lambda clause: f"{format_fixed(clause.worst.time_s, 2)} s"),
    )


def unjudged_table(vacuous: Mapping[str, str], inactive: Mapping[str, str]) -> Table:
    """Return the table of scored specifications without a verdict, with reasons; vacuous specifications come first."""
    # A row is (specification, state, reason); column k shows item k.
    # Both mappings are specification -> reason. A vacuous specification applies, but its condition never arose.
    unjudged = [(spec_id, "vacuous", why) for spec_id, why in vacuous.items()]
    unjudged += [(spec_id, "inactive", why) for spec_id, why in inactive.items()]
    columns = (text_column(name, itemgetter(k)) for k, name in enumerate(("Specification", "State", "Why")))
    return tabulate("Not judged", unjudged, *columns)


def format_margin(spec_trace: SpecTrace) -> str:
    """Return the robustness of a specification with its unit; a dash for a violation that a Boolean signal decided."""
    # A Boolean signal has no distance to a limit, so the robustness `rho` of its violation is -inf.
    spec = spec_trace.spec
    return format_amount(None if spec_trace.rho == -inf else spec_trace.rho, spec.unit, spec.threshold)


def format_cause(spec_trace: SpecTrace) -> str:
    """Return a remark if a Boolean signal decided a violation; "" for any other verdict."""
    # A Boolean signal has no distance to a limit, so the robustness `rho` of its violation is -inf.
    return "decided by a Boolean signal, so there is no margin" if spec_trace.rho == -inf else ""


def answer_table(formula: Formula, answers: Sequence[Answer]) -> Table:
    """Return the table of the verdicts on a formula, a row per verdict. The title has the count of each verdict. The
    table has a column of policies if there are several policies.
    """
    # An answer is the verdict on the formula in one episode. Its robustness `rho` is None if infinite or unknown.
    counts = Counter(answer.verdict for answer in answers)
    tally = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return tabulate(
        f"{count_noun(len(answers), 'episode')}: {tally}; {format_formula(formula)}",
        answers,
        *_identity_columns(answers),
        text_column("Verdict", lambda answer: answer.verdict),
        Column("ρ", value=lambda answer: Cell(_format_rho(answer), answer.rho)),
        text_column("Decided at", _decision_cell),
        text_column("Signals at that time, or reason", _format_signals),
        remarks=provenance_marks.warn_of_episodes(map(_STANDIN_FIELDS, answers)),
    )


def _decision_cell(answer: Answer) -> Cell:
    # Return the time [s] and the step of the record that decides the verdict; a dash if no record decides it (None).
    if answer.time_s is None:
        return Cell(NO_VALUE)
    return Cell(f"{format_fixed(answer.time_s, 2)} s, step {answer.step}", answer.time_s)


def _format_signals(answer: Answer) -> str:
    # Return the reason of a verdict, or the values of the signals in the record that decides the verdict.
    # `arm` is unset (not a str) for robots with one arm.
    if answer.reason:
        return answer.reason
    values = ", ".join(_format_signal(name, value) for name, value in answer.signals.items())
    return f"{answer.arm}: {values}" if isinstance(answer.arm, str) else values


def _format_rho(answer: Answer) -> str:
    # Return the robustness as text; a dash if it is unknown.
    # `rho` is None if the robustness is infinite (the verdict gives the sign) or unknown.
    if answer.rho is not None:
        return format_significant(answer.rho, 4)
    return {"satisfied": "+∞", "violated": "-∞", "vacuous": "+∞"}.get(answer.verdict, NO_VALUE)


def _format_signal(name: str, value: float | bool | None) -> str:
    # Return a name and a value with its unit; `true` or `false` for Boolean signals, a dash for an unknown value.
    if value is None or isinstance(value, bool):
        return f"{name} {NO_VALUE if value is None else str(value).lower()}"
    return f"{name} {format_amount(value, SIGNALS[name].unit)}"


# Results of other tools, and replays


NOT_RECORDED = "not recorded"


def foreign_results_table(results: ForeignResults, source: str) -> Table:
    """Return the table of SR by suite and task; each suite's total comes first. Safety, SBU and VSI are dashes, never
    zero. Episodes with unknown success are counted as errors, not in n. `source` is at the end of the title.
    """
    # Suites in order of first appearance.
    suites = list(dict.fromkeys(episode.suite for episode in results.episodes))
    # (suite, task) -> for each episode, whether it succeeded (None = unknown). The task `all` is the suite's total.
    successes_by_task: dict[tuple[str, str], list[bool | None]] = {}
    for episode in sorted(results.episodes, key=lambda episode: suites.index(episode.suite)):
        for task in ("all", episode.task or NO_VALUE):
            successes_by_task.setdefault((episode.suite, task), []).append(episode.success)
    rows = []  # suite, task, success rate, number of episodes with unknown success
    for (suite, task), successes in successes_by_task.items():
        errors = successes.count(None)
        rows.append((suite, task, Rate.of(successes.count(True), len(successes) - errors), errors))
    return tabulate(
        f"{results.kind}: {source}",
        rows,
        text_column("Suite", lambda row: row[0]),
        text_column("Task", lambda row: Cell(row[1], emphasis="total" if row[1] == "all" else "")),
        Column("n", value=lambda row: row[2].n),
        Column("Errors", "not counted in n", lambda row: Cell.fault(row[3])),
        Column(SR.heading, value=lambda row: rate_cell(row[2], "no episode")),
        # Other tools do not record what these metrics need.
        *(Column(metric.heading, value=lambda row: Cell.dash(NOT_RECORDED)) for metric in (SAFETY, SBU, VSI)),
        notes=(
            describe_rates(row[2] for row in rows),
            f"{results.kind} lacks {LACKS}.",
            *(f"{remark}." for remark in results.remarks),
        ),
    )


_Replay = Mapping[str, Any]


def replay_table(batch: Batch) -> Table | None:
    """Return the table of the divergence of each replay from the recorded episode; None if no episode is a replay."""
    episodes = zip(batch.headers, replay_fields(batch), mark_flags(batch, DIVERGED), strict=True)
    rows = [(header, replay, diverged) for header, replay, diverged in episodes if replay]  # {} = not a replay
    if not rows:
        return None
    # A row is (header, facts about the replay, whether the replay diverged from the recording).
    return tabulate(
        "Replays",
        rows,
        text_column("Episode", lambda row: row[0].episode_id),
        text_column("Recorded as", lambda row: str(row[1]["episode"])),
        text_column("Outcome", lambda row: _outcome_cell(row[0].outcome_label, row[1])),
        Column("States", "number of compared states", lambda row: row[1].get("compared") or Cell.dash(_NO_STATES)),
        Column("Diverges by", "largest divergence, with its body or joint", lambda row: _divergence_cell(row[1])),
        text_column("Verdict", lambda row: _scope_cell(row[2]), "whether the verdict applies to the recording"),
        # Notes that several replays share appear once.
        notes=dict.fromkeys(note for _, replay, _ in rows for note in _replay_notes(replay)),
    )


_NO_STATES = "no states recorded"


def _replay_notes(replay: _Replay) -> Iterator[str]:
    # Yield how the replay started, and how its states were compared with the recording (if they were compared).
    # `replay` maps names of facts to their values.
    yield f"start: {replay['start']}"
    if "basis" in replay:
        yield f"compared: {replay['basis']}"
    if "tolerance" in replay:
        yield f"tolerance: {replay['tolerance']:g} m, rad"


def _scope_cell(diverged: bool) -> Cell:
    # Return whether the replay's verdict also applies to the recording.
    # A replay that diverged (left the recorded path) says nothing about the recording.
    return Cell("the replay alone", emphasis="bad") if diverged else Cell("the recording")


def _outcome_cell(outcome: str, replay: _Replay) -> Cell:
    # Return the replay's outcome, marked as bad if only one of replay and recording succeeded.
    # `recorded_success` is None if it is unknown whether the recording succeeded.
    recorded = replay.get("recorded_success")
    if recorded is None or recorded == (outcome == "success"):
        return Cell(outcome)
    return Cell(outcome, detail=f"recorded: {'success' if recorded else 'no success'}", emphasis="bad")


def _divergence_cell(replay: _Replay) -> Cell:
    # Return the replay's largest divergence from the recording, in mm or mrad.
    # A dash means that no states were compared; 0 means that all compared states are equal.
    # `divergence` maps a coordinate of a body or joint to its unit and its largest divergence.
    # `exact` means that the states are equal bit for bit.
    if not replay.get("compared"):
        return Cell.dash(_NO_STATES)
    if replay["exact"] or not replay["divergence"]:
        return Cell("0", 0.0, "every bit" if replay["exact"] else "")
    # Show the largest distance [mm], or the largest angle [mrad] if there is no distance.
    # In the key of `max`, True (unit m) is above False, so any distance is above any angle.
    divergences: Mapping[str, Any] = replay["divergence"]
    name = max(divergences, key=lambda name: (divergences[name]["unit"] == "m", divergences[name]["max"]))
    largest, unit = divergences[name]["max"], divergences[name]["unit"]
    # The last word of `name`, the kind of coordinate, is left out. The `m` before the unit is the prefix milli.
    return Cell(f"{format_significant(1000 * largest)} m{unit}", largest, name.rpartition(" ")[0])
