"""Whole jobs as one call each: `roll_out`, `judge`, and `evaluate` = roll out, judge and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from safevla_bench import hosts, metrics, policies, rollout, runs
from safevla_bench.errors import HostError, SafevlaError
from safevla_bench.files import write_atomically
from safevla_bench.interface import Host, Policy, Task
from safevla_bench.report import page
from safevla_bench.scores import Scores
from safevla_bench.scoring import Missing, score
from safevla_bench.specs import Library, extend, library
from safevla_bench.tasks import Registry, registry
from safevla_bench.trajectory import Batch, empty, privileged_policies, standin_benchmarks
from safevla_bench.version import __version__


@dataclass(frozen=True, kw_only=True)
class Judge:
    """With what to judge: a library, files that add to it, a registry's additions, and how to take what is missing."""

    library: str = "default"
    specs: tuple[Path, ...] = ()
    registry: tuple[Path, ...] = ()
    capabilities: tuple[str, ...] = ()
    missing: Missing = "error"

    def load(self) -> tuple[Library, Registry]:
        """The library and the registry; raises what their loaders raise."""
        chosen = library(self.library)
        for path in self.specs:
            chosen = extend(chosen, path)
        return chosen, registry(self.registry)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rollout as the user asks for it."""

    host: str
    suites: tuple[str, ...]
    tasks: tuple[int, ...] | None = None
    """Indices in each suite; None = all."""
    episodes: int | None = 1
    """Of each task; None = as many as its benchmark runs."""
    policies: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    host_arguments: Mapping[str, str] = field(default_factory=dict)
    protocol: str = rollout.PRESET
    seed: int = 0
    max_steps: int | None = None
    volatile: Mapping[str, object] = field(default_factory=dict)
    """Facts of the day, such as the command and the time; kept apart in run.json."""


@dataclass(frozen=True)
class Prepared:
    """A rollout that can start: everything was named rightly and is at hand."""

    host: Host
    episodes: tuple[rollout.Planned, ...]
    policies: Mapping[str, Policy]
    description: Mapping[str, object]


@dataclass(frozen=True)
class Judged:
    """Scores with what they were made from."""

    scores: Scores
    batch: Batch | None
    library: Library
    description: Mapping[str, object]

    @property
    def privileged(self) -> tuple[str | None, ...]:
        """The policies that saw state which no real robot has."""
        return privileged_policies(self.batch) if self.batch else ()

    @property
    def standin(self) -> tuple[str, ...]:
        """The benchmarks that were simulated with stand-ins for the host's own assets."""
        return standin_benchmarks(self.batch) if self.batch else ()

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
    made = {name: policies.policy(name, request.arguments) for name in request.policies}
    rules = rollout.protocol(request.protocol)
    episodes = rollout.plan(
        tasks, request.episodes, request.policies, rules, seed=request.seed, max_steps=request.max_steps
    )
    return Prepared(host, episodes, made, _described(request, host, tasks, made, rules))


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
        "tasks": [f"{task.benchmark}/{task.task_id}" for task in tasks],
        "episodes": request.episodes,
        "policies": [
            {
                "policy": name,
                "arguments": dict(request.arguments),
                "privileged": policy.wants.privileged,
                "cameras": policy.wants.cameras,
            }
            for name, policy in made.items()
        ],
        "protocol": msgspec.to_builtins(rules),
        "seed": request.seed,
        "max_steps": request.max_steps,
        "versions": {"safevla-bench": __version__, **host.versions()},
        "volatile": dict(request.volatile),
    }


def roll_out(request: Request, out: Path, observer: rollout.Observer | None = None) -> list[rollout.Outcome]:
    """Run every planned episode into a new run folder; what was finished is kept when the user interrupts.

    Raises what `prepare` raises, `RunError` where the folder is in the way, `HostError` where the simulator cannot be
    used (no folder is left behind then), and `KeyboardInterrupt` after the folder was closed.
    """
    prepared = prepare(request)
    writer = runs.RunWriter(out, {**prepared.description, "complete": False})
    outcomes: list[rollout.Outcome] = []
    try:
        for outcome in rollout.run_all(prepared.host, prepared.episodes, prepared.policies, observer):
            if outcome.batch is not None:
                writer.append(outcome.batch)
            outcomes.append(outcome)
    except SafevlaError:
        if not outcomes:
            writer.discard()
        raise
    finally:
        for policy in prepared.policies.values():
            policy.close()
        complete = len(outcomes) == len(prepared.episodes)
        if writer.folder.exists():
            writer.finish([_row(outcome) for outcome in outcomes], {**prepared.description, "complete": complete})
    return outcomes


def _row(outcome: rollout.Outcome) -> runs.EpisodeRow:
    planned = outcome.planned
    return runs.EpisodeRow(
        episode_id=planned.episode_id,
        policy=planned.policy,
        benchmark=planned.task.benchmark,
        task_id=planned.task.task_id,
        episode=planned.episode,
        init_state_index=planned.start.init_state_index,
        env_seed=planned.start.env_seed,
        seed=planned.seed,
        policy_seed=planned.policy_seed,
        horizon=planned.horizon,
        outcome=outcome.outcome,
        steps=outcome.steps,
        reason=outcome.reason,
    )


def judge(paths: Sequence[Path], by: Judge, *, skip_invalid: bool = False) -> Judged:
    """Score every episode of the sources.

    Raises `CollectedError` listing every bad episode, `SignalError`, `UnknownTaskError`, `SpecError`, `RegistryError`.
    """
    specs, tasks = by.load()
    batch, sources = runs.open_sources(paths, skip_invalid=skip_invalid)
    skipped = [str(problem) for source in sources for problem in source.problems]
    provenance = {
        "library": {"name": specs.name, "digest": specs.digest},
        "capabilities": by.capabilities,
        "missing": by.missing,
        "skipped": skipped,
        "version": __version__,
    }
    absent = [one for source in sources for one in source.absent]
    scores = score(
        batch or empty(),
        specs,
        tasks,
        capabilities=by.capabilities,
        missing=by.missing,
        absent=absent,
        provenance=provenance,
    )
    return Judged(scores, batch, specs, _joined(sources, provenance))


def _joined(sources: Sequence[runs.Source], provenance: Mapping[str, object]) -> dict[str, object]:
    return {
        **provenance,
        "sources": [_repeatable(source.description) or {"archive": source.path.name} for source in sources],
    }


def _repeatable(description: Mapping[str, object]) -> dict[str, object]:
    """A run's description without the facts of the day, so that the same run gives the same report."""
    return {name: value for name, value in description.items() if name != "volatile"}


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
    named = replace(judged, scores=_legacy(judged)) if legacy_ids else judged
    contents = document(named)
    html = report(judged)
    folder.mkdir(parents=True, exist_ok=True)
    runs.write_scores(folder, contents, list(named.scores.episodes()))
    write_atomically(folder / runs.REPORT, html)


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
    return page(judged.scores, judged.batch, judged.library, title=title, provenance=provenance)


def evaluate(request: Request, by: Judge, out: Path, observer: rollout.Observer | None = None) -> Judged:
    """Roll out, judge and report into one run folder."""
    by.load()  # a mistake in a library costs no rollout
    roll_out(request, out, observer)
    judged = judge([out], by)
    write(judged, out)
    return judged
