"""Whether a run folder can be believed: what it holds is checked against what it says; what cannot be is named.

`recorded` compares files with their digests and the table of episodes with the archive, `judgement` judges the records
again, `replaying` plays recorded actions again in the simulator.
"""

from __future__ import annotations

from pathlib import Path

from safevla_bench import runs
from safevla_bench.errors import Place, RunError
from safevla_bench.verify.findings import Finding, Verdict, Verification, differs, unchecked
from safevla_bench.verify.record_check import EPISODES, PARTS, Recorded, episodes, parts
from safevla_bench.verify.replay_check import REPLAY, Observer, replays
from safevla_bench.verify.score_check import Files, judgement

__all__ = ["Files", "Finding", "Observer", "Verdict", "Verification", "verify"]

_BUILT_IN = Files()
ASSETS = "assets"


def verify(
    run: Path, files: Files = _BUILT_IN, *, replay: int = 0, observer: Observer = lambda done, what: None
) -> Verification:
    """Check a complete run folder: its digests, episodes and scores, and `replay` of its episodes in the simulator.

    Args:
        run: the folder.
        files: what judged, where that was not built in.
        replay: how many episodes to play again; which is decided by their names.
        observer: watches the replays.

    Raises:
        RunError: it is no run folder, the run is not complete, or one of its files cannot be read.
    """
    _complete(run)
    try:
        return Verification(tuple(_found(run, files, replay, observer)))
    except OSError as error:
        remedy = "Verify where every file of the run can be read."
        raise RunError(error.strerror or str(error), remedy=remedy, place=Place(file=error.filename)) from None


def _found(run: Path, files: Files, replay: int, observer: Observer) -> list[Finding]:
    found = parts(run)
    records = Recorded.of(run)
    found += [differs(PARTS, str(problem)) for problem in records.problems]
    found += episodes(run, records) if not records.problems else [unchecked(EPISODES, "the archive is not whole")]
    found += judgement(run, files)
    found += [unchecked(ASSETS, _standin(name), wanted=False) for name in records.standin]
    return [*found, *_replays(run, records, replay, observer)]


def _complete(run: Path) -> None:
    place = Place(file=str(run))
    if not (run / runs.RUN).is_file():
        remedy = f"Name a folder that `safevla eval` or `safevla rollout` made; it holds {runs.RUN}."
        raise RunError("this is not a run folder", remedy=remedy, place=place)
    if runs.described(run).get("complete") is not True:
        remedy = "Continue it first: safevla eval --resume --out RUN."
        raise RunError("the run is not complete", remedy=remedy, place=place)


def _standin(benchmark: str) -> str:
    return f"{benchmark} was simulated with stand-ins for its own assets; nothing here checks it with the real ones"


def _replays(run: Path, records: Recorded, count: int, observer: Observer) -> list[Finding]:
    if not count:
        said = "not asked for; --replay K plays K episodes again in the simulator"
        return [unchecked(REPLAY, said, wanted=False)]
    if not records.headers:
        return [unchecked(REPLAY, "there is no record")]
    return replays(run, records, count, observer)
