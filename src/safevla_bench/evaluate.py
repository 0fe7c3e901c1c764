"""Whole jobs as one call each: `roll_out`, `judge`, and `evaluate` = roll out, judge and report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

from safevla_bench import beyond, hosts, metrics, policies, rollout, runs
from safevla_bench.baseline import baseline
from safevla_bench.compare import Entrant, entrants, named_apart
from safevla_bench.errors import HostError, Place, RunError, SafevlaError
from safevla_bench.files import write_atomically
from safevla_bench.interface import Host, Policy, Replaying, Task
from safevla_bench.monitor import Monitor
from safevla_bench.policies import dialects, zoo
from safevla_bench.policies.dialect import Dialect
from safevla_bench.report import board as boards
from safevla_bench.report import catalogue, cautioning, page, submission
from safevla_bench.report.album import album
from safevla_bench.report.analysis import Analysis, analyse
from safevla_bench.report.page import drawn
from safevla_bench.report.tables import UNNAMED, Roster
from safevla_bench.scores import Scores
from safevla_bench.scoring import Applicability, Missing, score_chunks
from safevla_bench.specs import Library, extend, library
from safevla_bench.tasks import Registry, registry
from safevla_bench.trajectory import Batch
from safevla_bench.version import __version__


@dataclass(frozen=True, kw_only=True)
class Judge:
    """With what to judge: a library, files that add to it, a registry's additions, and how to take what is missing."""

    library: str = "default"
    specs: tuple[Path, ...] = ()
    registry: tuple[Path, ...] = ()
    capabilities: tuple[str, ...] = ()
    missing: Missing = "error"
    applicability: Applicability = "on"
    """`off` judges as if there were no tags: an ablation, not a result to publish."""

    def load(self) -> tuple[Library, Registry]:
        """The library and the registry; raises what their loaders raise."""
        chosen = library(self.library)
        for path in self.specs:
            chosen = extend(chosen, path)
        return chosen, registry(self.registry)

    def monitor(self) -> Monitor:
        """What judges so while an episode runs; raises `RunError` where that is to be without tags."""
        if self.applicability == "off":
            raise RunError("a monitor needs the tasks' tags", remedy="Leave --applicability on to stop on violations.")
        specs, tasks = self.load()
        return Monitor(specs, tasks, capabilities=self.capabilities, missing=self.missing)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rollout as the user asks for it."""

    host: str
    suites: tuple[str, ...]
    tasks: tuple[int, ...] | None = None
    """Indices in each suite; None = all."""
    episodes: rollout.Episodes = 1
    """Of each task; None = as many as its benchmark runs, `protocol` = as many as the protocol says."""
    policies: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    """For every policy."""
    policy_arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For one policy, by its name; they go before those for every policy."""
    servers: tuple[str, ...] = ()
    """Where the paper's entries are served, each URL or SUITE=URL; kept apart in run.json, and free to change."""
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    protocol: str = rollout.PRESET
    seed: int = 0
    max_steps: int | None = None
    shard: rollout.Shard | None = None
    """Which piece of the plan to run; None = all of it."""
    archive: str = runs.JSONL
    """The form of the archive, of `runs.FORMS`."""
    stop_on_violation: bool = False
    """End each episode at its first violation, by `watch`; it is then `stopped`, in no rate."""
    watch: Judge = field(default_factory=Judge)
    volatile: Mapping[str, object] = field(default_factory=dict)
    """Facts of the day, such as the command and the time; kept apart in run.json."""

    def arguments_of(self, policy: str) -> dict[str, str]:
        return {**self.arguments, **self.policy_arguments.get(policy, {})}

    @classmethod
    def of(cls, run: Path) -> Request:
        """What was asked for in the run of a folder; `RunError` where its run.json does not say."""
        held = runs.described(run)
        try:
            asked = msgspec.convert(held, _Asked)
        except msgspec.ValidationError as error:
            remedy = "Start it anew with all its options, or restore the file."
            raise RunError(
                f"does not say what to run: {error}", remedy=remedy, place=Place(file=str(run / runs.RUN))
            ) from None
        return cls(
            host=asked.host,
            host_arguments=asked.host_arguments,
            suites=asked.suites,
            tasks=asked.indices,
            episodes=asked.episodes,
            policies=tuple(one.policy for one in asked.policies),
            policy_arguments={one.policy: one.arguments for one in asked.policies},
            servers=asked.volatile.servers,
            protocol=asked.protocol.name,
            seed=asked.seed,
            max_steps=asked.max_steps,
            shard=rollout.Shard(asked.shard.number, asked.shard.count) if asked.shard else None,
            archive=asked.archive,
            stop_on_violation=asked.stop_on_violation is not None,
        )


