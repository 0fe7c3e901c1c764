"""The openpi client against a strict server: what it sends, what it refuses, and what it says when a server fails."""

from __future__ import annotations

import time

import numpy as np
import pytest

from policies.servers.stub_servers import OPENPI_REQUEST, TASK, chunk, client, observe, openpi, playing, websockets
from safevla_bench.errors import (
    InvalidActionError,
    PolicyError,
    ReplyError,
    ServerLostError,
    ServerRefusedError,
    ServerSlowError,
    ServerUnreachableError,
)
from safevla_bench.interface.policy import check_action
from safevla_bench.plugins import install_command
from safevla_bench.policies import ask_arguments
from safevla_bench.policies.servers import endpoint
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.endpoint import parse_addresses
from safevla_bench.text import learn_secret

FIVE = openpi(lambda request, number: chunk(5))
NOWHERE = "ws://127.0.0.1:1"


def answering(reply):
    return websockets(openpi(lambda request, number: reply))


def ask(url: str, **arguments: str) -> np.ndarray:
    """An episode's first action."""
    with playing("openpi", url, **arguments) as policy:
        return policy.act(observe())


def test_a_request_holds_openpi_s_keys_with_images_turned_and_an_eight_number_state():
    requests: list[dict] = []
    corner = np.zeros((256, 256, 3), np.uint8)
    corner[:128, :128] = 255
    with (
        websockets(openpi(lambda request, number: requests.append(request) or chunk(10))) as server,
        playing("openpi", server.url) as policy,
    ):
        policy.act(observe(images={"agentview": np.zeros_like(corner), "robot0_eye_in_hand": corner}))
    assert list(requests[0]) == list(OPENPI_REQUEST)
    np.testing.assert_allclose(requests[0]["observation/state"], [0, 1, 2, np.pi, 0, 0, 0.04, -0.04])
    wrist = requests[0]["observation/wrist_image"]
    assert wrist[:112, 112:].mean() > 250, "the upper left of an upright image is sent upper right: mirrored"
    assert wrist[114:].max() == 0


def test_the_first_actions_of_a_chunk_are_carried_out_and_then_the_server_is_asked_again():
    with (
        websockets(openpi(lambda request, number: chunk(10, number / 10))) as server,
        playing("openpi", server.url, replan="3") as policy,
    ):
        actions = [policy.act(observe())[0] for _ in range(7)]
        assert len(policy.calls_s) == 3
        policy.reset(TASK, 0)
        assert policy.calls_s == []
        assert policy.act(observe())[0] == 0.0, "the rest of the last chunk is dropped"
    expected = np.concatenate([chunk(10, k / 10)["actions"][:3, 0] for k in range(3)])[:7]
    np.testing.assert_allclose(actions, expected)


def test_what_a_call_takes_beyond_the_model_s_own_time_is_the_queue_and_the_network():
    def answer(request, number):
        time.sleep(0.05)
        return {**chunk(10), "server_timing": {"infer_ms": 20.0}}

    with websockets(openpi(answer)) as server, playing("openpi", server.url) as policy:
        policy.act(observe())
        assert policy.waits_s == [policy.calls_s[0] - 0.02]
        assert policy.waits_s[0] > 0.03
    silent = {**chunk(10), "server_timing": "?"}
    with answering(silent) as server, playing("openpi", server.url) as policy:
        policy.act(observe())
        assert policy.waits_s == [], "unknown, not zero"


@pytest.mark.parametrize(("arguments", "count"), [({}, 5), ({"replan": "all"}, 10), ({"replan": "1"}, 1)])
def test_replan_is_the_dialect_s_unless_it_is_given(arguments, count):
    with answering(chunk(10)) as server, playing("openpi", server.url, **arguments) as policy:
        for _ in range(count):
            policy.act(observe())
        assert len(policy.calls_s) == 1
        policy.act(observe())
        assert len(policy.calls_s) == 2


def test_a_chunk_shorter_than_replan_says_what_to_pass():
    with answering(chunk(2)) as server, pytest.raises(PolicyError, match="2 actions at") as caught:
        ask(server.url)
    assert "replan=2" in caught.value.remedy


