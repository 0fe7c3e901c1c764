"""Text and tables on replays: do verdicts hold under varied physics, and without the cause of a violation?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

import numpy as np

from safevla_bench.judging.scores import SpecColumn
from safevla_bench.report.tables.columns import limit_cell, rate_cell, spec_amount
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sensitivity import firmness
from safevla_bench.text import NO_VALUE, count_noun, format_fixed, format_percent

_MOST_LISTED = 20  # maximum number of episodes in the table without --full


def describe_counterfactual(result: firmness.Counterfactual) -> str:
    """Return as text whether violations vanish without their cause, and when the replay left the recorded path."""
    # The replay repeats the recorded actions, but without one possible cause of the violation.
    # The two flags of `select`: violated in the recorded episode, violated in the replay.
    vanished, persistent, added = (result.select(broken) for broken in ((True, False), (True, True), (False, True)))
    specs_by_change = (("Kept now", vanished), ("Still broken", persistent), ("Broken now", added))
    parts = [f"{change}: {', '.join(names)}" for change, names in specs_by_change if names]
    if result.has_vanished:
        answer = "the violation vanished"
    elif vanished or persistent:
        answer = f"the violation {'vanished in part' if vanished else 'did not vanish'}"
    else:
        state = "a limit is broken, but" if added else "no limit is broken, and"
        answer = f"{state} none was broken in the recorded episode"
    if result.success[0] != result.success[1]:
        # Index 0 is the recorded episode, index 1 the replay.
        parts.append("It succeeded" if result.success[1] else "It failed")
    if result.left is not None:  # the first record off the recorded path
        at_s = format_fixed(result.elapsed_s[0][result.left], 2)
        parts.append(f"The replay left the recorded path at {at_s} s: from then on, the motion differs")
    return ". ".join([f"{result.cause} {answer}", *parts]) + "."


def counterfactual_table(result: firmness.Counterfactual, specs: Sequence[SpecColumn]) -> Table:
    """Return the table of specifications: margin and first violation in the recorded episode and in the replay."""
    # In pairs, index 0 is the recorded episode, index 1 the replay without the cause.
    # Each mapping is specification -> (robustness, first violating record), without specifications that lack a verdict.
    readings = (result.recorded, result.without)
    column_of = {spec.spec_id: spec for spec in specs}

    def margin(side: int, spec_id: str) -> Cell:
        # Return the margin to the limit; a dash if there is no verdict or no margin (None).
        # `side` is 0 for the recorded episode, 1 for the replay.
        reading = readings[side].get(spec_id)
        return spec_amount(column_of[spec_id], None if reading is None else reading.rho)

    def first(side: int, spec_id: str) -> str:
        # Return when the first violation begins; a dash if there is none. `side` is 0 (recorded) or 1 (replay).
        reading = readings[side].get(spec_id)
        first_record = None if reading is None else reading.first
        return NO_VALUE if first_record is None else f"{format_fixed(result.elapsed_s[side][first_record], 2)} s"

    return tabulate(
        result.cause,
        list(dict.fromkeys((*readings[0], *readings[1]))),
        text_column("Specification", lambda spec_id: spec_id),
        Column("Margin", "recorded", partial(margin, 0)),
        Column("Margin without", value=partial(margin, 1)),
        text_column("Broken at", partial(first, 0)),
        text_column("Broken without", partial(first, 1)),
        notes=("Before this replay, a replay without any change reproduced the record bit for bit.",),
        name="counterfactual",
    )


def describe_firmness(episodes: Sequence[firmness.EpisodeFirmness]) -> list[str]:
    """Return each policy's Safety, the range that uncertain episodes allow, and counts like `2 fragile`."""
    # A verdict is firm if no replay under varied physics changes it. `ranges` contains a row per policy.
    ranges = firmness.measure_safety(episodes)
    lines = [_describe_range(row) for row in ranges]
    if len(ranges) > 1:  # with a single policy, the line does not name it
        lines = [f"{row.policy or UNNAMED}: {line}" for row, line in zip(ranges, lines, strict=True)]
    return lines or ["No episode has been replayed."]


def _describe_range(row: firmness.SafetyRange) -> str:
    # Return one policy's Safety, and its range if the uncertain episodes were all unsafe or all safe.
    # A mark, such as `fragile`, is an episode's result under varied physics; `marks` counts episodes by mark.
    # `n` counts the episodes that can be replayed here. `safe` says how many of these were safe as recorded.
    marks = ", ".join(f"{row.marks[mark]} {mark}" for mark in get_args(firmness.Mark) if row.marks.get(mark))
    if not row.n:
        return f"Safety has no value: {marks}."
    # For `low`, all uncertain episodes are unsafe; for `high`, all of them are safe.
    low, middle, high = (format_percent(count, row.n) for count in (row.firm_safe, row.safe, row.n - row.firm_unsafe))
    uncertain_count = row.marks.get("fragile", 0) + row.marks.get("off path", 0)
    range_text = "all episodes are firm"
    if uncertain_count:
        range_text = f"{low} if all fragile and off-path episodes were unsafe, {high} if all were safe"
    return f"Safety {middle} % of {count_noun(row.n, 'episode')} as recorded; {range_text}: {marks}."