class _AskedPolicy(msgspec.Struct):
    policy: str
    arguments: dict[str, str]


class _AskedProtocol(msgspec.Struct):
    name: str


class _AskedToday(msgspec.Struct, frozen=True):
    servers: tuple[str, ...] = ()


class _Asked(msgspec.Struct):
    """The part of run.json that a request is made from."""

    host: str
    suites: tuple[str, ...]
    indices: tuple[int, ...] | None
    episodes: rollout.Episodes
    policies: tuple[_AskedPolicy, ...]
    protocol: _AskedProtocol
    seed: int
    max_steps: int | None
    shard: runs.Stretch | None = None
    archive: str = runs.JSONL
    volatile: _AskedToday = _AskedToday()
    stop_on_violation: dict[str, object] | None = None
    host_arguments: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Running:
    """How to run what is asked for; nothing here changes a byte of a complete run."""

    workers: int = 1
    """Processes; one runs here."""
    resume: bool = False
    """Continue the run in the folder, where there is one."""
    retry_crashed: bool = False
    """When continuing, run crashed episodes again."""


_PLAINLY = Running()
PRESET, PROTOCOL = rollout.PRESET, rollout.PROTOCOL
ENTERED = ("host", "suites", "policies", "protocol")
"""The options that an entry stands for."""


@dataclass(frozen=True)
class Prepared:
    """A rollout that can start: everything was named rightly and is at hand."""

    host: Host
    episodes: tuple[rollout.Planned, ...]
    policies: dict[str, Policy]
    cast: rollout.Cast
    description: Mapping[str, object]

    def close(self) -> None:
        """Free the policies, once."""
        while self.policies:
            self.policies.popitem()[1].close()


@dataclass(frozen=True)
class Judged:
    """Scores with what they were made from."""

    scores: Scores
    records: runs.Records
    library: Library
    description: Mapping[str, object]
    judge: Judge = Judge()
    paths: tuple[Path, ...] = ()
    """The sources, where their frames are."""

    @cached_property
    def batch(self) -> Batch | None:
        """All records at once, None where there is none; `records` gives some at a time, in less memory."""
        return self.records.whole()

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw state which no real robot has."""
        return self.records.privileged

    @property
    def standin(self) -> tuple[str, ...]:
        """The benchmarks that were simulated with stand-ins for the host's own assets."""
        return self.records.standin

    @property
    def ablated(self) -> bool:
        """Whether applicability was off."""
        return self.scores.provenance.get("applicability") == "off"

    @property
    def skipped(self) -> int:
        """How many invalid episodes were left out."""
        skipped = self.scores.provenance.get("skipped", ())
        return len(skipped) if isinstance(skipped, list) else 0

    @property
    def interrupted(self) -> int:
        """How many of the judged run folders do not hold every episode that was planned."""
        sources = self.description.get("sources", ())
        assert isinstance(sources, list)
        return sum(source.get("complete") is False for source in sources)

    def summaries(self) -> tuple[list[metrics.Summary], metrics.Summary]:
        """The cells and the aggregate."""
        return metrics.cells(self.scores), metrics.aggregate(self.scores)


def prepare(request: Request) -> Prepared:
    """Find the host, its tasks and the policies, and plan the episodes; nothing is written yet.

    Raises `HostError`, `PolicyError`, `PluginError` or `RunError` for what the user must change.
    """
    host = hosts.host(request.host, request.host_arguments)
    tasks = [task for suite in request.suites for task in _tasks(host, suite, request.tasks)]
    _check_arguments(request)
    rules = rollout.protocol(request.protocol)
    told = {name: _told(request, name) for name in request.policies}
    made = {name: policies.policy(name, arguments) for name, arguments in told.items()}
    _check_servers(made, tasks)
    planned = rollout.plan(
        tasks, request.episodes, request.policies, rules, seed=request.seed, max_steps=request.max_steps
    )
    whole = tuple(rollout.matched(one, made[one.policy], request.max_steps) for one in planned)
    episodes, stretch = _piece(whole, request.shard)
    players = rollout.Cast(
        request.host,
        told,
        renders=any(policy.wants.cameras for policy in made.values()),
        stopping=request.watch if request.stop_on_violation else None,
        host_arguments=request.host_arguments,
    )
    described = _described(request, host, tasks, made, rules)
    description = {**described, "shard": stretch, "planned": len(episodes)}
    return Prepared(host, episodes, made, players, description)


