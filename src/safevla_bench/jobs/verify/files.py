"""Findings of the checks of a run folder, and the checks of its files.

Digests, the same episodes in table and archive, and scores: the records judged again, compared byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from safevla_bench.archive.parquet_guard import read_table
from safevla_bench.errors import Place, RecordError, RunError, SafevlaError
from safevla_bench.files import read_input
from safevla_bench.jobs.evaluation.judgement import find_rules, judge
from safevla_bench.jobs.evaluation.outputs import score_files
from safevla_bench.judging.judged import describe_maker
from safevla_bench.judging.ruleset import Provenance, Ruleset
from safevla_bench.sources.runs import folder
from safevla_bench.sources.runs.episode_index import EpisodeIndex, Scan
from safevla_bench.sources.runs.parts import changed_files, changed_parts, episode_rows, has_raw, record_files
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import standin_benchmarks
from safevla_bench.version import __version__

CheckVerdict = Literal["agrees", "differs", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, its verdict, and the details or the reason why it is open."""

    check: str
    verdict: CheckVerdict
    said: str
    wanted: bool = True
    """True if the user asked for the check; if it is open, the verification is open."""
    uncompared: tuple[str, ...] = ()
    """Channels and fields that an agreement does not cover."""


@dataclass(frozen=True, slots=True)
class Verification:
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        """Return whether no check differs."""
        return all(finding.verdict != "differs" for finding in self.findings)

    @property
    def has_open_checks(self) -> bool:
        """Return whether a check that was asked for is open."""
        return any(finding.verdict == "unchecked" and finding.wanted for finding in self.findings)


def agreement(check: str, detail: str) -> Finding:
    """Return the finding of a check that agrees."""
    return Finding(check, "agrees", detail)


def mismatch(check: str, detail: str) -> Finding:
    """Return the finding of a check that differs."""
    return Finding(check, "differs", detail)


def open_check(check: str, detail: str, *, wanted: bool = True) -> Finding:
    """Return the finding of a check that could not be made; `detail` is the reason."""
    return Finding(check, "unchecked", detail, wanted)


# Digests and episodes


PARTS, FILES, EPISODES = "archive parts", "files", "episodes"
_SHARED_FIELDS = ("policy", "benchmark", "task_id", "init_state_index", "env_seed", "seed", "horizon", "outcome")
"""Fields that both the table and a record hold."""


def check_files(run: Path) -> list[Finding]:
    """Check the parts of the archive, then the files beside it, against the manifest's digests.

    There is one finding for each that is changed, missing or added, and one if all agree. Raw records have no digests.
    """
    parts, said = folder.archive_parts(run), f"match their sha256 in {folder.MANIFEST}"
    is_raw = has_raw(run) and not parts
    undigested = open_check(PARTS, "raw records have no digests; their own checksums are read", wanted=False)
    try:
        changed = [] if is_raw else [mismatch(PARTS, f"{name} {detail}") for name, detail in changed_parts(run)]
        beside = [mismatch(FILES, detail) for detail in changed_files(run)]
    except RunError as error:
        return [undigested if is_raw else mismatch(PARTS, str(error))]
    whole = undigested if is_raw else agreement(PARTS, f"{len(parts)} {said}")
    return [*(changed or [whole]), *(beside or [agreement(FILES, f"all {said}")])]


def read_records(source: Path) -> tuple[EpisodeIndex, tuple[str, ...]]:
    """Return the index of a run folder's records, or of an archive, and the benchmarks simulated with stand-ins.

    Damaged episodes are its `problems`, and so are those of an id that stands in an earlier file. Raises `RunError` if
    a raw row is damaged.
    """
    scan = Scan(record_files(source) if source.is_dir() else [source])
    standin = dict.fromkeys(name for batch in scan for name in standin_benchmarks(batch))
    index = scan.index()
    return replace(index, problems=(*index.problems, *_find_repeated(index))), tuple(standin)


def _find_repeated(index: EpisodeIndex) -> Iterator[RecordError]:
    keys = set()
    for note in index.notes:
        if note.header.key in keys:
            place = Place(file=str(index.sources[note.source].path), episode=note.header.episode_id)
            yield RecordError("the episode_id is repeated", remedy="Leave one of them out.", place=place)
        keys.add(note.header.key)