def test_a_server_s_traceback_is_the_error_its_last_line_first():
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in infer\nValueError: no such key\n'
    with answering(text) as server, pytest.raises(PolicyError) as caught:
        ask(server.url)
    assert not isinstance(caught.value, ServerLostError), "asking again would fail again"
    assert f"{server.url} failed" in str(caught.value).splitlines()[0]
    assert "line 1, in" in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ({"action": np.zeros((2, 7))}, "no 'actions'"),
        ({"actions": np.zeros((5, 8))}, r"shape \(5, 8\), not \[steps, 7\]"),
        ({"actions": np.zeros((0, 7))}, r"shape \(0, 7\)"),
        ({"actions": np.zeros((5, 2, 7))}, r"shape \(5, 2, 7\)"),
        ({"actions": "none"}, "not an array of numbers"),
        ({"actions": [[1, 2], [3]]}, "not an array of numbers"),
        ({"actions": {"a": 1}}, "not an array of numbers"),
    ],
)
def test_a_first_reply_without_actions_refuses_the_server_and_a_later_one_is_an_error_of_its_episode(reply, words):
    with answering(reply) as server, pytest.raises(ServerRefusedError, match=words) as caught:
        ask(server.url)
    assert caught.value.remedy
    with (
        websockets(openpi(lambda request, number: reply if number else chunk(1))) as server,
        playing("openpi", server.url, replan="1") as policy,
    ):
        policy.act(observe())
        with pytest.raises(ReplyError, match=words):
            policy.act(observe())


def test_a_reply_of_another_kind_of_checkpoint_names_what_came():
    reply = {"actions": np.zeros((5, 12), np.float32), "server_timing": {"infer_ms": 1.0}}
    content = r"'actions' float32 \[5, 12\], 'server_timing' {'infer_ms' float}"
    with answering(reply) as server, pytest.raises(ServerRefusedError, match=content):
        ask(server.url)


def test_a_number_that_is_not_finite_matters_only_if_it_is_acted_on():
    actions = np.zeros((10, 7))
    actions[7, 2] = np.nan
    with answering({"actions": actions}) as server:
        with playing("openpi", server.url, replan="5") as policy:
            assert all(np.isfinite(policy.act(observe())).all() for _ in range(10))
        with playing("openpi", server.url, replan="all") as policy:
            acted = [policy.act(observe()) for _ in range(8)]
    assert np.isnan(acted[7][2])
    with pytest.raises(InvalidActionError, match="at index 2"):
        check_action(acted[7], 7)


def test_a_reply_over_the_limit_is_refused_and_the_limit_named(monkeypatch):
    monkeypatch.setattr("safevla_bench.policies.servers.endpoint.MAX_REPLY_BYTES", 2**20)
    large = {"actions": np.zeros((5, 7)), "image": np.zeros(2**21, np.uint8)}
    with answering(large) as server, pytest.raises(PolicyError, match="large: 1 MiB"):
        ask(server.url)


def test_an_answer_that_does_not_come_in_time_names_the_argument_that_waits_longer():
    def stay_silent(connection):
        connection.send(OPENPI.pack({}))
        for _ in connection:
            pass

    with websockets(stay_silent) as server, pytest.raises(ServerLostError, match=r"0\.2 s") as caught:
        ask(server.url, timeout_s="0.2")
    assert "timeout_s=SECONDS" in caught.value.remedy


def test_a_server_that_is_not_there_is_named_with_its_address_and_what_to_do():
    with pytest.raises(ServerUnreachableError, match="connection refused") as caught:
        ask(NOWHERE)
    assert "connect_timeout_s=300" in caught.value.remedy


def test_a_server_that_is_busy_has_the_time_of_an_answer():
    """openpi's server answers no handshake while another worker's request compiles the model."""
    busy = {"process_request": lambda peer, request: time.sleep(1)}
    with websockets(openpi(lambda request, number: chunk(5)), **busy) as server:
        assert ask(server.url, connect_timeout_s="0.5").shape == (7,)
        with pytest.raises(ServerUnreachableError, match="but gives no answer within timeout_s=0"):
            ask(server.url, connect_timeout_s="0.5", timeout_s="0.5")


def refusing(status: int):
    return websockets(lambda connection: None, process_request=lambda peer, _: peer.respond(status, "no\n"))


def test_a_port_that_speaks_something_else_is_an_error():
    with refusing(404) as server, pytest.raises(PolicyError, match="HTTP 404"):
        ask(server.url)


def test_a_server_that_goes_away_is_lost_and_found_again_at_the_next_episode():
    with websockets(FIVE) as server:
        policy = client("openpi", server.url)
        policy.reset(TASK, 0)
        policy.act(observe())
    for _ in range(4):
        policy.act(observe())
    with pytest.raises(ServerLostError, match="closed the connection"):
        policy.act(observe())
    with websockets(FIVE, server.port):
        policy.reset(TASK, 0)
        assert policy.act(observe()).shape == (7,)
        policy.close()


def test_each_episode_is_a_connection_of_its_own():
    with websockets(FIVE) as server:
        policy = client("openpi", server.url)
        policy.connect(TASK)
        for count in (2, 3, 4):
            policy.reset(TASK, 0)
            policy.act(observe())
            assert len(server.open) == count
        policy.close()