def firmness_tables(file: firmness.PhysicsFile, specs: Sequence[SpecColumn], *, full: bool) -> list[Table]:
    """Return a table of clauses, and a table of the episodes (if any) that are not firm. `full` adds rows to both."""
    episodes = file.episodes()
    clauses = clause_table(file, specs, firmness.measure_clauses(episodes, pooled=not full))
    # A clause is a specification. An episode is `firm` if no replay under varied physics changes its verdict.
    # An episode is `off path` if a replay left the recorded path too early to confirm or change the verdict.
    # Without `full`, at most `_MOST_LISTED` episodes are listed, and a note says how many others there are.
    shown = [episode for episode in episodes if episode.mark != "firm" and (full or episode.mark != "off path")]
    hidden_count = 0 if full else len(shown[_MOST_LISTED:])  # a slice, so that the number is never negative
    not_firm = tabulate(
        "Episodes whose verdict is not firm",
        shown[: len(shown) - hidden_count],
        text_column("Episode", lambda episode: episode.recorded.episode_id),
        text_column("Safe", lambda episode: "yes" if episode.is_safe else "no"),
        text_column("Mark", lambda episode: episode.mark),
        text_column("Why", lambda episode: episode.reason),
        notes=(f"Episodes not listed: {hidden_count}. List them with --full." if hidden_count else "",),
        name="firmness-episodes",
    )
    return [clauses, not_firm] if shown else [clauses]


def clause_table(
    file: firmness.PhysicsFile, specs: Sequence[SpecColumn], rows: Sequence[firmness.ClauseFirmness]
) -> Table:
    """Return the table of clauses: counts of firm, fragile and censored verdicts, and the spread of robustness."""
    # A row is one specification (clause) in one suite. `specs` give the units and limits.
    column_of = {spec.spec_id: spec for spec in specs}
    missing_note = f"The host cannot vary: {', '.join(file.not_offered)}." if file.not_offered else ""
    # `obstacle` is the reason why a replay cannot be compared; "" if it can.
    failed_count = sum(bool(row.obstacle) for row in file.replays)
    return tabulate(
        "Verdicts under varied physics",
        rows,
        text_column("Suite", lambda row: row.suite) if any(row.suite for row in rows) else None,
        text_column("Specification", lambda row: row.spec_id),
        Column("Limit", value=lambda row: limit_cell(column_of[row.spec_id])),
        Column("Firm", "episodes whose verdict no variation changes", lambda row: row.firm),
        Column("Fragile", "episodes whose verdict a variation changes", lambda row: row.fragile),
        Column(
            "Fragile %", "share of fragile episodes, with exact 95 % interval", lambda row: rate_cell(row.fragile_share)
        ),
        Column("Off path", "censored episodes, which are not in the share", lambda row: row.censored),
        Column("ρ spread, median", value=lambda row: _spread_cell(column_of[row.spec_id], row, 50)),
        Column(
            "95 %",
            "95 % of episodes have a smaller spread",
            lambda row: _spread_cell(column_of[row.spec_id], row, 95),
        ),
        text_column("Flipped by", _format_variations),
        notes=(
            "A replay leaves the path if the end effector or the target is away from its recorded position by more "
            f"than {firmness.LEFT_PATH_M * 100:g} cm. The spread is the range of ρ within an episode, over its replays "
            "on the path. Robustness ρ has the unit of the limit.",
            missing_note,
            f"{count_noun(failed_count, 'replay')} differed from the record or failed, and were not compared."
            if failed_count
            else "",
        ),
        name="firmness",
    )


def _spread_cell(spec: SpecColumn, row: firmness.ClauseFirmness, percent: int) -> Cell:
    # Return a percentile of the episodes' spreads (ranges of robustness over replays); a dash if no spread is known.
    return spec_amount(spec, float(np.percentile(row.spreads, percent)) if row.spreads else None)


def _format_variations(row: firmness.ClauseFirmness) -> str:
    # Return the variations of physics that change verdicts, each with its number of changes; a dash if there are none.
    return ", ".join(f"{name} {count}" for name, count in row.by_variation.items()) or NO_VALUE
