"""Servers that mean ill, or are broken: every reply is bounded in time and in memory, and is an error of ours.

None of these waits for a clock: what never ends is ended by the client's own timeout, given here in tenths of seconds.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from policies.servers.stub_servers import chunk, client, drip, observe, openpi, playing, raw, vla_eval, websockets
from safevla_bench.errors import (
    InvalidActionError,
    PolicyError,
    ReplyError,
    ServerLostError,
    ServerRefusedError,
    ServerUnreachableError,
)
from safevla_bench.memory import SETTING
from safevla_bench.policies.servers import endpoint
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, OPENPI, OPENVLA, VLA_EVAL
from safevla_bench.policies.servers.dialects import ReplyArray
from safevla_bench.policies.servers.endpoint import MAX_CHARACTERS, MAX_LINE_CHARACTERS

MIB = 2**20
SOON, PATIENT = "0.5", "60"


def shake_hands(connection: socket.socket, *headers: str) -> None:
    """Answers a handshake as a websocket server does, with more headers."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    (key,) = [line[19:] for line in request.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key: ")]
    accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
    lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
    connection.sendall("\r\n".join([*lines, f"Sec-WebSocket-Accept: {accepted}", *headers, "", ""]).encode())


def frame(content: bytes, first: int = 0x82) -> bytes:
    """A whole binary message, or with another first byte what that says."""
    length = len(content)
    size = bytes([length]) if length < 126 else b"\x7e" + struct.pack("!H", length)
    return bytes([first]) + (size if length < 2**16 else b"\x7f" + struct.pack("!Q", length)) + content


def meet(address: str, kind: str = "openpi", *, connect_s: str = PATIENT, answer_s: str = PATIENT):
    """An episode's first action. What never ends is waited for `SOON`; all else ends by itself, in its own time."""
    with playing(kind, address, connect_timeout_s=connect_s, timeout_s=answer_s) as policy:
        policy.act(observe())


# What comes before a message


def endless(start: bytes, more: bytes) -> Callable:
    """Sends the start of an answer, and then more without end."""

    def talk(connection, over):
        connection.sendall(start)
        while not over.is_set():
            connection.sendall(more)

    return talk


def another_protocol(connection, over):
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    over.wait()


def silence(connection, over):
    over.wait()


SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\n"
HANDSHAKES = {
    "headers without end": endless(SWITCHING, b"X-More: " + b"a" * 1000 + b"\r\n"),
    "a refusal without end": endless(b"HTTP/1.1 404 Not Found\r\n\r\n", b"a" * MIB),
    "another protocol": another_protocol,
    "silence": silence,
}


@pytest.mark.parametrize("talk", HANDSHAKES.values(), ids=HANDSHAKES)
def test_what_is_not_a_handshake_ends_in_time_with_a_remedy(talk):
    with raw(talk) as address, pytest.raises(ServerUnreachableError, match=r"within 0\.5 s") as caught:
        meet(address, connect_s=SOON, answer_s=SOON)
    assert len(str(caught.value)) < 10_000
    assert "connect_timeout_s" in caught.value.remedy


def test_a_redirect_is_not_followed_and_takes_no_key_elsewhere(monkeypatch):
    monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
    with websockets(openpi(lambda request, number: chunk(5))) as elsewhere:

        def sent_on(connection, request):
            response = connection.respond(302, "there\n")
            response.headers["Location"] = elsewhere.url
            return response

        with (
            websockets(lambda connection: None, process_request=sent_on) as peer,
            pytest.raises(PolicyError, match="HTTP 302") as caught,
        ):
            meet(peer.url)
        assert elsewhere.headers == []
    assert "policy server" in caught.value.remedy


# Messages over a websocket


def after_handshake(*frames: bytes) -> Callable:
    """Shakes hands, sends these, and hangs up at the client's first word, which is that it has had enough."""

    def talk(connection, over):
        shake_hands(connection)
        for content in frames:
            connection.sendall(content)
        connection.recv(1)

    return talk


