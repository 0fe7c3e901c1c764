"""The child process that reads an HDF5 file of demonstrations: `python hdf5_child.py DESCRIPTOR BYTES SECONDS`.

libhdf5 crashes on some damaged files and hangs on others, and links in a file can open other files. So the child
process limits its own memory and CPU time, and cannot open another file. The module imports nothing from safevla_bench.

The process writes to stdout one line of JSON with `demos` or `error` (null if memory ran out), and then the actions and
states of each demonstration as float64 numbers.
"""

import codecs
import json
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, NoReturn
from xml.etree import ElementTree

REMEDY = "Name an HDF5 file of demonstrations, with `data/demo_N/actions` and `data/demo_N/states`."


class Refusal(Exception):
    """A problem with the file. `args` are (problem, remedy, demonstration, field)."""


def main(descriptor: int, memory: int, seconds: int) -> None:
    """Write the demonstrations of the open file to stdout."""
    # The first line is JSON with the demonstrations or an error (null = out of memory). All numbers follow as float64.
    # `descriptor` is the number of the open file. The limits are `memory` [bytes] and `seconds` of CPU time.
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_CPU, seconds)
    _lower_limit(resource.RLIMIT_DATA, memory)
    matrices: list[Any] = []  # the arrays of each demonstration: actions, and then states (if present)
    try:
        import h5py

        codecs.lookup("ascii")  # load now the codec that h5py needs for texts
        with h5py.File(f"/dev/fd/{descriptor}", "r") as file:
            _lower_limit(resource.RLIMIT_NOFILE, 0)  # from here on, no link in the file can open another file
            answer: dict[str, object] = {"demos": list(_read_demos(file, matrices))}
    except Refusal as refusal:
        answer = {"error": refusal.args}
    except MemoryError:
        answer = {"error": None}
    except Exception as error:  # h5py may raise any exception for a damaged file
        problem = f"cannot be read: {' '.join(str(error).split())[:400] or type(error).__name__}"
        answer = {"error": (problem, REMEDY, None, None)}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    if "demos" in answer:
        for matrix in matrices:
            sys.stdout.buffer.write(matrix)


def _lower_limit(resource_kind: int, limit: int) -> None:
    # Sets the soft limit, which must not exceed the hard limit. RLIMIT_CORE = 0 prevents a core dump.
    hard_limit = resource.getrlimit(resource_kind)[1]
    soft_limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(resource_kind, (soft_limit, hard_limit))


def _refuse(problem: str, remedy: str = REMEDY, demo: str | None = None, field: str | None = None) -> NoReturn:
    # Raises `Refusal`, which `main` writes as JSON. `demo` and `field` locate the problem; None = unknown.
    raise Refusal(problem, remedy, demo, field)


def _read_demos(file: Any, matrices: list[Any]) -> Iterator[dict[str, object]]:
    # Yields the facts about each demonstration, and appends the demonstration's actions and states to `matrices`.
    import h5py

    data = _read_item(file, "data", h5py.Group)
    suite, task, instruction = _read_task(data.attrs)
    names = [name for name in data if re.fullmatch(r"demo_\d{1,18}", name)]
    if not names:
        _refuse("there are no demonstrations", "Demonstrations are the groups data/demo_0, data/demo_1, …")
    for name in sorted(names, key=lambda group: int(group.removeprefix("demo_"))):
        demo = _read_item(data, name, h5py.Group)
        actions = _read_matrix(demo, name, "actions")
        states = _read_matrix(demo, name, "states") if "states" in demo else None
        # A state precedes each action. There may be one more state, after the last action.
        if states is not None and not len(actions) <= len(states) <= len(actions) + 1:
            remedy = "Write one state before each action, and optionally one after the last."
            _refuse(f"{len(states)} states, but {len(actions)} actions", remedy, name, "states")
        matrices += [actions] if states is None else [actions, states]
        yield {
            "name": name,
            "suite": suite,
            "task": task,
            "instruction": instruction,
            "fixtures": _parse_fixtures(_decode_text(demo.attrs.get("model_file")), name),
            "actions": actions.shape,
            "states": None if states is None else states.shape,
        }