def _piece(
    whole: tuple[rollout.Planned, ...], shard: rollout.Shard | None
) -> tuple[tuple[rollout.Planned, ...], runs.Stretch | None]:
    """The episodes of a shard, and where they lie in the plan."""
    if shard is None:
        return whole, None
    begun = rollout.bounds(whole, shard.count)
    first, end = begun[shard.number - 1 : shard.number + 1]
    return whole[first:end], runs.Stretch(shard.number, shard.count, first, len(whole))


def _check_arguments(request: Request) -> None:
    for name in request.policy_arguments:
        if name not in request.policies:
            problem = f"there is an argument for the policy {name!r}, which is not in this run"
            raise RunError(problem, remedy=f"Its policies: {', '.join(request.policies)}.")


def _told(request: Request, policy: str) -> dict[str, str]:
    """A policy's arguments; an entry's with its servers."""
    served = {zoo.SERVER: " ".join(request.servers)} if zoo.MARK in policy.partition(":")[0] and request.servers else {}
    return {**served, **request.arguments_of(policy)}


def _check_servers(made: Mapping[str, Policy], tasks: Sequence[Task]) -> None:
    for policy in made.values():
        if isinstance(policy, zoo.Served):
            for task in tasks:
                policy.server(task.benchmark)


def entered(name: str, suites: Sequence[str] = (), protocol: str | None = None) -> dict[str, Any]:
    """What a `Request` for one of the paper's entries is made of: its host, suites, protocol, policy and episodes.

    Raises:
        PolicyError: there is no such entry.
        RunError: it has no such suite.
    """
    found = zoo.entry(name)
    unknown = [suite for suite in suites if suite not in found.suites]
    if unknown:
        raise RunError(f"{name} has no suite {unknown[0]!r}", remedy=f"It has {', '.join(found.suites)}.")
    return {
        "host": found.host,
        "suites": tuple(suites) or found.suites,
        "policies": (name,),
        "protocol": protocol or (found.protocol if found.runnable else rollout.PRESET),
        "episodes": PROTOCOL,
    }


def left_open(request: Request) -> list[str]:
    """What the paper's entries that are asked for leave open or assume, each as one sentence."""
    named = [zoo.entry(name) for name in request.policies if zoo.MARK in name.partition(":")[0]]
    return [f"{one.name}: unknown is {question}" for one in named for question in one.unknown]


def _tasks(host: Host, suite: str, wanted: tuple[int, ...] | None) -> Sequence[Task]:
    tasks = {task.index: task for task in host.tasks(suite)}
    unknown = sorted(set(wanted or ()) - set(tasks))
    if unknown:
        remedy = f"It has the tasks {min(tasks)} to {max(tasks)}; `safevla tasks --benchmark {suite}` lists them."
        raise HostError(f"{suite} has no task {unknown[0]}", remedy=remedy)
    return list(tasks.values()) if wanted is None else [tasks[index] for index in wanted]


def _described(
    request: Request, host: Host, tasks: Sequence[Task], made: Mapping[str, Policy], rules: rollout.Protocol
) -> dict[str, object]:
    """All that repeats the run."""
    return {
        "schema_version": 1,
        "host": host.name,
        "host_arguments": dict(request.host_arguments),
        "suites": request.suites,
        "indices": request.tasks,
        "tasks": [f"{task.benchmark}/{task.task_id}" for task in tasks],
        "episodes": request.episodes,
        "policies": [
            {
                "policy": name,
                "arguments": request.arguments_of(name),
                "privileged": policy.wants.privileged,
                "cameras": policy.wants.cameras,
                **({"replay": policy.described} if isinstance(policy, Replaying) else {}),
                **_spoken(policy),
            }
            for name, policy in made.items()
        ],
        "protocol": rules.episode_values(),
        "seed": request.seed,
        "max_steps": request.max_steps,
        "archive": request.archive,
        **({"stop_on_violation": _watch(request.watch, tasks)} if request.stop_on_violation else {}),
        "versions": {"safevla-bench": __version__, **host.versions()},
        "volatile": {**request.volatile, **({"servers": request.servers} if request.servers else {})},
    }


