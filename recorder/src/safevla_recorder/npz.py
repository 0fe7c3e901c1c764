"""The file of one raw episode (`.npz`): the arrays of `CHANNELS` by name, nothing pickled; same episode, same bytes.

`header` and `extra` are JSON texts as UTF-8 bytes. `header` holds the fields of the episode's header, `body_roles`, the
number of `records` and the names of the other `arrays`, so that a lost array is not taken for one that was never
recorded. Bodies are places in `body_roles`; a family that was not recorded has no array.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any, Mapping

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import CONTACT_COLUMNS, NET_FORCE, NUMERIC, PLACE, POSES, recorded_forces
from safevla_recorder.episode import HEADER_FIELDS, SCHEMA_VERSION, Recording
from safevla_recorder.errors import Place, RecordError

MAX_EPISODE_BYTES = 1 << 29
_NPY_HEADERS = 1 << 13
"""Bytes, more than NumPy writes before the numbers of all arrays together."""
_MIDNIGHT = (1980, 1, 1, 0, 0, 0)
_TEXT = np.dtype("|u1")
DTYPES = {
    "header": _TEXT,
    **{spec.name: np.dtype(spec.dtype) for spec in NUMERIC if not spec.is_grip},
    **{spec.bodies: np.dtype(PLACE) for spec in POSES},
    **{f"contacts.{column}": np.dtype(code) for column, code in CONTACT_COLUMNS.items()},
    **{spec.name: np.dtype(spec.dtype) for spec in NUMERIC if spec.is_grip},
    "extra": _TEXT,
}
"""Dtype of every array that may occur, in the order of the file."""


def encode_episode(recording: Recording, most_bytes: int = MAX_EPISODE_BYTES) -> bytes:
    """Return one episode as the bytes of an `.npz` file. Raises `RecordError` if its arrays have more than
    `most_bytes`, `ValueError` if `header` or `extra` holds a number that is not finite, or a lone surrogate.
    """
    arrays = _collect_arrays(recording)
    if sum(array.nbytes for array in arrays.values()) + _NPY_HEADERS > most_bytes:
        problem = f"the episode holds more than {most_bytes >> 20} MiB"
        place = Place(episode=str(recording.header["episode_id"]))
        raise RecordError(problem, remedy="Cut the episode into shorter ones, or leave sim_state out.", place=place)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, dtype in DTYPES.items():
            if name in arrays:
                member = zipfile.ZipInfo(f"{name}.npy", _MIDNIGHT)
                member.compress_type = zipfile.ZIP_DEFLATED
                content, array = io.BytesIO(), np.ascontiguousarray(arrays[name], dtype=dtype)
                np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
                archive.writestr(member, content.getvalue())
    return stream.getvalue()


def _collect_arrays(recording: Recording) -> dict[str, NDArray[Any]]:
    values: dict[str, object] = {spec.name: recording.channel(spec.name) for spec in NUMERIC}
    if recording.records == 1:
        values.update((spec.name, None) for spec in NUMERIC if spec.is_per_action)
    values.update((spec.bodies, getattr(recording, spec.bodies)) for spec in POSES if values[spec.name] is not None)
    if (contacts := recording.contacts) is not None:
        left_out = {NET_FORCE} - set(recorded_forces(recording.header.get("forces")))
        values.update(
            (f"contacts.{name}", column) for name, column in contacts.columns().items() if name not in left_out
        )
    values["extra"] = _encode_json(recording.extra) if recording.extra else None
    arrays = {name: np.asarray(value) for name, value in values.items() if value is not None}
    header = {"schema_version": SCHEMA_VERSION, **recording.header}
    fields = {name: header[name] for name in HEADER_FIELDS if header.get(name) is not None or name == "target_object"}
    about = {"body_roles": dict(recording.roles), "records": recording.records, "arrays": sorted(arrays)}
    return {"header": _encode_json({**fields, **about}), **arrays}


def _encode_json(tree: Mapping[str, object]) -> NDArray[np.uint8]:
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False)
    return np.frombuffer(text.encode(), dtype=np.uint8)
