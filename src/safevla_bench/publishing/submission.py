"""A submission to a leaderboard: a result that can be published without the records.

A submission contains the origin of the result (rules, versions, digests of records and plans), the counts of each
policy and suite, and the verdict of each episode. In a cell, `success` is counted over the n episodes, `safe` and `vsi`
over judged episodes, and `unsafe_success` over episodes in both groups. n excludes crashed and stopped episodes, but
the list of episodes contains stopped ones. Unknown values are null. `no_verdict` is the reason for a missing verdict,
`rank_refused` the reason for a missing rank on an official suite. Violations of Boolean signals have no robustness.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from safevla_bench.errors import RunError
from safevla_bench.files import sha256_of
from safevla_bench.judging.judged import Judged, JudgedSource
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.rates import SAFETY
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import EpisodeScore, collect_versions
from safevla_bench.publishing.conditions import refuse_ranks
from safevla_bench.sources.runs.folder import archive_parts
from safevla_bench.sources.runs.parts import plan_digest
from safevla_bench.trajectory.header import Header
from safevla_bench.trajectory.marks import is_chosen
from safevla_bench.version import __version__


def build_submission(judged: Judged, paths: Sequence[Path]) -> dict[str, object]:
    """Return the submission for the judged sources, without writing it. The digests are computed from the sources'
    files, `paths`. If an episode was left out, the submission is marked incomplete. Raises `RunError` if there is no
    episode, if `applicability` was off, if a search chose starts, or if a run's table is damaged.
    """
    if judged.ruleset.is_ablation:
        problem = "the records were judged with applicability=off, an ablation that cannot be submitted"
        raise RunError(problem, remedy="Judge with applicability=on.")
    reason = "boards rank only results that are judged as in the paper"
    judged.ruleset.require_whole(reason, "Judge the records without this option.")
    summaries = cells(judged.scores)
    if not summaries:
        raise RunError("there are no episodes to submit", remedy="Name sources that hold episodes.")
    require_given_starts(judged.scores.benchmark)
    rows, couplings = list(judged.scores.episodes()), judged.describe_filters()
    return {
        "kind": "safevla-submission",
        "schema_version": 2,
        "judged_by": {"version": __version__, **describe_ruleset(judged.ruleset)},
        "recorded_with": collect_versions(header.versions or {} for header in judged.headers),
        "archive": list(_archive_files(paths)),
        "sources": [_describe_source(path, source) for path, source in zip(paths, judged.sources, strict=True)],
        "complete": judged.is_complete,
        "skipped": judged.left_out.count,
        **({"couplings": couplings} if couplings else {}),
        "cells": [_describe_cell(cell, rows, judged) for cell in summaries],
    }


def require_given_starts(suites: Iterable[str]) -> None:
    """Raise `RunError` if a search chose the initial states of a suite."""
    chosen = sorted(filter(is_chosen, set(suites)))  # a suite's name shows whether a search chose the states
    if chosen:
        problem = f"{chosen[0]} has initial states that a search chose, so it is not a result on the benchmark"
        raise RunError(problem, remedy="Name runs with the benchmark's own starts.")


def describe_ruleset(ruleset: Ruleset) -> dict[str, Any]:
    """Return plain values that identify the rules behind the verdicts: library, digests and options."""
    phases = ruleset.provenance().phases  # digest of the tasks' components; "" if phases of tasks are not judged
    return {
        "library": ruleset.library.name,
        "library_digest": ruleset.library.digest,
        "registry_digest": ruleset.registry.digest,
        "capabilities": ruleset.capabilities,
        "missing": ruleset.missing,
        **({"applicability": "phased", "phases": phases} if phases else {}),
    }


def _describe_cell(cell: Summary, rows: Sequence[EpisodeScore], judged: Judged) -> dict[str, object]:
    # Returns the numbers of a policy on a suite, and the verdict of each of its episodes, as plain values.
    # `rows` are the scores of all episodes of all policies and suites.
    registry = judged.ruleset.registry
    suite = registry.benchmarks.get(registry.canonical_suite(cell.suite or ""))
    own_rows = [row for row in rows if (row.policy, row.benchmark) == (cell.policy, cell.suite)]
    return {
        "policy": cell.policy,
        "benchmark": suite.host if suite else None,
        "suite": cell.suite or "",
        "privileged": cell.policy in judged.privileged,
        **{name: getattr(cell, name) for name in ("standin_assets", "simulator", "task_identity")},
        "rank_refused": refuse_ranks(judged, [cell]).get(cell.policy or ""),
        **{name: getattr(cell, name) for name in ("n", "crashed", "stopped")},
        "success": sum(row.success for row in own_rows if row.counted),
        "safe": cell.rates[SAFETY.key].count,
        "unsafe_success": cell.success_unsafe,
        **{name: getattr(cell, name) for name in ("judged", "no_verdict", "stopped_on_violation", "vsi")},
        "episodes": [
            {name: getattr(row, name) for name in _EPISODE_KEYS}
            | {"robustness": {name: rho for name, rho in row.robustness.items() if rho is not None}}
            for row in own_rows
        ],
    }


_EPISODE_KEYS = ("episode_id", "task_id", "outcome", "success", "safe", "sbu", "vsi", "no_verdict",
                 "stopped_on_violation", "robustness", "vacuous_specs", "violated_specs", "inactive_specs",
                 "first_violation_step")  # fmt: skip


def _archive_files(paths: Sequence[Path]) -> Iterator[dict[str, str]]:
    # Yields the name and the sha256 of each archive file. `paths` are run folders and archives.
    # The name of a file in a run folder is FOLDER/FILE.
    for path in paths:
        folder_prefix = f"{path.resolve().name}/" if path.is_dir() else ""
        for file in archive_parts(path) if path.is_dir() else [path]:
            yield {"name": folder_prefix + file.name, "sha256": sha256_of(file)}


def _describe_source(path: Path, source: JudgedSource) -> dict[str, object]:
    # Returns what a submission says about the run folder or archive at `path`; None = unknown.
    return {
        "protocol": source.protocol,
        "versions": source.description.get("versions", {}),
        "plan_sha256": plan_digest(path) if path.is_dir() else None,
        "archive_sha256": source.archive_sha256,
    }


def recorded_versions(headers: Iterable[Header]) -> dict[str, list[str]]:
    """Return package -> versions in the records. Packages are in order of first appearance, versions sorted as text."""
    versions = [header.versions or {} for header in headers]  # for each record: package -> version
    collected = collect_versions(versions)
    return {package: list(collected[package]) for package in dict.fromkeys(chain.from_iterable(versions))}
