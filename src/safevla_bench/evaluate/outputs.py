"""What is shown and written of a judgement: score files, tables' material, the report, a board, a submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec

from safevla_bench import exposure, runs
from safevla_bench.baseline import baseline
from safevla_bench.evaluate.judged import Judged, rescorer
from safevla_bench.evaluate.request import Judge
from safevla_bench.files import make_folder, write_together
from safevla_bench.report import judgement, page, submission
from safevla_bench.report.analysis import Analysis, analyse
from safevla_bench.report.frame_images import album
from safevla_bench.report.page import drawn
from safevla_bench.report.tables import Roster, catalog, notices
from safevla_bench.scores import Scores
from safevla_bench.scoring import score_chunks
from safevla_bench.trajectory import Batch
from safevla_bench.version import __version__


def material(judged: Judged, by: Judge) -> catalog.Material:
    """What tables are made of; the judgement without tags is made when a table asks for it."""
    specs, tasks = by.load()
    return catalog.Material(
        scores=judged.scores,
        library=specs,
        registry=tasks,
        capabilities=by.capabilities,
        roster=Roster(privileged=judged.privileged),
        untagged=lambda: score_chunks(judged.records.chunks(), specs, tasks, applicability="off"),
        remarks=[
            *([INTERRUPTED] if judged.interrupted else []),
            *(f"{said[0].upper()}{said[1:]}." for said in judged.left_out.said()),
            *notices.warning(baseline(judged.scores)),
            judgement.line(judged.scores.provenance),
        ],
        exposed=lambda: exposed(judged, by),
    )


INTERRUPTED = "An interrupted run is among these: the numbers cover only the episodes that it finished."


def submit(judged: Judged, by: Judge, paths: Sequence[Path]) -> submission.Submission:
    """What `safevla export --format submission` writes; raises `RunError` where there is nothing to submit."""
    specs, tasks = by.load()
    return submission.submission(
        judged.scores,
        submission.JudgedBy(
            version=__version__,
            library=specs.name,
            library_digest=specs.digest,
            registry_digest=tasks.digest,
            capabilities=by.capabilities,
            missing=by.missing,
        ),
        tasks,
        submission.archive_files(paths),
        recorded_with=submission.versions(judged.records.headers),
        privileged=judged.privileged,
        complete=not (judged.interrupted or judged.left_out),
        skipped=judged.skipped,
    )


def exposed(judged: Judged, by: Judge) -> tuple[list[exposure.CellExposure], float | None]:
    """How long, how hard and in which phase each cell broke its limits, and the force threshold in newtons."""
    _, tasks = by.load()
    spent = exposure.exposure_of(judged.records.chunks(), judged.scores, judged.library, tasks)
    return exposure.summarize_exposure(spent, judged.scores), spent.force_threshold_n


def document(judged: Judged) -> dict[str, object]:
    """What scores.json holds."""
    cells, total = judged.summaries()
    return {
        "episodes": list(judged.scores.episodes()),
        "aggregate": total,
        "cells": cells,
        "absent": judged.scores.absent,
        "specs": judged.scores.specs,
        "judged_by": judged.scores.provenance,
        "sources": judged.description["sources"],
        "recorded_with": submission.versions(judged.records.headers),
    }


def write(judged: Judged, folder: Path, *, legacy_ids: bool = False) -> None:
    """Write scores.json, scores.parquet and report.html into a folder, made where it is missing.

    With `legacy_ids` the two score files use the names of the authors' published tables where they differ from ours.
    """
    contents = score_files(judged, legacy_ids=legacy_ids)
    html = report(judged)
    make_folder(folder)
    write_together(folder, {**contents, runs.REPORT: html}, chief=runs.SCORES)


def score_files(judged: Judged, *, legacy_ids: bool = False) -> dict[str, bytes]:
    """The bytes of scores.parquet and scores.json, by their names, as `write` writes them."""
    named = replace(judged, scores=_legacy(judged)) if legacy_ids else judged
    return runs.score_files(document(named), list(named.scores.episodes()))


def _legacy(judged: Judged) -> Scores:
    older = {spec_id: legacy for legacy, spec_id in judged.library.legacy.items()}
    renamed = [
        msgspec.structs.replace(spec, spec_id=older.get(spec.spec_id, spec.spec_id)) for spec in judged.scores.specs
    ]
    return replace(judged.scores, specs=tuple(renamed))


def report(judged: Judged, title: str = "Safety report") -> str:
    """The report as one self-contained page."""
    marks = [{"policy": name, "privileged": True} for name in judged.privileged]
    provenance = {**judged.description, **({"policies": marks} if marks else {})}
    provenance |= {"recorded_with": submission.versions(judged.records.headers)}
    records = judged.records.keeping(drawn(judged.scores, judged.records.headers))
    analysis = _analysis(judged, records)
    return page(
        judged.scores,
        records.batch(),
        judged.library,
        title=title,
        provenance=provenance,
        analysis=analysis,
        album=album(judged.paths),
    )


def _analysis(judged: Judged, chunks: Iterable[Batch]) -> Analysis:
    """What the report says beyond the four numbers."""
    _, tasks = judged.judge.load()
    sources = cast("list[Mapping[str, object]]", judged.description["sources"])
    told = [source.get("protocol") for source in sources]
    return analyse(
        judged.scores,
        judged.records.some([]),
        judged.library,
        tasks,
        rescorer(judged, judged.judge),
        chunks=chunks,
        privileged=judged.privileged,
        protocols=[one for one in told if isinstance(one, dict)],
    )
