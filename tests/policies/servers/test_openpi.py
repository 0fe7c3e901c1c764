"""The openpi client against a strict server: what it sends, what it refuses, and what it says when a server fails."""

from __future__ import annotations

import logging
import socket
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.errors import (
    InvalidActionError,
    PolicyError,
    ReplyError,
    ServerLostError,
    ServerRefusedError,
    ServerUnreachableError,
)
from safevla_bench.interface.policy import Observation, check_action
from safevla_bench.interface.task import Task
from safevla_bench.plugins import install_command
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers.codecs import OPENPI
from stub_servers import OPENPI_REQUEST, chunk, openpi, websockets

TASK = Task("libero-spatial", "task_0", 0, "place", "put it there", (0.0,) * 6 + (-1.0,), 1)
QUICK = {"connect_timeout_s": "0.3", "timeout_s": "5"}


def seen(**changed: object) -> Observation:
    generator = np.random.default_rng(0)
    images = {
        camera: generator.integers(0, 256, (256, 256, 3), dtype=np.uint8)
        for camera in ("agentview", "robot0_eye_in_hand")
    }
    half = np.array([0.0, 1.0, 0.0, 0.0])
    return replace(Observation("put it there", np.arange(3.0), half, np.array([0.04, -0.04]), images), **changed)


def client(url: str, **arguments: str):
    return make_policy(f"openpi:{url}", {**QUICK, **arguments})


def begun(url: str, **arguments: str):
    made = client(url, **arguments)
    made.reset(TASK, 0)
    return made


def test_a_request_holds_openpi_s_keys_with_images_turned_and_an_eight_number_state():
    got: list[dict] = []
    with websockets(openpi(lambda request, number: got.append(request) or chunk(10))) as peer:
        made = begun(peer.url)
        made.act(seen())
        made.close()
    assert list(got[0]) == list(OPENPI_REQUEST)
    np.testing.assert_allclose(got[0]["observation/state"], [0, 1, 2, np.pi, 0, 0, 0.04, -0.04])
    shown = seen(images={"agentview": np.zeros((256, 256, 3), np.uint8), "robot0_eye_in_hand": marked()})
    with websockets(openpi(lambda request, number: got.append(request) or chunk(10))) as peer:
        begun(peer.url).act(shown)
    wrist = got[1]["observation/wrist_image"]
    assert wrist[:112, 112:].mean() > 250, "the upper left of an upright image is sent upper right: mirrored"
    assert wrist[114:].max() == 0


def marked() -> np.ndarray:
    image = np.zeros((256, 256, 3), np.uint8)
    image[:128, :128] = 255
    return image


def test_the_first_actions_of_a_chunk_are_carried_out_and_then_the_server_is_asked_again():
    with websockets(openpi(lambda request, number: chunk(10, number / 10))) as peer:
        made = begun(peer.url, replan="3")
        given = [made.act(seen())[0] for _ in range(7)]
        assert len(made.calls_s) == 3
        made.reset(TASK, 0)
        assert made.calls_s == []
        assert made.act(seen())[0] == 0.0, "what was left of the last chunk is forgotten"
    expected = np.concatenate([chunk(10, k / 10)["actions"][:3, 0] for k in range(3)])[:7]
    np.testing.assert_allclose(given, expected)


@pytest.mark.parametrize(("given", "count"), [({}, 5), ({"replan": "all"}, 10), ({"replan": "1"}, 1)])
def test_replan_is_the_dialect_s_unless_it_is_given(given, count):
    asked = []
    with websockets(openpi(lambda request, number: asked.append(number) or chunk(10))) as peer:
        made = begun(peer.url, **given)
        for _ in range(count):
            made.act(seen())
        assert asked == list(range(1))[: len(asked)] or count == 1
        made.act(seen())
    assert len(asked) == 2


def test_a_chunk_shorter_than_replan_says_what_to_pass():
    with websockets(openpi(lambda request, number: chunk(2))) as peer, pytest.raises(PolicyError) as caught:
        begun(peer.url).act(seen())
    assert "2 actions at a time, and 5" in str(caught.value)
    assert "replan=2" in caught.value.remedy


