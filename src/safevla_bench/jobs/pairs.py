"""Writes suites of the start states that still lack a preference pair, so that policies can run from them again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from safevla_bench.files import make_folder, write_atomically
from safevla_bench.hosts.protocols import EvaluationProtocol
from safevla_bench.jobs.verify.replays import RunFields, complete_protocol, episode_starts
from safevla_bench.judging.judged import Judged
from safevla_bench.rollout.found import FileStart, FoundSuite
from safevla_bench.sources.runs.folder import dump_json, encode_json
from safevla_bench.training.pairs import State
from safevla_bench.trajectory.marks import base_suite, is_chosen
from safevla_recorder.folder import OWN_LOOP

MOST_SEEDS = 32
"""Maximum number of rollouts from one start state in a suite."""


def write_rollout_suites(judged: Judged, states: Sequence[State], folder: Path) -> list[Path]:
    """Write suites for the start states that need more rollouts: one suite for each host, benchmark suite and protocol.
    Return the files. Each state gets `more_rollouts` new policy seeds, at most `MOST_SEEDS`. A suite lists the first
    seeds of all states before the second seeds. Omits states whose run does not say how an episode starts.
    """
    suites: dict[bytes, tuple[FoundSuite, list[FileStart]]] = {}  # the key is the suite without initial states, as JSON
    for state in states:
        # `more_rollouts` is the estimated number of missing rollouts; None means that the state needs no more.
        suite_and_start = _find_start(judged, state) if state.more_rollouts else None
        if suite_and_start is not None:
            empty_suite, start = suite_and_start
            _, suite_starts = suites.setdefault(encode_json(empty_suite), (empty_suite, []))
            suite_starts += _plan_seeds(state, start)
    files = []
    for _, (suite, suite_starts) in sorted(suites.items()):
        # The sort is stable, so the first seeds of all states come first, in the order of the states.
        planned = tuple(sorted(suite_starts, key=lambda start: start.trial))
        digest = hashlib.sha256(encode_json(planned)).hexdigest()[:8]
        # The digest in the name prevents overwriting earlier exports. If the suite is a path, use its last part.
        files.append(folder / f"{suite.suite.rpartition('/')[2]}-{digest}.json")
        make_folder(folder)
        write_atomically(files[-1], dump_json(msgspec.structs.replace(suite, name=f"pairs-{digest}", starts=planned)))
    return files


def _find_start(judged: Judged, state: State) -> tuple[FoundSuite, FileStart] | None:
    # Find the first candidate episode whose run says how the episode starts.
    # Return a suite without initial states, and the start of the episode found; None if no episode was found.
    for candidate in state.candidates:
        episode = judged.records.read_episode(candidate.index)
        description = judged.records.find_source(candidate.index).description
        header = episode.headers[0]
        try:
            protocol = msgspec.convert(complete_protocol(description.get("protocol")), EvaluationProtocol)
            run_fields = msgspec.convert(description, RunFields)
        except msgspec.ValidationError:  # the source is an archive without run.json, or a run without a host
            continue
        # A record may allow several starts, in order of preference; take the first one.
        start = next(episode_starts(protocol, episode), None)
        # A suite cannot repeat initial states of a user's script, or recorded simulator states.
        if protocol.name == OWN_LOOP or start is None or start.recorded is not None:
            continue
        # The format of suites is made for searches. Fields that describe a search get neutral values here.
        empty_suite = FoundSuite(
            name="pairs",
            host=run_fields.host,
            host_arguments=run_fields.host_arguments,
            suite=base_suite(header.benchmark),
            protocol=protocol.name,
            policy=candidate.policy,
            objective="pairs",
            method="recorded",
            seed=run_fields.seed or 0,
            tasks=(),
            starts=(),
            max_steps=run_fields.max_steps,
        )
        # `_plan_seeds` replaces `policy_seed` and `trial`.
        file_start = FileStart(
            task_id=header.task_id,
            start=start,
            policy_seed=0,
            instruction=header.instruction if is_chosen(header.benchmark) else None,
            trial=0,
            value=None,
            violated=(),
            distance_m=None,
            merged=0,
        )
        return empty_suite, file_start
    return None


def _plan_seeds(state: State, start: FileStart) -> list[FileStart]:
    # Return a copy of the start for each new policy seed. A seed is 32 bits of a digest of the state and the trial.
    first_trial = len(state.candidates)  # earlier episodes used the lower trial numbers
    planned = []
    for trial in range(first_trial, first_trial + min(state.more_rollouts or 0, MOST_SEEDS)):
        seed = int.from_bytes(hashlib.sha256(f"{state.digest}/{trial}".encode()).digest()[:4], "big")
        planned.append(msgspec.structs.replace(start, policy_seed=seed, trial=trial - first_trial + 1))
    return planned
