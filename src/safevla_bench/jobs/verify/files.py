"""The checks of a run folder's files, and the classes for their results.

The checks compare digests, compare the table of episodes with the archive, and judge the archive again to compare the
new outputs with the files.
"""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from safevla_bench import memory, plugins
from safevla_bench.archive import parquet_guard, parquet_rows
from safevla_bench.errors import Place, RecordError, RunError, SafevlaError, UndescribedRulesError, describe_cause
from safevla_bench.files import read_input
from safevla_bench.hosts.protocols import preset_differences, protocol_names
from safevla_bench.jobs.evaluation.judgement import RULES, describes_rules, find_rules, format_rescore_command, judge
from safevla_bench.jobs.evaluation.outputs import render_report, score_files
from safevla_bench.jobs.evaluation.request import format_host_trust
from safevla_bench.judging.judged import Judged, ScoresFile, describe_maker
from safevla_bench.judging.ruleset import Provenance, Ruleset
from safevla_bench.rollout.found import FOLDER as FOUND
from safevla_bench.sources.runs import folder, parts
from safevla_bench.sources.runs.episode_index import EpisodeIndex, Scan
from safevla_bench.tasks.identity import OFFICIAL, is_own_task, judge_identity
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import count_noun, load_json
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import standin_benchmarks
from safevla_bench.version import __version__
from safevla_recorder.folder import OWN_LOOP
from safevla_recorder.identity import UNKNOWN, describe_code, is_other_code

