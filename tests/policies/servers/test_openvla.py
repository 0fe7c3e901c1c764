"""The client of OpenVLA's and OpenVLA-OFT's own servers: upstream's bytes, a strict server, and what fails there.

`tests/cases/make_openvla_frames.py` ran upstream's servers and clients.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

from policies.servers.stub_servers import (
    OFT_REQUEST,
    OPENVLA_REQUEST,
    TASK,
    client,
    drip,
    http_server,
    observe,
    playing,
    raw,
)
from policies.servers.stub_servers import openvla as openvla_pages
from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError, ServerUnreachableError
from safevla_bench.policies.servers import endpoint
from safevla_bench.policies.servers.codecs import MAX_VALUES, OPENVLA
from safevla_bench.policies.servers.dialects import load_dialect
from safevla_bench.policies.servers.openvla import exchange
from safevla_bench.policies.servers.transforms import crop_center

FRAMES = json.loads((Path(__file__).parents[2] / "cases" / "openvla_frames.json").read_text())
IMAGE, TEXT = np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "put the bowl on the plate"
REQUESTS = {
    "openvla": {"image": IMAGE, "instruction": TEXT, "unnorm_key": "libero_spatial"},
    "openvla-oft": {
        "full_image": IMAGE,
        "wrist_image": IMAGE[::-1],
        "state": np.linspace(-1, 1, 8),
        "instruction": TEXT,
    },
}
OFT = "openvla-oft-rest-libero"
ACTION = np.linspace(-1, 1, 7)
CHUNK = [np.linspace(-1, 1, 7, dtype=np.float32) * (1 + k) / 8 for k in range(8)]


def play(url: str, count: int = 1, **arguments: str) -> np.ndarray:
    """The actions of an episode's beginning, [count, 7]."""
    with playing("openvla", url, **{"connect_timeout_s": "5", **arguments}) as policy:
        return np.array([policy.act(observe()) for _ in range(count)])


def connect(url: str, **arguments: str) -> None:
    client("openvla", url, **{"connect_timeout_s": "5", **arguments}).connect(TASK)


@contextlib.contextmanager
def served(answer, expected=OPENVLA_REQUEST):
    with http_server(openvla_pages(answer, expected)) as server:
        yield server.url


# The wire


@pytest.mark.parametrize("kind", FRAMES)
def test_a_request_has_the_bytes_that_upstream_s_client_posts(kind):
    assert OPENVLA.pack(REQUESTS[kind]) == FRAMES[kind]["request"].encode()


def test_a_reply_is_read_from_the_bytes_that_upstream_s_server_sends():
    np.testing.assert_array_equal(OPENVLA.unpack(FRAMES["openvla"]["reply"].encode()), ACTION)
    chunk = OPENVLA.unpack(FRAMES["openvla-oft"]["reply"].encode())
    np.testing.assert_array_equal(chunk, CHUNK)
    assert {row.dtype.str for row in chunk} == {"<f4"}


def test_upstream_s_real_pages_play_an_episode_s_actions():
    def pages(method, path, body):
        return 200, (FRAMES["openvla-oft"]["openapi"] if method == "GET" else FRAMES["openvla-oft"]["reply"]).encode()

    with http_server(pages) as server:
        actions = play(server.url, 8, dialect=OFT)
    np.testing.assert_array_equal(actions[:, :6], np.array(CHUNK, dtype=np.float64)[:, :6])
    np.testing.assert_array_equal(actions[:, 6], [-np.sign(2 * row[6] - 1) for row in CHUNK])