def a_byte_at_a_time(connection, over):
    shake_hands(connection)
    drip(connection, over, frame(OPENPI.pack({"model": "slow" * 100})))


def pieces_without_end(connection, over):
    shake_hands(connection)
    connection.sendall(frame(b"", 0x02))
    while not over.is_set():
        connection.sendall(frame(b"", 0x00) * 1000)


def pings_without_end(connection, over):
    shake_hands(connection)
    while not over.is_set():
        connection.sendall(frame(b"a" * 125, 0x89) * 10)


BOMB = frame(b"\xaa" * 100, 0xC2)  # a compressed message, where no compression was agreed on
HUGE = b"\x82\x7f" + struct.pack("!Q", 2**62)


@pytest.mark.long
@pytest.mark.parametrize(
    ("talk", "answer_s", "words"),
    [
        (a_byte_at_a_time, SOON, r"answer for 0\.5"),
        (pieces_without_end, SOON, r"is too large|closed the connection|no answer"),
        (pings_without_end, SOON, r"no answer for 0\.5 s|closed the connection"),
        (after_handshake(BOMB), PATIENT, "closed the connection"),
        (after_handshake(HUGE), PATIENT, "too large: 64"),
        (after_handshake(frame(b"\xff", 0x81)), PATIENT, "closed the connection"),
        (after_handshake(b"\xff" * 100), PATIENT, "closed the connection"),
    ],
)
def test_frames_that_never_make_a_message_end_in_time_and_memory(talk, answer_s, words):
    peak_mib()
    before = peak_mib()
    with raw(talk) as address, pytest.raises(PolicyError, match=words) as caught:
        meet(address, answer_s=answer_s)
    assert caught.value.remedy
    assert peak_mib() - before < 150


def test_a_request_that_is_never_read_is_given_up_in_time():
    def talk(connection, over):
        shake_hands(connection)
        connection.sendall(frame(OPENPI.pack({})))
        over.wait()

    with (
        raw(talk) as address,
        playing("openpi", address, connect_timeout_s=PATIENT, timeout_s=SOON) as policy,
        pytest.raises(ServerLostError, match=r"answer for 0\.5 s"),
    ):
        policy.act(observe(instruction="x" * 2**25))


def peak_mib() -> float:
    """The most memory that this process has had since it was last asked."""
    peak = int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    return peak


NILS, MAPS = b"\xdd" + struct.pack("!I", 2**25) + b"\xc0" * 2**25, b"\xdd" + struct.pack("!I", 2**22) + b"\x80" * 2**22


