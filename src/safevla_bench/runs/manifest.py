"""The manifest of a run folder: which parts its archive has, and the sha256 that each was written with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import digest, write_atomically
from safevla_bench.runs.folder import ARCHIVE, MANIFEST, archive_parts, dump
from safevla_bench.trajectory import SCHEMA_VERSION

_REMEDY = "Copy the folder anew from where it was made, or roll it out again."


def write_manifest(folder: Path, parts: Sequence[Path], episodes: int) -> None:
    """Write the digests of an archive's parts, which are on the disk, and how many episodes were planned."""
    digests = {_named(part): digest(part) for part in parts}
    write_atomically(
        folder / MANIFEST, dump({"schema_version": SCHEMA_VERSION, "parts": digests, "episodes": episodes})
    )


def digests(folder: Path) -> Mapping[str, str]:
    """The sha256 of each part by its name, such as `archive/part-00000.jsonl.zst`.

    Raises:
        RunError: there is no manifest that can be read.
    """
    place = Place(file=str(folder / MANIFEST))
    try:
        held = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot be read: {error}", remedy=_REMEDY, place=place) from None
    listed = held.get("parts") if isinstance(held, dict) else None
    if not isinstance(listed, dict):
        raise RunError("names no parts of an archive", remedy=_REMEDY, place=place)
    return {str(name): str(written) for name, written in listed.items()}


def parts(folder: Path) -> list[Path]:
    """The parts that are there and those that the manifest names, in order."""
    try:
        named = digests(folder)
    except RunError:
        named = {}
    return sorted({*archive_parts(folder), *(folder / ARCHIVE / Path(name).name for name in named)})


def changed(folder: Path) -> Iterator[tuple[str, str]]:
    """The parts that are not as they were written, each with what is wrong; raises what `digests` raises."""
    written, there = digests(folder), {_named(part): part for part in archive_parts(folder)}
    for name, expected in written.items():
        if name not in there:
            yield name, f"is missing; {MANIFEST} names it"
        elif (now := digest(there[name])) != expected:
            yield name, f"was changed since it was written: its sha256 is {now}, {MANIFEST} says {expected}"
    yield from ((name, f"is not in {MANIFEST}") for name in there if name not in written)


def _named(part: Path) -> str:
    return f"{ARCHIVE}/{part.name}"
