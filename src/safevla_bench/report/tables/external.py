"""Tables of foreign data: imported results with successes only, and replays against their recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from safevla_bench.judging.rates import Rate
from safevla_bench.report.tables.table import WILSON, Cell, Column, Table, count_cell, rate_cell
from safevla_bench.sources.foreign import LACKS, ForeignEpisode, ForeignResults
from safevla_bench.text import NO_VALUE, format_significant
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import DIVERGED, mark_flags, replay_fields

NOT_RECORDED = "not recorded"


def foreign_results_table(results: ForeignResults, source: str) -> Table:
    """Return the table of SR by suite and task, each suite's total first; Safety, SBU and VSI are dashes, never zero.

    A column of errors is there if an episode has no success recorded; such episodes are outside n. `source` ends the
    title.
    """
    errors = any(episode.success is None for episode in results.episodes)
    columns = (
        Column("Suite", numeric=False),
        Column("Task", numeric=False),
        Column("n"),
        *([Column("Errors", "outside n")] if errors else []),
        Column("SR %"),
        *(Column(name) for name in ("Safety %", "SBU %", "VSI")),
    )
    grouped: dict[str, dict[str, list[ForeignEpisode]]] = {}
    for episode in results.episodes:
        grouped.setdefault(episode.suite, {}).setdefault(episode.task, []).append(episode)
    rows = []
    for suite, tasks in grouped.items():
        rows.append(_results_row(suite, "all", [episode for listed in tasks.values() for episode in listed], errors))
        rows += [_results_row(suite, task, listed, errors) for task, listed in tasks.items()]
    notes = (WILSON, f"{results.kind} lacks {LACKS}.", *(f"{remark}." for remark in results.remarks))
    return Table(f"{results.kind}: {source}", columns, tuple(rows), notes)


def _results_row(suite: str, task: str, episodes: Sequence[ForeignEpisode], errors: bool) -> tuple[Cell, ...]:
    """Return the row of a suite's or task's episodes; `errors` adds the count of episodes without a
    recorded success.
    """
    successes = [episode.success for episode in episodes if episode.success is not None]
    lost = len(episodes) - len(successes)
    return (
        Cell(suite),
        Cell(task, emphasis="total" if task == "all" else ""),
        count_cell(len(successes)),
        *([count_cell(lost, "bad" if lost else "")] if errors else []),
        rate_cell(Rate.of(sum(successes), len(successes)), "no episode"),
        *(Cell(NO_VALUE, detail=NOT_RECORDED) for _ in range(3)),
    )


def replay_table(batch: Batch) -> Table | None:
    """Return the table of how far each replay diverges from its recording; None if no episode is a replay."""
    columns = (
        Column("Episode", numeric=False),
        Column("Recorded as", numeric=False),
        Column("Outcome", numeric=False),
        Column("States", "how many were compared"),
        Column("Position", "largest divergence of a body or slider"),
        Column("Rotation", "largest divergence of a body or hinge"),
        Column("From step", "the first beyond the tolerance"),
        Column("Verdict", numeric=False, meaning="what a verdict on this episode is about"),
    )
    rows, notes = [], []
    replays = zip(batch.headers, replay_fields(batch), mark_flags(batch, DIVERGED), strict=True)
    for header, replay, diverged in replays:
        if replay:
            about = Cell("the replay alone", emphasis="bad") if diverged else Cell("the recording")
            names = Cell(header.episode_id), Cell(str(replay["episode"])), _outcome_cell(header.outcome_label, replay)
            rows.append((*names, *_divergence_cells(replay), about))
            notes.append(f"start: {replay['start']}")
            if "basis" in replay:
                notes.append(f"compared: {replay['basis']}")
            if "tolerance" in replay:
                notes.append(f"tolerance: {replay['tolerance']:g} m, rad")
    return Table("Replays", columns, tuple(rows), tuple(dict.fromkeys(notes))) if rows else None


def _outcome_cell(outcome: str, replay: Mapping[str, object]) -> Cell:
    recorded = replay.get("recorded_success")
    if recorded is None or recorded == (outcome == "success"):
        return Cell(outcome)
    return Cell(outcome, detail=f"recorded: {'success' if recorded else 'no success'}", emphasis="bad")


def _divergence_cells(replay: Mapping[str, object]) -> tuple[Cell, ...]:
    """Return the number of compared states, largest divergence in position and rotation, and first step beyond
    tolerance.

    Four dashes where no states were compared.
    """
    divergence = replay.get("divergence")
    if not replay.get("compared") or not isinstance(divergence, Mapping):
        return tuple(Cell(NO_VALUE, detail="no states recorded") for _ in range(4))
    states = count_cell(int(str(replay["compared"])))
    if replay["exact"]:
        return states, Cell("0", 0.0, "every bit"), Cell("0", 0.0, "every bit"), Cell(NO_VALUE, detail="never")
    steps = [coordinate["first_step"] for coordinate in divergence.values() if coordinate["first_step"] is not None]
    first = Cell(str(min(steps)), min(steps), emphasis="bad") if steps else Cell(NO_VALUE, detail="never")
    return states, _largest_cell(divergence, "m", 1000, "mm"), _largest_cell(divergence, "rad", 1000, "mrad"), first


def _largest_cell(divergence: Mapping[str, Mapping[str, object]], unit: str, scale: int, shown_unit: str) -> Cell:
    """Return the largest divergence among coordinates in `unit`, in `shown_unit` (times `scale`), with its coordinate's
    name.

    A dash if no coordinate has the unit.
    """
    largest = {
        name: float(str(coordinate["max"])) for name, coordinate in divergence.items() if coordinate["unit"] == unit
    }
    if not largest:
        return Cell(NO_VALUE)
    name = max(largest, key=largest.__getitem__)
    return Cell(f"{format_significant(scale * largest[name])} {shown_unit}", largest[name], name.rpartition(" ")[0])
