"""Dialects are tables: each fits the hosts that it names, and its requests have the form of its server's own client.

starVLA's messages here are written from its files (0ed0aad deployment/model_server/tools/websocket_policy_server.py and
examples/simBenchmarks/), by the library msgpack and none of the package's own codecs.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager

import msgpack
import numpy as np
import pytest

from policies.servers.stub_servers import observe, playing, websockets
from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.policies import ask_arguments
from safevla_bench.policies.servers import dialects

WIDTHS = {"libero": 7, "robosuite": 7, "robocasa": 12, "metaworld": 4, "maniskill": 7}
MIDDLE = np.random.default_rng(1).integers(0, 256, (480, 480, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", dialects.dialect_names())
def test_a_dialect_asks_for_cameras_that_its_hosts_have_and_gives_as_many_numbers_as_they_take(name):
    dialect = dialects.load_dialect(name)
    for host in dialects.load_dialect_file(name).hosts:
        module = importlib.import_module(f"safevla_bench.hosts.{host}.host")
        assert {*dialect.wants.cameras} <= {*getattr(module, "CAMERAS", ())}
        assert (
            sum({"raw": part.width, "opening": 1, "pose-wxyz": 6, "ee6d": 7}[part.form] for part in dialect.file.reply)
            == WIDTHS[host]
        )
        assert all(column < WIDTHS[host] for column in dialect.switches)


def test_places_in_lists_close_up_where_a_camera_is_not_sent():
    chosen = dialects.choose_dialect("starvla-libero", "openpi", cameras="none,robot0_eye_in_hand")
    (image,) = chosen.build_request(observe())["examples"][0]["image"]
    assert image.shape == (224, 224, 3)
    assert [field.place for field in chosen.fields][:2] == ["examples[0]/image[1]", "examples[0]/lang"]


def test_the_host_s_own_readings_are_wanted_and_sent():
    dialect = dialects.load_dialect("openpi-maniskill")
    assert (dialect.wants.cameras, dialect.wants.extra) == ((), ("joint_pos",))
    observed = Observation(
        "lift", np.zeros(3), np.eye(4)[0], np.array([0.04, 0.03]), extra={"joint_pos": np.arange(7.0)}
    )
    np.testing.assert_array_equal(dialect.build_request(observed)["observation/state"], [*range(7), 0.04, 0.03])
    with pytest.raises(PolicyError, match="needs extra/joint_pos, which this host does not show"):
        dialect.build_request(observe())


# starVLA's servers


def pack(message: object) -> bytes:
    def array(value):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}

    return msgpack.packb(message, default=array)


def unpack(frame: bytes) -> dict:
    def restore(value):
        if b"__ndarray__" not in value:
            return value
        return np.frombuffer(value[b"data"], value[b"dtype"]).reshape(value[b"shape"])

    return msgpack.unpackb(frame, object_hook=restore)


@contextmanager
def starvla(actions: object, requests: list[dict], dialect: str, env: str = "starvla_policy_server", **arguments: str):
    """A policy of starVLA's server, which answers to what raises with an error in a map."""
    hello = {"env": env, "action_chunk_size": 4, "default_unnorm_key": None}

    def handle(connection):
        connection.send(pack(hello))
        for frame in connection:
            requests.append(unpack(frame))
            head = {"type": "inference_result", "request_id": "default"}
            if isinstance(actions, str):
                connection.send(pack({"status": "error", "ok": False, **head, "error": {"message": actions}}))
            else:
                connection.send(pack({"status": "ok", "ok": True, **head, "data": {"actions": actions}}))

    with websockets(handle) as server, playing("openpi", server.url, dialect=dialect, **arguments) as policy:
        policy.url = server.url
        yield policy


def test_starvla_s_server_is_asked_as_its_own_client_asks_it():
    requests, actions = [], np.zeros((1, 4, 7), np.float32)
    actions[0, :, 6] = [0.0, 0.5, 0.51, 1.0]
    with starvla(actions, requests, "starvla-libero", unnorm_key="franka") as policy:
        grips = [policy.act(observe())[6] for _ in range(4)]
        assert ask_arguments(f"openpi:{policy.url}", {"dialect": "starvla-libero"}) == {"replan": "4"}
    (request,) = requests
    (example,) = request.pop("examples")
    assert request == {"do_sample": False, "use_ddim": True, "num_ddim_steps": 10, "unnorm_key": "franka"}
    assert list(example) == ["image", "lang"]
    assert [(image.dtype, image.shape) for image in example["image"]] == [(np.uint8, (224, 224, 3))] * 2
    assert example["lang"] == "put it there"
    assert grips == [1.0, 1.0, -1.0, -1.0], "above one half opens"


def test_starvla_s_server_is_asked_for_meta_world_with_one_picture_and_gives_four_numbers():
    requests = []
    with starvla(np.full((1, 4, 4), 0.5, np.float32), requests, "starvla-metaworld") as policy:
        assert policy.act(observe(images={"corner2": MIDDLE})).tolist() == [0.5] * 4
    (image,) = requests[0]["examples"][0]["image"]
    assert image.shape == (224, 224, 3)


def test_starvla_s_server_of_pi0_gets_openpi_s_keys_and_answers_under_data():
    requests = []
    with starvla(np.zeros((10, 7), np.float32), requests, "starvla-openpi-libero", "starvla_openpi_server") as policy:
        policy.act(observe())
    assert list(requests[0]) == ["observation/image", "observation/wrist_image", "observation/state", "prompt"]
    assert requests[0]["observation/state"].dtype == np.float32


def test_an_error_of_starvla_s_is_reported():
    failed = pytest.raises(PolicyError, match="failed: CUDA out of memory")
    with starvla("CUDA out of memory", [], "starvla-libero") as policy, failed:
        policy.act(observe())