@pytest.mark.parametrize(
    "bomb", [NILS, MAPS, b"\x91" * 2**20, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"], ids=range(5)
)
@pytest.mark.parametrize("codec", [OPENPI, VLA_EVAL, GR00T], ids=["openpi", "vla-eval", "gr00t"])
def test_a_message_that_would_grow_in_memory_is_refused_within_the_limit(codec, bomb, monkeypatch):
    monkeypatch.setenv(SETTING, "0.25")
    with pytest.raises(PolicyError, match=r"100,000 values|more memory|RecursionError|DecodeError"):
        codec.unpack(bomb)


@pytest.mark.parametrize(
    "bomb", [NILS, MAPS, (b"\xdc\x10\x00" + b"\xdc\x10\x00" * 2**12 + b"\x80" * 2**24), b"\x91" * 2**21]
)
def test_a_message_of_millions_of_values_is_refused_before_it_is_decoded(bomb, monkeypatch):
    monkeypatch.setattr("msgspec.msgpack.decode", lambda message: pytest.fail("it was decoded"))
    with pytest.raises(PolicyError, match="100,000 values"):
        OPENPI.unpack(bomb)


LOOKALIKES = [
    *(b"\xdd" * size for size in (1, 31, 300, 70_000)),
    *("]" * size for size in (1, 31, 32, 300, 70_000)),
    *(msgspec.msgpack.Ext(93, b"\xdd" * size) for size in (1, 2, 3, 4, 8, 16, 300, 70_000)),
    *(0xDDDDDDDDDDDDDDDD >> 8 * k for k in range(8)),
    *(-(0x2222222222222223 >> 8 * k) for k in range(8)),
    *struct.unpack("!d", b"\xdd" * 8),
]


@pytest.mark.parametrize("value", LOOKALIKES, ids=[f"{type(value).__name__}-{k}" for k, value in enumerate(LOOKALIKES)])
def test_content_that_looks_like_the_beginning_of_a_list_is_not_counted(value, monkeypatch):
    monkeypatch.setattr("safevla_bench.policies.servers.codecs.MAX_VALUES", 2)
    assert OPENPI.unpack(OPENPI.pack([value, -1])) == [value, -1]


def test_a_message_of_texts_that_could_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setenv(SETTING, "0.25")  # where memory runs out, the decoder of texts ends the process
    with pytest.raises(PolicyError, match="memory than allowed"):
        OPENVLA.unpack(b"[" + b'"abcdefghijkl",' * 2**20 + b"0]")


def test_a_message_of_more_values_than_a_chunk_has_is_refused(monkeypatch):
    large = OPENPI.pack({"actions": np.zeros((50, 7)), "nested": np.zeros((50, 7)).tolist()})
    monkeypatch.setattr("safevla_bench.policies.servers.codecs.MAX_VALUES", 410)
    assert OPENPI.unpack(large)
    monkeypatch.setattr("safevla_bench.policies.servers.codecs.MAX_VALUES", 400)
    with pytest.raises(PolicyError, match="400 values"):
        OPENPI.unpack(large)


def test_of_a_traceback_of_megabytes_the_end_is_reported():
    text = "Traceback (most recent call last):\n" + "  a line\n" * MIB + "ValueError: " + "x" * MIB
    for handle in (
        openpi(lambda request, number: text),
        vla_eval(lambda payload, number: {"type": "error", "payload": {"error": text}}, []),
    ):
        kind = "vla-eval" if "log" in handle.__code__.co_freevars else "openpi"
        with websockets(handle) as peer, pytest.raises(PolicyError, match="failed: ") as caught:
            meet(peer.url, kind)
        lines = str(caught.value).splitlines()
        assert len(lines[0]) < MAX_LINE_CHARACTERS + 100
        assert len(str(caught.value)) < 2 * MAX_CHARACTERS


@pytest.mark.parametrize(
    "reply", [b"", b"\x00", b"\x90", b"\x81\xa4type\xa1x", VLA_EVAL.pack({"type": "hello", "payload": 1}), "text"]
)
def test_what_is_not_a_message_of_the_harness_is_refused(reply):
    def handle(connection):
        for _ in connection:
            connection.send(reply)

    with (
        websockets(handle) as peer,
        pytest.raises(PolicyError, match=r"vla-evaluation-harness|be read|a map|failed:"),
    ):
        meet(peer.url, "vla-eval")


# ZeroMQ


@contextmanager
def replying(parts: Callable[[dict], list[bytes]]) -> Iterator[str]:
    """A ROUTER socket that answers each request with these parts."""
    over = threading.Event()
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        url = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

        def serve() -> None:
            while not over.is_set():
                if router.poll(20):
                    who, empty, request = router.recv_multipart()
                    router.send_multipart([who, empty, *parts(GR00T.unpack(request))])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield url
        finally:
            over.set()
            thread.join()


def whole(answer: object) -> list[bytes]:
    return [GR00T.pack(answer)]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (lambda request: [*whole({"status": "ok"}), b"more"], "several parts"),
        (lambda request: [b"\xc1"], "cannot be read"),
        (lambda request: [NILS], "100,000 values"),
        (lambda request: whole([1]) if request["endpoint"] == "get_action" else whole({}), "with a list"),
        (lambda request: whole({"error": "x" * 10 * MIB}), "failed: x"),
    ],
)
def test_what_is_not_a_reply_over_zeromq_is_refused(parts, words):
    with replying(parts) as url, pytest.raises(PolicyError, match=words) as caught:
        meet(url, "gr00t")
    assert caught.value.remedy
    assert len(str(caught.value)) < 2 * MAX_CHARACTERS


