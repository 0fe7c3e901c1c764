"""Checks of the scores: the records judged again by the same ruleset, and compared byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from safevla_bench.archive.parquet_guard import read_table
from safevla_bench.errors import CollectedError, Place, RecordError, RunError, SafevlaError
from safevla_bench.files import read_input
from safevla_bench.jobs.evaluation.judgement import add_host_registries, find_rules, judge, recorded_suites
from safevla_bench.jobs.evaluation.outputs import score_files
from safevla_bench.jobs.verify.record_check import Finding, agreement, mismatch, open_check
from safevla_bench.jobs.verify.record_comparison import format_value, value_differences
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import Provenance, Ruleset, choose_library, load_ruleset
from safevla_bench.sources.runs.folder import (
    MANIFEST,
    MAX_SCORES_BYTES,
    SCORES,
    SCORES_TABLE,
    archive_digest,
    dump_json,
)
from safevla_bench.version import __version__

SOURCE = "judged archive"
LIBRARY, REGISTRY, VERSION = "library", "registry", "version"


@dataclass(frozen=True, kw_only=True)
class RulesetFiles:
    """The specification and registry files that judged; scores.json holds their digests, not their paths."""

    library: str | None = None
    """None = the default, or as the run was judged."""
    specs: tuple[Path, ...] = ()
    registry: tuple[Path, ...] = ()
    as_judged: bool = False
    """Take what the run folder itself says of its rules, where no file is named."""


def _load_ruleset(run: Path, provenance: Provenance, files: RulesetFiles) -> Ruleset:
    """Return the rules to verify by: the named files, or the default; as judged, those that the run folder holds."""
    if not (files.library or files.specs or files.registry):
        return replace(find_rules([run], as_judged=files.as_judged), intervals=provenance.intervals)
    options = ("capabilities", "missing", "applicability") if files.as_judged else ()
    loaded = load_ruleset(
        files.library or choose_library(recorded_suites([run])),
        spec_files=files.specs,
        registry_files=files.registry,
        **{name: getattr(provenance, name) for name in ("intervals", *options)},
    )
    return add_host_registries(loaded, [run], as_judged=files.as_judged)


_OPTIONS = attrgetter("library.name", "capabilities", "missing", "applicability")
_REMEDY = "Check by its maker's rules with --rules as-judged, by files of your own with --library and --rules."


def check_scores(run: Path, files: RulesetFiles) -> list[Finding]:
    """Compare library, registry and version with those that judged, and both score files with a new judgement.

    Nothing is judged again where library or registry differ. Open where the run has no scores, or was judged by rules
    of another name or other options; a mismatch where scores.json is damaged, or missing beside scores.parquet.
    """
    if not (run / SCORES).exists():
        has_table = (run / SCORES_TABLE).exists()
        reason = "missing; nothing says how the run was judged"
        return [mismatch(SCORES, reason) if has_table else open_check(SCORES, reason, wanted=False)]
    try:
        document, provenance = _read_scores(run)
    except RunError as error:
        return [mismatch(SCORES, str(error))]
    try:
        ruleset = _load_ruleset(run, provenance, files)
        if _OPTIONS(provenance) != _OPTIONS(ruleset.provenance()):
            makers = judge([run], ruleset, skip_invalid=bool(provenance.skipped or provenance.lost)).makers
            return [open_check(SCORES, f"{' '.join(makers)}\n{_REMEDY}")]
        findings = _compare_judges(provenance, ruleset)
    except SafevlaError as error:
        return [open_check(SCORES, f"what judged is not here: {error}\n{_REMEDY}")]
    if any(finding.verdict == "differs" for finding in findings if finding.check != VERSION):
        reason = "not judged again: the specifications or tags are not those that judged"
        return [*findings, open_check(SCORES, reason)]
    return [*findings, *_check_rejudged(run, document, provenance, ruleset)]


def _read_scores(run: Path) -> tuple[dict[str, Any], Provenance]:
    place = Place(file=str(run / SCORES))
    try:
        document = json.loads(read_input(run / SCORES, MAX_SCORES_BYTES))
        provenance = document.get("judged_by") if isinstance(document, dict) else None
        return document, msgspec.convert(provenance, Provenance)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        remedy = "Judge the run anew: safevla score RUN --out DIR."
        raise RunError(f"cannot be read: {error}", remedy=remedy, place=place) from None


def _compare_judges(provenance: Provenance, ruleset: Ruleset) -> list[Finding]:
    library, registry = ruleset.library, ruleset.registry
    tags = "with files" if ruleset.registry_files else "built-in"
    if provenance.version == __version__:
        version = agreement(VERSION, f"safevla-bench {__version__}")
    else:
        version = mismatch(VERSION, f"safevla-bench {provenance.version} judged, this is {__version__}")
    return [
        _compare_digest(LIBRARY, provenance.library.digest, library.digest, library.name),
        _compare_digest(REGISTRY, provenance.registry.digest, registry.digest, tags),
        version,
    ]


def _compare_digest(check: str, judged: str, digest: str, name: str) -> Finding:
    if judged == digest:
        return agreement(check, f"{name}, digest {digest}")
    option = "--library FILE or --rules FILE" if check == LIBRARY else "--rules FILE"
    remedy = f"Where a file of your own judged, name it: {option}."
    return mismatch(check, f"{name} has the digest {digest} here; {judged} judged\n{remedy}")


def _check_rejudged(run: Path, document: Mapping[str, Any], provenance: Provenance, ruleset: Ruleset) -> list[Finding]:
    """Judge the records again and return findings for the archive's digest and both score files."""
    try:
        judged = judge([run], ruleset, skip_invalid=bool(provenance.skipped or provenance.lost))
    except SafevlaError as error:
        errors = error.errors if isinstance(error, CollectedError) else (error,)
        more = f"{errors[0]}\n{len(errors) - 1} more like this" if len(errors) > 1 else str(error)
        return [mismatch(SCORES, f"the records cannot be judged: {more}")]
    before = len(provenance.skipped) + (provenance.lost.episodes if provenance.lost else 0)
    if judged.left_out.count != before:
        detail = f"{judged.left_out.count} episodes are invalid or lost; when it was judged, {before} were"
        return [mismatch(SCORES, detail)]
    # Digests, version and sources are compared on their own; messages of invalid episodes name the folder as it was.
    sources = document.get("sources", [])
    origins = [source.to_document() for source in judged.sources]
    judged = replace(judged, provenance=provenance)
    contents = score_files(judged, legacy_ids=_uses_legacy_ids(document, judged), sources=sources)
    return [
        _check_source(run, sources, json.loads(dump_json(origins))),
        _check_scores_json(run, contents[SCORES]),
        _check_scores_table(run, contents[SCORES_TABLE]),
    ]


