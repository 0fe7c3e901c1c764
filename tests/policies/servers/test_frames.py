"""Messages of the other two kinds of servers have the bytes of their own projects' packing, and are read from them.

`tests/cases/make_vla_eval_frames.py` ran the harness's own code, `make_gr00t_frames.py` GR00T's own of two revisions.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from policies.servers.test_codecs import same
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, VLA_EVAL, Codec
from safevla_bench.policies.servers.gr00t import Modality, choose_codec, parse_modalities

CASES = Path(__file__).parents[2] / "cases"


def frames(which: str, wire: str | None = None) -> dict[str, bytes]:
    held = json.loads((CASES / f"{which}_frames.json").read_text())
    return {name: bytes.fromhex(frame) for name, frame in (held[wire] if wire else held).items()}


def said(kind: str, payload: dict, seq: int, timestamp: float) -> dict:
    return {"type": kind, "payload": payload, "seq": seq, "timestamp": timestamp}


OBSERVATION = {
    "images": {"agentview": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)},
    "states": np.linspace(-1, 1, 8),
    "task_description": "put the bowl on the plate",
}
HARNESS = {
    "hello": said("hello", {"harness_version": "0.8.0", "protocol_version": 1}, 1, 12.5),
    "episode_start": said("episode_start", {"task": {"name": "lift", "task_id": 3}}, 2, 13.0),
    "observation": said("observation", OBSERVATION, 3, 13.5),
    "action": said("action", {"actions": np.linspace(-1, 1, 7, dtype=np.float32)}, 3, 14.0),
    "chunk": said("action", {"actions": np.arange(14, dtype=np.float64).reshape(2, 7)}, 4, 14.5),
    "scalars": said("action", {"f": np.float32(0.5), "i": np.int64(-3), "b": np.bool_(True)}, 5, 15.0),
    "error": said("error", {"error": "observation_failed: KeyError: 'states'"}, 6, 15.5),
}
IMAGE, STATE, TEXT = OBSERVATION["images"]["agentview"][None, None], np.float32([[[0.25]]]), "put the bowl on the plate"
FLAT = {"video.image": IMAGE, "state.x": STATE, "annotation.human.action.task_description": [TEXT]}
NESTED = {
    "video": {"image": IMAGE},
    "state": {"x": STATE},
    "language": {"annotation.human.action.task_description": [[TEXT]]},
}
MODALITIES = {
    "ping": {"endpoint": "ping"},
    "reset": {"endpoint": "reset", "data": {"options": None}, "api_token": "k3y"},
    "flat": {"endpoint": "get_action", "data": {"observation": FLAT, "options": None}},
    "nested": {"endpoint": "get_action", "data": {"observation": NESTED, "options": None}},
    "bare": {"endpoint": "get_action", "data": FLAT},
    "reply": [{"action.x": np.arange(16, dtype=np.float32).reshape(1, 16, 1)}, {}],
    "big-endian": {"array": np.arange(3, dtype=">i4"), "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
    "error": {"error": "Unknown endpoint: reset"},
}
WIRES: dict[str, Codec] = {"gr00t": GR00T, "gr00t main": GR00T_MAIN}
DESCRIBED = "modality_config"
ALL = [
    *((VLA_EVAL, HARNESS[name], frame) for name, frame in frames("vla_eval").items()),
    *((WIRES[wire], MODALITIES[name], frames("gr00t", wire)[name]) for wire in WIRES for name in MODALITIES),
]
IDS = [*frames("vla_eval"), *(f"{wire} {name}" for wire in WIRES for name in MODALITIES)]


@pytest.mark.parametrize(("codec", "message", "frame"), ALL, ids=IDS)
def test_a_message_has_the_bytes_of_its_project_and_is_read_from_them(codec, message, frame):
    assert codec.pack(message).hex() == frame.hex()
    found = codec.unpack(frame)
    for one, other in zip(found, message, strict=True) if isinstance(message, list) else [(found, message)]:
        same(one, other)


def test_every_frame_has_its_message_here():
    assert set(frames("vla_eval")) == set(HARNESS)
    for wire in WIRES:
        assert set(frames("gr00t", wire)) == {*MODALITIES, DESCRIBED}


@pytest.mark.parametrize("wire", WIRES)
def test_a_server_s_modalities_tell_its_wire_its_keys_and_its_frames(wire):
    """Both are read by the codec of the tags, which asks before the wire is known."""
    config = GR00T.unpack(frames("gr00t", wire)[DESCRIBED])
    assert choose_codec(config) is WIRES[wire]
    assert parse_modalities(config) == {
        "video": Modality(("video.image",), 1),
        "action": Modality(("action.x", "action.gripper"), 16),
    }