CheckVerdict = Literal["agrees", "differs", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `said` gives details or, for an open check, the reason why it could not be made."""

    check: str
    verdict: CheckVerdict
    said: str
    wanted: bool = True  # whether the whole verification is undecided if this check is open
    uncompared: tuple[str, ...] = ()  # channels and fields that were not compared


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of all checks, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        # Whether no check found a difference. Checks that could not be made (`unchecked`) may remain.
        return all(finding.verdict != "differs" for finding in self.findings)

    @property
    def can_be_rescored(self) -> bool:
        """True if only outputs of the judgement differ, so that judging the run again corrects all differences."""
        # The check of a file is named after the file. The check `SOURCE` tests whether the run's archive was judged.
        differing = [finding for finding in self.findings if finding.verdict == "differs"]
        for finding in differing:
            # If a file's digest changed, the text `said` begins with the file's name.
            has_changed_digest = finding.check == FILES and finding.said.startswith(_JUDGEMENT_FILES)
            if finding.check not in (*_JUDGEMENT_FILES, SOURCE) and not has_changed_digest:
                return False
        return any(finding.check in _JUDGEMENT_FILES for finding in differing)

    @property
    def has_open_checks(self) -> bool:
        # Whether the verification is undecided because a wanted check could not be made.
        return any(finding.verdict == "unchecked" and finding.wanted for finding in self.findings)

    @property
    def is_by_other_rules(self) -> bool:
        """True if nothing differs, but other rules or another version judged the run, so the scores are unconfirmed."""
        # The check of the scores is named after their file. `unchecked` means that a check could not be made.
        # The check is also open if the rules that judged the run are not available.
        open_checks = [finding.check for finding in self.findings if finding.verdict == "unchecked" and finding.wanted]
        return self.agrees and folder.SCORES in open_checks


def agreement(check: str, detail: str) -> Finding:
    """Return the result of a check that passed."""
    return Finding(check, "agrees", detail)


def mismatch(check: str, detail: str) -> Finding:
    """Return the result of a check that found a difference."""
    return Finding(check, "differs", detail)


def open_check(check: str, detail: str, *, wanted: bool = True) -> Finding:
    """Return the result of an open check, which could not be made. `detail` is the reason."""
    # `wanted`: whether this open check makes the whole verification undecided.
    return Finding(check, "unchecked", detail, wanted)


# Digests and episodes


PARTS, FILES, EPISODES, PICTURES, OTHERS = "archive parts", "files", "episodes", "pictures", "other files"
PROTOCOL, IDENTITY, CODE = "protocol", "task identity", "code"
# Fields that occur both in the table of episodes and in the records.
_SHARED_FIELDS = ("policy", "benchmark", "task_id", "init_state_index", "env_seed", "seed", "horizon", "outcome")


def check_files(run: Path) -> list[Finding]:
    """Compare the parts of the archive and other files with the manifest's digests, and return the results."""
    archive, match_text = folder.archive_parts(run), f"match their sha256 in {folder.MANIFEST}"
    # Raw records are single files of episodes that were not packed into an archive.
    is_raw = parts.has_raw(run) and not archive
    # The result for raw records, which have no manifest. `wanted=False`: this does not make the verification undecided.
    undigested = open_check(PARTS, "raw records have built-in checksums instead of a manifest", wanted=False)
    try:
        changed_parts = [] if is_raw else list(parts.changed_parts(run))
        changed_files = list(parts.changed_files(run))
    except RunError as error:  # the manifest cannot be read
        return [undigested if is_raw else mismatch(PARTS, str(error)), *_find_undigested(run, ())]
    findings = [mismatch(PARTS, f"{name} {detail}") for name, detail in changed_parts]
    if not changed_parts:
        findings.append(undigested if is_raw else agreement(PARTS, f"{len(archive)} {match_text}"))
    findings += [mismatch(FILES, detail) for detail in changed_files] or [agreement(FILES, f"all {match_text}")]
    return [*findings, *_find_undigested(run, folder.read_manifest(run).files)]


_JUDGEMENT_FILES = (folder.SCORES, folder.SCORES_TABLE, folder.VERDICTS, folder.REPORT, RULES)
_KNOWN_FILES = {*_JUDGEMENT_FILES, folder.RUN, folder.MANIFEST, folder.EPISODES, folder.ARCHIVE, folder.FRAMES}
_KNOWN_FILES |= {FOUND, parts.RAW}


def _find_undigested(run: Path, digested: Collection[str]) -> Iterator[Finding]:
    # Yield open checks for pictures without a digest, and for files with unknown names.
    # `digested` are the names of the files that have a digest.
    # The pattern `[!.]*` omits hidden files, which are temporary.
    pictures = [f"{path.parent.name}/{path.name}" for path in run.glob(f"{folder.FRAMES}/[!.]*")]
    missing = [name for name in pictures if name not in digested]
    if missing:
        count_text = f"{len(missing)} of {len(pictures)} have no digest"
        # A run with raw records need not have a manifest.
        if (run / folder.MANIFEST).exists() or not parts.has_raw(run):
            command = f"safevla frames {shlex.quote(str(run))}{format_host_trust(run)}"
            yield open_check(PICTURES, f"{count_text} in {folder.MANIFEST}; to make the pictures again: {command}")
        else:
            yield open_check(PICTURES, f"{count_text}: raw records have no {folder.MANIFEST}", wanted=False)
    others = [path.name for path in sorted(run.glob("[!.]*")) if path.name not in _KNOWN_FILES]
    if others:
        # Do not check the folder of experiments, because its content was judged by other rules.
        is_wanted = any(name in folder.EXPORTS - {folder.EXPERIMENTS} or name in digested for name in others)
        detail = f"{', '.join(others)}: this check cannot reproduce these files"
        detail += "; keep exports outside the run folder" if is_wanted else ""
        yield open_check(OTHERS, detail, wanted=is_wanted)


def check_protocol(run: Path) -> Iterator[Finding]:
    """Compare the protocol in run.json with the preset of the same name, if there is one."""
    description = folder.read_description(run)
    protocol = description.get("protocol")
    # There is no preset for the protocol of a user's own loop.
    if not isinstance(protocol, Mapping) or protocol.get("name") == OWN_LOOP:
        return
    name, versions = protocol.get("name"), description.get("versions")
    maker_version = versions.get(plugins.OWN_DISTRIBUTION) if isinstance(versions, Mapping) else None
    differing = preset_differences(protocol)
    if differing:
        detail = f"{', '.join(differing)} in {folder.RUN} differ from the preset {name}"
        if maker_version == __version__:  # the preset may differ between versions
            yield mismatch(PROTOCOL, detail)
        else:
            detail += f" of version {__version__}; the run was made by {maker_version}"
            yield open_check(PROTOCOL, detail, wanted=False)
    elif name in protocol_names():
        yield agreement(PROTOCOL, f"the same as the preset {name}")
    else:
        yield open_check(PROTOCOL, f"this version has no preset {name!r}", wanted=False)


def check_code(run: Path) -> Iterator[Finding]:
    """Compare the code versions of run.json, the episodes and this installation; yield the result."""
    try:
        # A crashed episode may lack its code version, because its worker died.
        episode_codes = {row.code or UNKNOWN for row in parts.episode_rows(run) if row.outcome != "crashed"}
    except RunError:  # `check_episodes` reports the damage
        return
    run_codes, own_code = folder.recorded_code(folder.read_description(run)), describe_code()
    recorded = " and ".join(run_codes)
    if not episode_codes <= set(run_codes):
        detail = f"{folder.RUN} names {recorded}, but the episodes name {' and '.join(sorted(episode_codes))}"
        yield mismatch(CODE, detail)
    elif UNKNOWN in run_codes:
        yield open_check(CODE, f"the code is unknown for some episodes: {recorded}", wanted=False)
    elif len(run_codes) > 1:
        yield open_check(CODE, f"the episodes were recorded by different code: {recorded}")
    elif is_other_code(run_codes[0], own_code):
        yield open_check(CODE, f"recorded by {recorded}; the code here is {own_code}", wanted=False)
    else:
        yield agreement(CODE, f"all recorded by the code that is installed here: {recorded}")


def check_identity(records: EpisodeIndex) -> Iterator[Finding]:
    """Check whether the episodes of suites with official names ran the official tasks; yield the results."""
    # `judge_identity` returns "" for a suite without an official name. The episodes of such a suite are not checked.
    counts = Counter(filter(None, (judge_identity(header) for header in records.headers)))
    for identity, count in counts.items():
        episodes = count_noun(count, "episode")
        if is_own_task(identity):
            yield mismatch(IDENTITY, f"{episodes} did not run the official tasks: {describe_reason(identity)}")
        elif identity != OFFICIAL:
            yield open_check(IDENTITY, f"{describe_reason(identity)} in {episodes}", wanted=False)
        else:
            yield agreement(IDENTITY, f"{episodes} of official tasks")


def read_records(source: Path) -> tuple[EpisodeIndex, tuple[str, ...]]:
    """Return the index of the records in a run folder or archive, and the benchmarks simulated with stand-in assets.
    The index's `problems` include repeated ids. Raises `RunError` if a raw row is damaged.
    """
    scan = Scan(parts.record_files(source) if source.is_dir() else [source])
    standin = dict.fromkeys(name for batch in scan for name in standin_benchmarks(batch))  # an ordered set
    index = scan.index()
    return replace(index, problems=(*index.problems, *_find_repeated(index))), tuple(standin)


def _find_repeated(index: EpisodeIndex) -> Iterator[RecordError]:
    # Yield an error for each episode that has the same policy and id as an earlier episode.
    # Each note in `notes` contains an episode's header, and the index of the episode's source.
    keys = set()
    for episode in index.notes:
        if episode.header.key in keys:
            place = Place(file=str(index.sources[episode.source].path), episode=episode.header.episode_id)
            yield RecordError("the episode_id is repeated", remedy="Remove one of the two episodes.", place=place)
        keys.add(episode.header.key)


def check_episodes(run: Path, records: EpisodeIndex) -> list[Finding]:
    """Compare the plan, the table of episodes and the archive. Return a mismatch per difference, or one agreement."""
    has_table = (run / folder.EPISODES).exists()  # without a table, raw records may list the episodes
    if not has_table and not parts.has_raw(run):
        return [mismatch(EPISODES, f"{folder.EPISODES} is missing")]
    try:
        rows = parts.episode_rows(run)
    except RunError as error:
        return [mismatch(EPISODES, str(error))]
    table = folder.EPISODES if has_table else "raw"
    differences = [*_list_plan_mismatches(run, rows, table), *_list_episode_mismatches(rows, records, table)]
    crashed = sum(row.outcome == "crashed" for row in rows)
    detail = f"{len(rows)} in {table}: {len(records.headers)} with a record, {crashed} crashed without a record"
    return [mismatch(EPISODES, difference) for difference in differences] or [agreement(EPISODES, detail)]


def _list_plan_mismatches(run: Path, rows: Sequence[folder.EpisodeRow], table: str) -> Iterator[str]:
    # Yield the differences between the plan in run.json and the table of episodes. `table` is the table's name.
    # `unnamed` counts missing episodes whose ids are not in run.json.
    difference = folder.compare_plan(folder.read_description(run), rows)
    yield from (f"{absent.episode_id!r} was planned, but is not in {table}" for absent in difference.missing)
    if difference.unnamed:
        yield f"{table} lacks {count_noun(difference.unnamed, 'episode')} planned by {folder.RUN}"
    if difference.unplanned:
        yield f"{table} has {difference.unplanned} repeated episodes, or episodes that are not planned by {folder.RUN}"


def _list_episode_mismatches(rows: Sequence[folder.EpisodeRow], records: EpisodeIndex, table: str) -> Iterator[str]:
    # Yield the differences between the table of episodes and the records. `table` is the table's name.
    # An episode of n steps has n + 1 records.
    headers_and_steps = zip(records.headers, (records.lengths - 1).tolist(), strict=True)
    recorded = {header.episode_id: _shared_fields(header, steps) for header, steps in headers_and_steps}
    if len({row.episode_id for row in rows}) < len(rows):
        yield f"{table} has two rows for one episode"
    # Crashed episodes need no record.
    expected = [row for row in rows if row.outcome != "crashed" or row.episode_id in recorded]
    listed = {row.episode_id: _shared_fields(row, row.steps) for row in expected}
    for field, listed_value, recorded_value in value_differences(listed, recorded):
        yield f"{field}: {format_value(listed_value)} in {table}, {format_value(recorded_value)} in the archive"


def _shared_fields(owner: folder.EpisodeRow | Header, steps: int) -> dict[str, object]:
    # Return name -> value for the number of steps, and for the fields that table rows and record headers share.
    return {**{name: getattr(owner, name) for name in _SHARED_FIELDS}, "steps": steps}


# Differences between two JSON values


ABSENT = object()  # stands in for a value that one of the two compared documents lacks


def value_differences(
    first: object, second: object, field: str = "", tolerance: float = 0.0
) -> Iterator[tuple[str, object, object]]:
    """Yield (place, first value, second value) for each difference of two JSON values. A place is like `field.b[2]`.

    Values of different types, and lists of different lengths, give one difference. Floats must be equal bit for bit;
    if `tolerance` is not 0, they may differ by up to `tolerance` (absolute plus relative).
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *(key for key in second if key not in first)]:
            child_field = f"{field}.{key}" if field else key
            yield from value_differences(first.get(key, ABSENT), second.get(key, ABSENT), child_field, tolerance)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (first_item, second_item) in enumerate(zip(first, second, strict=True)):
            yield from value_differences(first_item, second_item, f"{field}[{index}]", tolerance)
    elif type(first) is not type(second) or not _is_equal(first, second, tolerance):
        yield field, first, second


def _is_equal(first: object, second: object, tolerance: float) -> bool:
    # Compare two JSON values that are neither objects nor lists of equal length. A `tolerance` of 0 means exact.
    if isinstance(first, float) and isinstance(second, float):
        if tolerance and np.isclose(first, second, rtol=tolerance, atol=tolerance):
            return True
        return first.hex() == second.hex()  # unlike `==`: -0.0 and 0.0 differ, NaN equals NaN
    return first == second


def format_value(value: object) -> str:
    """Return a value as JSON, truncated to 200 characters; "nothing" for `ABSENT`."""
    text = "nothing" if value is ABSENT else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


# Scores


SOURCE = "judged archive"
LIBRARY, REGISTRY, PHASES, VERSION = "library", "registry", "phases", "version"
_read_rule_options = attrgetter("library.name", "registry.name", "capabilities", "missing", "applicability")


def _format_rules_remedy(run: Path) -> str:
    # Return the remedy, on a separate line, for a run that was judged by rules other than those of the verification.
    as_judged = "--rules as-judged, or " if describes_rules(run) else ""
    return f"\nCheck by the rules that judged the run: {as_judged}name their files by --library or --rules."


def check_scores(run: Path, ruleset: Ruleset | None = None) -> list[Finding]:
    """Compare the library, registry and version with the ones that judged the run. If library and registry agree, judge
    the run again, and compare the run's score files with the new results.

    The check is open if the run has no scores, if its rules are unavailable, or if its rules differ from `ruleset` in
    name or options. Without `ruleset`, the check is also open if non-default rules in the run folder judged the run. A
    damaged scores.json is a mismatch. If another version wrote the files, only a different archive is a mismatch.
    """
    if (run / folder.SCORES).exists():
        findings, reason = _check_judgement(run, ruleset), "not compared, because the records were not judged again"
    else:
        reason = f"{folder.SCORES} is missing; nothing says how the run was judged"
        findings = [open_check(folder.SCORES, reason, wanted=False)]
    # The check of a file is named after the file. Add an open check for each file that was not compared.
    checked = {finding.check for finding in findings}
    unchecked_files = [name for name in _JUDGEMENT_FILES if name not in checked and (run / name).exists()]
    return [*findings, *(open_check(name, reason) for name in unchecked_files)]


def _check_judgement(run: Path, ruleset: Ruleset | None) -> list[Finding]:
    # Return the results of `check_scores` for a run that has scores.
    try:
        scores_file = ScoresFile.read(run)
    except RunError as error:
        return [mismatch(folder.SCORES, str(error))]
    provenance = scores_file.judged_by
    try:
        is_by_stored_rules = ruleset is None and _was_judged_by_stored_rules(run, provenance)
        # The method of intervals is not a rule, so take it from the run.
        ruleset = replace(ruleset or find_rules([run]), intervals=provenance.intervals)
        own_provenance = ruleset.provenance()
        has_other_options = _read_rule_options(own_provenance) != _read_rule_options(provenance)
        # With other rules, different scores would prove nothing, so do not judge again.
        if own_provenance.rules != provenance.rules and (is_by_stored_rules or has_other_options):
            return [open_check(folder.SCORES, f"{' '.join(describe_maker(run, ruleset))}{_format_rules_remedy(run)}")]
        findings = _compare_judges(scores_file, ruleset, _format_rules_remedy(run))
    except SafevlaError as error:
        problem = f"the rules that judged the run are not available: {error}"
        return [open_check(folder.SCORES, f"{problem}{_format_rules_remedy(run)}")]
    # The scores are only comparable if library and registry agree.
    if any(finding.verdict == "differs" for finding in findings if finding.check != VERSION):
        reason = "not judged again: the specifications or tags differ from those that judged the run"
        findings.append(open_check(folder.SCORES, reason))
    else:
        findings += _check_rejudged(run, scores_file, ruleset)
    if any(finding.verdict == "differs" for finding in findings if finding.check == VERSION):
        # If another version wrote the files, differences are expected, so change mismatches into open checks.
        for index, finding in enumerate(findings):
            if finding.verdict == "differs" and finding.check != SOURCE:
                findings[index] = replace(finding, verdict="unchecked")
    return findings


def _was_judged_by_stored_rules(run: Path, provenance: Provenance) -> bool:
    # Return whether `provenance` names the rules stored in the run folder; false if the stored rules cannot be loaded.
    try:
        return find_rules([run], as_judged=True).provenance().rules == provenance.rules
    except SafevlaError:
        return False


def _compare_judges(scores_file: ScoresFile, ruleset: Ruleset, remedy: str) -> list[Finding]:
    # Compare the rules and the version that judged the run with `ruleset` and this version.
    provenance, library, registry = scores_file.judged_by, ruleset.library, ruleset.registry
    phases = ruleset.provenance().phases  # a digest; "" if the rules do not judge phase by phase
    judge_version, own_version = provenance.version, __version__
    # A different format of scores.json counts as a different version of this package.
    if scores_file.scores_version != folder.SCORES_VERSION:
        judge_version += f" (version {scores_file.scores_version} of {folder.SCORES})"
        own_version += f" (version {folder.SCORES_VERSION} of {folder.SCORES})"
    tags = "with files" if ruleset.registry_files else "built-in"
    return [
        _compare_ids(LIBRARY, f"{library.name}, digest", provenance.library.digest, library.digest, remedy),
        _compare_ids(REGISTRY, f"{tags}, digest", provenance.registry.digest, registry.digest, remedy),
        *([_compare_ids(PHASES, "components, digest", provenance.phases, phases, remedy)] if provenance.phases else []),
        _compare_ids(VERSION, "safevla-bench", judge_version, own_version),
    ]


def _compare_ids(check: str, name: str, judged_value: str, own_value: str, remedy: str = "") -> Finding:
    # Compare a name or digest from the run's judgement with the installed name or digest.
    if judged_value == own_value:
        return agreement(check, f"{name} {own_value}")
    return mismatch(check, f"judged with {name} {judged_value}; {name} {own_value} is installed here{remedy}")


def _check_rejudged(run: Path, scores_file: ScoresFile, ruleset: Ruleset) -> list[Finding]:
    # Judge the run again, and compare the run's score files with the new results.
    provenance = scores_file.judged_by
    try:
        judged = judge([run], ruleset, skip_invalid=bool(provenance.skipped or provenance.lost))
    except SafevlaError as error:
        return [mismatch(folder.SCORES, f"the records cannot be judged: {error}")]
    lost_count = provenance.lost.episodes if provenance.lost else 0
    omitted = len(provenance.skipped) + lost_count
    if judged.left_out.count != omitted:
        detail = f"{omitted} episodes were invalid or lost when the run was judged, but now {judged.left_out.count}"
        return [mismatch(folder.SCORES, detail)]
    findings = [_check_source(run, scores_file, judged)]
    # Keep the stored provenance, because messages on invalid episodes may name the folder where the run was judged.
    # Insert the stored digests, which `_check_source` has compared; `strict=False` tolerates a damaged list.
    sources_and_digests = zip(judged.sources, scores_file.list_archives(), strict=False)
    sources = tuple(replace(source, archive_sha256=digest) for source, digest in sources_and_digests)
    judged = replace(judged, provenance=provenance, sources=sources or judged.sources)
    # `indent=-1` removes white space from the stored sources, which the new files then contain unchanged.
    contents = score_files(judged, msgspec.Raw(msgspec.json.format(bytes(scores_file.sources), indent=-1)))
    # Per file: what is compared (a noun), the function that yields differences, and the file's maximum size.
    for name, (unit, differences, most_bytes) in _REJUDGED_FILES.items():
        if name != folder.VERDICTS or (run / name).exists():  # runs of earlier versions have no file of verdicts
            read = partial(read_input, run / name, most_bytes)
            text = f"judging the run again gives the same {unit}"
            findings.append(_compare_content(name, run / name, read, contents[name], differences, text))
    if (run / folder.REPORT).exists():
        findings.append(_check_report(run, judged))
    if (run / RULES).exists():
        findings.append(_check_rules(run, provenance))
    return findings


def _check_source(run: Path, scores_file: ScoresFile, judged: Judged) -> Finding:
    # Compare the sources in scores.json, which include the archive's digest, with the sources of the run.
    if folder.archive_digest(run) is None:
        return open_check(SOURCE, f"{folder.MANIFEST} does not identify the judged archive")
    judged_digests = scores_file.list_archives()
    if not judged_digests or None in judged_digests:
        problem = f"{folder.SCORES} does not identify the judged archive"
        return open_check(SOURCE, f"{problem}; to judge the run again: {format_rescore_command(run)}")
    # Give the stored and the expected sources the same JSON layout, because they are compared as bytes.
    written_sources = msgspec.json.format(bytes(scores_file.sources), indent=2) + b"\n"
    expected = folder.dump_json([source.to_document() for source in judged.sources])
    differences = partial(_json_differences, field="sources")
    text = "this archive was judged"
    return _compare_content(SOURCE, run / folder.SCORES, lambda: written_sources, expected, differences, text)


_DifferenceFinder = Callable[[bytes, bytes], Iterator[str]]


def _compare_content(
    check: str, path: Path, read: Callable[[], bytes], expected: bytes, find_differences: _DifferenceFinder, text: str
) -> Finding:
    # Compare the content that `read` returns for the file at `path` with `expected`. `text` describes agreement.
    try:
        with memory.limit_memory(path):
            written = read()
            # `find_differences` yields a text for each difference between two contents. Report only the first text.
            # If only the bytes differ, there may be no difference that matters.
            difference = None if written == expected else next(find_differences(written, expected), None)
    except FileNotFoundError:
        return mismatch(check, "missing")
    except _UNREADABLE as error:
        return mismatch(check, f"cannot be read: {describe_cause(error)}")
    return mismatch(check, difference) if difference else agreement(check, text)


_UNREADABLE = (OSError, EOFError, ValueError, KeyError, RecursionError, zlib.error, pa.ArrowException, RecordError)


def _json_differences(written: bytes, expected: bytes, field: str = "") -> Iterator[str]:
    # Yield a text for each difference of two JSON files whose bytes differ. Only the first text is used.
    yield from map(_describe_values, value_differences(load_json(written), load_json(expected), field))
    yield "the values agree, but the layout of the file differs"


def _verdict_differences(written: bytes, expected: bytes) -> Iterator[str]:
    # Yield a text if the contents differ. Equal contents may be compressed to different bytes.
    if gzip.decompress(written) != gzip.decompress(expected):
        yield "judging the archive again gives other verdicts"


_BATCH_ROWS = 1024


def _row_differences(written_content: bytes, expected_content: bytes) -> Iterator[str]:
    # Yield a text for each difference of two Parquet files with one row per episode.
    written = parquet_guard.read_table(written_content, folder.MAX_SCORES_BYTES)
    expected = parquet_guard.read_table(expected_content, folder.MAX_SCORES_BYTES)
    if len(written) != len(expected):
        yield f"the file has {len(written)} episodes, but the archive gives {len(expected)}"
        return
    metadata = written.schema.metadata or {}
    for name, value in expected.schema.metadata.items():
        if metadata.get(name) != value:
            yield f"{name.decode()} differs"
    # Earlier versions wrote dictionaries as Arrow maps; this version writes lists of pairs. Convert maps to pairs.
    for column_index, column in enumerate(written.schema):
        if pa.types.is_map(column.type):
            pairs = written[column.name].cast(parquet_rows.list_pairs(column.type.item_type))
            written = written.set_column(column_index, column.name, pairs)
    for first in range(0, len(expected), _BATCH_ROWS):
        written_rows, expected_rows = written.slice(first, _BATCH_ROWS), expected.slice(first, _BATCH_ROWS)
        if not written_rows.equals(expected_rows):
            row_pairs = zip(written_rows.to_pylist(), expected_rows.to_pylist(), strict=True)
            for number, (written_row, expected_row) in enumerate(row_pairs, start=first):
                yield from map(_describe_values, value_differences(written_row, expected_row, f"episodes[{number}]"))


def _describe_values(difference: tuple[str, object, object]) -> str:
    # Describe a result of `value_differences`: place, value in the file, value in the new judgement.
    field, written, expected = difference
    if format_value(written) != format_value(expected):
        return f"{field}: the file has {format_value(written)}, but the archive gives {format_value(expected)}"
    if isinstance(written, list) and isinstance(expected, list):
        return f"{field}: the file has {len(written)} values, but the archive gives {len(expected)}"
    # `format_value` has truncated both texts to the same text, so show excerpts at the first difference.
    written_json, expected_json = json.dumps(written).encode(), json.dumps(expected).encode()
    index = _find_differing_byte(written_json, expected_json)
    excerpts = f"{_excerpt(written_json, index)}, but the archive gives {_excerpt(expected_json, index)}"
    return f"{field}: the file has {excerpts}"


# File -> (noun in messages for the compared contents, function that yields differences, maximum size in bytes)
_REJUDGED_FILES: Mapping[str, tuple[str, _DifferenceFinder, int]] = {
    folder.SCORES: ("bytes", _json_differences, folder.MAX_SCORES_BYTES),
    folder.SCORES_TABLE: ("rows", _row_differences, folder.MAX_SCORES_BYTES),
    folder.VERDICTS: ("verdicts", _verdict_differences, folder.MAX_VERDICTS_BYTES),
}


def _check_report(run: Path, judged: Judged) -> Finding:
    # Compare the report's bytes with a new report. Leave the check open if files newer than the report may matter.
    written, command = read_input(run / folder.REPORT, folder.MAX_SCORES_BYTES), format_rescore_command(run)
    try:
        expected = render_report(judged, page_folder=run).encode()
        if written == expected:
            return agreement(folder.REPORT, "a new report has the same bytes")
        later = parts.later_files(run, folder.REPORT)
        # If pictures or replays are newer than the report, compare with a report without pictures and replays.
        if later and written == render_report(judged, has_extras=False).encode():
            return agreement(folder.REPORT, f"a new report has the same bytes; to add later results: {command}")
    except SafevlaError as error:
        return mismatch(folder.REPORT, f"the report cannot be made again: {error}")
    if later:
        problem = f"{later[0]} is newer and may have changed the report"
        return open_check(folder.REPORT, f"{problem}; to write a report that can be checked: {command}")
    index = _find_differing_byte(written, expected)
    detail = f"byte {index}: the file has {_excerpt(written, index)}, but a new report has {_excerpt(expected, index)}"
    return mismatch(folder.REPORT, detail)


def _find_differing_byte(written: bytes, expected: bytes) -> int:
    # Return the index of the first different byte. If the shorter content has no different byte, return its length.
    for index, (byte, other) in enumerate(zip(written, expected, strict=False)):
        if byte != other:
            return index
    return min(len(written), len(expected))


def _excerpt(content: bytes, index: int) -> str:
    # Return up to 80 bytes around the index, as text in quotation marks.
    return repr(content[max(0, index - 40) : index + 40].decode("utf-8", "replace"))


def _check_rules(run: Path, provenance: Provenance) -> Finding:
    # Check that the rules stored in the run folder are the rules that judged the run.
    try:
        stored_rules = find_rules([run], as_judged=True).provenance()
    except UndescribedRulesError as error:  # the folder stores no rules, so none can differ
        return open_check(RULES, error.problem, wanted=False)
    except SafevlaError as error:
        return mismatch(RULES, str(error))
    if stored_rules.rules != provenance.rules:
        return mismatch(RULES, "these are not the rules that judged the run")
    return agreement(RULES, "these rules judged the run")
