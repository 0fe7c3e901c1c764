"""Whether the scores follow from the records: judged again in the same way, and compared byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from safevla_bench import evaluate, runs
from safevla_bench.errors import CollectedError, Place, RecordError, RunError, SafevlaError
from safevla_bench.scoring import Applicability, Missing
from safevla_bench.specs.file_formats import BUILT_IN
from safevla_bench.verify.findings import Finding, agrees, differs, unchecked
from safevla_bench.version import __version__

SOURCE = "judged archive"
LIBRARY, REGISTRY, VERSION = "library", "registry", "version"
_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Files:
    """The specification and registry files that judged: scores.json has their digests, not where they are."""

    library: str | None = None
    """None = the one that scores.json names."""
    specs: tuple[Path, ...] = ()
    registry: tuple[Path, ...] = ()


class _Digest(msgspec.Struct):
    digest: str
    name: str = ""


class _Lost(msgspec.Struct):
    episodes: int


class _JudgedBy(msgspec.Struct):
    """The part of scores.json that says how it came about."""

    library: _Digest
    registry: _Digest
    capabilities: tuple[str, ...]
    missing: Missing
    applicability: Applicability
    skipped: tuple[str, ...]
    version: str
    lost: _Lost | None = None
    """What damaged files cost, where the run was judged without them."""

    @property
    def left_out(self) -> int:
        return len(self.skipped) + (self.lost.episodes if self.lost else 0)

    def judge(self, files: Files) -> evaluate.Judge:
        """The judge that was; `RunError` where its library is a file that is not named."""
        name = self.library.name.partition("+")[0]
        if files.library is None and name not in BUILT_IN:  # a stranger's name is never opened as a file
            raise RunError(f"the library {name!r} is not built in")
        return evaluate.Judge(
            library=files.library or name,
            specs=files.specs,
            registry=files.registry,
            capabilities=self.capabilities,
            missing=self.missing,
            applicability=self.applicability,
        )


def judgement(run: Path, files: Files) -> list[Finding]:
    """Library, registry and version against those that judged, and both score files against a new judgement."""
    if not (run / runs.SCORES).exists():
        there = (run / runs.SCORES_TABLE).exists()
        said = "missing; nothing says how the run was judged"
        return [differs(runs.SCORES, said) if there else unchecked(runs.SCORES, said, wanted=False)]
    try:
        held, by = _held(run)
    except RunError as error:
        return [differs(runs.SCORES, str(error))]
    try:
        judge = by.judge(files)
        found = _with_what(by, judge)
    except SafevlaError as error:
        remedy = "Name the files that judged with --library, --specs and --registry."
        return [unchecked(runs.SCORES, f"what judged is not here: {error}\n{remedy}")]
    if any(one.verdict == "differs" for one in found if one.check != VERSION):
        return [
            *found,
            unchecked(runs.SCORES, "not judged again: the specifications or tags are not those that judged"),
        ]
    return [*found, *_again(run, held, by, judge)]


def _held(run: Path) -> tuple[dict[str, Any], _JudgedBy]:
    """What scores.json holds; `RunError` where that is not scores."""
    place = Place(file=str(run / runs.SCORES))
    try:
        held = json.loads((run / runs.SCORES).read_bytes())
        by = held.get("judged_by") if isinstance(held, dict) else None
        return held, msgspec.convert(by, _JudgedBy)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        remedy = "Judge the run anew: safevla score RUN --out DIR."
        raise RunError(f"cannot be read: {error}", remedy=remedy, place=place) from None


def _with_what(by: _JudgedBy, judge: evaluate.Judge) -> list[Finding]:
    library, registry = judge.load()
    return [
        _same(LIBRARY, by.library.digest, library.digest, library.name),
        _same(REGISTRY, by.registry.digest, registry.digest, "built-in" if not judge.registry else "with files"),
        _version(by.version),
    ]


def _same(check: str, judged: str, here: str, name: str) -> Finding:
    if judged == here:
        return agrees(check, f"{name}, digest {here}")
    option = f"--{check} FILE" + (" or --specs FILE" if check == LIBRARY else "")
    remedy = f"Where a file of your own judged, name it: {option}."
    return differs(check, f"{name} has the digest {here} here; {judged} judged\n{remedy}")


def _version(judged: str) -> Finding:
    if judged == __version__:
        return agrees(VERSION, f"safevla-bench {judged}")
    return differs(VERSION, f"safevla-bench {judged} judged, this is {__version__}")


def _again(run: Path, held: Mapping[str, Any], by: _JudgedBy, judge: evaluate.Judge) -> list[Finding]:
    try:
        judged = evaluate.judge([run], judge, skip_invalid=bool(by.skipped or by.lost))
    except SafevlaError as error:
        return [differs(runs.SCORES, f"the records cannot be judged: {_told(error)}")]
    if judged.skipped != by.left_out:
        said = f"{judged.skipped} episodes are invalid or lost; when it was judged, {by.left_out} were"
        return [differs(runs.SCORES, said)]
    # Digests and version were compared on their own; messages of invalid episodes name the folder as it was called.
    sources = held.get("sources", [])
    told = {**judged.description, "sources": sources}  # compared on their own, too
    judged = replace(judged, scores=replace(judged.scores, provenance=held["judged_by"]), description=told)
    contents = evaluate.score_files(judged, legacy_ids=_legacy(held, judged))
    return [_source(run, sources), _document(run, contents[runs.SCORES]), _table(run, contents[runs.SCORES_TABLE])]


def _source(run: Path, sources: object) -> Finding:
    """Whether the archive is the one that was judged, by the digest in scores.json."""
    (source,) = sources if isinstance(sources, list) and len(sources) == 1 else ({},)
    written = source.get("archive_sha256") if isinstance(source, dict) else None
    here = runs.archive_digest(run)
    if here is None or written is None:
        return unchecked(SOURCE, f"{runs.MANIFEST if here is None else runs.SCORES} does not say which archive it is")
    if written == here:
        return agrees(SOURCE, f"the one that was judged, digest {here}")
    return differs(SOURCE, f"an archive with the digest {written} was judged; {here} is here")


def _told(error: SafevlaError) -> str:
    """An error, and of many the first."""
    if not isinstance(error, CollectedError) or len(error.errors) == 1:
        return str(error)
    return f"{error.errors[0]}\n{len(error.errors) - 1} more like this"


def _legacy(held: Mapping[str, Any], judged: evaluate.Judged) -> bool:
    """Whether the files name specifications as the authors' tables do."""
    specs = held.get("specs")
    named = {one.get("spec_id") for one in specs if isinstance(one, dict)} if isinstance(specs, list) else set()
    ours = {spec.spec_id for spec in judged.scores.specs}
    return bool(named - ours) and bool(named & set(judged.library.legacy))