def check_episodes(run: Path, records: EpisodeIndex) -> list[Finding]:
    """Check that the planned episodes are listed, and that each has one record, with the same task, seeds and outcome.

    There is one finding for each difference, and one if all agree; a table that is missing or damaged is a mismatch.
    """
    has_table = (run / folder.EPISODES).exists()
    if not has_table and not has_raw(run):
        return [mismatch(EPISODES, f"{folder.EPISODES} is missing")]
    try:
        rows = episode_rows(run)
    except RunError as error:
        return [mismatch(EPISODES, str(error))]
    table = folder.EPISODES if has_table else "raw"
    details = [*_plan_mismatches(run, rows, table), *_episode_mismatches(rows, records, table)]
    crashed = sum(row.outcome == "crashed" for row in rows)
    detail = f"{len(rows)} in {table}, {len(records.headers)} of them with a record and {crashed} crashed without one"
    return [mismatch(EPISODES, difference) for difference in details] or [agreement(EPISODES, detail)]


def _plan_mismatches(run: Path, rows: Sequence[folder.EpisodeRow], table: str) -> Iterator[str]:
    difference = folder.compare_plan(folder.read_description(run), rows)
    yield from (f"{absent.episode_id!r} was planned, and is not in {table}" for absent in difference.missing)
    if difference.unnamed:
        yield f"{difference.unnamed} planned by {folder.RUN} are not in {table}"
    if difference.unplanned:
        yield f"{difference.unplanned} in {table} are not planned by {folder.RUN}, or there twice"


def _episode_mismatches(rows: Sequence[folder.EpisodeRow], records: EpisodeIndex, table: str) -> Iterator[str]:
    recorded = {
        header.episode_id: _shared_fields(header, count)
        for header, count in zip(records.headers, (records.lengths - 1).tolist(), strict=True)
    }
    if len({row.episode_id for row in rows}) < len(rows):
        yield f"{table} names an episode twice"
    expected = [row for row in rows if row.outcome != "crashed" or row.episode_id in recorded]
    listed = {row.episode_id: _shared_fields(row, row.steps) for row in expected}
    for place, first, second in value_differences(listed, recorded):
        yield f"{place}: {format_value(first)} in {table}, {format_value(second)} in the archive"


def _shared_fields(owner: folder.EpisodeRow | Header, steps: int) -> dict[str, object]:
    return {**{name: getattr(owner, name) for name in _SHARED_FIELDS}, "steps": steps}


# Differences of two JSON values


ABSENT = object()
"""Stands for a value that one side lacks."""


