"""Combining the written scores of judged folders, without reading the records.

Each shard of a large run can be judged where it was rolled out; this module then computes the summaries of all
episodes. Memory holds the verdicts, about 2 kB per episode; the rows of `scores.parquet` are streamed.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive.parquet_guard import open_parquet, read_batches
from safevla_bench.errors import Place, RunError
from safevla_bench.files import decode_json, make_folder, read_input, write_together
from safevla_bench.jobs.evaluation.judgement import require_unmixed
from safevla_bench.judging import judged, metrics, provenance_marks
from safevla_bench.judging.metrics import Summary, measure_baseline
from safevla_bench.judging.ruleset import LostEpisodes, Provenance
from safevla_bench.judging.scores import Scores, SpecColumn, decode_scores, nan_to_none
from safevla_bench.report import headline, render
from safevla_bench.report.tables import notices
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.table import Table
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs.policy_names import PolicyIdentity, distinguish_policies, identify_policies
from safevla_bench.trajectory.marks import PRIVILEGED
from safevla_recorder.identity import is_other_code

_JUDGE_TOGETHER = "Judge the records of all runs together with one safevla score."


@dataclass(frozen=True)
class _ScoresOrigin:
    """How a judged folder's scores were made, as stored in the metadata of its `scores.parquet`."""

    folder: Path
    judged_by: Provenance
    sources: Sequence[dict[str, Any]]
    recorded_with: dict[str, list[str]]
    schema: pa.Schema

    @classmethod
    def read(cls, folder: Path) -> _ScoresOrigin:
        # Read the metadata of the folder's scores.parquet.
        # Raise `RunError` if the folder is not judged, or if the folder's scores are combined scores.
        with run_folder.readable(folder / run_folder.SCORES_TABLE, f"Judge the folder first: safevla score {folder}."):
            with open_parquet(folder / run_folder.SCORES_TABLE) as (file, _):
                schema = file.schema_arrow
            metadata = {name.decode(): text for name, text in (schema.metadata or {}).items()}
            origin = cls(
                folder,
                # Only `judged_by` is required: if it is missing, decoding the empty text raises an error.
                decode_json(metadata.get("judged_by", b""), Provenance),
                decode_json(metadata.get("sources", b"[]"), list[dict[str, Any]]),
                decode_json(metadata.get("recorded_with", b"{}"), dict[str, list[str]]),
                schema.remove_metadata(),
            )
        if origin.judged_by.as_written:
            problem = "this folder's scores were combined from other folders' scores"
            raise RunError(problem, remedy="Name the original folders instead.", place=Place(file=str(folder)))
        return origin

    @property
    def codes(self) -> list[str]:
        # The versions of the code that recorded the folder's episodes. `sources` describes each judged run or archive.
        return [code for source in self.sources for code in run_folder.recorded_code(source)]

    def require_same_rules(self, other: _ScoresOrigin) -> None:
        """Raise `RunError` if the two folders were judged by different rules or versions."""
        first, second = self.judged_by, other.judged_by
        if (first.rules, first.intervals, first.version) != (second.rules, second.intervals, second.version):
            descriptions = "\n".join(f"  {origin.judged_by.to_sentence()}" for origin in (self, other))
            problem = f"this folder was judged differently from {self.folder}:\n{descriptions}"
            place = Place(file=str(other.folder))
            raise RunError(problem, remedy="Judge all folders by the same rules, with the same version.", place=place)

    def require_same_code(self, other: _ScoresOrigin) -> None:
        """Raise `RunError` if the episodes of the two folders were recorded by different code."""
        if any(is_other_code(code, other_code) for code in self.codes for other_code in other.codes):
            code_lines = f"  {' and '.join(self.codes)}\n  {' and '.join(other.codes)}"
            problem = f"the code that recorded this folder differs from that of {self.folder}:\n{code_lines}"
            place = Place(file=str(other.folder))
            raise RunError(problem, remedy="Roll out all episodes with the same version of the code.", place=place)

    def identify_policies(self) -> Iterator[tuple[Path, list[PolicyIdentity]]]:
        """Yield (folder, policies) for each judged run. Policies that were renamed for judging get their new names."""
        # A folder without run.json contains the scores of other runs; `sources` describes these runs.
        is_run = (self.folder / run_folder.RUN).exists()
        descriptions = [run_folder.read_description(self.folder)] if is_run else self.sources
        for description in descriptions:
            stored_names: Any = description.get("policy_names")  # recorded name -> new name
            new_names = stored_names if isinstance(stored_names, dict) else {}
            identities = identify_policies(self.folder, description)
            renamed = [replace(identity, name=new_names.get(identity.name, identity.name)) for identity in identities]
            yield self.folder, renamed


