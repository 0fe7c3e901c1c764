"""Verification of a run folder: digests, episodes, scores and replays, with the reason for each check that is open.

`record_check` compares files with their digests and the table of episodes with the archive, `score_check` judges the
records again, `replay_check` plays recorded actions again in the simulator, and `audit` draws which.
"""

from __future__ import annotations

from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.jobs.verify.audit import AuditPlan, check_audit
from safevla_bench.jobs.verify.record_check import (
    EPISODES,
    PARTS,
    ArchiveContents,
    Finding,
    Verification,
    check_episodes,
    check_files,
    check_parts,
    mismatch,
    open_check,
)
from safevla_bench.jobs.verify.replay_check import REPLAY, ProgressCallback, check_replays, choose_episodes
from safevla_bench.jobs.verify.score_check import RulesetFiles, check_scores
from safevla_bench.sources.runs.folder import RUN, read_description

_BUILT_IN = RulesetFiles()
ASSETS = "assets"


def verify_run(
    run: Path,
    files: RulesetFiles = _BUILT_IN,
    *,
    replay: int = 0,
    audit: AuditPlan | None = None,
    observer: ProgressCallback = lambda done, what: None,
) -> Verification:
    """Check a complete run folder: its digests, episodes and scores, and replays of its episodes in the simulator.

    Raises:
        RunError: the folder holds no run, the run is not complete, or one of its files cannot be read.
    """
    _require_complete(run)
    try:
        return Verification(tuple(_check_run(run, files, replay, audit, observer)))
    except OSError as error:
        remedy = "Verify where every file of the run can be read."
        raise RunError(error.strerror or str(error), remedy=remedy, place=Place(file=error.filename)) from None


def _check_run(
    run: Path, files: RulesetFiles, replay: int, audit: AuditPlan | None, observer: ProgressCallback
) -> list[Finding]:
    """Make every check of a run and return the findings in order."""
    findings = [*check_parts(run), *check_files(run)]
    records = ArchiveContents.read_run(run)
    findings += [mismatch(PARTS, str(problem)) for problem in records.problems]
    findings += (
        check_episodes(run, records) if not records.problems else [open_check(EPISODES, "the archive is not whole")]
    )
    findings += check_scores(run, files)
    findings += [open_check(ASSETS, _standin_note(name), wanted=False) for name in records.standin]
    findings += _check_replays(run, records, replay, observer) if replay or not audit else []
    return [*findings, *(check_audit(run, records, audit, observer) if audit else ())]


def _require_complete(run: Path) -> None:
    place = Place(file=str(run))
    if not (run / RUN).is_file():
        remedy = f"Name a folder that `safevla eval` or `safevla rollout` made; it holds {RUN}."
        raise RunError("this is not a run folder", remedy=remedy, place=place)
    if read_description(run).get("complete") is not True:
        remedy = "Continue it first: safevla eval --resume --out RUN."
        raise RunError("the run is not complete", remedy=remedy, place=place)


def _standin_note(benchmark: str) -> str:
    return f"{benchmark} was simulated with stand-ins for its own assets; nothing here checks it with the real ones"


def _check_replays(run: Path, records: ArchiveContents, count: int, observer: ProgressCallback) -> list[Finding]:
    if not count:
        reason = "not asked for; --replay K or --audit K plays K episodes again in the simulator"
        return [open_check(REPLAY, reason, wanted=False)]
    if not records.headers:
        return [open_check(REPLAY, "there is no record")]
    return check_replays(run, records, choose_episodes(records.headers, count), observer)