def test_a_server_s_traceback_is_the_error_its_last_line_first():
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in infer\nValueError: no such key\n'
    with websockets(openpi(lambda request, number: text)) as peer, pytest.raises(PolicyError) as caught:
        begun(peer.url).act(seen())
    assert not isinstance(caught.value, ServerLostError), "asking again would fail again"
    lines = str(caught.value).splitlines()
    assert lines[0] == f"the policy server {peer.url} failed: ValueError: no such key"
    assert 'File "x.py", line 1, in infer' in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"action": np.zeros((2, 7))}, "no 'actions'"),
        ({"actions": np.zeros((5, 8))}, r"shape \(5, 8\)"),
        ({"actions": np.zeros((0, 7))}, r"shape \(0, 7\)"),
        ({"actions": "none"}, "no array of numbers"),
    ],
)
def test_a_first_reply_without_actions_refuses_the_server_and_a_later_one_is_an_error_of_its_episode(reply, words):
    with websockets(openpi(lambda request, number: reply)) as peer, pytest.raises(ServerRefusedError, match=words):
        begun(peer.url).act(seen())
    with websockets(openpi(lambda request, number: reply if number else chunk(1))) as peer:
        made = begun(peer.url, replan="1")
        made.act(seen())
        with pytest.raises(ReplyError, match=words):
            made.act(seen())


def test_a_reply_of_another_kind_of_checkpoint_names_what_came_and_the_dialect_that_reads_it():
    reply = {"actions": np.zeros((5, 12), np.float32), "server_timing": {"infer_ms": 1.0}}
    with (
        websockets(openpi(lambda request, number: reply)) as peer,
        pytest.raises(ServerRefusedError, match=r"'actions' float32 \[5, 12\], 'server_timing' {infer_ms}") as caught,
    ):
        begun(peer.url).act(seen())
    assert "dialect=openpi-robocasa" in caught.value.remedy


def test_a_number_that_is_not_finite_matters_only_where_it_is_acted_on():
    actions = np.zeros((10, 7))
    actions[7, 2] = np.nan
    with websockets(openpi(lambda request, number: {"actions": actions})) as peer:
        careful, whole = begun(peer.url, replan="5"), begun(peer.url, replan="all")
        assert all(np.isfinite(careful.act(seen())).all() for _ in range(10))
        acted = [whole.act(seen()) for _ in range(8)]
    assert np.isnan(acted[7][2])
    with pytest.raises(InvalidActionError, match="number 2 of the action is nan"):
        check_action(acted[7], 7)


