"""The client of XPolicyLab's policy servers: its messages, its dialect for one arm, and what fails there.

The stub answers as 7198143 client_server/ws/model_server.py does.
"""

from __future__ import annotations

import numpy as np
import pytest

from policies.servers.stub_servers import TASK, observe, playing, websockets
from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION
from safevla_bench.policies.servers.codecs import GR00T_MAIN

ACKNOWLEDGED = {"ok": True, "server": "demo_policy_server"}
HALF = float(np.sqrt(0.5))
ACTIONS = [
    {"ee_pose": np.float32([0.1, 0.2, 0.3, HALF, 0, 0, HALF]), "ee_joint_state": np.float32([1])},
    {"ee_pose": np.float32([0.1, 0.2, 0.4, -2, 0, 0, 0]), "ee_joint_state": np.float32([0.2])},
]


def server(log: list[dict], actions: object = ACTIONS, hello: str = "hello_ack"):
    """Handles a connection as XPolicyLab's server does; `actions` may be the text of an error."""

    def handle(connection: object) -> None:
        for frame in connection:
            message = GR00T_MAIN.unpack(frame)
            log.append(message)
            kind, payload = {
                "hello": (hello, ACKNOWLEDGED),
                "reset": ("reset_result", {"ok": True}),
                "infer": ("infer_result", {"actions": actions, "latency_ms": 1.0}),
            }[message["message_type"]]
            if kind == "infer_result" and isinstance(actions, str):
                kind, payload = "error", {"code": "infer_failed", "message": actions, "details": {}}
            connection.send(GR00T_MAIN.pack({**message, "message_type": kind, "payload": payload}))

    return websockets(handle)


def test_an_episode_is_greeted_reset_and_asked_for_each_chunk():
    log: list[dict] = []
    with server(log) as peer, playing("xpolicylab", peer.url) as policy:
        assert policy.greeting == ACKNOWLEDGED
        actions = [policy.act(observe()) for _ in range(3)]
    assert [message["message_type"] for message in log] == ["hello", "reset", "infer", "infer"]
    assert [message["step"] for message in log] == [0, 0, 0, 1]
    assert {message["trial_id"] for message in log[1:]} == {f"{TASK.benchmark}/task_0/0"}
    assert len({message["message_id"] for message in log}) == len(log)
    expected = [[0.1, 0.2, 0.3, 0, 0, np.pi / 2, -1], [0.1, 0.2, 0.4, 0, 0, 0, 1]]
    np.testing.assert_allclose(actions, [*expected, expected[0]], atol=1e-6)


def test_a_request_has_the_names_for_one_arm():
    log: list[dict] = []
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    pose = {CONTROLLER_POSITION: np.array([0.1, 0.2, 0.3]), CONTROLLER_ROTATION: turned.ravel()}
    with server(log) as peer, playing("xpolicylab", peer.url) as policy:
        policy.act(observe(extra=pose))
    sent = log[-1]["payload"]["observation"]
    assert (sent["instruction"], sent["data_format_version"]) == ("put it there", "v1.0")
    np.testing.assert_array_equal(sent["vision"]["cam_head"]["color"], observe().images["agentview"])
    np.testing.assert_array_equal(sent["vision"]["cam_wrist"]["color"], observe().images["robot0_eye_in_hand"])
    np.testing.assert_allclose(sent["state"]["ee_pose"], [0.1, 0.2, 0.3, HALF, 0, 0, HALF], rtol=1e-6)
    np.testing.assert_array_equal(sent["state"]["ee_joint_state"], np.float32([1]))


def test_what_its_model_raised_is_reported():
    failed = pytest.raises(PolicyError, match="KeyError: 'left_ee_pose'")
    with server([], "KeyError: 'left_ee_pose'") as peer, playing("xpolicylab", peer.url) as policy, failed:
        policy.act(observe())


@pytest.mark.parametrize(
    "actions", [[], [{"left_ee_pose": np.zeros(7)}], [ACTIONS[0], {"ee_pose": np.zeros(7)}], [*ACTIONS, 3]]
)
def test_actions_of_other_names_stop_the_run(actions):
    refused = pytest.raises(ServerRefusedError, match="no 'actions/ee_")
    with server([], actions) as peer, playing("xpolicylab", peer.url) as policy, refused:
        policy.act(observe())


def test_another_server_is_refused_before_the_run():
    refused = pytest.raises(ServerRefusedError, match="no hello_ack")
    with server([], hello="welcome") as peer, refused, playing("xpolicylab", peer.url):
        pass


def test_a_quaternion_of_nothing_is_not_a_rotation():
    actions = [{"ee_pose": np.zeros(7), "ee_joint_state": np.zeros(1)}]
    with server([], actions) as peer, playing("xpolicylab", peer.url) as policy:
        assert np.isnan(policy.act(observe())[3:6]).all()