@dataclass(frozen=True)
class Combination:
    """Summary of combined scores: number of episodes, main result as a sentence, and table by policy and suite."""

    episodes: int
    answer: str
    table: Table


def combine_scores(folders: Sequence[Path], out: Path) -> Combination:
    """Combine the folders' scores, without judging again, and write scores.json (without a row per episode),
    scores.parquet and report.html into `out`. Raises `RunError` in these cases: a folder is not judged, folders differ
    in rules, version or code, two folders contain the same episode, different policies have the same name, `out` is a
    judged folder, or the suites have benchmark starts as well as starts that a search chose.
    """
    origins = [_ScoresOrigin.read(folder) for folder in folders]
    if (out / run_folder.VERDICTS).exists():
        problem = "combined scores would replace this folder's own scores"
        raise RunError(problem, remedy="Name another folder by --out.", place=Place(file=str(out)))
    # All folders must be judged by the same rules as the first folder.
    for other in origins[1:]:
        origins[0].require_same_rules(other)
    # `codes` are the versions of the code that recorded a folder. Folders with equal `codes` need no comparison.
    origin_by_codes = {tuple(origin.codes): origin for origin in origins}
    for first, other in combinations(origin_by_codes.values(), 2):
        first.require_same_code(other)
    _require_distinct_policies(origins)
    scores = Scores.join(_read_scores(folders))
    _require_unique_episodes(scores)
    # No rate may combine a benchmark's start states with start states that a search chose.
    require_unmixed({*scores.benchmark, *(lost.benchmark for lost in scores.absent)})
    provenance = _join_provenance([origin.judged_by for origin in origins])
    cells, total = metrics.cells(scores), metrics.aggregate(scores)
    sources = [source for origin in origins for source in origin.sources]
    # The versions of simulators and other packages with which the episodes were recorded:
    versions_by_package: dict[str, set[str]] = {}
    for origin in origins:
        for package, versions in origin.recorded_with.items():
            versions_by_package.setdefault(package, set()).update(versions)
    # The content of scores.json:
    document = {
        "scores_version": run_folder.SCORES_VERSION,
        "aggregate": total,
        "cells": cells,
        "absent": scores.absent,
        "specs": scores.specs,
        "judged_by": provenance,
        "sources": sources,
        "recorded_with": {package: sorted(versions) for package, versions in versions_by_package.items()},
    }
    table = _build_table(scores, cells, total, provenance, sources)
    contents = {
        run_folder.SCORES: run_folder.dump_json(document),
        run_folder.SCORES_TABLE: _join_tables(origins, {name: document[name] for name in run_folder.ORIGIN}),
        run_folder.REPORT: render.render_html([table], "Safety report").encode(),
    }
    make_folder(out)
    write_together(out, contents, chief=run_folder.SCORES)
    return Combination(len(scores), headline.build_headline(cells, total).answer, table)


def _read_scores(folders: Sequence[Path]) -> Iterator[Scores]:
    # Yield each folder's verdicts. Raise `RunError` if the verdicts contradict the folder's scores.parquet.
    # The same rules judged all folders, so verdicts with other specifications are from another judgement.
    specs: tuple[SpecColumn, ...] | None = None
    for folder in folders:
        path = folder / run_folder.VERDICTS
        with run_folder.readable(path, f"Judge the folder again with this version: safevla score {folder}."):
            scores = decode_scores(read_input(path, run_folder.MAX_VERDICTS_BYTES))
            # If one file has more rows, `zip_longest` pairs the surplus rows with None, so the comparison below fails.
            row_pairs = zip_longest(_read_table_rows(folder), _list_verdict_rows(scores))
            matches_table = all(table_row == verdict_row for table_row, verdict_row in row_pairs)
        # Compare with the specifications in the first folder's verdicts.
        specs = specs or scores.specs
        if scores.specs != specs or not matches_table:
            problem = f"{run_folder.VERDICTS} and {run_folder.SCORES_TABLE} are not from the same judgement"
            remedy = f"Judge the folder again: safevla score {folder}."
            raise RunError(problem, remedy=remedy, place=Place(file=str(folder)))
        yield scores


# Columns that scores.parquet and the file of verdicts have in common.
_SHARED_COLUMNS = ("episode_id", "benchmark", "task_id", "policy", "outcome", "success", "safe", "vsi")


def _read_table_rows(folder: Path) -> Iterator[tuple[object, ...]]:
    # Yield the values of the `_SHARED_COLUMNS` for each episode in the folder's scores.parquet.
    for batch in read_batches(folder / run_folder.SCORES_TABLE, _SHARED_COLUMNS):
        yield from zip(*(batch[name].to_pylist() for name in _SHARED_COLUMNS), strict=True)


