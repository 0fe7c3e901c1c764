"""A host's behaviour without a library, tried in a process of its own that can neither find nor import it.

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
from contextlib import closing
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from safevla_bench.errors import HostError
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, Task

TIMEOUT_S = 120


def run_without(factory: str, libraries: Sequence[str], task: Task | None) -> tuple[str, str]:
    """Return how making and resetting an environment ended, tried without some packages in a process of its own: an
    outcome, `host_error`, `worked` or the name of another exception, and the error's message; for a task of None, how
    making the host and listing its suites ended.

    A process that dies gives the outcome `exit code N` with the end of its stderr. Raises `subprocess.TimeoutExpired`
    after 120 s.
    """
    # A script, not `-m`: importing its package would import, before anything is hidden, what the rules import.
    command = [sys.executable, "-P", __file__, factory, *libraries]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    text = json.dumps(asdict(task) if task else None)
    process = subprocess.run(
        command, input=text, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if process.returncode:
        return f"exit code {process.returncode}", process.stderr.strip()[-500:]
    outcome, message = json.loads(process.stdout.splitlines()[-1])
    return outcome, message


class _HiddenPackages(MetaPathFinder):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _hide_packages(packages: Sequence[str]) -> None:
    """Make packages, by import name, and the distributions that hold them absent, in this process and for good."""
    owners = importlib.metadata.packages_distributions()
    hidden = {name for package in packages for name in owners.get(package, ())}
    sys.meta_path.insert(0, _HiddenPackages(packages))
    discover = importlib.metadata.Distribution.discover

    def visible_distributions(**context: Any) -> Iterable[importlib.metadata.Distribution]:
        return (distribution for distribution in discover(**context) if distribution.metadata["Name"] not in hidden)

    importlib.metadata.Distribution.discover = visible_distributions  # type: ignore[method-assign]


def _try_factory(factory: str, task: Task | None) -> None:
    host = pkgutil.resolve_name(factory)()
    if task is None:
        host.suites()
        return
    with closing(host.make(task, Wants())) as env:
        env.reset(EpisodeSeed(0, 0, 0))


def main() -> None:
    """Try the factory of the command line, and print the outcome, an exception too, as JSON in the last line."""
    factory, *libraries = sys.argv[1:]
    task = json.load(sys.stdin)
    _hide_packages(libraries)
    ended = "worked", ""
    try:
        _try_factory(factory, Task(**task) if task else None)
    except Exception as error:  # whatever it raises is what the caller wants to know
        ended = "host_error" if isinstance(error, HostError) else type(error).__name__, str(error)
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
