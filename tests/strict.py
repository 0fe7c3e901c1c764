"""A policy server on loopback that refuses every request but the one its policy's project sends.

What is expected stands here by hand, from the projects' own clients, and not from the package's data. The wire is the
package's own, which has tests against the projects' in `tests/policies`.
"""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from safevla_bench.policies.codecs import GR00T, OPENPI, VLA_EVAL

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_OPENPI = {
    ("observation/image",): ("uint8", (224, 224, 3)),
    ("observation/wrist_image",): ("uint8", (224, 224, 3)),
    ("observation/state",): ("float64", (8,)),
    ("prompt",): str,
}
_OPENPI_MOBILE = {
    **_OPENPI,
    ("observation/right_image",): ("uint8", (224, 224, 3)),
    ("observation/state",): ("float64", (16,)),
}
_GR00T = {
    ("video.image",): ("uint8", (1, 1, 256, 256, 3)),
    ("video.wrist_image",): ("uint8", (1, 1, 256, 256, 3)),
    **{(f"state.{axis}",): ("float32", (1, 1, 1)) for axis in _AXES},
    ("state.gripper",): ("float32", (1, 1, 2)),
    ("annotation.human.action.task_description",): list,
}
_MOBILE_STATES = {
    "end_effector_position_relative": 3,
    "end_effector_rotation_relative": 4,
    "gripper_qpos": 2,
    "base_position": 3,
    "base_rotation": 4,
}


def _mobile(dtype):
    cameras = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
    return {
        **{(f"video.{camera}",): ("uint8", (1, 1, 256, 256, 3)) for camera in cameras},
        **{(f"state.{name}",): (dtype, (1, 1, size)) for name, size in _MOBILE_STATES.items()},
        ("annotation.human.task_description",): list,
    }


EXPECTED = {
    "openvla-7b@libero": {("images", "agentview"): ("uint8", (256, 256, 3)), ("task_description",): str},
    "cosmos-policy-2b@libero": {
        ("primary_image",): ("uint8", (256, 256, 3)),
        ("wrist_image",): ("uint8", (256, 256, 3)),
        ("proprio",): ("float64", (9,)),
        ("task_description",): str,
    },
    "gr00t-n1.7@libero": _GR00T,
    "pi0.5@libero": _OPENPI,
    "pi-rl-130@libero": _OPENPI,
    "pi0@robocasa-365": _OPENPI_MOBILE,
    "pi0.5@robocasa-365": _OPENPI_MOBILE,
    "gr00t-n1.5@robocasa-365": _mobile("float64"),
    "rldx-1@robocasa-365": _mobile("float32"),
}
"""Entry -> path in the request -> type; an array's is dtype and shape."""


WIRES = {
    "openvla-7b@libero": "vla-eval",
    "gr00t-n1.7@libero": "gr00t",
    "gr00t-n1.5@robocasa-365": "gr00t",
    "rldx-1@robocasa-365": "gr00t",
}
"""How its server is spoken to, where not over openpi's websocket."""


def leaves(request, path=()):
    """The request's entries by path."""
    for key, value in request.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def refusal(entry, request):
    """Why the entry's server refuses the request; None where it does not."""
    expected, given = EXPECTED[entry], dict(leaves(request))
    for path in (*expected, *given):
        if path not in given:
            return f"{'/'.join(path)} is missing"
        if path not in expected:
            return f"{'/'.join(path)} is not known"
        wanted, value = expected[path], given[path]
        if isinstance(wanted, tuple):
            found = (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else type(value).__name__
            if found != wanted:
                return f"{'/'.join(path)} is {found}, not {wanted}"
            if value.dtype == np.uint8 and value.min() == value.max():
                return f"{'/'.join(path)} is one colour"
        elif (
            not isinstance(value, wanted)
            or not value
            or (wanted is list and not all(map(str.__instancecheck__, value)))
        ):
            return f"{'/'.join(path)} is {value!r}, not a {wanted.__name__}"
    return None


def reply(entry, steps=16):
    """What the entry's server answers: the open gripper of its convention, and small motions."""
    rows = np.tile(np.arange(1, 13) / 100, (steps, 1))
    if entry.startswith("gr00t-n1.7"):
        parts = {f"action.{axis}": rows[:, k].reshape(1, steps, 1) for k, axis in enumerate(_AXES)}
        return {**parts, "action.gripper": np.ones((1, steps, 1), dtype=np.float32)}
    if entry in ("gr00t-n1.5@robocasa-365", "rldx-1@robocasa-365"):
        names = ("end_effector_position", "end_effector_rotation", "gripper_close", "base_motion", "control_mode")
        cut = np.split(rows, [3, 6, 7, 11], axis=1)
        return {f"action.{name}": part[np.newaxis] for name, part in zip(names, cut, strict=True)}
    if entry == "openvla-7b@libero":
        return {"actions": rows[0, :7].astype(np.float32)}  # the harness's server plays its chunks itself
    return {"actions": rows[:, : 12 if "robocasa" in entry else 7]}


class _Websocket:
    """Frames over a websocket; `answer` gives what is sent back for one, None for nothing."""

    def __init__(self, greeting, answer):
        self._greeting, self._answer = greeting, answer
        self._server = serve(self._talk, "127.0.0.1", 0, compression=None, max_size=None)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join(10)

    def _talk(self, connection):
        with contextlib.suppress(ConnectionClosed):
            if self._greeting is not None:
                connection.send(self._greeting)
            for frame in connection:
                said = self._answer(frame)
                if said is not None:
                    connection.send(said)


class _Requests:
    """Requests and replies over ZeroMQ."""

    def __init__(self, answer):
        self._answer, self._over = answer, threading.Event()
        self._socket = zmq.Context.instance().socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join(10)
        self._socket.close()

    def _talk(self):
        while not self._over.is_set():
            if self._socket.poll(50):
                self._socket.send(self._answer(self._socket.recv()))


class StrictServer:
    """Serves one entry until it is closed; `seen` holds the requests that were answered."""

    def __init__(self, entry, steps=16):
        self.entry, self.steps, self.seen = entry, steps, []
        self._wire = {
            "openpi": lambda: _Websocket(OPENPI.pack({}), self._openpi),
            "vla-eval": lambda: _Websocket(None, self._vla_eval),
            "gr00t": lambda: _Requests(self._gr00t),
        }[WIRES.get(entry, "openpi")]()
        self.url, self.close = self._wire.url, self._wire.close

    def _judged(self, request):
        """The reply and None, or None and the reason why there is none."""
        reason = refusal(self.entry, request)
        if reason is not None:
            return None, reason
        self.seen.append(request)
        return reply(self.entry, self.steps), None

    def _openpi(self, frame):
        answer, reason = self._judged(OPENPI.unpack(frame))
        return OPENPI.pack(answer) if reason is None else f"Traceback:\n  ...\nValueError: {reason}"

    def _vla_eval(self, frame):
        said = VLA_EVAL.unpack(frame)
        if said["type"] not in ("hello", "observation"):
            return None
        kind, payload = "hello", {}
        if said["type"] == "observation":
            answer, reason = self._judged(said["payload"])
            kind, payload = ("action", answer) if reason is None else ("error", {"error": reason})
        return VLA_EVAL.pack({"type": kind, "payload": payload, "seq": said["seq"], "timestamp": 0.0})

    def _gr00t(self, frame):
        said = GR00T.unpack(frame)
        if said["endpoint"] != "get_action":
            return GR00T.pack({"status": "ok"})
        answer, reason = self._judged(said["data"]["observation"])
        return GR00T.pack([answer, {}] if reason is None else {"error": reason})