@pytest.mark.parametrize(
    "value",
    [
        b'{"__numpy__": "AAAA", "dtype": "<f8", "shape": [1]}',
        b'{"__numpy__": "!", "dtype": "<f8", "shape": [1]}',
        b'{"__numpy__": "AAAA", "dtype": "|O", "shape": [1]}',
        b'{"__numpy__": "AAAA", "dtype": [["a", "<f4"]], "shape": [1]}',
        b'{"__numpy__": 3, "dtype": "<f4", "shape": [1]}',
        b'{"__numpy__": "AAAA"}',
        b"[" * 100_001,
        b"[" * 50_000 + b"]" * 50_000,
        b"[0" + b",0" * MAX_VALUES + b"]",
        b"[NaN]",
        b"",
    ],
)
def test_what_is_not_an_array_is_an_error_of_ours(value):
    with pytest.raises(PolicyError, match=r"be read|integers or"):
        OPENVLA.unpack(value)


def test_a_scalar_is_read_and_a_number_that_json_has_not_is_not_sent():
    assert OPENVLA.unpack(OPENVLA.pack({"x": np.float32(0.5)})) == {"x": np.float32(0.5)}
    with pytest.raises(PolicyError, match="cannot be encoded"):
        OPENVLA.pack({"x": float("nan")})


# Requests


def test_openvla_is_sent_a_cropped_image_and_the_suite_s_statistics_and_asked_at_every_step():
    requests = []
    with served(lambda request, number: requests.append(request) or ACTION) as url:
        assert play(url, 2).shape == (2, 7)
    assert len(requests) == 2
    assert requests[0]["unnorm_key"] == "libero_spatial"
    uncropped = load_dialect(OFT).view(observe().images["agentview"])
    np.testing.assert_array_equal(requests[0]["image"], crop_center(uncropped, 0.9))


def test_oft_is_sent_images_that_its_server_crops_and_the_state_and_its_chunk_is_carried_out():
    requests = []
    with served(lambda request, number: requests.append(request) or CHUNK, OFT_REQUEST) as url:
        play(url, 9, dialect=OFT)
    assert len(requests) == 2, "eight actions of each reply"
    np.testing.assert_array_equal(requests[0]["full_image"], load_dialect(OFT).view(observe().images["agentview"]))
    np.testing.assert_allclose(requests[0]["state"], [0, 1, 2, np.pi, 0, 0, 0.04, -0.04])


@pytest.mark.parametrize(("argument", "sent"), [("libero_goal_no_noops", "libero_goal_no_noops"), ("none", None)])
def test_the_statistics_are_those_that_are_asked_for_or_none(argument, sent):
    statistics = []
    expected = {key: kind for key, kind in OPENVLA_REQUEST.items() if sent or key != "unnorm_key"}
    with served(lambda request, number: statistics.append(request.get("unnorm_key")) or ACTION, expected) as url:
        play(url, unnorm_key=argument)
    assert statistics == [sent]


def test_the_statistics_of_oft_are_chosen_where_its_server_is_started():
    with pytest.raises(PolicyError, match="OpenVLA's server") as caught:
        client("openvla", "127.0.0.1:9", dialect=OFT, unnorm_key="libero_spatial")
    assert "--unnorm_key" in caught.value.remedy


def test_a_list_of_plain_numbers_is_read_as_other_servers_of_this_kind_send_it():
    with served(lambda request, number: [[0.0] * 7] * 4) as url:
        assert play(url).shape == (1, 7)


# A wrong server


def test_upstream_s_error_stops_the_run_at_the_first_reply_and_names_the_statistics():
    with served(lambda request, number: "error") as url, pytest.raises(ServerRefusedError) as caught:
        play(url)
    assert "answers 'error'" in caught.value.problem
    assert "libero_spatial_no_noops" in caught.value.remedy
    with served(lambda request, number: "error" if number else ACTION) as url, pytest.raises(PolicyError) as caught:
        play(url, 2)
    assert not isinstance(caught.value, ServerRefusedError), "one step that fails is its episode's alone"


def test_a_chunk_at_openvla_s_address_says_what_came():
    with served(lambda request, number: {"action": ACTION}) as url, pytest.raises(ServerRefusedError) as caught:
        play(url)
    assert "'action' float64 [7]" in caught.value.problem


