"""The manifest of a run folder: which parts its archive has, and the sha256 that each was written with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import sha256_of, write_atomically
from safevla_bench.runs.folder import ARCHIVE, MANIFEST, archive_parts, dump_json
from safevla_bench.trajectory import SCHEMA_VERSION

_REMEDY = "Copy the folder anew from where it was made, or roll it out again."


def write_manifest(folder: Path, parts: Sequence[Path], episodes: int) -> None:
    """Write the digests of an archive's parts, which are on the disk, and how many episodes were planned."""
    digests = {_part_name(part): sha256_of(part) for part in parts}
    write_atomically(
        folder / MANIFEST, dump_json({"schema_version": SCHEMA_VERSION, "parts": digests, "episodes": episodes})
    )


def read_digests(folder: Path) -> Mapping[str, str]:
    """Return the sha256 of each part by its name, such as `archive/part-00000.parquet`.

    Raises:
        RunError: there is no manifest that can be read.
    """
    place = Place(file=str(folder / MANIFEST))
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot be read: {error}", remedy=_REMEDY, place=place) from None
    listed = manifest.get("parts") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict):
        raise RunError("names no parts of an archive", remedy=_REMEDY, place=place)
    return {str(name): str(written) for name, written in listed.items()}


def listed_parts(folder: Path) -> list[Path]:
    """Return the parts that exist and those that the manifest names, in order."""
    try:
        names = read_digests(folder)
    except RunError:
        names = {}
    return sorted({*archive_parts(folder), *(folder / ARCHIVE / Path(name).name for name in names)})


def changed_parts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the parts that are not as they were written, each with the problem; raises as `read_digests` does."""
    written, existing = read_digests(folder), {_part_name(part): part for part in archive_parts(folder)}
    for name, expected in written.items():
        if name not in existing:
            yield name, f"is missing; {MANIFEST} names it"
        elif (now := sha256_of(existing[name])) != expected:
            yield name, f"was changed since it was written: its sha256 is {now}, {MANIFEST} says {expected}"
    yield from ((name, f"is not in {MANIFEST}") for name in existing if name not in written)


def _part_name(part: Path) -> str:
    return f"{ARCHIVE}/{part.name}"