def _read_item(group: Any, name: str, kind: type, demo: str | None = None) -> Any:
    """Return an item of a group. Raises `Refusal` if it is missing, has another type than `kind`, or is a link."""
    # `kind` is a class of h5py. If the item is part of a demonstration, errors name the demonstration `demo`.
    import h5py

    field = name if demo else None
    if name not in group:
        _refuse(f"there is no {name}", REMEDY, demo, field)
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        remedy = "Replace the link by a copy of its target (h5repack)."
        _refuse(f"{name} is a soft or external link", remedy, demo, field)
    item = group[name]
    if not isinstance(item, kind):
        _refuse(f"{name} is not a {kind.__name__.lower()}", REMEDY, demo, field)
    return item


def _read_matrix(demo: Any, demo_name: str, field: str) -> Any:
    # Returns a dataset of a demonstration as float64, [steps, k]. Raises `Refusal` unless it is a matrix of numbers.
    import h5py
    import numpy as np

    rows = _read_item(demo, field, h5py.Dataset, demo_name)
    # Refuse virtual and external datasets, because they read other files; a hostile file could read any file that way.
    if rows.is_virtual or rows.external:
        _refuse("the numbers are stored in another file", "Store the numbers in this file.", demo_name, field)
    remedy = "Write one row of numbers per step."
    if rows.dtype.kind not in "biuf" or len(rows.shape or ()) != 2:  # Booleans, integers, floats
        _refuse(f"cannot be read as numbers: {rows.dtype} of shape {rows.shape}", remedy, demo_name, field)
    try:
        return np.asarray(rows, dtype="<f8")
    except (OSError, TypeError, ValueError) as error:
        _refuse(f"cannot be read as numbers: {' '.join(str(error).split())}", remedy, demo_name, field)


def _read_task(attributes: Any) -> tuple[str | None, str | None, str | None]:
    # Returns the suite, the task and the instruction; None = not stated.
    # A task of LIBERO has a BDDL file, `SUITE/TASK.bddl`. Without this file, the environment's name is the task.
    bddl_file = _decode_text(attributes.get("bddl_file_name"))
    instruction = _decode_text(_parse_json(attributes.get("problem_info")).get("language_instruction"))
    instruction = instruction.strip('"') if instruction else None
    env_names = [_parse_json(attributes.get(key)).get("env_name") for key in ("env_args", "env_info")]
    if bddl_file:
        bddl_path = PurePosixPath(bddl_file)
        return bddl_path.parent.name or None, bddl_path.stem, instruction
    for name in map(_decode_text, [*env_names, attributes.get("env")]):
        if name:
            return None, name, instruction
    return None, None, instruction


def _parse_json(text: object) -> dict[str, Any]:
    # Returns the JSON object in an attribute; {} if the attribute is missing or is not the text of a JSON object.
    try:
        tree = json.loads(_decode_text(text) or "{}")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _decode_text(value: object) -> str | None:
    # Returns an attribute's text; None if the attribute is missing or not a text.
    # Raises `UnicodeError` if the text is not valid UTF-8.
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        value.encode("utf-8")  # raises an error if h5py replaced undecodable bytes by surrogates
        return value
    return None


def _parse_fixtures(xml: str | None, demo: str) -> list[tuple[str, list[float]]]:
    # Return (name, pose) of each named top-level body without a free joint. `xml` is MuJoCo's XML, None = missing.
    # A pose [7] is a position [m] and a quaternion wxyz.
    if not xml or not xml.lstrip().startswith("<"):  # the text is missing, or is only a file name, as in robosuite 1.0
        return []
    remedy = "Copy the file again. Or remove this attribute, so that the simulator places the fixtures."
    # Entities can expand to any amount of text.
    if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
        _refuse("the model declares XML entities", remedy, demo, "model_file")
    try:
        fixtures = []
        for body in ElementTree.fromstring(xml).findall("worldbody/body[@name]"):
            if body.find("freejoint") is not None or body.find("joint[@type='free']") is not None:
                continue
            # MuJoCo's defaults are the origin and no rotation.
            numbers = f"{body.get('pos', '0 0 0')} {body.get('quat', '1 0 0 0')}".split()
            name, pose = body.attrib["name"], [float(number) for number in numbers]
            if name and len(pose) == 7:
                fixtures.append((name, pose))
    except (ElementTree.ParseError, ValueError) as error:
        _refuse(f"the model cannot be read: {error}", remedy, demo, "model_file")
    return fixtures


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
