"""`safevla serve`: what a policy gives in process, it gives through server and client too."""

from __future__ import annotations

import threading
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from websockets.sync.client import connect

from policies.test_openpi import TASK, client, seen
from safevla_bench import cli
from safevla_bench.errors import PolicyError, ServerRefusedError
from safevla_bench.interface import Wants
from safevla_bench.policies import dialects, policy, serving
from safevla_bench.policies.codecs import OPENPI
from safevla_bench.policies.preparing import axis_angle


@contextmanager
def served(make, seed=0, key=None, bind="127.0.0.1"):
    held = serving.Served("mine", make, seed)
    server = serving.serve(held, bind, 0, key)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        host = f"[{bind}]" if ":" in bind else bind
        yield f"ws://{host}:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()
        held.close()


class Looks:
    """Keeps what it is shown."""

    wants = Wants(cameras=("agentview", "robot0_eye_in_hand"), image_size=(256, 256))
    log: list[object]

    def __init__(self):
        self.log = []

    def reset(self, task, seed):
        self.log.append((task.instruction, seed))

    def act(self, observation):
        self.log.append(observation)
        return np.arange(7) / 10

    def close(self):
        self.log.append("closed")


def test_a_served_policy_acts_as_it_does_in_process(monkeypatch):
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    near = policy("random")
    near.reset(TASK, 5)
    with served(lambda: policy("random"), seed=5) as url:
        far = client(url, replan="1")
        for _ in range(2):  # a connection is an episode
            far.reset(TASK, 99)
            near.reset(TASK, 5)
            for _ in range(3):
                np.testing.assert_array_equal(far.act(seen()), near.act(seen()))
        far.close()


def test_a_policy_sees_upright_images_and_the_pose_that_the_client_s_host_gave():
    looks = Looks()
    turned = np.array([0.5, 0.5, -0.5, 0.5])
    with served(lambda: looks, seed=4) as url:
        far = client(url, replan="1", image_size="256")
        far.reset(TASK, 0)
        shown = seen(eef_quat_wxyz=turned)
        far.act(shown)
        far.close()
    assert looks.log[0] == ("put it there", 4)
    got = looks.log[1]
    for camera, image in shown.images.items():
        np.testing.assert_array_equal(got.images[camera], image)
    np.testing.assert_allclose(got.eef_pos_m, shown.eef_pos_m)
    np.testing.assert_allclose(got.eef_quat_wxyz, turned)
    np.testing.assert_allclose(got.gripper_qpos, shown.gripper_qpos)


@pytest.mark.parametrize("quat", [[1, 0, 0, 0], [0, 0, 1, 0], [-0.5, 0.5, 0.5, 0.5], [0.1, 0.7, -0.7, 0.1]])
def test_the_orientation_of_a_rotation_vector_is_that_it_was_made_from(quat):
    unit = np.array(quat) / np.linalg.norm(quat)
    np.testing.assert_allclose(serving.quaternion(axis_angle(unit)), unit, atol=1e-12)


def test_an_image_of_another_size_than_the_policy_wants_is_refused_with_the_argument_that_helps():
    with served(Looks) as url, pytest.raises(ServerRefusedError, match="256 x 256") as caught:
        client(url, replan="1").reset(TASK, 0)
    assert "image_size=256" in caught.value.remedy


def test_what_another_client_sends_is_refused_in_one_line_that_says_what_helps():
    request = dialects.dialect("openpi-libero").request(seen())
    with served(Looks) as url, connect(url, max_size=None) as connection:
        connection.recv()
        connection.send(OPENPI.pack(request))
        told = connection.recv()
    assert told.startswith("'observation/image' is uint8 of [224, 224, 3]. ")
    assert "image_size=N" in told
    assert "\n" not in told


def test_connections_at_the_same_time_have_a_policy_each_and_those_after_use_it_again():
    made = []
    with served(lambda: made.append(Looks()) or made[-1]) as url:
        one, other = client(url, replan="1", image_size="256"), client(url, replan="1", image_size="256")
        one.reset(TASK, 0)
        other.reset(TASK, 0)
        one.act(seen())
        other.act(seen())
        one.close()
        other.close()
    assert len(made) == 2
    assert [len([item for item in looks.log if item != "closed"]) for looks in made] == [2, 2]


def test_what_a_policy_raises_is_its_client_s_to_know():
    class Breaks(Looks):
        def act(self, observation):
            raise ZeroDivisionError("no weights")

    with served(Breaks) as url:
        far = client(url, replan="1", image_size="256")
        far.reset(TASK, 0)
        with pytest.raises(PolicyError, match="failed: ZeroDivisionError: no weights"):
            far.act(seen())


def test_a_request_without_a_field_is_refused_and_named():
    with served(lambda: policy("noop")) as url:
        far = client(url, replan="1")
        far.reset(TASK, 0)
        with pytest.raises(PolicyError, match="'observation/state' has 6 numbers"):
            far.act(replace(seen(), gripper_qpos=np.zeros(0)))


def test_without_its_key_a_server_tells_its_health_and_nothing_else(monkeypatch):
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    with served(lambda: policy("noop"), key="s3cret") as url:
        with urllib.request.urlopen(f"{url.replace('ws', 'http')}/healthz") as healthy:
            assert healthy.read() == b"OK\n"
        with pytest.raises(PolicyError, match="wants a key"):
            client(url).reset(TASK, 0)
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        far = client(url, replan="1")
        far.reset(TASK, 0)
        assert far.act(seen()).shape == (7,)
        far.close()


def test_a_policy_that_sees_the_simulator_s_state_cannot_be_served(capsys):
    assert cli.run(["serve", "--policy", "scripted:careful"]) == 2
    told = capsys.readouterr().err
    assert "sees the simulator's own state, which no request" in told
    assert "safevla eval --policy scripted:careful" in told


def test_a_policy_with_more_cameras_than_a_request_holds_cannot_be_served():
    class Many(Looks):
        wants = Wants(cameras=("a", "b", "c"))

    with pytest.raises(PolicyError, match="wants 3 cameras"):
        serving.Served("many", Many)


def test_an_address_that_is_taken_is_told(monkeypatch):
    with served(lambda: policy("noop")) as url:
        port = url.rpartition(":")[2]
        monkeypatch.setenv("SAFEVLA_API_KEY", "")
        assert cli.run(["serve", "--policy", "noop", "--port", port]) == 2


def test_it_listens_where_it_is_told_also_on_ipv6():
    with served(Looks, bind="::1") as url:
        far = client(url, replan="1", image_size="256")
        far.reset(TASK, 0)
        assert far.act(seen()).shape == (7,)
        far.close()