def _list_verdict_rows(scores: Scores) -> Iterator[tuple[object, ...]]:
    # Return the same rows as `_read_table_rows`, but from `scores`.
    # Convert only the last three columns (success, safe, vsi) to the table's values, in which None means unknown.
    columns = (getattr(scores, name) for name in _SHARED_COLUMNS[:-3])
    verdicts = map(scores.verdict, range(len(scores)))
    return zip(*columns, scores.success.tolist(), verdicts, map(nan_to_none, scores.vsi.tolist()), strict=True)


def _require_distinct_policies(origins: Sequence[_ScoresOrigin]) -> None:
    # Raise `RunError` if different policies have the same name.
    # `runs` lists a pair (folder, policies) for each judged run.
    runs = [run for origin in origins for run in origin.identify_policies()]
    # One mapping per run: old name -> new name. It contains only policies whose name another policy also has.
    renamings = distinguish_policies([identities for _, identities in runs], [folder for folder, _ in runs])
    shared_names = [name for new_names in renamings for name in new_names]
    if shared_names:
        # `[:-1]` removes the period.
        remedy = f"{_JUDGE_TOGETHER[:-1]}: this command renames policies with equal names."
        raise RunError(f"several policies have the name {shared_names[0]!r}", remedy=remedy)


def _require_unique_episodes(scores: Scores) -> None:
    # Raise `RunError` if two folders contain the same episode. Policy and id identify an episode.
    counts = Counter(zip(scores.policy, scores.episode_id, strict=True))
    if len(counts) < len(scores):
        (policy, episode_id), _ = counts.most_common(1)[0]
        problem = f"two folders have this episode of policy {policy!r}"
        raise RunError(problem, remedy="Name each folder once.", place=Place(episode=episode_id))


def _join_provenance(parts: Sequence[Provenance]) -> Provenance:
    # The same rules judged all folders, so use the first folder's description of the rules.
    # Join the lists of invalid episodes of all folders, and add up the counts of lost episodes.
    lost = [part.lost for part in parts if part.lost is not None]
    all_lost = LostEpisodes(
        episodes=sum(part.episodes for part in lost),
        more=any(part.more for part in lost),
        named=tuple(chain.from_iterable(part.named for part in lost)),
        places=tuple(chain.from_iterable(part.places for part in lost)),
    )
    skipped = tuple(chain.from_iterable(part.skipped for part in parts))
    # `as_written` marks scores that were read from files. Without damaged files, `lost` is None.
    return msgspec.structs.replace(parts[0], as_written=True, skipped=skipped, lost=all_lost if lost else None)


def _build_table(
    scores: Scores, cells: Sequence[Summary], total: Summary, provenance: Provenance, sources: Sequence[dict[str, Any]]
) -> Table:
    # Return the table of cells (policy on suite), with remarks on how the scores were made.
    marked_policies = zip(scores.policy, scores.is_marked(PRIVILEGED), strict=True)
    privileged = {name for name, is_privileged in marked_policies if is_privileged}
    table = headline_table(cells, total, privileged=privileged)
    remarks = [
        # Each source is the description of a run; `complete` is false if the run was interrupted.
        *([judged.INTERRUPTED] if any(source.get("complete") is False for source in sources) else []),
        *([f"{len(provenance.skipped)} invalid episodes were omitted."] if provenance.skipped else []),
        *([f"{provenance.lost} because of damaged files."] if provenance.lost else []),
        *provenance_marks.warn_of_records(scores),
        *notices.baseline_warnings(measure_baseline(scores)),
        provenance.to_sentence(),
    ]
    return replace(table, remarks=(*table.remarks, *remarks))


def _join_tables(origins: Sequence[_ScoresOrigin], metadata: dict[str, object]) -> bytes:
    # Return the content of a scores.parquet with the rows of all folders, and with `metadata` as JSON texts.
    # The joined schema contains every column that occurs in at least one folder.
    joined_schema = pa.unify_schemas([origin.schema for origin in origins])
    schema = joined_schema.with_metadata({name: msgspec.json.encode(value) for name, value in metadata.items()})
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd", write_page_checksum=True) as writer:
        for batch in chain.from_iterable(map(_read_rows, origins)):
            columns = [  # if the folder lacks a column, its values are null
                batch[field.name] if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
                for field in schema
            ]
            writer.write_batch(pa.record_batch(columns, schema))
    return buffer.getvalue()


def _read_rows(origin: _ScoresOrigin) -> Iterator[pa.RecordBatch]:
    # Yield all columns of the folder's scores.parquet, in batches of rows.
    path = origin.folder / run_folder.SCORES_TABLE
    with run_folder.readable(path, f"Judge the folder again: safevla score {origin.folder}."):
        yield from read_batches(path)
