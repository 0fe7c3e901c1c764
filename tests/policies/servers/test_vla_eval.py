"""The client of vla-evaluation-harness's model servers against a strict one."""

from __future__ import annotations

import numpy as np
import pytest

from policies.servers.test_openpi import TASK, seen
from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.vla_eval import check_requirements
from stub_servers import VLA_EVAL_REQUEST, demand, vla_eval, websockets


def client(url: str, **arguments: str):
    return make_policy(f"vla-eval:{url}", {"connect_timeout_s": "0.5", "timeout_s": "5", **arguments})


def acts(payload: dict, number: int) -> dict:
    demand(payload, VLA_EVAL_REQUEST)
    return {"payload": {"actions": np.array([0.1, 0, 0, 0, 0, 0, -0.3 if number else 0.0])}}


def test_an_episode_is_greeted_announced_played_and_ended():
    log: list[dict] = []
    with websockets(vla_eval(acts, log)) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        first, second = made.act(seen()), made.act(seen())
        made.reset(TASK, 0)
        made.close()
    kinds = ["hello", "episode_start", "observation", "observation"]
    assert [(message["type"], message["seq"]) for message in log[:4]] == list(zip(kinds, [1, 2, 3, 4], strict=True))
    assert log[1]["payload"]["task"] == {"name": "put it there", "suite": "libero-spatial", "task_id": 0}
    later = [(message["type"], message["seq"]) for message in log[4:]]  # of two connections, a thread each
    assert ("episode_end", 5) in later
    assert [one for one in later if one[1] < 3] == [("hello", 1), ("episode_start", 2)]
    assert first[6] == 1.0, "its gripper closes at zero"
    assert second[6] == -1.0


def test_an_error_of_the_server_is_told():
    failing = vla_eval(lambda payload, number: {"type": "error", "payload": {"error": "observation_failed: X"}}, [])
    with websockets(failing) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        with pytest.raises(PolicyError, match="failed: observation_failed: X"):
            made.act(seen())
        made.close()


@pytest.mark.parametrize("changed", [{"seq": 99}, {"type": "hello"}])
def test_an_answer_to_something_else_is_no_answer(changed):
    with websockets(vla_eval(lambda payload, number: {**acts(payload, number), **changed}, [])) as peer:
        made = client(peer.url)
        made.reset(TASK, 0)
        with pytest.raises(ServerLostError, match="was to come"):
            made.act(seen())
        made.close()


@pytest.mark.parametrize("frame", ["text", b"\x90", b"\x81\xa4type\xa1x"])
def test_what_is_no_message_of_the_harness_is_refused(frame):
    def handle(connection):
        connection.recv()
        connection.send(frame)

    with websockets(handle) as peer, pytest.raises(PolicyError, match="no message of vla-evaluation-harness"):
        client(peer.url).reset(TASK, 0)


def greeting(gripper="binary_close_positive", **asked):
    return {"observation_params": asked, "action_spec": {"gripper": {"format": gripper}}}


@pytest.mark.parametrize(
    ("said", "dialect"),
    [
        ({}, "vla-eval-libero"),
        (greeting(seed=0), "openvla-libero"),
        (greeting(send_state=True, send_wrist_image=True, quat_no_antipodal=True), "vla-eval-libero"),
        (greeting(send_state=True), "vla-eval-libero-shortest"),
        (greeting("raw"), "vla-eval-libero"),
        ({"observation_params": None, "action_spec": []}, "vla-eval-libero"),
    ],
)
def test_what_the_dialect_does_is_granted(said, dialect):
    check_requirements(said, dialects.load_dialect(dialect), chosen=False)


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize(
    ("said", "dialect", "words"),
    [
        (greeting(absolute_action=True), "vla-eval-libero", "absolute poses"),
        ({"action_spec": {"position": {"format": "absolute_xyz"}}}, "vla-eval-libero", "absolute poses"),
        (greeting(send_state=True), "openvla-libero", "send_state"),
        (greeting(send_wrist_image=True), "openvla-libero", "send_wrist_image"),
    ],
)
def test_what_it_cannot_do_is_refused_whoever_chose_it(said, dialect, words, chosen):
    with pytest.raises(PolicyError, match=words):
        check_requirements(said, dialects.load_dialect(dialect), chosen=chosen)


@pytest.mark.parametrize(
    ("said", "words"), [(greeting(send_state=True), "shortest"), (greeting("continuous_01"), "continuous_01")]
)
def test_another_convention_is_refused_unless_the_dialect_was_chosen(said, words):
    with pytest.raises(PolicyError, match=words) as caught:
        check_requirements(said, dialects.load_dialect("vla-eval-libero"), chosen=False)
    assert "dialect" in caught.value.remedy
    check_requirements(said, dialects.load_dialect("vla-eval-libero"), chosen=True)


def asking(said, log):
    """A server with that greeting."""

    def handle(connection):
        connection.recv()
        connection.send(VLA_EVAL.pack({"type": "hello", "payload": said, "seq": 1, "timestamp": 0.0}))
        vla_eval(acts, log)(connection)

    return handle


def test_a_server_is_refused_before_an_episode_is_announced():
    log: list[dict] = []
    with websockets(asking(greeting(send_state=True), log)) as peer, pytest.raises(ServerRefusedError):
        client(peer.url).reset(TASK, 0)
    assert log == []


def test_the_shortest_rotation_is_sent_to_a_server_that_asks_for_no_other():
    log: list[dict] = []
    turned = seen(eef_quat_wxyz=np.array([-0.1, np.sqrt(0.99), 0, 0]))
    with websockets(asking(greeting(send_state=True), log)) as peer:
        for name in ("vla-eval-libero-shortest", "vla-eval-libero"):
            made = client(peer.url, dialect=name)
            made.reset(TASK, 0)
            made.act(turned)
            made.close()
    shortest, kept = (one["payload"]["states"][3] for one in log if one["type"] == "observation")
    assert shortest == pytest.approx(-2 * np.arccos(0.1))
    assert kept == pytest.approx(2 * np.arccos(-0.1))
    assert kept - shortest == pytest.approx(2 * np.pi), "the same rotation, another vector"
