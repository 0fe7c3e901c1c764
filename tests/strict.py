"""A policy server on loopback that refuses every request but the one its policy's project sends.

What is expected stands here by hand, from the projects' own clients, and not from the package's data. The wire is a
plain one: real transports have their own tests.
"""

from __future__ import annotations

import socket
import struct
import threading

import msgspec
import numpy as np

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


def reply(entry, steps=4):
    """What the entry's server answers: the open gripper of its convention, and small motions."""
    rows = np.tile(np.arange(1, 13) / 100, (steps, 1))
    if entry.startswith("gr00t-n1.7"):
        parts = {f"action.{axis}": rows[:, k].reshape(1, steps, 1) for k, axis in enumerate(_AXES)}
        return {**parts, "action.gripper": np.ones((1, steps, 1), dtype=np.float32)}
    if entry in ("gr00t-n1.5@robocasa-365", "rldx-1@robocasa-365"):
        names = ("end_effector_position", "end_effector_rotation", "gripper_close", "base_motion", "control_mode")
        cut = np.split(rows, [3, 6, 7, 11], axis=1)
        return {f"action.{name}": part[np.newaxis] for name, part in zip(names, cut, strict=True)}
    width = 12 if "robocasa" in entry else 7
    return {"actions": rows[:, :width]}


def pack(message):
    return msgspec.msgpack.encode(message, enc_hook=_plain)


def unpack(content):
    return _arrays(msgspec.msgpack.decode(content))


def _plain(array):
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": np.ascontiguousarray(array).tobytes()}


def _arrays(value):
    if not isinstance(value, dict):
        return value
    if set(value) == {"dtype", "shape", "data"}:
        return np.frombuffer(value["data"], value["dtype"]).reshape(value["shape"]).copy()
    return {key: _arrays(inner) for key, inner in value.items()}


def send(connection, message):
    content = pack(message)
    connection.sendall(struct.pack("!I", len(content)) + content)


def receive(connection):
    """The next message; None where the other side is gone."""
    head = _exactly(connection, 4)
    return None if head is None else unpack(_exactly(connection, struct.unpack("!I", head)[0]))


def _exactly(connection, count):
    content = b""
    while len(content) < count:
        part = connection.recv(min(1 << 20, count - len(content)))
        if not part:
            return None
        content += part
    return content


class StrictServer:
    """Serves one entry until it is closed; `seen` holds the requests that were answered."""

    def __init__(self, entry, steps=4):
        self.entry, self.steps, self.seen = entry, steps, []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection:
            while (request := receive(connection)) is not None:
                reason = refusal(self.entry, request)
                if reason is None:
                    self.seen.append(request)
                send(connection, {"error": reason} if reason else reply(self.entry, self.steps))


class Client:
    """Asks a `StrictServer` in a dialect."""

    def __init__(self, url, dialect):
        self.wants, self._dialect = dialect.wants, dialect
        host, port = url.removeprefix("tcp://").split(":")
        self._connection = socket.create_connection((host, int(port)), timeout=5)
        self._left = []

    def reset(self, task, seed):
        self._left = []

    def act(self, observation):
        if not self._left:
            self._left = list(self.infer(observation)[: self._dialect.replan])
        return self._left.pop(0)

    def infer(self, observation):
        return self._dialect.actions(self.ask(self._dialect.request(observation)))

    def ask(self, request):
        send(self._connection, request)
        answer = receive(self._connection)
        if "error" in answer:
            raise ConnectionRefusedError(answer["error"])
        return answer

    def close(self):
        self._connection.close()


def make(arg, dialect):
    """The factory of every transport, for entry points."""
    from safevla_bench.policies import dialects

    return Client(arg, dialects.dialect(dialect))
