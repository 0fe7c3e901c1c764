"""Verification of a run folder: digests, episodes, scores and replays, with the reason for each check that is open.

`record_check` compares files with their digests and the table of episodes with the archive, `score_check` judges the
records again. Replays are here: recorded actions are played again in the simulator, and its states compared bit for
bit. A replay shows that the actions lead to the recorded states. It does not show where the actions came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench import hosts, runs
from safevla_bench.errors import HostError, Place, RunError, SafevlaError
from safevla_bench.hosts.mujoco.viewer import episode_seed, read_told_scene
from safevla_bench.interface import EpisodeSeed, Host, RecordedEpisode, Task, Wants
from safevla_bench.trajectory import (
    ABSOLUTE,
    DRAWN,
    Batch,
    Channel,
    Header,
    mark_flags,
    read_earlier_resets,
    read_wait_steps,
    replay_fields,
    standin_benchmarks,
)
from safevla_bench.verify.record_check import (
    EPISODES,
    PARTS,
    ArchiveContents,
    CheckVerdict,
    Finding,
    Verification,
    agreement,
    check_episodes,
    check_files,
    check_parts,
    mismatch,
    open_check,
)
from safevla_bench.verify.score_check import RulesetFiles, check_scores
from safevla_recorder.episode import EARLIER_SEED

__all__ = ["CheckVerdict", "Finding", "ProgressCallback", "RulesetFiles", "Verification", "verify_run"]

_BUILT_IN = RulesetFiles()
ASSETS = "assets"


def verify_run(
    run: Path, files: RulesetFiles = _BUILT_IN, *, replay: int = 0, observer: ProgressCallback = lambda done, what: None
) -> Verification:
    """Check a complete run folder: its digests, episodes and scores, and `replay` of its episodes in the simulator.

    Args:
        run: the folder.
        files: the specification and registry files that judged, if they are not built in.
        replay: number of episodes to play again; their names decide which.
        observer: is called before each replay.

    Raises:
        RunError: the folder holds no run, the run is not complete, or one of its files cannot be read.
    """
    _require_complete(run)
    try:
        return Verification(tuple(_check_run(run, files, replay, observer)))
    except OSError as error:
        remedy = "Verify where every file of the run can be read."
        raise RunError(error.strerror or str(error), remedy=remedy, place=Place(file=error.filename)) from None


def _check_run(run: Path, files: RulesetFiles, replay: int, observer: ProgressCallback) -> list[Finding]:
    """Make every check of a run and return the findings in order: parts, files, episodes, scores, stand-ins, replays.

    Episodes are left unchecked where the archive cannot be read whole.
    """
    findings = [*check_parts(run), *check_files(run)]
    records = ArchiveContents.read_run(run)
    findings += [mismatch(PARTS, str(problem)) for problem in records.problems]
    findings += (
        check_episodes(run, records) if not records.problems else [open_check(EPISODES, "the archive is not whole")]
    )
    findings += check_scores(run, files)
    findings += [open_check(ASSETS, _standin_note(name), wanted=False) for name in records.standin]
    return [*findings, *_check_replays(run, records, replay, observer)]


def _require_complete(run: Path) -> None:
    """Raise `RunError` unless the folder holds a run that is complete."""
    place = Place(file=str(run))
    if not (run / runs.RUN).is_file():
        remedy = f"Name a folder that `safevla eval` or `safevla rollout` made; it holds {runs.RUN}."
        raise RunError("this is not a run folder", remedy=remedy, place=place)
    if runs.read_description(run).get("complete") is not True:
        remedy = "Continue it first: safevla eval --resume --out RUN."
        raise RunError("the run is not complete", remedy=remedy, place=place)


def _standin_note(benchmark: str) -> str:
    """Return the reason why a suite's assets are unchecked: stand-ins replaced them when it was simulated."""
    return f"{benchmark} was simulated with stand-ins for its own assets; nothing here checks it with the real ones"