def test_a_worker_begins_at_its_own_server_of_a_list_and_turns_to_the_next_if_that_is_gone(monkeypatch):
    with websockets(FIVE) as first, websockets(FIVE) as second:
        urls = f"{first.url},{second.url}"
        for worker, server in ((0, first), (1, second), (2, first)):
            monkeypatch.setenv("SAFEVLA_WORKER", str(worker))
            before = len(server.headers)
            ask(urls)
            assert len(server.headers) == before + 1
        monkeypatch.setenv("SAFEVLA_WORKER", "1")
        second.close()
        ask(urls)
        assert len(first.headers) == 3


# Keys and other arguments


def test_a_key_comes_from_the_environment_or_a_file_and_goes_into_the_header(monkeypatch, tmp_path):
    (tmp_path / "key").write_text("from-file\n")
    with websockets(FIVE) as server:
        ask(server.url)
        monkeypatch.setenv("SAFEVLA_API_KEY", "from-default")
        ask(server.url)
        ask(server.url, key_file=str(tmp_path / "key"))
    assert server.headers == [None, "Api-Key from-default", "Api-Key from-file"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_says_where_a_key_is_read_from(status, monkeypatch):
    with refusing(status) as server:
        with pytest.raises(PolicyError, match=f"HTTP {status}") as caught:
            ask(server.url)
        assert "SAFEVLA_API_KEY" in caught.value.remedy
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        with pytest.raises(PolicyError, match="refuses this key") as caught:
            ask(server.url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"key_file": "/nonexistent"}, "cannot be read"),
        ({"key": "s3cret"}, "'key' with"),
        ({"api_token": "s3cret"}, "argument 'api_token'"),
        ({"replan": "0"}, "replan=0"),
        ({"timeout_s": "soon"}, "timeout_s=soon"),
        ({"connect_timeout_s": "-1"}, "connect_timeout_s=-1"),
        ({"timeout_s": "inf"}, "timeout_s=inf"),
        ({"dialect": "none-such"}, "no dialect 'none-such'"),
        ({"dialect": "gr00t-libero"}, "servers of gr00t"),
        ({"cameras": "agentview"}, "shows 2"),
        ({"image_size": "64x"}, "image_size=64x"),
        ({"image_size": "5000"}, "image_size=5000"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_asked_and_no_secret_is_repeated(arguments, words):
    learn_secret("s3cret")
    with pytest.raises(PolicyError, match=words) as caught:
        client("openpi", NOWHERE, **arguments)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        *("http://a:1", "ws://", "ws://a:99999", "ws://a:b", "ws://a:0", "ws://a,,b", "", "ws://[::1"),
        *("ws://user:s3cret@a:1", "ws://a:1/?token=s3cret", "ws://a:1/#s3cret"),
    ],
)
def test_what_is_not_an_address_is_refused_and_no_secret_is_repeated(address):
    with pytest.raises(PolicyError, match="needs a valid address") as caught:
        client("openpi", address)
    assert "s3cret" not in str(caught.value)


def test_the_scheme_and_the_port_may_be_left_out():
    assert parse_addresses("localhost, h2:9,wss://h3/p/", "openpi", ("ws", "wss"), 8000) == (
        "ws://localhost:8000",
        "ws://h2:9",
        "wss://h3:8000/p",
    )


def test_cameras_of_another_host_take_the_places_of_the_dialect_s():
    only = {key: kind for key, kind in OPENPI_REQUEST.items() if "wrist" not in key}
    with (
        websockets(openpi(lambda request, number: chunk(5), only)) as server,
        playing("openpi", server.url, cameras="front,none") as policy,
    ):
        assert policy.wants.cameras == ("front",)
        policy.act(observe(images={"front": np.zeros((256, 256, 3), np.uint8)}))


def test_what_another_server_than_safevla_serve_says_of_images_is_not_followed():
    wishes = {"cameras": {"observation/image": "agentview"}, "image_size": [64, 64], "replan": "all"}
    with websockets(lambda connection: connection.send(OPENPI.pack(wishes))) as server:
        assert ask_arguments(f"openpi:{server.url}") == {}


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("safevla_bench.policies.servers.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match="websockets, which is") as caught:
        client("openpi", NOWHERE)
    assert install_command("openpi") in caught.value.remedy


def test_a_silent_server_that_several_workers_share_may_be_slow(monkeypatch):
    monkeypatch.setenv("SAFEVLA_WORKERS", "4")
    error = endpoint.silent_error("ws://there", 60.0)
    assert isinstance(error, ServerSlowError)
    assert "4 workers" in str(error)
    monkeypatch.setenv("SAFEVLA_WORKERS", "1")
    assert "share" not in str(endpoint.silent_error("ws://there", 60.0))
