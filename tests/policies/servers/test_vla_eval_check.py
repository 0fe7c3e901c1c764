"""A model server of the harness that asks for what a dialect does not do is refused, never served wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from peers import vla_eval, websockets
from policies.servers.test_openpi import TASK, seen
from policies.servers.test_vla_eval import acts, client
from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.vla_eval_check import granted


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
    granted(said, dialects.dialect(dialect), chosen=False)


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
        granted(said, dialects.dialect(dialect), chosen=chosen)


@pytest.mark.parametrize(
    ("said", "words"), [(greeting(send_state=True), "shortest"), (greeting("continuous_01"), "continuous_01")]
)
def test_another_convention_is_refused_unless_the_dialect_was_chosen(said, words):
    with pytest.raises(PolicyError, match=words) as caught:
        granted(said, dialects.dialect("vla-eval-libero"), chosen=False)
    assert "dialect" in caught.value.remedy
    granted(said, dialects.dialect("vla-eval-libero"), chosen=True)


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