def _check_replays(run: Path, records: ArchiveContents, count: int, observer: ProgressCallback) -> list[Finding]:
    """Return the findings of `count` replays; a single open finding where `count` is 0 or the run has no record."""
    if not count:
        reason = "not asked for; --replay K plays K episodes again in the simulator"
        return [open_check(REPLAY, reason, wanted=False)]
    if not records.headers:
        return [open_check(REPLAY, "there is no record")]
    return check_replays(run, records, count, observer)


# Replays


ProgressCallback = Callable[[int, str], None]
"""Called before each episode with the number of finished episodes and the id of the next."""
REPLAY = "replay"
_OWN_PACKAGE = "safevla-bench"
_FROM_STATE = 1e-6
"""Largest difference in a replay from a recorded state that still agrees, in the units of the state."""
_OWN_LOOP = "own loop"
"""The protocol of a folder of `safevla_recorder.record`."""
PROCESSOR = (
    "The kernels of OpenBLAS depend on the processor, so that on another processor than the recording's the last "
    "digits may differ, and from contacts on more than those. Replay on one of the same kind before you suspect the "
    "records."
)


class _StartProtocol(msgspec.Struct, kw_only=True):
    """The part of a protocol that says how an episode starts."""

    wait_steps: int
    wait_steps_by_suite: dict[str, int] = {}
    wait_action: str | tuple[float, ...]
    init_state: str
    rest_steps: int = 0


def check_replays(run: Path, records: ArchiveContents, count: int, observer: ProgressCallback) -> list[Finding]:
    """Play `count` recorded episodes again in their host, and return a finding for each.

    A single open finding says why where the host cannot be used here or run.json does not tell how episodes start.
    Raises `RunError` where the archive changes meanwhile.
    """
    description = runs.read_description(run)
    try:
        start = msgspec.convert(_plain_protocol(description.get("protocol")), _StartProtocol)
    except msgspec.ValidationError:
        return [open_check(REPLAY, "run.json does not say how an episode starts")]
    try:
        host = hosts.make_host(str(description.get("host")), _host_arguments(description), named_by=run / runs.RUN)
        tasks = {(task.benchmark, task.task_id): task for task in _host_tasks(host, description)}
        versions = host.versions()
    except SafevlaError as error:
        return [open_check(REPLAY, f"the host cannot be used here: {error}")]
    findings = []
    for done, index in enumerate(choose_episodes(records.headers, count)):
        header = records.headers[index]
        observer(done, header.episode_id)
        episode = records.read_episode(index)
        obstacle = _replay_obstacle(episode, tasks, versions)
        findings.append(
            open_check(_check_name(header), obstacle) if obstacle else _replay_finding(host, tasks, start, episode)
        )
    return findings


def _plain_protocol(protocol: object) -> object:
    """Return the protocol of run.json unchanged, or the start rules of a folder that the user's own loop recorded.

    The number of steps waited is then None unless all blocks of the loop agree.
    """
    if not isinstance(protocol, Mapping) or protocol.get("name") != _OWN_LOOP:
        return protocol
    waited = protocol.get("wait_steps")
    alike = waited[0] if isinstance(waited, list) and len(waited) == 1 else None
    return {"wait_steps": alike, "wait_action": "still", "init_state": "episode"}


def choose_episodes(headers: Sequence[Header], count: int) -> list[int]:
    """Return `count` indices of episodes in ascending order, fewer where there are not so many.

    The episodes with the smallest digests of policy and id are chosen, so that the choice repeats.
    """

    def key(index: int) -> bytes:
        """Return the digest of an episode's policy and id."""
        header = headers[index]
        return hashlib.sha256(f"{header.policy}\n{header.episode_id}".encode()).digest()

    return sorted(sorted(range(len(headers)), key=key)[:count])


def _check_name(header: Header) -> str:
    return f"{REPLAY} {header.episode_id}"


def _host_arguments(description: Mapping[str, object]) -> dict[str, str]:
    """Return the host's arguments that run.json holds, as text; {} where they are missing."""
    arguments = description.get("host_arguments")
    return {str(name): str(value) for name, value in arguments.items()} if isinstance(arguments, dict) else {}


