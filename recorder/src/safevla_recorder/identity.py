"""The identity of a task: hashes of its definition, initial states and simulator code, compared with official hashes.

A name does not prove which task was simulated. The hashes prove it, but they do not cover the simulator's assets.
`official_tasks.json` contains the hashes of the official suites; docs/tools/official_tasks.py writes it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import json
import re
import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple

import numpy as np

from safevla_recorder.errors import get_logger

_DATA = Path(__file__).with_name("official_tasks.json")
_log = get_logger(__name__)


@dataclass(frozen=True)
class TaskIdentity:
    """Hashes that identify what was simulated; None = unknown.

    `task_sha256` is the hash of the task's file or class, and `init_states_sha256` the hash of its array of initial
    states. `task_source` names the distribution and version of the simulator's code. The entry `sources_sha256`
    is the hash of the environments' code. If the distribution is unknown, only the hash is present.
    """

    task_sha256: str | None = None
    init_states_sha256: str | None = None
    task_source: Mapping[str, str] | None = None

    def header_fields(self) -> dict[str, object]:
        """Return the identity as fields of an episode's header."""
        # The fields `task_sha256`, `init_states_sha256` and `task_source`; None = unknown.
        return dict(vars(self))


def read_identity(
    definition: Path | type, states: np.ndarray[Any, Any] | None, package: str, folder: str
) -> TaskIdentity:
    """Return the identity of a task: the hashes of its file or class, of its initial states [count, state], and of the
    code in `folder` of an imported package. If one of these is unreadable, all hashes are unknown; logs a warning.
    """
    # `definition` is the task's file or class. `states` are None if there is no array of initial states.
    # `folder` is a path relative to the package's own folder.
    try:
        if isinstance(definition, type):
            task = hash_class(definition)
        else:
            task = hashlib.sha256(definition.read_bytes()).hexdigest()
        return TaskIdentity(task, None if states is None else hash_array(states), read_source(package, folder))
    except Exception as error:  # recording must not fail because of a user's class or files
        _log.warning("The task's identity cannot be read, so records will lack it: %s", error)
        return TaskIdentity()


def hash_array(array: np.ndarray[Any, Any]) -> str:
    """Return the hash of an array's dtype, shape and bytes (little-endian, C order)."""
    array = np.asarray(array)
    # A fixed byte order and memory layout give equal arrays equal hashes on all machines.
    ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    description = json.dumps([ordered.dtype.str, list(array.shape)])
    return hashlib.sha256(description.encode() + b"\n" + ordered.tobytes()).hexdigest()


@lru_cache(maxsize=None)
def hash_class(kind: type) -> str:
    """Return the hash of a class's qualified name and source, without decorators and code of base classes. Cached."""
    # Parse the file of the class, and find the lines of the class in it.
    text = Path(str(inspect.getsourcefile(kind))).read_text(encoding="utf-8")
    node: Any = ast.parse(text)
    # A qualified name lists the enclosing classes, outermost first, and then the class itself.
    for name in kind.__qualname__.split("."):
        node = next(child for child in node.body if isinstance(child, ast.ClassDef) and child.name == name)
    source = text.splitlines()[node.lineno - 1 : node.end_lineno]
    hashed_text = "\n".join([f"{kind.__module__}.{kind.__qualname__}", *source])
    return hashlib.sha256(hashed_text.encode()).hexdigest()


def hash_files(files: Iterable[tuple[str, bytes]]) -> str:
    """Return the hash of files, given as pairs of name and content in any order."""
    rows = sorted((name, hashlib.sha256(content).hexdigest()) for name, content in files)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


