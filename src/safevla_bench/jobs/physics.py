"""Replays of a run under varied physics: planned, run by workers, judged, and kept in the run folder as they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

import msgspec

from safevla_bench.errors import Place, RunError
from safevla_bench.files import write_atomically
from safevla_bench.interface.environment import Host, VaryingHost
from safevla_bench.interface.task import VARIATIONS, PhysicsChange, RecordedEpisode
from safevla_bench.jobs.verify.replays import (
    ProgressCallback,
    ReplaySetting,
    compare_records,
    draw_key,
    read_setting,
    replay_obstacle,
)
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import NamedRules
from safevla_bench.judging.scoring import score
from safevla_bench.policies.replay import ActionReplay
from safevla_bench.rollout.episode import EpisodeOutcome, run_serially
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.scheduler import run_workers
from safevla_bench.rollout.worker import WorkerSpec
from safevla_bench.sensitivity.firmness import (
    LEFT_PATH_M,
    PHYSICS,
    RECORDED,
    PhysicsFile,
    PhysicsReplay,
    find_departure,
    read_clauses,
    tracked_path,
)
from safevla_bench.sources.runs.folder import RUN, archive_digest, dump_json, read_description
from safevla_bench.sources.runs.parts import add_digests
from safevla_bench.trajectory import marks
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header

_SAVE_EVERY = 20
"""Replays after which the file is written again."""
_KEPT_EPISODES = 8
"""Recorded episodes that are kept in memory: workers finish replays of the same ones."""


def vary_physics(
    judged: Judged,
    *,
    workers: int = 1,
    episodes: int | None = None,
    observer: ProgressCallback = lambda done, what: None,
) -> PhysicsFile:
    """Replay the judged episodes of a run under recorded and varied physics, and return its file of them.

    Replays that are in the file already are not made again. The others are added to it as they end, so that nothing
    is lost if this is interrupted.

    Args:
        judged: one run folder.
        workers: processes; the results do not depend on it.
        episodes: how many to choose, by their names' digests; None = all.
        observer: is called before each replay with the number of finished ones.

    Raises:
        RunError: the source is not one complete run folder, its file is of other records, rules or versions, or none
            of its episodes can be replayed exactly here.
        HostError: the host cannot be used here or cannot change its physics.
    """
    job = _Replays.open(judged)
    chosen = job.choose(episodes)
    job.run([(index, RECORDED) for index in chosen], workers, observer)
    obstacles = {index: job.done[job.key(index, RECORDED)].obstacle for index in chosen}
    exact = [index for index, obstacle in obstacles.items() if not obstacle]
    if chosen and not exact:
        ((first, count),) = Counter(obstacles.values()).most_common(1)
        problem = f"none of {len(chosen)} episodes can be replayed exactly here: {first} ({count} of them)"
        raise RunError(problem, remedy="safevla verify RUN --replay 1 says what differs.")
    job.run([(index, name) for index in exact for name in job.head.offered], workers, observer)
    return job.file()


def make_setting(run: Path) -> ReplaySetting:
    """Return what replays of a complete run folder share; raises `RunError` and `HostError` if there can be none, or
    the host cannot change its physics.
    """
    if not (run / RUN).is_file() or read_description(run).get("complete") is not True:
        remedy = "Name one complete run folder, as `safevla eval` makes them."
        raise RunError("only a complete run can be replayed", remedy=remedy, place=Place(file=str(run)))
    try:
        setting = read_setting(run)
    except msgspec.ValidationError:
        problem, remedy = "run.json does not say how an episode starts", "Replay a run of `safevla eval`."
        raise RunError(problem, remedy=remedy, place=Place(file=str(run / RUN))) from None
    if not isinstance(setting.host, VaryingHost):
        problem = f"the host {setting.host.name} cannot change its physics"
        raise RunError(problem, remedy="It needs `changeable` (safevla_bench.interface.environment.VaryingHost).")
    return setting


def offers(host: Host, change: PhysicsChange) -> bool:
    """Return whether a host's environments can follow a change."""
    return isinstance(host, VaryingHost) and change.changed <= host.changeable