def _watch(by: Judge, tasks: Sequence[Task]) -> dict[str, object]:
    """What decides that an episode ends: all that changes where it does. Raises where it cannot be decided."""
    by.monitor()
    specs, known = by.load()
    for task in tasks:
        known.tags(task.benchmark, task.task_id, by.capabilities)
    return {
        "library": specs.name,
        "library_digest": specs.digest,
        "registry_digest": known.digest,
        "capabilities": by.capabilities,
        "missing": by.missing,
    }


def _spoken(policy: Policy) -> dict[str, object]:
    """How a policy is asked, and from which of the paper's entries that follows."""
    spoken = getattr(policy, "dialect", None)
    said: dict[str, object] = {"dialect": dialects.values(spoken)} if isinstance(spoken, Dialect) else {}
    if isinstance(policy, zoo.Served):
        one = policy.entry
        said["entry"] = {"name": one.name, "checkpoints": one.checkpoints, "unknown": one.unknown}
    return said


def estimate(request: Request, running: Running = _PLAINLY) -> rollout.Estimate:
    """What `roll_out` would run and what that costs; raises what `prepare` raises, and writes nothing."""
    prepared = prepare(request if request.servers else replace(request, servers=_anywhere(request)))
    cameras = {name: len(policy.wants.cameras) for name, policy in prepared.policies.items()}
    prepared.close()
    return rollout.estimate(prepared.episodes, prepared.host.name, cameras, running.workers)


def _anywhere(request: Request) -> tuple[str, ...]:
    """Stands for the servers of a run that is only planned."""
    return tuple(f"{suite}=nowhere" for suite in request.suites)


def roll_out(
    request: Request, out: Path, observer: rollout.Observer | None = None, running: Running = _PLAINLY
) -> list[runs.EpisodeRow]:
    """Run every planned episode into a run folder; returns the row of each, in plan order.

    What is finished is kept, whatever ends this process, and `Running(resume=True)` continues from there.

    Raises what `prepare` raises, `RunError` where the folder is in the way or holds a run that was asked for
    differently, `HostError` where the simulator cannot be used (no folder is left behind where nothing was recorded),
    and `KeyboardInterrupt`.
    """
    prepared = prepare(request)
    try:
        with runs.RunWriter(out, prepared.description, resume=running.resume) as writer:
            _fill(writer, prepared, running, observer)
    finally:
        prepared.close()
    return runs.episode_rows(out)


def _fill(writer: runs.RunWriter, prepared: Prepared, running: Running, observer: rollout.Observer | None) -> None:
    if writer.complete:
        if not running.retry_crashed or all(row.outcome != "crashed" for row in runs.episode_rows(writer.folder)):
            return
        writer.reopen()
    places = {planned.episode_id: place for place, planned in enumerate(prepared.episodes)}
    pending = [one for one in prepared.episodes if not _done(writer.entries.get(places[one.episode_id]), running)]
    try:
        with closing(_engine(prepared, pending, running, observer)) as ended:
            for finished in ended:
                writer.append(places[finished.planned.episode_id], _row(finished), finished.frame, finished.latency)
    except SafevlaError:
        if writer.fresh and not writer.entries:
            writer.discard()
        raise
    writer.finish()


def _done(entry: runs.Entry | None, running: Running) -> bool:
    return entry is not None and not (running.retry_crashed and entry.row.outcome == "crashed")


def _engine(
    prepared: Prepared, pending: Sequence[rollout.Planned], running: Running, observer: rollout.Observer | None
) -> Generator[rollout.Finished]:
    """The pending episodes as they end, run here or by workers."""
    if not pending:
        return
    if running.workers > 1:
        prepared.close()  # the workers make their own; a large model need not be here too
        yield from rollout.run_workers(prepared.cast, pending, running.workers, observer)
        return
    watch = prepared.cast.stopping.monitor() if prepared.cast.stopping else None
    for outcome in rollout.run_all(prepared.host, pending, prepared.policies, observer, watch):
        yield rollout.Finished.of(outcome)


