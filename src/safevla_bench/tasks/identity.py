"""The check whether an episode ran an official task. The record must prove this; the task's name is no proof.

See docs/explanation/trust.md.
"""

from __future__ import annotations

from typing import Final

from safevla_bench.tasks.reasons import read_reason, write_reason
from safevla_bench.trajectory.header import Header
from safevla_recorder.identity import OfficialSuite, find_official_name, official_suites

OFFICIAL: Final = "official"
_NO_TASK, _DIFFERS, _UNKNOWN, _NOT_RECORDED = "no_such_task", "differs", "not_known", "identity_not_recorded"


def is_own_task(identity: str) -> bool:
    """Return whether `identity`, a result of `judge_identity`, says that the task differs from the official task."""
    # `read_reason` maps the codes in `identity` to fields. The result is true if one of these two codes is there.
    return not {_NO_TASK, _DIFFERS}.isdisjoint(read_reason(identity))


def judge_identity(header: Header) -> str:
    """Return `OFFICIAL` if an episode ran the official task whose name it has. If the task differs, or may differ,
    return the reason for `describe_reason`. Return "" if no official suite has the benchmark's name.
    """
    name = find_official_name(header.benchmark)
    if name is None:
        return ""
    suite = official_suites()[name]
    task = suite.tasks.get(header.task_id)
    if task is None:
        return write_reason(_NO_TASK, name, header.task_id)
    values = {  # name -> (recorded value, official value); None = unknown
        "instruction": (header.instruction, task.instruction),
        "task definition": (header.task_sha256, task.task_sha256),
        "initial states": (header.init_states_sha256, task.init_states_sha256),
        "simulator code": _source_digests(header, suite),
    }
    differing = [
        field
        for field, (recorded, official) in values.items()
        if None not in (recorded, official) and recorded != official
    ]
    if differing:
        return write_reason(_DIFFERS, *differing)
    # If none of these values is recorded, nothing can be compared.
    if (header.task_sha256, header.init_states_sha256, header.task_source) == (None, None, None):
        return _NOT_RECORDED
    # The simulator's code must be known. Each other value must be known only if the official suite has this value.
    needed = {field for field, (_, official) in values.items() if official is not None} | {"simulator code"}
    missing = [field for field, pair in values.items() if field in needed and None in pair]
    return write_reason(_UNKNOWN, *missing) if missing else OFFICIAL


def has_official_source(header: Header) -> bool:
    """Return whether the code that simulated an episode is the official code of its distribution and version."""
    name = find_official_name(header.benchmark)
    # The digests of the simulator's code; without an official suite of this name, both are unknown.
    recorded, official = _source_digests(header, official_suites()[name]) if name else (None, None)
    return recorded is not None and recorded == official


def _source_digests(header: Header, suite: OfficialSuite) -> tuple[str | None, str | None]:
    # Return the recorded and the official digest of the simulator's code, None if unknown.
    # `task_source` has the distribution and version of the simulator's package, and the digest of its sources.
    source = header.task_source or {}
    official_sha256 = suite.sources.get((source.get("distribution", ""), source.get("version", "")))
    return source.get("sources_sha256"), official_sha256