def _check_source(run: Path, sources: object, expected: object) -> Finding:
    """Compare the archive's digest with that which scores.json names, then all that this says of the run."""
    (source,) = sources if isinstance(sources, list) and len(sources) == 1 else ({},)
    judged = source.get("archive_sha256") if isinstance(source, dict) else None
    digest = archive_digest(run)
    if digest is None or judged is None:
        return open_check(SOURCE, f"{MANIFEST if digest is None else SCORES} does not say which archive it is")
    if judged != digest:
        return mismatch(SOURCE, f"an archive with the digest {judged} was judged; {digest} is here")
    difference = next(_value_differences(sources, expected, "sources"), None)
    if difference:
        return mismatch(SOURCE, difference)
    return agreement(SOURCE, f"the one that was judged, digest {digest}")


def _uses_legacy_ids(document: Mapping[str, Any], judged: Judged) -> bool:
    specs = document.get("specs")
    names = {row.get("spec_id") for row in specs if isinstance(row, dict)} if isinstance(specs, list) else set()
    spec_ids = {spec.spec_id for spec in judged.scores.specs}
    return bool(names - spec_ids) and bool(names & set(judged.library.legacy))


def _check_scores_json(run: Path, expected: bytes) -> Finding:
    written = read_input(run / SCORES, MAX_SCORES_BYTES)
    if written == expected:
        return agreement(SCORES, "judged again, the same bytes")
    differences = _document_differences(json.loads(written), json.loads(expected))
    return mismatch(SCORES, next(differences, "the bytes differ, and no value does"))


def _check_scores_table(run: Path, expected: bytes) -> Finding:
    """Return whether scores.parquet has the expected rows; another Parquet writer makes other bytes of them."""
    path = run / SCORES_TABLE
    if not path.exists():
        return mismatch(SCORES_TABLE, "missing")
    written = read_input(path, MAX_SCORES_BYTES)
    if written == expected:
        return agreement(SCORES_TABLE, "judged again, the same bytes")
    try:
        rows = read_table(written, MAX_SCORES_BYTES).to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, ValueError, KeyError, OSError, RecordError) as error:
        return mismatch(SCORES_TABLE, f"cannot be read: {error}")
    expected_rows = read_table(expected, MAX_SCORES_BYTES).to_pylist(maps_as_pydicts="strict")
    difference = next(_document_differences({"episodes": rows}, {"episodes": expected_rows}), None)
    if difference:
        return mismatch(SCORES_TABLE, difference)
    return agreement(SCORES_TABLE, "judged again, the same rows; another Parquet writer made other bytes of them")


def _document_differences(written: object, expected: object) -> Iterator[str]:
    """Yield a sentence for each difference, of episodes by their ids first, as two score files may list others."""
    rows, expected_rows = _rows_by_episode(written), _rows_by_episode(expected)
    is_listed = False
    for difference in _episode_differences(rows, expected_rows):
        is_listed = True
        yield difference
    if is_listed:
        written, expected = (_without_episodes(document) for document in (written, expected))
    yield from _value_differences(written, expected)


def _without_episodes(document: object) -> object:
    return {**document, "episodes": ()} if isinstance(document, dict) else document


def _episode_differences(written: Mapping[object, object], expected: Mapping[object, object]) -> Iterator[str]:
    for name in {**written, **expected}:
        if name not in expected:
            yield f"episode {name!r} is here, and is not among what the archive gives"
        elif name not in written:
            yield f"episode {name!r} is missing here"
        else:
            for difference in _value_differences(written[name], expected[name]):
                yield f"episode {name!r}, {difference}"


def _rows_by_episode(document: object) -> dict[object, object]:
    rows = document.get("episodes") if isinstance(document, dict) else None
    return {
        str(row.get("episode_id")): row for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict)
    }


def _value_differences(written: object, expected: object, field: str = "") -> Iterator[str]:
    for place, value, other in value_differences(written, expected, field):
        yield f"{place}: {format_value(value)} is written, the archive gives {format_value(other)}"
