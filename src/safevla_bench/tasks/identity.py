"""Whether an episode ran an official task. Its record must prove this; a name is not enough.

See docs/explanation/trust.md.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from safevla_bench.trajectory.header import Header
from safevla_recorder.identity import OfficialSuite, find_official_name, official_suites

OFFICIAL: Final = "official"
NOT_RECORDED = "task identity not recorded"


class TaskVerdict(NamedTuple):
    """`own`: something differs from the official task. `unknown`: nothing differs, but something is not recorded."""

    kind: Literal["official", "own", "unknown"]
    reason: str = ""

    def __str__(self) -> str:
        """Return the kind, and the reason after a colon."""
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def judge_identity(header: Header) -> TaskVerdict | None:
    """Return whether an episode ran the official task whose name it has; None if its benchmark's name, in any spelling,
    is not that of an official suite.
    """
    name = find_official_name(header.benchmark)
    if name is None:
        return None
    suite = official_suites()[name]
    task = suite.tasks.get(header.task_id)
    if task is None:
        return TaskVerdict("own", f"{name} has no task {header.task_id}")
    recorded = {
        "instruction": (header.instruction, task.instruction),
        "task definition": (header.task_sha256, task.task_sha256),
        "initial states": (header.init_states_sha256, task.init_states_sha256),
        "simulator code": _compare_source(header, suite),
    }
    differing = [what for what, (own, official) in recorded.items() if None not in (own, official) and own != official]
    if differing:
        return TaskVerdict("own", f"differs in {', '.join(differing)}")
    if (header.task_sha256, header.init_states_sha256, header.task_source) == (None, None, None):
        return TaskVerdict("unknown", NOT_RECORDED)
    needed = {what for what, (_, official) in recorded.items() if official is not None} | {"simulator code"}
    missing = [what for what, sides in recorded.items() if what in needed and None in sides]
    return TaskVerdict("unknown", f"{', '.join(missing)} not known") if missing else TaskVerdict(OFFICIAL)


def has_official_source(header: Header) -> bool:
    """Return whether an episode was simulated by a distribution whose code is in the table of official tasks."""
    name = find_official_name(header.benchmark)
    own, official = _compare_source(header, official_suites()[name]) if name else (None, None)
    return own is not None and own == official


def _compare_source(header: Header, suite: OfficialSuite) -> tuple[str | None, str | None]:
    source = header.task_source or {}
    known = suite.sources.get((source.get("distribution", ""), source.get("version", "")))
    return source.get("sources_sha256"), known