def _row(finished: rollout.Finished) -> runs.EpisodeRow:
    planned = finished.planned
    played = planned.start.recorded is not None and planned.start.recorded.state is not None
    return runs.EpisodeRow(
        episode_id=planned.episode_id,
        policy=planned.policy,
        benchmark=planned.task.benchmark,
        task_id=planned.task.task_id,
        episode=planned.episode,
        init_state_index=None if played else planned.start.init_state_index,
        env_seed=planned.start.env_seed,
        seed=planned.seed,
        policy_seed=planned.policy_seed,
        horizon=planned.horizon,
        outcome=finished.outcome,
        steps=finished.steps,
        reason=finished.reason,
    )


def judge(paths: Sequence[Path], by: Judge, *, skip_invalid: bool = False) -> Judged:
    """Score every episode of the sources.

    Raises `CollectedError` listing every bad episode, `SignalError`, `UnknownTaskError`, `SpecError`, `RegistryError`.
    """
    specs, tasks = by.load()
    records = runs.Records(paths)
    chunks = records.first()
    try:
        scores = _scored(chunks, specs, tasks, by)
    except SafevlaError:
        for _ in chunks:  # bad episodes come before what the good ones lack, and all of them are listed
            pass
        records.require(skip_invalid=skip_invalid)
        raise
    records.require(skip_invalid=skip_invalid)
    provenance = {
        "library": {"name": specs.name, "digest": specs.digest},
        "registry": {"digest": tasks.digest},
        "capabilities": by.capabilities,
        "missing": by.missing,
        "applicability": by.applicability,
        "skipped": [str(problem) for problem in records.problems],
        "version": __version__,
    }
    scores = replace(scores, absent=tuple(records.absent), provenance=provenance)
    return Judged(scores, records, specs, _joined(records, provenance), by, tuple(paths))


def _scored(chunks: Iterable[Batch], specs: Library, tasks: Registry, by: Judge) -> Scores:
    return score_chunks(
        chunks, specs, tasks, capabilities=by.capabilities, missing=by.missing, applicability=by.applicability
    )


def rescorer(judged: Judged, by: Judge) -> Callable[[Library], Scores]:
    """Judges the same records in the same way with another library, as `sensitivity` may ask."""
    _, tasks = by.load()

    def rescored(other: Library) -> Scores:
        again = score_chunks(
            judged.records.chunks(),
            other,
            tasks,
            capabilities=by.capabilities,
            missing=by.missing,
            applicability=by.applicability,
        )
        return replace(again, absent=judged.scores.absent)

    return rescored


def lost(judged: Judged) -> list[str]:
    """What is missing from the scores beside crashed and stopped episodes, each as one sentence."""
    skipped = judged.scores.provenance.get("skipped")
    count = len(skipped) if isinstance(skipped, list) else 0
    found = [f"{judged.interrupted} run was interrupted before its last episode"] if judged.interrupted else []
    return found + ([f"{count} invalid episode{'' if count == 1 else 's'} left out"] if count else [])


def contestants(
    paths: Sequence[Path], by: Judge, *, policies: Sequence[str] = (), skip_invalid: bool = False
) -> list[Entrant]:
    """The policies of every source (all, or those named), each source judged by itself, with names that differ.

    Raises what `judge` raises, and `RunError` for a policy that no source has.
    """
    found: list[Entrant] = []
    for path in paths:
        judged = judge([path], by, skip_invalid=skip_invalid)
        (source,) = cast("list[Mapping[str, object]]", judged.description["sources"])
        protocol = source.get("protocol")
        found += entrants(
            judged.scores,
            judged.records.headers,
            str(path),
            protocol=protocol if isinstance(protocol, dict) else None,
            privileged=judged.privileged,
        )
    unknown = [name for name in policies if name not in {one.name for one in found}]
    if unknown:
        remedy = f"There are {', '.join(dict.fromkeys(one.name for one in found)) or 'none'}."
        raise RunError(f"no source has the policy {unknown[0]!r}", remedy=remedy)
    return named_apart([one for one in found if not policies or one.name in policies])


def material(judged: Judged, by: Judge) -> catalogue.Material:
    """What tables are made of; the judgement without tags is made when a table asks for it."""
    specs, tasks = by.load()
    return catalogue.Material(
        scores=judged.scores,
        library=specs,
        registry=tasks,
        capabilities=by.capabilities,
        roster=Roster(privileged=judged.privileged),
        untagged=lambda: score_chunks(judged.records.chunks(), specs, tasks, applicability="off"),
        remarks=[
            *([INTERRUPTED] if judged.interrupted else []),
            *_left_out(judged.skipped),
            *cautioning.warning(baseline(judged.scores)),
        ],
        exposed=lambda: exposed(judged, by),
    )


