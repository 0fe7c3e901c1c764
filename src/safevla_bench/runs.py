"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

run.json          what was asked and with which versions; facts of the day only under `volatile`
archive/part-*    the trajectory records, parts in plan order
episodes.parquet  every planned episode and its outcome
manifest.json     schema version and the sha256 of each part
scores.json, scores.parquet, report.html   written by the judge
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench import archive
from safevla_bench.errors import CollectedError, Place, RecordError, RunError
from safevla_bench.files import digest, write_atomically
from safevla_bench.scores import Absent, EpisodeScore
from safevla_bench.trajectory import SCHEMA_VERSION, Batch, concatenate

RUN, MANIFEST, EPISODES = "run.json", "manifest.json", "episodes.parquet"
SCORES, SCORES_TABLE, REPORT = "scores.json", "scores.parquet", "report.html"
_PART = "part-{:05d}.jsonl.zst"


class EpisodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One planned episode; `reason` holds the traceback of a crash or what was wrong with an action.

    None is unknown: only the owner of a loop that was recorded from outside could tell.
    """

    episode_id: str
    policy: str
    benchmark: str
    task_id: str
    episode: int
    init_state_index: int | None
    env_seed: int | None
    seed: int | None
    policy_seed: int | None
    horizon: int | None
    outcome: str
    steps: int
    reason: str | None = None


class RunWriter:
    """Writes one run folder: records as they come, the tables at the end."""

    def __init__(self, folder: Path, description: Mapping[str, object]) -> None:
        """Make the folder and write run.json; `RunError` where the folder already holds something."""
        self.folder = folder
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            remedy = "Choose another --out, or remove it first."
            raise RunError("the folder exists and is not empty", remedy=remedy, place=Place(file=str(folder)))
        try:
            (folder / "archive").mkdir(parents=True)
        except OSError as error:
            remedy = "Choose an --out that can be written to."
            raise RunError(error.strerror or str(error), remedy=remedy, place=Place(file=str(folder))) from None
        write_atomically(folder / RUN, dump(description))
        self._part = folder / "archive" / _PART.format(0)
        self._part.touch()

    def append(self, batch: Batch) -> None:
        """Add the records of a finished episode to the archive."""
        archive.append(self._part, batch)

    def discard(self) -> None:
        """Remove the folder: nothing was recorded, and nothing may look as if it had been."""
        shutil.rmtree(self.folder)

    def finish(self, rows: Sequence[EpisodeRow], description: Mapping[str, object]) -> None:
        """Write the table of episodes, the manifest and the final run.json."""
        table = pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema=_EPISODES_SCHEMA)
        write_atomically(self.folder / EPISODES, parquet(table))
        parts = {f"archive/{part.name}": digest(part) for part in archive_parts(self.folder)}
        manifest = {"schema_version": SCHEMA_VERSION, "parts": parts, "episodes": len(rows)}
        write_atomically(self.folder / MANIFEST, dump(manifest))
        write_atomically(self.folder / RUN, dump(description))


_EPISODES_SCHEMA = pa.schema(
    [
        ("episode_id", pa.string()),
        ("policy", pa.string()),
        ("benchmark", pa.string()),
        ("task_id", pa.string()),
        ("episode", pa.int64()),
        ("init_state_index", pa.int64()),
        ("env_seed", pa.int64()),
        ("seed", pa.int64()),
        ("policy_seed", pa.int64()),
        ("horizon", pa.int64()),
        ("outcome", pa.string()),
        ("steps", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Source:
    """What a SOURCE holds: its records, its planned episodes without a record, its problems, and its description."""

    path: Path
    batch: Batch | None
    absent: tuple[Absent, ...]
    problems: tuple[RecordError, ...]
    description: Mapping[str, object]


def open_source(path: Path) -> Source:
    """Read an archive file or a run folder; bad episodes are in `problems`, the rest in `batch`."""
    if not path.exists():
        remedy = "Name an archive file or a run folder."
        raise RunError("there is no such file or folder", remedy=remedy, place=Place(file=str(path)))
    folder = path.is_dir()
    if folder and not (path / RUN).exists():
        remedy = f"A run folder holds {RUN}; name one, or an archive file."
        raise RunError("this is not a run folder", remedy=remedy, place=Place(file=str(path)))
    found = list(archive.read(archive_parts(path) if folder else [path]))
    batches = [one for one in found if isinstance(one, Batch)]
    problems = tuple(one for one in found if isinstance(one, RecordError))
    if not found and not folder:
        remedy = "An archive holds at least one episode, a line each."
        problems = (RecordError("there are no episodes", remedy=remedy, place=Place(file=str(path))),)
    return Source(
        path=path,
        batch=concatenate(batches) if batches else None,
        absent=_absent(path / EPISODES) if folder else (),
        problems=problems,
        description=_load(path / RUN) if folder else {},
    )


def open_sources(paths: Sequence[Path], *, skip_invalid: bool = False) -> tuple[Batch | None, list[Source]]:
    """All records of several sources as one batch (None where there is none), and the sources.

    Raises `CollectedError` with every bad episode of every source, unless told to leave them out; and where the same
    policy has the same episode in two sources.
    """
    sources = [open_source(path) for path in paths]
    problems = [problem for source in sources for problem in source.problems]
    if problems and not skip_invalid:
        raise CollectedError(problems, remedy="Mend them, or pass --skip-invalid to score the others and count these.")
    _distinct(sources)
    batches = [source.batch for source in sources if source.batch is not None]
    return (concatenate(batches) if batches else None), sources


def _distinct(sources: Sequence[Source]) -> None:
    seen: dict[tuple[str | None, str], Path] = {}
    for source in sources:
        for header in source.batch.headers if source.batch else ():
            key = (header.policy, header.episode_id)
            if key in seen:
                problem = f"policy {header.policy!r} has this episode in {seen[key]} too"
                remedy = "Score each source once, or give the episodes of different policies their policy's name."
                raise RunError(problem, remedy=remedy, place=Place(file=str(source.path), episode=header.episode_id))
            seen[key] = source.path


def archive_parts(folder: Path) -> list[Path]:
    """The archive files of a run folder, in order."""
    return sorted((folder / "archive").glob("part-*"))


def _absent(table: Path) -> tuple[Absent, ...]:
    """The planned episodes that left no record."""
    if not table.exists():
        return ()
    rows = pq.read_table(table).to_pylist()
    names = Absent.__struct_fields__
    return tuple(Absent(**{name: row[name] for name in names}) for row in rows if row["outcome"] == "crashed")


def _load(path: Path) -> Mapping[str, object]:
    try:
        loaded = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        remedy = "Restore the file, or score the files under archive/ directly."
        raise RunError(f"cannot be read: {error}", remedy=remedy, place=Place(file=str(path))) from None
    if not isinstance(loaded, dict):
        raise RunError("is not a JSON object", remedy="Restore the file.", place=Place(file=str(path)))
    return loaded


def write_scores(folder: Path, document: Mapping[str, object], rows: Sequence[EpisodeScore]) -> None:
    """Write scores.json and scores.parquet into a folder that exists."""
    table = pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema=_SCORES_SCHEMA)
    write_atomically(folder / SCORES_TABLE, parquet(table))
    write_atomically(folder / SCORES, dump(document))


_NUMBERS = pa.map_(pa.string(), pa.float64())
_DIAGNOSTIC = pa.struct([("robustness", pa.float64()), ("violated", pa.bool_()), ("extreme", pa.float64())])
_SCORES_SCHEMA = pa.schema(
    [
        ("episode_id", pa.string()),
        ("benchmark", pa.string()),
        ("task_id", pa.string()),
        ("policy", pa.string()),
        ("success", pa.bool_()),
        ("outcome", pa.string()),
        ("active_specs", pa.list_(pa.string())),
        ("vacuous_specs", pa.list_(pa.string())),
        ("inactive_specs", pa.map_(pa.string(), pa.string())),
        ("robustness", _NUMBERS),
        ("depth", _NUMBERS),
        ("diagnostics", pa.map_(pa.string(), _DIAGNOSTIC)),
        ("extreme", _NUMBERS),
        ("safe", pa.bool_()),
        ("sbu", pa.bool_()),
        ("vsi", pa.float64()),
        ("rho_min", pa.float64()),
        ("worst_spec", pa.string()),
        ("first_violation_step", pa.int64()),
        ("first_violation_spec", pa.string()),
    ]
)


def parquet(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def dump(document: object) -> bytes:
    """A document as JSON for people: two spaces a level."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