def _host_tasks(host: Host, description: Mapping[str, object]) -> list[Task]:
    """Return the host's tasks in the suites that run.json names; [] where it names none.

    Raises what the host raises.
    """
    suites = description.get("suites")
    return [task for suite in suites for task in host.tasks(str(suite))] if isinstance(suites, list) else []


def _replay_obstacle(episode: Batch, tasks: Mapping[tuple[str, str], Task], versions: Mapping[str, str]) -> str | None:
    """Return why an episode cannot be replayed here, such as a missing task or another version; None if it can."""
    header = episode.headers[0]
    if (header.benchmark, header.task_id) not in tasks:
        return f"the host has no task {header.task_id!r} in {header.benchmark!r}"
    channels: Mapping[str, Channel] = {"action": episode.action, "sim_state": episode.sim_state}
    absent = [name for name, channel in channels.items() if not channel.present[0]]
    if absent:
        return f"the record has no {' and no '.join(absent)}"
    for name, recorded in (header.versions or {}).items():
        if name != _OWN_PACKAGE and versions.get(name) != recorded:
            return f"it was recorded with {name} {recorded}, here is {versions.get(name, 'none')}"
    return None


def _replay_finding(
    host: Host, tasks: Mapping[tuple[str, str], Task], start: _StartProtocol, episode: Batch
) -> Finding:
    """Return the finding of an episode played again from each start that its record tells, until a replay agrees.

    Open where the record tells no start or the host cannot replay it; what the simulator raises is a mismatch.
    """
    header = episode.headers[0]
    findings = []
    for seed in _episode_starts(start, episode, host.name):
        try:
            replayed = _replay_actions(host, tasks[header.benchmark, header.task_id], seed, episode)
        except SafevlaError as error:
            findings.append(open_check(_check_name(header), f"the host cannot replay it here: {error}"))
        except Exception as error:  # a simulator can raise anything, where it raised nothing when this was recorded
            problem = f"the simulator raised {type(error).__name__}: {error}. {PROCESSOR}"
            findings.append(mismatch(_check_name(header), problem))
        else:
            findings.append(_compare_states(episode, replayed, seed))
        if findings[-1].verdict == "agrees":
            return findings[-1]
    if not findings:
        return open_check(
            _check_name(header), "the record says neither its seed and initial state nor its fixtures' places"
        )
    return _name_all_replays(findings)


def _name_all_replays(findings: Sequence[Finding]) -> Finding:
    """Return the last of an episode's findings, none of which agrees, with the text of the earlier ones added."""
    *before, last = findings
    earlier = "".join(f" Before that, from another start that the record tells: {finding.said}." for finding in before)
    return replace(last, said=f"{last.said}.{earlier}".replace("..", ".")) if earlier else last


def _compare_states(episode: Batch, replayed_episode: Batch, seed: EpisodeSeed) -> Finding:
    """Return whether the simulator's states of a replay equal the recorded ones bit for bit.

    From a recorded first state a difference up to `_FROM_STATE` agrees too, and a larger one leaves the check open.
    """
    name, recorded, replayed = _check_name(episode.headers[0]), _sim_states(episode), _sim_states(replayed_episode)
    if recorded.shape != replayed.shape:
        detail = f"{_describe_size(recorded)} are recorded, the replay has {_describe_size(replayed)}"
        return mismatch(name, detail)
    differing = np.flatnonzero((recorded.view(np.int64) != replayed.view(np.int64)).any(axis=1))
    note = "; with stand-ins for the host's own assets, here as there" if standin_benchmarks(episode) else ""
    if not len(differing):
        return agreement(name, f"{_describe_size(recorded)}, bit for bit{_describe_start(seed)}{note}")
    gaps = np.abs(recorded - replayed).max(axis=1)
    at_first, at_most = gaps[differing[0]], gaps.max()
    if _is_from_state(seed):
        detail = (
            f"from its recorded first state the replay differs by {at_first:.3g} in step {differing[0]} of "
            f"{len(recorded) - 1}, later by up to {at_most:.3g}; no state holds the solver's or controllers' memory"
        )
        return agreement(name, f"{detail}{note}") if at_most <= _FROM_STATE else open_check(name, detail)
    first_step = f"step {differing[0]} of {len(recorded) - 1}"
    detail = f"the states differ from {first_step} on, there by {at_first:.3g}, later by up to {at_most:.3g}"
    return mismatch(name, f"{detail}. {PROCESSOR}")