def test_a_reply_over_zeromq_that_is_too_large_never_arrives(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_REPLY_BYTES", MIB)

    def answer(request):
        return whole({"action": np.zeros(MIB)}) if request["endpoint"] == "get_action" else whole({})

    with replying(answer) as url, pytest.raises(ServerLostError, match="closed the connection"):
        meet(url, "gr00t")


# Replies that are not the last request's


def doubled(codec, reply):
    """Sends each reply twice; the second is waited for, so that the client's next request finds it."""

    def handle(connection):
        for frame in connection:
            message = codec.unpack(frame)
            for _ in range(2 if (answer := reply(message)) is not None else 0):
                connection.send(codec.pack(answer))

    return handle


def xpolicylab_reply(message):
    pose = {"ee_pose": [0.1, 0, 0, 1, 0, 0, 0], "ee_joint_state": [0.5]}
    answers = {
        "hello": ("hello_ack", {}),
        "reset": ("reset_result", {}),
        "infer": ("infer_result", {"actions": [pose]}),
    }
    kind, payload = answers[message["message_type"]]
    return {**message, "message_type": kind, "payload": payload}


def vla_eval_reply(message):
    payload = {"hello": {"model_server": "stub"}, "observation": {"actions": np.zeros(7)}}.get(message["type"])
    kind = "action" if message["type"] == "observation" else message["type"]
    return None if payload is None else {**message, "type": kind, "payload": payload}


def openpi_twice(connection):
    connection.send(OPENPI.pack({"model": "stub"}))
    for _ in connection:
        connection.send(OPENPI.pack(chunk(1, 0.1)))
        connection.send(OPENPI.pack(chunk(1, -0.1)))


def act_slowly(kind, url):
    """Acts until what the server has sent too much is there before a request."""
    with playing(kind, url, **({} if kind == "vla-eval" else {"replan": "1"})) as policy:
        for _ in range(20):
            policy.act(observe())
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("kind", "handle"),
    [
        ("openpi", openpi_twice),
        ("xpolicylab", doubled(GR00T_MAIN, xpolicylab_reply)),
        ("vla-eval", doubled(VLA_EVAL, vla_eval_reply)),
    ],
)
def test_a_message_that_waits_before_a_request_ends_the_connection(kind, handle):
    """It could be the reply to an earlier request, as could be all that follows."""
    with websockets(handle) as peer, pytest.raises(ServerLostError, match=r"not (requested|\d|action)") as caught:
        act_slowly(kind, peer.url)
    assert "reply per request" in caught.value.remedy


@pytest.mark.parametrize("message_id", [None, "0", 3, ["3"], "missing"])
def test_an_answer_with_another_id_than_the_request_s_ends_the_connection(message_id):
    def handle(connection):
        for frame in connection:
            answer = xpolicylab_reply(GR00T_MAIN.unpack(frame))
            if answer["message_type"] == "infer_result":
                answer["message_id"] = message_id
                if message_id == "missing":
                    del answer["message_id"]
            connection.send(GR00T_MAIN.pack(answer))

    with websockets(handle) as peer, pytest.raises(ServerLostError, match="answered message"):
        meet(peer.url, "xpolicylab")


def test_a_second_reply_over_zeromq_ends_the_connection():
    over = threading.Event()
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        url = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"

        def serve() -> None:
            while not over.is_set():
                if router.poll(20):
                    who, empty, _ = router.recv_multipart()
                    for _ in range(2):
                        router.send_multipart([who, empty, *whole({"status": "ok"})])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        model = client("gr00t", url, timeout_s=PATIENT).model
        try:
            with pytest.raises(ServerLostError, match="not requested"):
                any(model.call("ping") is model._socket.poll(50) for _ in range(20))
        finally:
            model.close()
            over.set()
            thread.join()


