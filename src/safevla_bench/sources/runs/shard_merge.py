"""Shards of one plan joined into the run folder that a single run would have made, byte for byte."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import NoReturn

import msgspec

from safevla_bench.errors import Place, RunError
from safevla_bench.files import translated_errors
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.folder import (
    RUN,
    EpisodeRow,
    Repeats,
    add_facts_of_the_day,
    greetings_by_episode,
    group_greetings,
    read_description,
    read_latencies,
    read_repeats,
)
from safevla_bench.sources.runs.parts import count_progress, episode_rows
from safevla_bench.sources.runs.plan_check import PlanStretch
from safevla_bench.sources.runs.writer import list_differences
from safevla_bench.trajectory.batch import Batch

_REMEDY = "Name the run folders of all shards, each once."
_DAMAGED = "Copy the shard anew from where it was made, or run it again."
_OWN = ("shard", "planned", "volatile", "complete")


@dataclass(frozen=True)
class _Shard:
    folder: Path
    description: Mapping[str, object]
    stretch: PlanStretch
    rows: Sequence[EpisodeRow]

    @property
    def plan(self) -> dict[str, object]:
        common = {name: value for name, value in self.description.items() if name not in _OWN}
        return {**common, "shard": {"count": self.stretch.count, "whole": self.stretch.whole}}


def merge_shards(folders: Sequence[Path], out: Path) -> list[EpisodeRow]:
    """Join complete shards, given in any order, into a new run folder; return the row of each episode, in plan order.

    The folder appears whole or not at all. Raises `RunError` unless they are all shards of one plan, each once and
    intact, `RecordError` for a record that cannot be read, `FileError` if the disk refuses.
    """
    if not folders:
        raise RunError("there are no shards to merge", remedy=_REMEDY)
    if out.exists():
        _refuse_folder(out, "exists already", "Choose another --out, or remove it first.")
    shards = sorted(map(_require_shard, folders), key=lambda shard: shard.stretch.number)
    _require_one_plan(shards)
    _require_each_once(shards)
    for shard in shards:
        for name, problem in parts.changed_parts(shard.folder):
            _refuse_folder(shard.folder / name, problem, _DAMAGED)
    rows = [row for shard in shards for row in shard.rows]
    _write_merged(shards, rows, out)
    return rows


def _require_shard(folder: Path) -> _Shard:
    """Return the complete shard in a folder."""
    if not (folder / RUN).exists():
        _refuse_folder(folder, "this is not a run folder", _REMEDY)
    description = read_description(folder)
    try:
        stretch = msgspec.convert(description.get("shard"), PlanStretch)
    except msgspec.ValidationError:
        _refuse_folder(
            folder, "this run is no shard", "Shards are made with --shard 1/8 and so on; a whole run needs no merge."
        )
    if description.get("complete") is not True:
        done, planned = count_progress(folder)
        remedy = f"Continue it: safevla eval --record-only --resume --out {shlex.quote(str(folder))}."
        _refuse_folder(folder, f"the shard is unfinished, {done} of {planned} episodes done", remedy)
    return _Shard(folder, description, stretch, episode_rows(folder))


def _require_one_plan(shards: Sequence[_Shard]) -> None:
    for shard in shards[1:]:
        differing = list(list_differences(shards[0].plan, shard.plan, ("that has", "this has")))
        if differing:
            problem = f"it is of another plan than {shards[0].folder}:\n  " + "\n  ".join(differing)
            _refuse_folder(
                shard.folder, problem, "Merge the shards of one plan; run again what was asked for differently."
            )


def _require_each_once(shards: Sequence[_Shard]) -> None:
    """Raise `RunError` unless the shards, sorted by number, are all of the plan, each once, and meet without a gap."""
    for earlier, later in pairwise(shards):
        if earlier.stretch.number == later.stretch.number:
            problem = f"shard {earlier.stretch.number} of {earlier.stretch.count} is in {earlier.folder} too"
            _refuse_folder(later.folder, problem, _REMEDY)
    count = shards[0].stretch.count
    missing = sorted(set(range(1, count + 1)) - {shard.stretch.number for shard in shards})
    if missing:
        named = ", ".join(f"{number}/{count}" for number in missing)
        raise RunError(f"of {count} shards these are missing: {named}", remedy="Run them, and merge all.")
    ends = [*(shard.stretch.first for shard in shards[1:]), shards[0].stretch.whole]
    for shard, end in zip(shards, ends, strict=True):
        if shard.stretch.first + len(shard.rows) != end:
            _refuse_folder(shard.folder, f"its episodes do not end at {end}, where the next shard begins", _DAMAGED)


def _write_merged(shards: Sequence[_Shard], rows: Sequence[EpisodeRow], out: Path) -> None:
    beside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        with translated_errors(out):
            shutil.rmtree(beside, ignore_errors=True)  # of a process that died and had our number
            beside.mkdir(parents=True)
            parts.write_run(beside, _merged_description(shards), rows, chain.from_iterable(map(_shard_records, shards)))
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _merged_description(shards: Sequence[_Shard]) -> dict[str, object]:
    latencies = {name: latency for shard in shards for name, latency in read_latencies(shard.folder).items()}
    stated = [(shard.rows, greetings_by_episode(shard.folder)) for shard in shards]
    greetings = group_greetings(
        (row, texts[row.episode_id]) for rows, texts in stated for row in rows if row.episode_id in texts
    )
    today = {"shards": [shard.description.get("volatile") for shard in shards]}
    plan = {"shard": None, "planned": shards[0].stretch.whole, "volatile": today}
    return add_facts_of_the_day({**shards[0].description, **plan}, latencies, greetings, _join_repeats(shards))


def _join_repeats(shards: Sequence[_Shard]) -> dict[str, Repeats]:
    joined: dict[str, Repeats] = {}
    for shard in shards:
        for policy, found in read_repeats(shard.folder).items():
            before = joined.get(policy, Repeats(asked=0, other=0))
            joined[policy] = Repeats(asked=before.asked + found.asked, other=before.other + found.other)
    return joined


def _shard_records(shard: _Shard) -> Iterator[Batch]:
    expected = [row.episode_id for row in shard.rows if row.outcome != "crashed"]
    count = 0
    for record in parts.read_records(shard.folder):
        count += 1
        yield record
    if count != len(expected):
        _refuse_folder(shard.folder, f"its archive has {count} records of {len(expected)} episodes", _DAMAGED)


def _refuse_folder(place: Path, problem: str, remedy: str) -> NoReturn:
    raise RunError(problem, remedy=remedy, place=Place(file=str(place)))