def _document(run: Path, again: bytes) -> Finding:
    written = (run / runs.SCORES).read_bytes()
    if written == again:
        return agrees(runs.SCORES, "judged again, the same bytes")
    difference = next(_differences(json.loads(written), json.loads(again)), "the bytes differ, and no value does")
    return differs(runs.SCORES, difference)


def _table(run: Path, again: bytes) -> Finding:
    path = run / runs.SCORES_TABLE
    if not path.exists():
        return differs(runs.SCORES_TABLE, "missing")
    written = path.read_bytes()
    if written == again:
        return agrees(runs.SCORES_TABLE, "judged again, the same bytes")
    try:
        rows = runs.read_table(written).to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, ValueError, KeyError, OSError, RecordError) as error:
        return differs(runs.SCORES_TABLE, f"cannot be read: {error}")
    expected = runs.read_table(again).to_pylist(maps_as_pydicts="strict")
    difference = next(_differences({"episodes": rows}, {"episodes": expected}), None)
    if difference:
        return differs(runs.SCORES_TABLE, difference)
    return agrees(runs.SCORES_TABLE, "judged again, the same rows; another Parquet writer made other bytes of them")


def _differences(written: object, again: object) -> Iterator[str]:
    """The values that differ between two score documents, episodes first, each by episode and field."""
    held, now = _by_episode(written), _by_episode(again)
    for name in [*held, *(name for name in now if name not in held)]:
        if name not in now:
            yield f"episode {name!r} is here, and is not among what the archive gives"
        elif name not in held:
            yield f"episode {name!r} is missing here"
        else:
            yield from (f"episode {name!r}, {one}" for one in _values(held[name], now[name]))
    yield from _values(written, again)


def _by_episode(document: object) -> dict[object, object]:
    rows = document.get("episodes") if isinstance(document, dict) else None
    listed = rows if isinstance(rows, list) else []
    return {str(row.get("episode_id")): row for row in listed if isinstance(row, dict)}


def _values(written: object, again: object, field: str = "") -> Iterator[str]:
    if isinstance(written, dict) and isinstance(again, dict):
        for key in [*written, *(key for key in again if key not in written)]:
            yield from _values(written.get(key, _ABSENT), again.get(key, _ABSENT), f"{field}.{key}" if field else key)
    elif isinstance(written, list) and isinstance(again, list) and len(written) == len(again):
        for place, (one, other) in enumerate(zip(written, again, strict=True)):
            yield from _values(one, other, f"{field}[{place}]")
    elif type(written) is not type(again) or written != again:
        yield f"{field}: {_shown(written)} is written, the archive gives {_shown(again)}"


def _shown(value: object) -> str:
    text = "nothing" if value is _ABSENT else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
