"""Known differences between versions of simulators, by version ranges (`known_differences.json`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Mapping

from safevla_recorder.errors import get_logger

PHYSICS, PICTURES = "physics", "pictures"  # the values of `KnownDifference.changes`
_DATA = Path(__file__).with_name("known_differences.json")
_warned: set[tuple[str, str, str]] = set()  # host, package and version of each earlier warning
_log = get_logger(__name__)


@dataclass(frozen=True)
class KnownDifference:
    """A known difference in a package's versions from `since` (included) to `before` (excluded); None = no limit.

    `tasks` lists the affected tasks (as `benchmark/task_id`) or whole benchmarks; empty = all tasks.
    """

    host: str
    package: str
    since: str | None
    before: str | None
    changes: str
    statement: str
    tasks: tuple[str, ...]
    sources: tuple[str, ...]

    def covers(self, version: str) -> bool:
        """Return whether this difference affects a version; False if the version does not begin with a number."""
        # Versions from `since` (included) to `before` (excluded) are affected; None = no limit.
        number = version_number(version)
        is_too_old = self.since is not None and number < version_number(self.since)
        is_too_new = self.before is not None and number >= version_number(self.before)
        return bool(number) and not is_too_old and not is_too_new

    def concerns(self, task: str) -> bool:
        """Return whether the difference affects the task `benchmark/task_id`."""
        # `tasks` lists the affected tasks or whole benchmarks; empty = all tasks.
        return not self.tasks or task in self.tasks or task.partition("/")[0] in self.tasks

    def describe(self, version: str) -> str:
        """Return a sentence, without a final period, about the difference in an installed version."""
        # `version` is the installed version of the package. The sentence states the first version with the difference,
        # the affected tasks (unless all are affected), what differs, and the sources of this knowledge.
        tasks_prefix = f"{', '.join(self.tasks)}: " if self.tasks else ""
        since_note = f" (since {self.since})" if self.since and self.since != version else ""
        return f"{self.package} {version}{since_note}: {tasks_prefix}{self.statement} [{'; '.join(self.sources)}]"


def version_number(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without trailing zeros; () if it does not begin with a number.

    >>> version_number("3.4.0rc1")
    (3, 4)
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def physics_versions(versions: Mapping[str, str] | None) -> dict[str, str]:
    """Return the versions that affect physics: all except NumPy's, Python's and this project's; {} for None."""
    excluded = _read_data()["not_physics"]
    return {name: version for name, version in (versions or {}).items() if name not in excluded}


def results_version(versions: Mapping[str, str] | None) -> int | None:
    """Return a record's results-version: how many releases, up to the record's version of safevla-bench (or of
    safevla-recorder), changed results. Return None if `versions` lacks both packages.

    Records with the same results-version can be compared, even if the versions of the package differ.
    """
    versions = versions or {}
    own_version = versions.get("safevla-bench", versions.get("safevla-recorder"))
    if own_version is None:
        return None
    # `results_since` lists the releases that changed results.
    return sum(version_number(since) <= version_number(own_version) for since in _read_data()["results_since"])


def find_differences(
    host: str | None, versions: Mapping[str, str], changes: str | None = None
) -> list[KnownDifference]:
    """Return the known differences of the installed versions (package -> version), in the order of the data file.

    `host` is the simulator, such as `libero`; None = any. `changes` is `physics` or `pictures`; None = both. Packages
    that are missing in `versions` are left out.
    """
    return [
        difference
        for difference in known_differences()
        # An unknown version is "", which no difference covers.
        if host in (None, difference.host)
        and changes in (None, difference.changes)
        and difference.covers(versions.get(difference.package, ""))
    ]


def warn_once(host: str, versions: Mapping[str, str]) -> None:
    """Warn of the known differences of the installed versions, unless this process has already warned of each."""
    differences = find_differences(host, versions)
    # `_warned` contains the keys of all earlier warnings of this process.
    warning_keys = frozenset((host, difference.package, versions[difference.package]) for difference in differences)
    if warning_keys - _warned:
        _warned.update(warning_keys)
        sentences = [difference.describe(versions[difference.package]) for difference in differences]
        _log.warning(
            "Results may depend on the installed versions of the simulator. Known differences:\n  %s",
            "\n  ".join(sentences),
        )


@lru_cache(maxsize=None)
def known_differences() -> tuple[KnownDifference, ...]:
    """Return all known differences, in the order of the data file. Cached."""
    rows = _read_data()["differences"]
    # JSON has lists, but the fields of a `KnownDifference` are tuples.
    return tuple(
        KnownDifference(**{**row, "tasks": tuple(row["tasks"]), "sources": tuple(row["sources"])}) for row in rows
    )


@lru_cache(maxsize=None)
def _read_data() -> Any:
    # Return the content of the data file about differences between versions. Cached, so callers must not change it.
    return json.loads(_DATA.read_text(encoding="utf-8"))