@lru_cache(maxsize=None)
def read_source(package: str, folder: str) -> dict[str, str]:
    """Return the distribution and version of an imported package, and the hash of the Python files in its `folder`.
    Return only the hash unless exactly one distribution provides the package. Cached.
    """
    # `folder` is a path relative to the package's own folder.
    root = Path(str(sys.modules[package].__file__)).parent / folder
    sources = hash_files((path.relative_to(root).as_posix(), path.read_bytes()) for path in root.rglob("*.py"))
    versions = find_distributions(package)
    if len(versions) != 1:
        return {"sources_sha256": sources}
    [(distribution, version)] = versions.items()
    return {"distribution": distribution, "version": version, "sources_sha256": sources}


UNKNOWN = "unknown"
_CODE_SUFFIXES = (".py", ".toml", ".json", ".so")
_OWN_PACKAGES = ("safevla_bench", "safevla_recorder")


@lru_cache(maxsize=None)
def describe_code(package: str = "") -> str:
    """Return a text that identifies this process's code: for each imported package among safevla_bench,
    safevla_recorder and `package`, the name and 16 digits of its files' hash; `unknown` if a file is unreadable, or if
    `package` is a module without a file. Cached.

    A version does not identify code: two commits may share it. Normal and editable installations have equal hashes.
    """
    try:
        names = {name for name in _OWN_PACKAGES if name in sys.modules}
        if package:
            names.add(package)
        return ", ".join(f"{name} {hash_files(_code_files(name))[:16]}" for name in sorted(names))
    except Exception as error:  # recording must not fail; a package in an archive has no files to read
        _log.warning("The recorder's code cannot be read, so the run will not identify the code: %s", error)
        return UNKNOWN


def _code_files(package: str) -> Iterator[tuple[str, bytes]]:
    # Yield the relative path and the content of each file of a package with a suffix in `_CODE_SUFFIXES`.
    # Files in hidden folders, and files with hidden names, are left out.
    module = sys.modules[package]
    if not hasattr(module, "__path__"):  # the package is a single file
        file = Path(str(module.__file__))
        yield file.name, file.read_bytes()
        return
    for folder in map(Path, module.__path__):  # one folder; several folders for a package without `__init__`
        for path in folder.rglob("*"):
            name = path.relative_to(folder)
            if path.suffix in _CODE_SUFFIXES and not any(part.startswith(".") for part in name.parts):
                yield name.as_posix(), path.read_bytes()


def is_other_code(first: str, second: str) -> bool:
    """Return whether two texts of `describe_code` contain the same package with different hashes."""
    first_digests, second_digests = _package_digests(first), _package_digests(second)
    return any(first_digests[name] != second_digests[name] for name in first_digests.keys() & second_digests.keys())


def _package_digests(text: str) -> dict[str, str]:
    # Return the hash of each package in a text such as `package_a 01ab, package_b 23cd`; {} for the text `unknown`.
    parts = [entry.rpartition(" ") for entry in text.split(", ")]
    return {name: digest for name, _, digest in parts if name}


@lru_cache(maxsize=None)
def find_distributions(package: str) -> dict[str, str]:
    """Return the name and version of each installed distribution that provides an imported package. Cached."""
    file = Path(str(sys.modules[package].__file__)).resolve()
    relative = f"{package.replace('.', '/')}/{file.name}"  # the form of paths in a distribution's list of files
    installed = list(importlib.metadata.distributions())
    providers = [dist for dist in installed if _is_true_without_error(_lists_file, dist, relative, file)]
    if not providers:  # an editable installation does not list the package's files
        providers = [dist for dist in installed if _is_true_without_error(_is_editable, dist, file)]
    return {str(dist.metadata["Name"]): str(dist.version) for dist in providers}


def _is_true_without_error(check: Callable[..., bool], *arguments: object) -> bool:
    # Return the result of `check(*arguments)`, or False if it raises an error.
    try:
        return check(*arguments)
    except Exception:  # an unrelated damaged installation must not stop a recording
        return False


def _lists_file(distribution: importlib.metadata.Distribution, relative: str, file: Path) -> bool:
    # Return whether the distribution has installed `file`, whose path in the distribution is `relative`.
    # Another file with the same relative path may belong to another installation.
    file_list = distribution.read_text("RECORD") or distribution.read_text("SOURCES.txt") or ""
    return relative in file_list and Path(str(distribution.locate_file(relative))).resolve() == file