def _is_from_state(seed: EpisodeSeed) -> bool:
    return seed.recorded is not None and seed.recorded.state is not None


def _describe_start(seed: EpisodeSeed) -> str:
    """Return words on how the replay started, "" where it started from a seed alone."""
    if _is_from_state(seed):
        return ", from its recorded first state"
    return f", after {seed.earlier_resets} earlier resets from seed {seed.env_seed}" if seed.earlier_resets else ""


def _describe_size(states: NDArray[np.float64]) -> str:
    return f"{states.shape[0]} states of {states.shape[1]} numbers"


def _episode_starts(start: _StartProtocol, episode: Batch, host: str) -> Iterator[EpisodeSeed]:
    """Yield the starts that a record tells, at most two; nothing where it tells none.

    From its seed, or that of an earlier reset, with the record's initial state or told scene; then, where its own seed
    or initial state is missing, from its first state.
    """
    header, (replay,) = episode.headers[0], replay_fields(episode)
    seed, earlier_resets = header.env_seed, read_earlier_resets(replay)
    earlier = _read_earlier_seed(episode)
    if seed is None and earlier is not None:
        seed, earlier_resets = earlier
    waited = read_wait_steps(replay)
    if seed is not None and header.init_state_index is not None:
        yield EpisodeSeed(
            init_state_index=header.init_state_index,
            env_seed=seed,
            wait_steps=(
                waited if waited is not None else start.wait_steps_by_suite.get(header.benchmark, start.wait_steps)
            ),
            wait_action=None if isinstance(start.wait_action, str) else start.wait_action,
            rest_steps=start.rest_steps,
            drawn=start.init_state == "drawn" or mark_flags(episode, DRAWN)[0],
            earlier_resets=earlier_resets,
        )
    scene = read_told_scene(episode, host)
    if seed is not None and header.init_state_index is None and scene:
        recorded = RecordedEpisode(header.episode_id, "", len(episode.action.episode_rows(0)), told=scene)
        yield EpisodeSeed(0, seed, start.wait_steps, earlier_resets=earlier_resets, recorded=recorded)
    if header.env_seed is None or header.init_state_index is None:
        with suppress(HostError):
            yield episode_seed(episode, host)


def _read_earlier_seed(episode: Batch) -> tuple[int, int] | None:
    """Return (seed, resets since) of an earlier reset that a loop seeded; None where the record tells of none."""
    header = episode.extra[0].get("header")
    earlier = header.get(EARLIER_SEED) if isinstance(header, Mapping) else None
    if not isinstance(earlier, Mapping):
        return None
    seed, resets = earlier.get("seed"), read_earlier_resets(earlier)
    return (seed, resets) if isinstance(seed, int) and resets is not None else None


def _replay_actions(host: Host, task: Task, seed: EpisodeSeed, episode: Batch) -> Batch:
    """Play an episode's recorded actions in a new environment from this start, and return the new record.

    Raises whatever the host and the simulator raise; the environment is closed in any case.
    """
    with closing(host.make(task, Wants(absolute=mark_flags(episode, ABSOLUTE)[0]))) as env:
        env.reset(seed)
        for action in episode.action.episode_rows(0):
            env.step(action)
        return env.recorded()


def _sim_states(episode: Batch) -> NDArray[np.float64]:
    """Return the simulator's states of an episode, [T + 1, S], contiguous in memory."""
    return np.ascontiguousarray(episode.sim_state.episode_rows(0), dtype=np.float64)
