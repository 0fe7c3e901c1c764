"""The client of X-VLA's own server: what its own client sends and does, and what fails there.

The numbers are those of upstream's client (6bc2513 evaluation/libero/libero_client.py).
"""

from __future__ import annotations

import base64
import contextlib
import json

import numpy as np
import pytest

from policies.servers.stub_servers import TASK, http_server, observe, playing
from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers.codecs import XVLA
from safevla_bench.policies.servers.transforms import read_ee6d

ROWS = np.zeros((4, 20))
ROWS[:, :10] = [
    [2.04, -2.56, 0.42, -0.57, -0.45, -0.22, -2.02, -0.23, -0.87, 0.2],
    [0.02, 1.55, 0.55, -0.51, -0.18, 0.54, 1.94, -0.27, -0.24, 0.5],
    [0.28, 0.7, -0.44, -1.08, 0.03, -0.05, 1.41, 0.75, 0.19, 0.51],
    [-1.64, 0.06, -0.96, 1.0, 0.0, 0.0, 0.0, -1.0, 0.001, 0.9],
]
UPSTREAM = [
    [2.0399999618530273, -2.559999942779541, 0.41999998688697815, -0.8454315, 2.6235454, -0.2599006, -1.0],
    [0.019999999552965164, 1.5499999523162842, 0.550000011920929, -0.734173, -1.1704462, -2.1226096, -1.0],
    [0.2800000011920929, 0.699999988079071, -0.4399999976158142, 0.0371784, 3.0835271, 0.2429453, 1.0],
    [-1.6399999856948853, 0.05999999865889549, -0.9599999785423279, 3.1405926, 0.0, 0.0, 1.0],
]


@contextlib.contextmanager
def served(requests: list[dict], reply: object = {"action": ROWS.tolist()}, status: int = 200):
    """A server that answers as X-VLA's `_build_app` does, and notes requests with their arrays unpacked."""

    def respond(method: str, path: str, body: bytes):
        if method == "GET":
            return 200, b"{}"
        request = json.loads(body)
        requests.append({key: load(value) if "__numpy__" in str(value) else value for key, value in request.items()})
        return status, json.dumps(reply).encode()

    with http_server(respond) as server:
        yield server.url


def load(text: str) -> np.ndarray:
    tree = json.loads(text)
    return np.frombuffer(base64.b64decode(tree["__numpy__"]), tree["dtype"]).reshape(tree["shape"])


def test_an_array_is_the_text_that_json_numpy_makes():
    packed = json.loads(XVLA.pack({"image": np.array([0, 1], np.uint8), "steps": 10}))
    assert packed == {"image": '{"__numpy__": "AAE=", "dtype": "|u1", "shape": [2]}', "steps": 10}


def test_a_request_holds_the_controller_s_pose_and_the_wrist_s_image_as_mujoco_renders_it():
    requests: list[dict] = []
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    pose = {CONTROLLER_POSITION: np.array([0.1, 0.2, 0.3]), CONTROLLER_ROTATION: turned.ravel()}
    with served(requests) as url, playing("xvla", url) as policy:
        policy.act(observe(extra=pose))
    (sent,) = requests
    np.testing.assert_array_equal(sent.pop("proprio"), [0.1, 0.2, 0.3, 0, 1, 0, -1, 0, 0, *[0] * 11])
    np.testing.assert_array_equal(sent.pop("image0"), observe().images["agentview"][:, ::-1])
    np.testing.assert_array_equal(sent.pop("image1"), observe().images["robot0_eye_in_hand"][::-1])
    assert sent == {"language_instruction": "put it there", "domain_id": 3, "steps": 10}


def test_a_whole_chunk_is_carried_out_and_its_last_pose_goes_with_the_next_request_of_the_episode():
    requests: list[dict] = []
    with served(requests) as url, playing("xvla", url) as policy:
        actions = [policy.act(observe()) for _ in range(5)]
        policy.reset(TASK, 0)
        policy.act(observe())
    np.testing.assert_allclose(actions[:4], UPSTREAM, atol=2e-6)
    np.testing.assert_array_equal(np.array(actions)[:4, [0, 1, 2, 6]], np.array(UPSTREAM)[:, [0, 1, 2, 6]])
    first, second, anew = (request["proprio"] for request in requests)
    np.testing.assert_array_equal(second, [*ROWS[-1, :9], *[0] * 11])
    np.testing.assert_array_equal(anew, first)


def test_a_part_of_a_reply_cannot_be_carried_out_since_its_last_pose_is_sent():
    with pytest.raises(PolicyError, match="replan"):
        make_policy("xvla:127.0.0.1:9", {"replan": "2"})


def test_numbers_that_are_not_finite_stay_so():
    assert np.isnan(read_ee6d(np.full((1, 20), np.nan))).all()


@pytest.mark.parametrize(
    ("reply", "status", "message"),
    [
        ({"error": "Request failed"}, 400, 'HTTP 400: {"error":'),
        ({"action": ROWS[:, :7].tolist()}, 200, r"shape \(4, 7\)"),
        ([1.0], 200, "holds 'answer' 1"),
    ],
)
def test_a_first_reply_that_is_not_x_vla_s_stops_the_run(reply, status, message):
    with (
        served([], reply, status) as url,
        playing("xvla", url) as policy,
        pytest.raises(ServerRefusedError, match=message),
    ):
        policy.act(observe())
