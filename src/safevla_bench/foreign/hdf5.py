"""Demonstrations in HDF5 as robomimic, robosuite and LIBERO write them.

data                  attributes `bddl_file_name`, `problem_info` and `env_args` (JSON): the task, as far as they say it
data/demo_N/actions   [T, A], as they were given to the simulator
data/demo_N/states    [T, S], flat MuJoCo states (time, qpos, qvel); state k stands before action k
data/demo_N           attribute `model_file`: the model's XML, whose top bodies have the poses of fixtures

LIBERO cuts the first five steps off, states and actions alike, and keeps the uncut beginning in the attribute
`init_state`: the actions do not start there, but at the first row of `states`.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.foreign.take import Floats, RecordedActions

SUFFIXES = (".hdf5", ".h5")
_LARGEST_XML = 64 * 2**20


def read_hdf5(path: Path) -> list[RecordedActions]:
    """Return the demonstrations of a file, in the order of their numbers.

    Raises:
        RecordError: h5py is not installed, the file cannot be read, or it is of another structure.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        remedy = 'Install it: pip install "safevla-bench[hdf5]".'
        raise RecordError("HDF5 needs h5py, which is not installed", remedy=remedy, place=_file_place(path)) from None
    try:
        with h5py.File(path, "r") as file:
            return list(_read_demos(path, file))
    except (OSError, KeyError) as error:
        remedy = "Name an HDF5 file of demonstrations: data/demo_N/actions and states."
        raise RecordError(f"cannot be read: {error}", remedy=remedy, place=_file_place(path)) from None


def _read_demos(path: Path, file: Any) -> Iterator[RecordedActions]:
    data = file["data"]
    suite, task, instruction = _read_task(data.attrs)
    names = [name for name in data if re.fullmatch(r"demo_\d+", name)]
    if not names:
        remedy = "Demonstrations are the groups data/demo_0, data/demo_1, …"
        raise RecordError("there are no demonstrations", remedy=remedy, place=_file_place(path))
    for name in sorted(names, key=lambda one: int(one.removeprefix("demo_"))):
        demo = data[name]
        actions = _read_matrix(path, name, "actions", demo["actions"])
        states = _read_matrix(path, name, "states", demo["states"]) if "states" in demo else None
        if states is not None and not len(actions) <= len(states) <= len(actions) + 1:
            problem = f"{len(states)} states, but {len(actions)} actions"
            remedy = "A state stands before each action, and perhaps one after the last."
            raise RecordError(problem, remedy=remedy, place=Place(str(path), episode=name, field="states"))
        fixtures = _parse_fixtures(_decode_text(demo.attrs.get("model_file")))
        yield RecordedActions(
            name=name,
            source=path.name,
            actions=actions,
            states=states,
            fixtures=fixtures,
            suite=suite,
            task=task,
            instruction=instruction,
        )


def _read_matrix(path: Path, name: str, field: str, rows: Any) -> Floats:
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 2:
        place = Place(str(path), episode=name, field=field)
        raise RecordError(f"has the shape {values.shape}", remedy="One row a step.", place=place)
    return values


def _read_task(attributes: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Suite, task and instruction, each None where the file does not say it."""
    arguments = _parse_json(attributes.get("env_args"))
    kwargs = arguments.get("env_kwargs")
    inner = kwargs if isinstance(kwargs, dict) else {}
    file = (
        _decode_text(attributes.get("bddl_file_name"))
        or _decode_text(arguments.get("bddl_file"))
        or _decode_text(inner.get("bddl_file_name"))
    )
    parts = PurePosixPath(file.replace("\\", "/")) if file else None
    instruction = _decode_text(_parse_json(attributes.get("problem_info")).get("language_instruction"))
    suite = (parts.parent.name or None) if parts else None
    task = parts.stem if parts else _decode_text(arguments.get("env_name"))
    return suite, task, instruction.strip('"') if instruction else None


def _parse_json(text: object) -> dict[str, Any]:
    try:
        tree = json.loads(_decode_text(text) or "{}")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _decode_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _parse_fixtures(xml: str | None) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Pose of each top body without a free joint: name -> position [3], quaternion [4] wxyz."""
    if not xml or len(xml) > _LARGEST_XML or "<!" in xml:  # no entities from a stranger's file
        return ()
    try:
        world = ElementTree.fromstring(xml).find("worldbody")
    except ElementTree.ParseError:
        return ()
    bodies = [] if world is None else world.findall("body")
    fixed = ((body.get("name"), _parse_pose(body)) for body in bodies if not _has_free_joint(body))
    return tuple((name, pose) for name, pose in fixed if name and len(pose) == 7)


def _has_free_joint(body: ElementTree.Element) -> bool:
    return body.find("freejoint") is not None or any(joint.get("type") == "free" for joint in body.findall("joint"))


def _parse_pose(body: ElementTree.Element) -> tuple[float, ...]:
    position, turned = body.get("pos", "0 0 0").split(), body.get("quat", "1 0 0 0").split()
    return tuple(float(number) for number in (*position, *turned))


def _file_place(path: Path) -> Place:
    return Place(file=str(path))
