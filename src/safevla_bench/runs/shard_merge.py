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
from safevla_bench.files import writing
from safevla_bench.runs import manifest, parts
from safevla_bench.runs.folder import (
    GREETINGS,
    LATENCY,
    RUN,
    EpisodeRow,
    described,
    episode_rows,
    gathered,
    greetings,
    latencies,
)
from safevla_bench.runs.journal import progress
from safevla_bench.runs.writer import differences
from safevla_bench.trajectory import Batch

_REMEDY = "Name the run folders of all shards, each once."
_DAMAGED = "Copy the shard anew from where it was made, or run it again."
_OWN = ("shard", "planned", "volatile", "complete")
"""What run.json says of a shard, not of the plan."""


class Stretch(msgspec.Struct, frozen=True):
    """The `number`-th of `count` shards, from 1: where it begins in the plan, and how many episodes the plan has.

    What run.json holds as `shard`.
    """

    number: int
    count: int
    first: int
    whole: int


@dataclass(frozen=True)
class _Shard:
    folder: Path
    description: Mapping[str, object]
    stretch: Stretch
    rows: Sequence[EpisodeRow]

    @property
    def plan(self) -> dict[str, object]:
        """What all shards of one plan have in common."""
        common = {name: value for name, value in self.description.items() if name not in _OWN}
        return {**common, "shard": {"count": self.stretch.count, "whole": self.stretch.whole}}


def merge(folders: Sequence[Path], out: Path) -> list[EpisodeRow]:
    """Join complete shards, given in any order, into a new run folder; returns the row of each episode, in plan order.

    The folder appears whole or not at all. Raises `RunError` where a folder is no complete shard or not as its manifest
    says, the shards are of different plans (naming what differs), one is given twice, or one is missing.
    """
    if out.exists():
        _refuse(out, "exists already", "Choose another --out, or remove it first.")
    shards = sorted(map(_opened, folders), key=lambda shard: shard.stretch.number)
    _of_one_plan(shards)
    _each_once(shards)
    for shard in shards:
        _intact(shard)
    rows = [row for shard in shards for row in shard.rows]
    _write(shards, rows, out)
    return rows


def _opened(folder: Path) -> _Shard:
    if not (folder / RUN).exists():
        _refuse(folder, "this is not a run folder", _REMEDY)
    description = described(folder)
    try:
        stretch = msgspec.convert(description.get("shard"), Stretch)
    except msgspec.ValidationError:
        _refuse(
            folder, "this run is no shard", "Shards are made with --shard 1/8 and so on; a whole run needs no merge."
        )
    if description.get("complete") is not True:
        done, planned = progress(folder)
        remedy = f"Continue it: safevla rollout --resume --out {shlex.quote(str(folder))}."
        _refuse(folder, f"the shard is unfinished, {done} of {planned} episodes done", remedy)
    return _Shard(folder, description, stretch, episode_rows(folder))


def _of_one_plan(shards: Sequence[_Shard]) -> None:
    for shard in shards[1:]:
        differing = list(differences(shards[0].plan, shard.plan, ("that has", "this has")))
        if differing:
            problem = f"it is of another plan than {shards[0].folder}:\n  " + "\n  ".join(differing)
            _refuse(shard.folder, problem, "Merge the shards of one plan; run again what was asked for differently.")


def _each_once(shards: Sequence[_Shard]) -> None:
    for one, other in pairwise(shards):
        if one.stretch.number == other.stretch.number:
            problem = f"shard {one.stretch.number} of {one.stretch.count} is in {one.folder} too"
            _refuse(other.folder, problem, _REMEDY)
    count = shards[0].stretch.count
    missing = sorted(set(range(1, count + 1)) - {shard.stretch.number for shard in shards})
    if missing:
        named = ", ".join(f"{number}/{count}" for number in missing)
        raise RunError(f"of {count} shards these are missing: {named}", remedy="Run them, and merge all.")
    ends = [*(shard.stretch.first for shard in shards[1:]), shards[0].stretch.whole]
    for shard, end in zip(shards, ends, strict=True):
        if shard.stretch.first + len(shard.rows) != end:
            _refuse(shard.folder, f"its episodes do not end at {end}, where the next shard begins", _DAMAGED)


def _intact(shard: _Shard) -> None:
    """Refuse a shard whose files are not those that it was completed with."""
    for name, problem in manifest.changed(shard.folder):
        _refuse(shard.folder / name, problem, _DAMAGED)


def _write(shards: Sequence[_Shard], rows: Sequence[EpisodeRow], out: Path) -> None:
    beside = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        with writing(out):
            shutil.rmtree(beside, ignore_errors=True)  # of a process that died and had our number
            beside.mkdir(parents=True)
            parts.write_run(beside, _description(shards), rows, chain.from_iterable(map(_records, shards)))
            beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _description(shards: Sequence[_Shard]) -> dict[str, object]:
    """The run.json of a run of the whole plan; what each shard says of its day is kept."""
    spent = {name: took for shard in shards for name, took in latencies(shard.folder).items()}
    today: dict[str, object] = {"shards": [shard.description.get("volatile") for shard in shards]}
    told = gathered(chain.from_iterable(map(_greeted, shards)))
    volatile = today | ({LATENCY: spent} if spent else {}) | ({GREETINGS: told} if told else {})
    whole = {"shard": None, "planned": shards[0].stretch.whole, "volatile": volatile}
    return {**shards[0].description, **whole}


def _greeted(shard: _Shard) -> Iterator[tuple[EpisodeRow, Mapping[str, object]]]:
    """The episodes in which a policy or its server said something of itself, and what."""
    said = greetings(shard.folder)
    return ((row, said[row.episode_id]) for row in shard.rows if row.episode_id in said)


def _records(shard: _Shard) -> Iterator[bytes | Batch]:
    """The records of a shard; refused where they are not as many as its episodes left."""
    left = [row.episode_id for row in shard.rows if row.outcome != "crashed"]
    found = 0
    for record in parts.records(shard.folder):
        found += 1
        yield record
    if found != len(left):
        _refuse(shard.folder, f"its archive has {found} records of {len(left)} episodes", _DAMAGED)


def _refuse(place: Path, problem: str, remedy: str) -> NoReturn:
    raise RunError(problem, remedy=remedy, place=Place(file=str(place)))