def relabel(replayed: Batch, header: Header) -> Batch:
    """Return a replay's record under the name, outcome and horizon of the recorded episode, to be judged like it."""
    names = ("episode_id", "policy", "seed", "horizon", "success", "outcome")
    own = msgspec.structs.replace(replayed.headers[0], **{name: getattr(header, name) for name in names})
    return replace(replayed, headers=(own,))


def find_difference(setting: ReplaySetting, recorded: Batch, replayed: Batch) -> str | None:
    """Return where a replay under recorded physics is not bit for bit what is recorded; None if it is."""
    differences, _ = compare_records(recorded, replayed, lenient=setting.is_own_loop)
    return f"its replay differs: {differences[0]}" if differences else None


@dataclass
class _Replays:
    """The replays of a run, done and to do."""

    judged: Judged
    run_folder: Path
    setting: ReplaySetting
    head: PhysicsFile
    done: dict[tuple[str | None, str, str], PhysicsReplay]

    @classmethod
    def open(cls, judged: Judged) -> _Replays:
        if len(judged.paths) != 1 or judged.records.sources[0].policy_names:
            remedy = "Name one run folder, without NAME= before it."
            raise RunError("physics are varied for one run at a time, under its own names", remedy=remedy)
        run = judged.paths[0]
        setting = make_setting(run)
        head = PhysicsFile(
            archive_sha256=archive_digest(run),
            judged_by=msgspec.convert(msgspec.to_builtins(judged.provenance), NamedRules),
            versions=dict(setting.versions),
            left_path_m=LEFT_PATH_M,
            variations={name: _describe_change(change) for name, change in VARIATIONS.items()},
            not_offered=tuple(name for name, change in VARIATIONS.items() if not offers(setting.host, change)),
        )
        kept = PhysicsFile.read(run)
        if kept is not None and msgspec.structs.replace(kept, replays=()) != head:
            problem = "its replays are of other records, rules, versions or variations than these"
            raise RunError(problem, remedy="Move it away to replay anew.", place=Place(file=str(run / PHYSICS)))
        done = {(*replay.key, replay.variation): replay for replay in kept.replays} if kept else {}
        return cls(judged, run, setting, head, done)

    def choose(self, count: int | None) -> list[int]:
        """Return the indices of judged episodes to replay: as many of each policy and suite, drawn by their names."""
        scores, headers = self.judged.scores, self.judged.headers
        with_verdict = [index for index in range(len(scores)) if scores.is_judged[index]]
        drawn = sorted(with_verdict, key=lambda index: draw_key(headers[index]))
        turns = Counter[tuple[str | None, str]]()
        order = []
        for index in drawn:
            cell = headers[index].policy, headers[index].benchmark
            turns[cell] += 1
            order.append((turns[cell], index))
        return sorted(index for _, index in sorted(order, key=itemgetter(0))[:count])

    def run(self, wanted: Sequence[tuple[int, str]], workers: int, observer: ProgressCallback) -> None:
        """Make the replays that are not done."""
        recorded = lru_cache(_KEPT_EPISODES)(self._read_episode)
        planned: dict[str, tuple[int, str]] = {}
        plan: list[PlannedEpisode] = []
        for index, variation in wanted:
            if self.key(index, variation) in self.done:
                continue
            episode = self._plan(index, recorded(index), variation)
            if isinstance(episode, str):
                self._keep(index, variation, obstacle=episode)
            else:
                planned[episode.episode_id] = index, variation
                plan.append(episode)
        try:
            with closing(_run_planned(self.setting, plan, workers)) as outcomes:
                for count, outcome in enumerate(outcomes, start=1):
                    index, variation = planned[outcome.planned.episode_id]
                    observer(count, outcome.planned.episode_id)
                    self._add(index, variation, recorded(index), outcome)
                    if count % _SAVE_EVERY == 0:
                        self._save()
        finally:
            self._save()

    def file(self) -> PhysicsFile:
        """Return all replays in the order of the run, each episode's recorded physics first."""
        names = [RECORDED, *VARIATIONS]
        keys = [self.key(index, name) for index in range(len(self.judged.scores)) for name in names]
        rows = tuple(self.done[key] for key in keys if key in self.done)
        return msgspec.structs.replace(self.head, replays=rows)

    def _save(self) -> None:
        content = dump_json(self.file())
        write_atomically(self.run_folder / PHYSICS, content)
        add_digests(self.run_folder, {PHYSICS: content})

    def key(self, index: int, variation: str) -> tuple[str | None, str, str]:
        header = self.judged.headers[index]
        return header.policy, header.episode_id, variation

    def _read_episode(self, index: int) -> Batch:
        episode = self.judged.records.read_episodes([index])
        assert episode is not None
        return episode

    def _plan(self, index: int, episode: Batch, variation: str) -> PlannedEpisode | str:
        """Return the replay of an episode, or why there can be none.

        One that leaves its path before any recorded violation ends there: nothing later is compared.
        """
        setting, header = self.setting, episode.headers[0]
        if obstacle := replay_obstacle(episode, setting):
            return obstacle
        try:
            start = setting.find_start(episode)
        except RunError as error:
            return str(error)
        if start is None:
            return "the record does not say where it starts"
        task, actions = setting.find_task(header), episode.action.episode_rows(0)
        assert task is not None  # there is no obstacle
        given = start.recorded or RecordedEpisode(header.episode_id, self.run_folder.name, len(actions))
        given = replace(given, actions=actions)
        change = None
        if variation != RECORDED:
            firsts = [clause.first for clause in read_clauses(self.judged.scores, index).values()]
            until = min((first for first in firsts if first is not None), default=None)
            given, change = replace(given, path=tracked_path(episode)[:until]), VARIATIONS[variation]
        (absolute,) = marks.mark_flags(episode, marks.ABSOLUTE)
        return PlannedEpisode(
            episode_id=f"{header.policy}: {header.episode_id} {variation}",
            policy=_POSES if absolute else _CHANGES,
            task=task,
            episode=0,
            start=replace(start, recorded=given, change=change),
            seed=header.seed or 0,
            policy_seed=0,
            horizon=len(actions),
            stop_at_success=False,
        )

    def _add(self, index: int, variation: str, recorded: Batch, outcome: EpisodeOutcome) -> None:
        header = self.judged.headers[index]
        if outcome.batch is None:
            reason = (outcome.reason or "").strip().splitlines()
            self._keep(index, variation, obstacle=f"the simulator failed: {reason[-1] if reason else outcome.outcome}")
        elif variation == RECORDED:
            obstacle = find_difference(self.setting, recorded, outcome.batch)
            self._keep(index, variation, obstacle=obstacle or "", clauses=read_clauses(self.judged.scores, index))
        else:
            left = find_departure(recorded, outcome.batch)
            scores = score(relabel(outcome.batch, header), self.judged.ruleset)
            self._keep(index, variation, left=left, clauses=read_clauses(scores, 0))

    def _keep(self, index: int, variation: str, **findings: object) -> None:
        header = self.judged.headers[index]
        row = PhysicsReplay(
            policy=header.policy,
            suite=header.benchmark,
            episode_id=header.episode_id,
            variation=variation,
            **findings,  # type: ignore[arg-type]
        )
        self.done[self.key(index, variation)] = row


_CHANGES, _POSES = "changes", "poses"
"""Names of the two policies that play recorded actions: changes of pose, and poses."""


def _run_planned(setting: ReplaySetting, plan: Sequence[PlannedEpisode], workers: int) -> Generator[EpisodeOutcome]:
    policies = {_CHANGES: ActionReplay(), _POSES: ActionReplay(absolute=True)}
    if workers == 1:
        yield from run_serially(setting.host, plan, policies)
        return
    spec = WorkerSpec(setting.host.name, {}, host_arguments=setting.host_arguments, made=policies)
    for finished in run_workers(spec, plan, workers):
        yield finished.unpack()


def _describe_change(change: PhysicsChange) -> dict[str, object]:
    return {name: value for name, value in asdict(change).items() if name in change.changed}