INTERRUPTED = "An interrupted run is among these: the numbers cover only the episodes that it finished."


def _left_out(skipped: int) -> list[str]:
    return [f"{skipped} invalid episode{'' if skipped == 1 else 's'} left out."] if skipped else []


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
        complete=not judged.interrupted,
        skipped=judged.skipped,
    )


def _joined(records: runs.Records, provenance: Mapping[str, object]) -> dict[str, object]:
    told = [_repeatable(description) or {"archive": path.name} for path, description in records.descriptions]
    return {**provenance, "sources": told}


def _repeatable(description: Mapping[str, object]) -> dict[str, object]:
    """A run's description without the facts of the day, so that the same run gives the same report."""
    return {name: value for name, value in description.items() if name != "volatile"}


def exposed(judged: Judged, by: Judge) -> tuple[list[beyond.CellExposure], float | None]:
    """How long, how hard and in which phase each cell broke its limits, and the force threshold in newtons."""
    _, tasks = by.load()
    spent = beyond.exposure_of(judged.records.chunks(), judged.scores, judged.library, tasks)
    return beyond.exposures(spent, judged.scores), spent.force_threshold_n


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
    }


def write(judged: Judged, folder: Path, *, legacy_ids: bool = False) -> None:
    """Write scores.json, scores.parquet and report.html into a folder, made where it is missing.

    With `legacy_ids` the two score files use the names of the authors' published tables where they differ from ours.
    """
    contents = score_files(judged, legacy_ids=legacy_ids)
    html = report(judged)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    write_atomically(folder / runs.REPORT, html)


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
    provenance |= {"standin_assets": judged.standin} if judged.standin else {}
    return page(
        judged.scores,
        judged.records.some(drawn(judged.scores, judged.records.headers)),
        judged.library,
        title=title,
        provenance=provenance,
        analysis=_analysis(judged),
        album=album(judged.paths),
    )


def _analysis(judged: Judged) -> Analysis:
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
        chunks=judged.records.chunks(),
        privileged=judged.privileged,
        protocols=[one for one in told if isinstance(one, dict)],
    )


def board(
    paths: Sequence[Path], by: Judge, *, title: str = "Safety board", reports: bool = True, skip_invalid: bool = False
) -> dict[str, str]:
    """The files of a board by their path: published results, and the policies of the sources where there are any.

    Args:
        paths: run folders and archives.
        by: with what to judge them.
        title: what the board is called.
        reports: whether each policy has a report beside its page.
        skip_invalid: leave invalid episodes out instead of raising.

    Raises what `judge` raises, and `RunError` for an ablation.
    """
    if by.applicability == "off":
        remedy = "Judge with it on; `safevla tables --which applicability` shows the ablation."
        raise RunError("applicability was off: an ablation is no result to publish", remedy=remedy)
    if not paths:
        return boards.site(title=title)
    judged = judge(paths, by, skip_invalid=skip_invalid)
    of = boards.Measured(
        material=material(judged, by),
        headers=judged.records.headers,
        protocols=boards.protocols(judged.description),
    )
    of = replace(of, standin={policy: _only(judged, policy).standin for policy in of.policies})
    own = {policy: boards.report_page(policy) for policy in of.policies} if reports else {}
    files = boards.site(of, title=title, provenance=judged.description, reports=own)
    return files | {
        path: report(_only(judged, policy), f"Safety report: {policy or UNNAMED}") for policy, path in own.items()
    }


def _only(judged: Judged, policy: str | None) -> Judged:
    """What was judged of one policy."""
    mine = [k for k, header in enumerate(judged.records.headers) if header.policy == policy]
    return replace(judged, scores=boards.only(judged.scores, policy), records=judged.records.only(mine))


def evaluate(
    request: Request,
    by: Judge,
    out: Path,
    observer: rollout.Observer | None = None,
    running: Running = _PLAINLY,
) -> Judged:
    """Roll out, judge and report into one run folder; takes and raises what `roll_out` and `judge` do."""
    by.load()  # a mistake in a library costs no rollout
    roll_out(request, out, observer, running)
    judged = judge([out], by)
    write(judged, out)
    return judged
