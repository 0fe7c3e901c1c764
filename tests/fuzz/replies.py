"""Server replies: the actions that were packed, of the right width, or a `PolicyError`."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np

from fuzz.grammar import damage, mutate, walk
from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import dialects, endpoint, gr00t, openpi, vla_eval
from safevla_bench.policies.servers.dialects import Dialect

TASK = Task("served", "task_0", 0, "served", "put it there", (0.0,) * 6 + (-1.0,))
SEEN = Observation("put it there", np.zeros(3), np.array([1.0, 0, 0, 0]), np.zeros(2))
SPEECH: dict[str, Dialect] = {}


def wire(kind: str, array: np.ndarray) -> dict[Any, Any]:
    """An array as that kind of server writes it."""
    if kind == "gr00t":
        sink = io.BytesIO()
        np.save(sink, array, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": sink.getvalue()}
    fields = {"__ndarray__": True, "data": array.tobytes(), "dtype": array.dtype.str, "shape": list(array.shape)}
    return fields if kind == "vla-eval" else {key.encode(): value for key, value in fields.items()}


def pack(rng: Random, tree: Any) -> bytes:
    try:
        content = msgspec.msgpack.encode(tree)
    except (OverflowError, UnicodeEncodeError, RecursionError):
        content = rng.choice(
            [b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b""]
        )
    return damage(rng, content) if rng.random() < 0.15 else content


def change(rng: Random, tree: Any) -> Any:
    """With one to three changes, among them those that only bytes and arrays have."""
    if rng.random() < 0.5:
        return mutate(rng, tree)
    maps = [value for value in walk(tree) if isinstance(value, dict)]
    arrays = [fields for fields in maps if any(name in fields for name in (b"dtype", "dtype", "as_npy"))]
    if not arrays:
        return mutate(rng, tree)
    fields, form = rng.choice(arrays), rng.choice(["dtype", "shape", "data"])
    key = next(name for name in fields if name != "__ndarray_class__" and (form in str(name) or "as_npy" in str(name)))
    fields[key] = {
        "dtype": lambda: rng.choice(
            ["|O", "<f8", ">f8", "<c16", "V8", "<U99999999", "f8,f8", "(2,)f8", "", "M8[s]", "{}"]
        ),
        "shape": lambda: rng.choice(
            [[-1, 7], [10**12, 7], [0], [], [2**62, 2**62], [1] * 70, "27", [True, 7], [2.0, 7]]
        ),
        "data": lambda: damage(rng, fields[key]) if isinstance(fields[key], bytes) else "text",
    }[form if "as_npy" not in str(key) else "data"]()
    return tree


class Connection:
    """Instead of a websocket: hands out frames that were made beforehand, or make themselves of what was sent."""

    def __init__(self, *frames: bytes | str | Callable[[bytes], bytes]) -> None:
        self._frames, self._sent = list(frames), b""

    def send(self, message: bytes) -> None:
        self._sent = message

    def recv(self, timeout: float) -> Any:
        frame = self._frames.pop(0)
        return frame(self._sent) if callable(frame) else frame


def over(model: type, connection: Connection, dialect: Dialect) -> Any:
    """A websocket's model that has such a connection, and greets over it."""
    policy = model(STRANGER, dialect, {})
    policy._connection = connection
    policy._connect = policy._greet
    return policy


STRANGER = endpoint.Endpoint(("tcp://stranger:5555",), 1.0, 1.0)


class Requests(gr00t.Gr00tModel):
    """Without a socket of ZeroMQ; what it makes of parts is `test_hostile_servers.py`'s."""

    answers: list[bytes]

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        return self.answers.pop(0)


def reply(rng: Random, folder: Path) -> str:
    """An episode's first exchange with a stranger."""
    name = rng.choice(dialects.dialect_names())
    kind = dialects.load_dialect_file(name).transport
    if kind not in ("openpi", "gr00t", "vla-eval"):
        kind = "openpi"
    speech = SPEECH.setdefault(name, replace(dialects.load_dialect(name), fields=()))
    drawn = np.random.default_rng(rng.randrange(2**32))
    steps = rng.choice([1, 2, 16])
    plain: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for part in speech.file.reply:
        array = drawn.uniform(-1, 1, (steps, part.width)).astype(rng.choice(["<f4", "<f8"]))
        for tree, value in ((plain, array), (whole, wire(kind, array))):
            for key in part.path[:-1]:
                tree = tree.setdefault(key, {})
            tree[part.path[-1]] = value
    expected = speech.read_actions(plain)
    hostile = rng.random() < 0.9
    try:
        actions = ask(rng, kind, speech, whole, hostile)
    except PolicyError as error:
        assert hostile, "a good reply is refused"
        assert error.remedy
        assert len(str(error)) < 20000, "a message of absurd length"
        return "refused"
    assert actions.dtype == np.float64
    assert actions.ndim == 2
    assert actions.shape[1] == expected.shape[1]
    assert len(actions)
    assert np.isfinite(actions).all()
    assert hostile or np.array_equal(actions, expected)
    return "right"


def ask(rng: Random, kind: str, speech: Dialect, whole: Any, hostile: bool) -> Any:
    """What the client of that kind makes of a reply, changed or not."""
    policy: Any
    match kind:
        case "gr00t":
            answer = [whole, {}]
            ping = pack(rng, change(rng, {"status": "ok"})) if hostile and rng.random() < 0.1 else b"\x80"
            video = {"video": {"keys": ["image"]}}
            modalities = pack(rng, change(rng, video)) if hostile and rng.random() < 0.1 else b"\x80"
            action = pack(rng, change(rng, answer)) if hostile else msgspec.msgpack.encode(answer)
            policy = Requests(STRANGER, speech, {})
            policy.answers = [ping, b"\x80", modalities, action]
        case "vla-eval":

            def message(of: str, payload: Any, changes: bool) -> Callable[[bytes], bytes]:
                def answer(sent: bytes) -> bytes:
                    seq = msgspec.msgpack.decode(sent)["seq"]
                    frame = {"type": of, "payload": payload, "seq": seq, "timestamp": 0.0}
                    return pack(rng, change(rng, frame)) if changes else msgspec.msgpack.encode(frame)

                return answer

            greeted = hostile and rng.random() < 0.1
            connection = Connection(message("hello", {}, greeted), message("action", whole, hostile))
            policy = over(vla_eval.VlaEvalModel, connection, speech)
        case _:
            texts = ["", "Traceback\n  ValueError: \x1b[31m", "\u202e" * 9000, "\n\n"]
            greeting: Any = pack(rng, change(rng, {"a": 1})) if hostile and rng.random() < 0.1 else b"\x80"
            frame: Any = pack(rng, change(rng, whole)) if hostile else msgspec.msgpack.encode(whole)
            frame = rng.choice(texts) if hostile and rng.random() < 0.05 else frame
            policy = over(openpi.OpenpiModel, Connection(greeting, frame), speech)
    policy.begin(TASK, 0)
    return policy.infer(SEEN)