@pytest.mark.parametrize("noise", [b"", b"SSH-2.0-OpenSSH_9\r\n", bytes(range(256)) * 1000, b"HTTP/1.1 200 OK\r\n\r\n"])
def test_what_is_no_websocket_server_is_told_and_never_a_traceback(noise):
    def strange(listening: socket.socket) -> None:
        with suppress(OSError):  # closed at the test's end
            while True:
                stranger, _ = listening.accept()
                stranger.sendall(noise)
                stranger.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=strange, args=(listening,), daemon=True).start()
        made = client(f"ws://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises((ServerUnreachableError, ServerRefusedError)):
            made.reset(TASK, 0)
        made.close()


@pytest.mark.parametrize("reply", [b"\xc1", b"\x01", b"\x81\xa1a"])
def test_a_reply_that_cannot_be_read_is_an_error_of_ours(reply):
    with websockets(openpi(lambda request, number: reply)) as peer, pytest.raises(PolicyError, match=r"read|map"):
        begun(peer.url).act(seen())


def test_a_reply_over_the_limit_is_refused_and_the_limit_named(monkeypatch):
    monkeypatch.setattr("safevla_bench.policies.servers.connection.MAX_REPLY_BYTES", 2**20)
    large = {"actions": np.zeros((5, 7)), "image": np.zeros(2**21, np.uint8)}
    with websockets(openpi(lambda request, number: large)) as peer, pytest.raises(PolicyError, match="more than 1 MiB"):
        begun(peer.url).act(seen())


def test_a_greeting_that_is_no_metadata_is_refused():
    with (
        websockets(lambda connection: connection.send(OPENPI.pack([1]))) as peer,
        pytest.raises(PolicyError, match="list where openpi"),
    ):
        begun(peer.url)


def test_an_answer_that_does_not_come_in_time_names_the_argument_that_waits_longer():
    def handle(connection):
        connection.send(OPENPI.pack({}))
        for _ in connection:
            pass

    with websockets(handle) as peer, pytest.raises(ServerLostError, match=r"no answer for 0\.2 s") as caught:
        begun(peer.url, timeout_s="0.2").act(seen())
    assert "timeout_s=SECONDS" in caught.value.remedy


def unused() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_server_that_is_not_there_is_told_with_its_address_and_what_to_do():
    with pytest.raises(ServerUnreachableError) as caught:
        begun(f"ws://127.0.0.1:{unused()}")
    assert "within 0.3 s" in str(caught.value)
    assert "connection refused" in str(caught.value)
    assert "connect_timeout_s=300" in caught.value.remedy


def test_a_port_that_speaks_something_else_is_told(monkeypatch):
    refusing = {"process_request": lambda connection, request: connection.respond(404, "not here\n")}
    with (
        websockets(lambda connection: None, **refusing) as peer,
        pytest.raises(PolicyError, match=r"takes no websocket \(HTTP 404\)"),
    ):
        begun(peer.url)


def test_a_server_that_goes_away_is_lost_and_found_again_at_the_next_episode():
    with websockets(openpi(lambda request, number: chunk(5))) as peer:
        made = begun(peer.url)
        made.act(seen())
        port = peer.port
    for _ in range(4):
        made.act(seen())
    with pytest.raises(ServerLostError, match="closed the connection"):
        made.act(seen())
    with websockets(openpi(lambda request, number: chunk(5)), port):
        made.reset(TASK, 0)
        assert made.act(seen()).shape == (7,)
        made.close()


def test_each_episode_is_a_connection_of_its_own():
    with websockets(openpi(lambda request, number: chunk(5))) as peer:
        made = client(peer.url)
        for _ in range(3):
            made.reset(TASK, 0)
            made.act(seen())
        made.close()
        assert len(peer.headers) == 3


# Several servers


def test_a_worker_begins_at_its_own_server_of_a_list_and_turns_to_the_next_where_that_is_gone(monkeypatch):
    with websockets(openpi(lambda r, n: chunk(5))) as first, websockets(openpi(lambda r, n: chunk(5))) as second:
        urls = f"{first.url},{second.url}"
        for worker, peer in ((0, first), (1, second), (2, first)):
            monkeypatch.setenv("SAFEVLA_WORKER", str(worker))
            before = len(peer.headers)
            begun(urls).close()
            assert len(peer.headers) == before + 1
        monkeypatch.setenv("SAFEVLA_WORKER", "1")
        made = client(urls)
        second.kill()
        made.reset(TASK, 0)
        assert len(first.headers) == 3
        made.close()


# Keys


def test_a_key_comes_from_the_environment_or_a_file_and_goes_into_the_header(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("from-file\n")
    with websockets(openpi(lambda request, number: chunk(5))) as peer:
        begun(peer.url).close()
        monkeypatch.setenv("SAFEVLA_API_KEY", "from-default")
        begun(peer.url).close()
        monkeypatch.setenv("OTHER", "from-other")
        begun(peer.url, key_env="OTHER").close()
        begun(peer.url, key_file=str(tmp_path / "key")).close()
    assert peer.headers == [None, "Api-Key from-default", "Api-Key from-other", "Api-Key from-file"]


def test_a_key_that_a_server_repeats_or_a_library_logs_is_not_told(monkeypatch, caplog):
    monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
    caplog.set_level(logging.DEBUG)
    with websockets(openpi(lambda r, n: "ValueError: bad key s3cret")) as peer, pytest.raises(PolicyError) as caught:
        begun(peer.url).act(seen())
    assert "bad key ***" in str(caught.value)
    ours = [record for record in caplog.records if record.name.startswith("safevla_bench")]
    assert all("s3cret" not in record.getMessage() for record in ours)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_says_where_a_key_is_read_from(status, monkeypatch):
    refusing = {"process_request": lambda connection, request: connection.respond(status, "no\n")}
    with websockets(lambda connection: None, **refusing) as peer:
        with pytest.raises(PolicyError, match=f"wants a key .HTTP {status}") as caught:
            begun(peer.url)
        assert "SAFEVLA_API_KEY" in caught.value.remedy
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        with pytest.raises(PolicyError, match="refuses this key") as caught:
            begun(peer.url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key_env": "NOT_SET"}, "'NOT_SET' holds no key"),
        ({"key_file": "/nonexistent"}, "cannot be read"),
        ({"key": "s3cret"}, "no argument 'key'"),
        ({"api_token": "s3cret"}, "'api_token' as an argument"),
        ({"replan": "0"}, "replan=0"),
        ({"timeout_s": "soon"}, "timeout_s=soon"),
        ({"connect_timeout_s": "-1"}, "connect_timeout_s=-1"),
        ({"timeout_s": "inf"}, "timeout_s=inf"),
        ({"dialect": "none-such"}, "no dialect 'none-such'"),
        ({"dialect": "gr00t-libero"}, "servers of gr00t, not of openpi"),
        ({"cameras": "agentview"}, "shows 2"),
        ({"cameras": "none,none"}, "shows 2"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_asked_and_no_secret_is_repeated(arguments, words):
    with pytest.raises(PolicyError, match=words) as caught:
        client("ws://127.0.0.1:1", **arguments)
    assert "s3cret" not in str(caught.value)


def test_a_key_of_several_lines_is_none(tmp_path):
    (tmp_path / "key").write_text("one\ntwo\n")
    with pytest.raises(PolicyError, match="does not hold a key") as caught:
        client("ws://127.0.0.1:1", key_file=str(tmp_path / "key"))
    assert "one" not in str(caught.value).replace("one line", "")


@pytest.mark.parametrize(
    "address", ["http://a:1", "ws://", "ws://a:99999", "ws://a:b", "ws://a:0", "ws://a,,b", "ws://[::1", ""]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(PolicyError, match="address"):
        client(address)


@pytest.mark.parametrize("address", ["ws://user:s3cret@a:1", "ws://a:1/?token=s3cret", "ws://a:1/#s3cret"])
def test_an_address_with_a_secret_in_it_is_refused_without_repeating_it(address):
    with pytest.raises(PolicyError, match="holds more than a server") as caught:
        client(address)
    assert "s3cret" not in str(caught.value)


def test_the_scheme_and_the_port_may_be_left_out():
    from safevla_bench.policies.servers.endpoint import parse_addresses

    assert parse_addresses("localhost, h2:9,wss://h3/p/", "openpi", ("ws", "wss"), 8000) == (
        "ws://localhost:8000",
        "ws://h2:9",
        "wss://h3:8000/p",
    )


def test_cameras_of_another_host_take_the_places_of_the_dialect_s():
    made = client("ws://127.0.0.1:1", cameras="front,none")
    assert made.wants.cameras == ("front",)
    only = {key: kind for key, kind in OPENPI_REQUEST.items() if "wrist" not in key}
    with websockets(openpi(lambda request, number: chunk(5), only)) as peer:
        begun(peer.url, cameras="front,none").act(seen(images={"front": np.zeros((256, 256, 3), np.uint8)}))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("safevla_bench.policies.servers.client.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match="websockets, which is not installed") as caught:
        client("ws://127.0.0.1:1")
    assert install_command("openpi") in caught.value.remedy


def test_the_first_episode_uses_the_connection_that_was_made_before_its_environment():
    with websockets(openpi(lambda request, number: chunk(5))) as peer:
        made = client(peer.url)
        made.connect(TASK)
        made.reset(TASK, 0)
        made.act(seen())
        assert len(peer.open) == 1
        made.reset(TASK, 0)
        made.act(seen())
        assert len(peer.open) == 2, "each further episode has its own"
        made.close()