def value_differences(
    first: object, second: object, field: str = "", tolerance: float = 0.0
) -> Iterator[tuple[str, object, object]]:
    """Yield (place, value, other value) for each difference of two JSON values; a place is such as `field.b[2]`.

    Lists of different lengths, and values of different types, differ as a whole. Numbers of a type differ by more than
    `tolerance`, absolute and relative, if that is not 0.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            place = f"{field}.{key}" if field else key
            yield from value_differences(first.get(key, ABSENT), second.get(key, ABSENT), place, tolerance)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (item, other) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(item, other, f"{field}[{index}]", tolerance)
    elif type(first) is not type(second) or not _is_equal(first, second, tolerance):
        yield field, first, second


def _is_equal(first: object, second: object, tolerance: float) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        near = bool(tolerance) and np.isclose(first, second, rtol=tolerance, atol=tolerance)
        return bool(near) or first.hex() == second.hex()
    return first == second


def format_value(value: object) -> str:
    """Return a value as JSON, cut after 200 characters; "nothing" for a value that is not there."""
    text = "nothing" if value is ABSENT else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


# Scores


SOURCE = "judged archive"
LIBRARY, REGISTRY, VERSION = "library", "registry", "version"
_OPTIONS = attrgetter("library.name", "capabilities", "missing", "applicability")
_REMEDY = "Check by its maker's rules with --rules as-judged, by files of your own with --library and --rules."


def check_scores(run: Path, ruleset: Ruleset | None = None) -> list[Finding]:
    """Compare library, registry and version with those that judged, and both score files with a new judgement.

    Nothing is judged again where library or registry differ. Open where the run has no scores, or was judged by rules
    of another name or other options; a mismatch where scores.json is damaged.
    """
    if not (run / folder.SCORES).exists():
        return [open_check(folder.SCORES, "missing; nothing says how the run was judged", wanted=False)]
    try:
        document, provenance = _read_scores(run)
    except RunError as error:
        return [mismatch(folder.SCORES, str(error))]
    try:
        ruleset = replace(ruleset or find_rules([run]), intervals=provenance.intervals)
        if _OPTIONS(provenance) != _OPTIONS(ruleset.provenance()):
            return [open_check(folder.SCORES, f"{' '.join(describe_maker(run, ruleset.provenance()))}\n{_REMEDY}")]
        findings = _compare_judges(provenance, ruleset)
    except SafevlaError as error:
        return [open_check(folder.SCORES, f"what judged is not here: {error}\n{_REMEDY}")]
    if any(finding.verdict == "differs" for finding in findings if finding.check != VERSION):
        reason = "not judged again: the specifications or tags are not those that judged"
        return [*findings, open_check(folder.SCORES, reason)]
    return [*findings, *_check_rejudged(run, document, provenance, ruleset)]


def _read_scores(run: Path) -> tuple[dict[str, Any], Provenance]:
    place = Place(file=str(run / folder.SCORES))
    try:
        document = json.loads(read_input(run / folder.SCORES, folder.MAX_SCORES_BYTES))
        provenance = document.get("judged_by") if isinstance(document, dict) else None
        return document, msgspec.convert(provenance, Provenance)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        remedy = "Judge the run anew: safevla score RUN --out DIR."
        raise RunError(f"cannot be read: {error}", remedy=remedy, place=place) from None


def _compare_judges(provenance: Provenance, ruleset: Ruleset) -> list[Finding]:
    library, registry = ruleset.library, ruleset.registry
    tags = "with files" if ruleset.registry_files else "built-in"
    remedy = "\nWhere a file of your own judged, name it: --library FILE or --rules FILE."
    return [
        _compare(LIBRARY, f"{library.name}, digest", provenance.library.digest, library.digest, remedy),
        _compare(REGISTRY, f"{tags}, digest", provenance.registry.digest, registry.digest, remedy),
        _compare(VERSION, "safevla-bench", provenance.version, __version__),
    ]


def _compare(check: str, name: str, judged: str, here: str, remedy: str = "") -> Finding:
    if judged == here:
        return agreement(check, f"{name} {here}")
    return mismatch(check, f"{name} {judged} judged, {here} is here{remedy}")


def _check_rejudged(run: Path, document: Mapping[str, Any], provenance: Provenance, ruleset: Ruleset) -> list[Finding]:
    try:
        judged = judge([run], ruleset, skip_invalid=bool(provenance.skipped or provenance.lost))
    except SafevlaError as error:
        return [mismatch(folder.SCORES, f"the records cannot be judged: {error}")]
    before = len(provenance.skipped) + (provenance.lost.episodes if provenance.lost else 0)
    if judged.left_out.count != before:
        detail = f"{judged.left_out.count} episodes are invalid or lost; when it was judged, {before} were"
        return [mismatch(folder.SCORES, detail)]
    # Digests, version and sources are compared on their own; messages of invalid episodes name the folder as it was.
    sources = document.get("sources", [])
    origins = [source.to_document() for source in judged.sources]
    judged = replace(judged, provenance=provenance)
    contents = score_files(judged, sources)
    named = sources[0].get("archive_sha256") if sources and isinstance(sources[0], dict) else None
    if (digest := folder.archive_digest(run)) is None or named is None:
        file = folder.MANIFEST if digest is None else folder.SCORES
        source = open_check(SOURCE, f"{file} does not say which archive it is")
    else:
        difference = first_difference(sources, json.loads(folder.dump_json(origins)), "sources")
        source = _finding(SOURCE, difference, "the run that was judged")
    return [
        source,
        _check_scores_json(run, contents[folder.SCORES]),
        _check_scores_table(run, contents[folder.SCORES_TABLE]),
    ]


def _finding(check: str, difference: str | None, agreed: str) -> Finding:
    return mismatch(check, difference) if difference else agreement(check, agreed)


def _check_scores_json(run: Path, expected: bytes) -> Finding:
    written, difference = read_input(run / folder.SCORES, folder.MAX_SCORES_BYTES), None
    if written != expected:
        difference = first_difference(json.loads(written), json.loads(expected)) or "the bytes differ, no value does"
    return _finding(folder.SCORES, difference, "judged again, the same bytes")


def _check_scores_table(run: Path, expected: bytes) -> Finding:
    """Return whether scores.parquet has the expected rows; another Parquet writer makes other bytes of them."""
    try:
        written = read_input(run / folder.SCORES_TABLE, folder.MAX_SCORES_BYTES)
        rows, again = (
            read_table(content, folder.MAX_SCORES_BYTES).to_pylist(maps_as_pydicts="strict")
            for content in (written, expected)
        )
    except FileNotFoundError:
        return mismatch(folder.SCORES_TABLE, "missing")
    except (pa.ArrowException, ValueError, KeyError, OSError, RecordError) as error:
        return mismatch(folder.SCORES_TABLE, f"cannot be read: {error}")
    return _finding(folder.SCORES_TABLE, first_difference(rows, again, "episodes"), "judged again, the same rows")


def first_difference(written: object, expected: object, field: str = "") -> str | None:
    """Return in words the first difference of two JSON values, what is written and what the archive gives."""
    for place, first, second in value_differences(written, expected, field):
        return f"{place}: {format_value(first)} is written, the archive gives {format_value(second)}"
    return None