@pytest.mark.parametrize(
    ("page", "kind", "words"),
    [
        ((401, b""), ServerRefusedError, "requires a key"),
        ((307, b""), ServerRefusedError, r"kind \(HTTP 307\)"),
        ((503, b""), ServerUnreachableError, "HTTP 503"),
    ],
)
def test_an_answer_at_the_door_is_refused_or_waited_for(page, kind, words):
    with http_server(lambda *_: page) as server, pytest.raises(kind, match=words):
        connect(server.url, connect_timeout_s="0.3")


@pytest.mark.parametrize(
    ("page", "words"),
    [((404, b"no"), "HTTP 404: no"), ((422, b'{"detail": 1}'), "HTTP 422"), ((413, b""), "is too large")],
)
def test_an_answer_that_is_not_a_reply_says_its_status(page, words):
    with (
        http_server(lambda method, *_: (200, b"{}") if method == "GET" else page) as server,
        pytest.raises(PolicyError, match=words),
    ):
        play(server.url)


def test_no_server_is_unreachable_within_the_time():
    with http_server(lambda *_: (200, b"")) as server:
        url = server.url
    with pytest.raises(ServerUnreachableError, match="connection refused"):
        connect(url, connect_timeout_s="0.3")


# Servers that mean ill


def byte_by_byte(connection, over):
    drip(connection, over, b"HTTP/1.1 200 OK\r\nX-More: " + b"a" * 60_000)


def body_byte_by_byte(connection, over):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    drip(connection, over, b"a" * 60_000)


def silent(connection, over):
    over.wait(60)


def stranger(connection, over):
    connection.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f")


def a_long_header(connection, over):
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-More: " + b"a" * 100_000)


@pytest.mark.parametrize("talk", [byte_by_byte, body_byte_by_byte, silent, stranger, a_long_header])
def test_an_answer_without_end_or_sense_is_unreachable_within_the_time(talk):
    with raw(talk) as address, pytest.raises(ServerUnreachableError):
        connect(address, connect_timeout_s="0.5")


@pytest.mark.parametrize("talk", [body_byte_by_byte, silent])
def test_a_server_that_falls_silent_is_lost_within_the_time(talk):
    calls = iter(range(99))

    def turn(connection, over):
        if next(calls):
            talk(connection, over)
        connection.recv(4096)
        body = b"{}"
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with raw(turn) as address, pytest.raises(ServerLostError, match=r"0\.3 s"):
        play(address, timeout_s="0.3")


@pytest.mark.parametrize("connect_s", [0.3, 0.7])
def test_the_time_limit_holds_for_connection_and_answer_together(connect_s, monkeypatch):
    connect_at_once = HTTPConnection.connect
    connect_late = lambda connection: (time.sleep(connect_s), connect_at_once(connection))  # noqa: E731
    monkeypatch.setattr(HTTPConnection, "connect", connect_late)
    began = time.monotonic()
    with raw(silent) as address, pytest.raises(ServerLostError, match=r"no answer for 0\.5 s"):
        exchange(f"http://{address}", "GET", "/", 0.5)
    assert time.monotonic() - began < max(connect_s, 0.5) + 0.2


def test_a_reply_that_is_too_large_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(endpoint, "MAX_REPLY_BYTES", 10_000)
    with served(lambda request, number: "x" * 20_000) as url, pytest.raises(PolicyError, match="is too large"):
        play(url)


def test_the_key_is_sent_and_never_repeated(monkeypatch, caplog):
    monkeypatch.setenv("SAFEVLA_API_KEY", "s3cr3t-key")
    caplog.set_level(logging.DEBUG)
    pages = openvla_pages(lambda request, number: ACTION)

    def repeat(method, path, body):
        return pages(method, path, body) if method == "GET" else (422, b"your key is s3cr3t-key")

    with http_server(repeat) as server:
        with pytest.raises(PolicyError) as caught:
            play(server.url)
        assert set(server.headers) == {"Api-Key s3cr3t-key"}
    assert "s3cr3t" not in str(caught.value) + caplog.text
