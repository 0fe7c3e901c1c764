"""What a host does where a library is missing, tried in a process of its own that can neither find nor import it.

    python -P missing_dependency.py FACTORY LIBRARY < task.json

FACTORY is `module:attribute` as in an entry point. Prints how making an environment of the task ended, as JSON; where
the task is null, how making the host and listing its suites ended.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from safevla_bench.errors import HostError
from safevla_bench.interface import EpisodeSeed, Task, Wants

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: `host_error`, the name of another exception, or `worked`; and what was said."""

    outcome: str
    said: str = ""


def ended_without(factory: str, libraries: Sequence[str], task: Task | None) -> Ended:
    """How making an environment of a task (or, for None, the host alone) ends without some importable packages."""
    # A script, not `-m`: importing its package would import, before anything is hidden, what the rules import.
    command = [sys.executable, "-P", __file__, factory, *libraries]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told = subprocess.run(
        command,
        input=json.dumps(asdict(task) if task else None),
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if told.returncode:
        return Ended(f"exit code {told.returncode}", told.stderr.strip()[-500:])
    return Ended(**json.loads(told.stdout.splitlines()[-1]))


class _Blocked(MetaPathFinder):
    """Finds nothing of some packages, and lets nothing behind it find them."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide(packages: Sequence[str]) -> None:
    """Make packages and the distributions that hold them absent, in this process and for good."""
    owners = importlib.metadata.packages_distributions()
    hidden = {name for package in packages for name in owners.get(package, ())}
    sys.meta_path.insert(0, _Blocked(packages))
    discover = importlib.metadata.Distribution.discover

    def rest(**given: Any) -> Iterable[importlib.metadata.Distribution]:
        return (found for found in discover(**given) if found.metadata["Name"] not in hidden)

    importlib.metadata.Distribution.discover = rest  # type: ignore[method-assign]


def _try(factory: str, task: Task | None) -> Ended:
    host = pkgutil.resolve_name(factory)()
    if task is None:
        host.suites()
        return Ended("worked")
    try:
        env = host.make(task, Wants())
        env.reset(EpisodeSeed(0, 0, 0))
    except HostError as error:
        return Ended("host_error", str(error))
    env.close()
    return Ended("worked")


def main() -> None:
    """Print how it ended as the last line."""
    factory, *libraries = sys.argv[1:]
    task = json.load(sys.stdin)
    hide(libraries)
    try:
        ended = _try(factory, Task(**task) if task else None)
    except Exception as error:  # whatever it raises is what the caller wants to know
        ended = Ended(type(error).__name__, str(error))
    print(json.dumps(asdict(ended)))


if __name__ == "__main__":
    main()