# Actions that are not numbers

KINDS_OF_ACTIONS = {
    "bool": np.zeros((1, 7), bool),
    "datetime64": np.zeros((1, 7), "M8[s]"),
    "timedelta64": np.zeros((1, 7), "m8[ms]"),
    r"(\|V8|records)": np.zeros((1, 7), [("x", "f8")]),
    "<U": np.full((1, 7), "0.1"),
    "complex128": np.zeros((1, 7), complex),
}


def form(array, name):
    return {
        "openpi": {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str, b"shape": array.shape},
        "vla-eval": {"__ndarray__": True, "data": array.tobytes(), "dtype": array.dtype.str, "shape": array.shape},
        "msgpack_numpy": {b"nd": True, b"type": [list(pair) for pair in array.dtype.descr] if array.dtype.names else
                          array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()},
        "npy": {"__ndarray_class__": True, "as_npy": npy_bytes(array)},
        "json": {"__numpy__": base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str,
                 "shape": array.shape},
    }[name]  # fmt: skip


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


CODECS = {"openpi": OPENPI, "vla-eval": VLA_EVAL, "msgpack_numpy": GR00T_MAIN, "npy": GR00T, "json": OPENVLA}


@pytest.mark.parametrize("dtype", KINDS_OF_ACTIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_an_array_of_another_kind_is_an_invalid_action_with_its_dtype_over_every_wire(codec, dtype):
    encode = msgspec.json.encode if codec == "json" else msgspec.msgpack.encode
    reply = ReplyArray(path=("actions",), width=7)
    with pytest.raises(InvalidActionError, match=f"{dtype}.*integers or floats"):
        reply.read_rows(CODECS[codec].unpack(encode({"actions": form(KINDS_OF_ACTIONS[dtype], codec)})))


UNUSABLE = {
    **{name: {"actions": form(array, "openpi")} for name, array in KINDS_OF_ACTIONS.items()},
    "bfloat16": {"actions": {**form(np.zeros((1, 7), "f2"), "openpi"), b"dtype": "bfloat16"}},
    "V2": {"actions": form(np.zeros((1, 7), "V2"), "openpi")},
    "lists": {"actions": [["0.1"] * 7]},
    "no map": [0.0] * 7,
    "too many values": {"actions": [[0.0] * 7] * 20_000},
    "no message": b"\xc1",
}


@pytest.mark.parametrize("reply", UNUSABLE.values(), ids=UNUSABLE)
def test_a_first_reply_that_cannot_be_used_stops_the_run_and_a_later_one_ends_its_episode(reply):
    packed = reply if isinstance(reply, bytes) else msgspec.msgpack.encode(reply)
    with websockets(openpi(lambda request, number: packed)) as peer, pytest.raises(ServerRefusedError):
        meet(peer.url)
    answers = iter([chunk(1)])
    with (
        websockets(openpi(lambda request, number: next(answers, packed))) as peer,
        playing("openpi", peer.url, replan="1") as policy,
    ):
        policy.act(observe())
        with pytest.raises((ReplyError, InvalidActionError)):
            policy.act(observe())


def test_lists_of_another_kind_are_an_invalid_action_and_integers_an_action():
    reply = ReplyArray(path=("actions",), width=3)
    for rows, dtype in (([[0.1, True, 0]], "bool"), ([["a", "b", "c"]], "<U1"), ([[None, 0, 0]], "object")):
        with pytest.raises(InvalidActionError, match=f"dtype {dtype}"):
            reply.read_rows({"actions": rows})
    for rows in ([[1, 0, -1]], np.array([[1, 0, -1]], np.int8), np.array([[1, 0, 7]], np.uint16)):
        assert reply.read_rows({"actions": rows}).dtype == np.float64