def _is_editable(distribution: importlib.metadata.Distribution, file: Path) -> bool:
    # Return whether the distribution is an editable installation of the project that contains `file`.
    # The metadata file `direct_url.json` contains the URL of the project's folder.
    # Files in `site-packages`, such as in a virtual environment inside this folder, do not belong to the project.
    direct_url = json.loads(distribution.read_text("direct_url.json") or "{}")
    project_folder = Path(str(direct_url.get("url", "")).partition("file://")[2] or "/nowhere")  # does not exist
    is_inside = project_folder in file.parents and "site-packages" not in file.relative_to(project_folder).parts
    return is_inside and bool(direct_url.get("dir_info", {}).get("editable"))


# The official tasks


class OfficialTask(NamedTuple):
    """A task of an official suite; `init_states` is the number of its initial states. `instruction` is None if it
    varies by episode. `init_states` and `init_states_sha256` are None if the task has no array of initial states.
    """

    name: str
    instruction: str | None
    task_sha256: str
    init_states_sha256: str | None
    init_states: int | None


class OfficialSuite(NamedTuple):
    """A suite: task id -> task, and (distribution, version) -> hash of the simulator's code."""

    tasks: Mapping[str, OfficialTask]
    sources: Mapping[tuple[str, str], str]


@lru_cache(maxsize=None)
def official_suites() -> dict[str, OfficialSuite]:
    """Return the official suites by benchmark name; aliases are included. Cached."""
    # For each host (simulator), the JSON file lists the hashes of the host's code by "distribution version".
    # The file also lists the host's suites by name. A suite maps ids to tasks; an alias is the name of another suite.
    # A task is a list of the fields of `OfficialTask`: name, instruction, two hashes, and number of initial states.
    suites: dict[str, OfficialSuite] = {}
    for host_data in json.loads(_DATA.read_text(encoding="utf-8")).values():
        sources = {tuple(name.split(" ")): digest for name, digest in host_data["sources"].items()}
        for name, tasks_or_alias in host_data["suites"].items():
            tasks = host_data["suites"][tasks_or_alias] if isinstance(tasks_or_alias, str) else tasks_or_alias
            suites[name] = OfficialSuite({key: OfficialTask(*row) for key, row in tasks.items()}, sources)
    return suites


@lru_cache(maxsize=1024)
def find_official_name(name: str) -> str | None:
    """Return the name of the official suite whose name looks like `name`; None if none does.

    Case, separators and Unicode forms of characters are ignored. A letter outside ASCII matches any letter, unless it
    is a wide East Asian letter. Any other character outside ASCII matches at most one character.

    >>> find_official_name("LIBERO_Object."), find_official_name("own-libero-object")
    ('libero-object', None)
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    # In the pattern, "." matches one unknown letter, and ".?" at most one other unknown character.
    pattern = "".join(map(_pattern_of_character, plain))
    if len(pattern.replace(".?", "")) > max(map(len, official_suites())):  # the name is longer than all official names
        return None
    # A match of n successive ".?" takes long. The pattern ".{0,n}" means the same, and is fast.
    pattern = re.sub(r"(\.\?)+", lambda match: f".{{0,{len(match[0]) // 2}}}", pattern)
    letters_of_suite = {suite: re.sub(r"\W", "", suite) for suite in official_suites()}
    return next((suite for suite, letters in letters_of_suite.items() if re.fullmatch(pattern, letters)), None)


def _pattern_of_character(char: str) -> str:
    # Return the part of `find_official_name`'s pattern for one character; "" if the character is ignored.
    # Letters and digits that are ASCII or wide East Asian ("W", "F") match only themselves; "." matches any character.
    if char.isascii() or unicodedata.east_asian_width(char) in "WF":
        return char if char.isalnum() else ""
    return "." if char.isalpha() else ".?"
