"""Dialects are tables: each fits the hosts that it names, and its requests have the form of its server's own client.

starVLA's messages here are written from its files (0ed0aad deployment/model_server/tools/websocket_policy_server.py and
examples/simBenchmarks/), by the library msgpack and none of the package's own codecs.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from policies.servers.stub_servers import TASK, observe, playing, websockets
from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Observation
from safevla_bench.policies import ask_arguments
from safevla_bench.policies.servers import dialects

WIDTHS = {"libero": 7, "robosuite": 7, "robocasa": 12, "metaworld": 4, "maniskill": 7}
MIDDLE = np.random.default_rng(1).integers(0, 256, (480, 480, 3), dtype=np.uint8)
STARVLA = json.loads((Path(__file__).parents[2] / "cases" / "starvla_requests.json").read_text())
EYE_XYZW, TURN_XYZW = [0.0, 0.0, 0.0, 1.0], [0.6, 0.0, 0.0, 0.8]


def observe_kitchen(*cameras: str, size: int = 256, **extra: np.ndarray) -> Observation:
    """What RoboCasa's host shows of a base that is not turned, as tests/cases/make_starvla_requests.py has it."""
    images = {
        camera: np.random.default_rng(k).integers(0, 256, (size, size, 3), dtype=np.uint8)
        for k, camera in enumerate(cameras)
    }
    base_m = np.array([0.5, -0.25, 0.75])
    return Observation(
        "put it there",
        base_m + [0.25, 0.125, 0.5],
        np.array([0.8, 0.6, 0.0, 0.0]),
        np.array([0.04, -0.04]),
        images,
        base_pos_m=base_m,
        base_quat_wxyz=np.eye(4)[0],
        extra=extra,
    )


@pytest.mark.parametrize("name", dialects.dialect_names())
def test_a_dialect_asks_for_cameras_that_its_hosts_have_and_gives_as_many_numbers_as_they_take(name):
    dialect = dialects.load_dialect(name)
    for host in dialects.load_dialect_file(name).hosts:
        robot = {"robot": "widowx"} if "simplerenv" in name else {}
        assert {*dialect.wants.cameras} <= {*make_host(host, robot).supports.cameras}
        assert (
            sum({"opening": 1, "pose-wxyz": 6, "ee6d": 7}.get(part.form, part.width) for part in dialect.file.reply)
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
    with pytest.raises(PolicyError, match="needs extra/joint_pos"):
        dialect.build_request(observe())


def test_maniskill_s_picture_is_sent_upright():
    image = np.arange(224 * 224 * 3, dtype=np.uint32).reshape(224, 224, 3).astype(np.uint8)
    observed = replace(
        observe(), images={"base_camera": image}, gripper_qpos=np.zeros(2), extra={"joint_pos": np.zeros(7)}
    )
    sent = dialects.load_dialect("openpi-maniskill-rgb").build_request(observed)
    np.testing.assert_array_equal(sent["observation/image"], image)


# starVLA's servers


def pack(message: object) -> bytes:
    """As starVLA's servers write it."""

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
            requests.append({**unpack(frame), "sha256": hashlib.sha256(frame).hexdigest()})
            head = {"type": "inference_result", "request_id": "default"}
            if isinstance(actions, str):
                connection.send(pack({"status": "error", "ok": False, **head, "error": {"message": actions}}))
            else:
                rows = actions if isinstance(actions, np.ndarray) else next(actions)
                connection.send(pack({"status": "ok", "ok": True, **head, "data": {"actions": rows}}))

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
    del request["sha256"]
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


def test_starvla_s_server_is_asked_for_a_kitchen_byte_by_byte_as_its_own_client_asks_it():
    requests, actions = [], np.zeros((1, 16, 12), np.float32)
    actions[0, :, 6] = np.linspace(0, 1, 16)
    actions[0, :, 11] = 1.0
    with starvla(actions, requests, "starvla-robocasa", unnorm_key="panda") as policy:
        rows = [policy.act(observe_kitchen("robot0_agentview_left")) for _ in range(9)]
        assert ask_arguments(f"openpi:{policy.url}", {"dialect": "starvla-robocasa"}) == {}, "its client takes eight"
    assert [request["sha256"] for request in requests] == [STARVLA["robocasa"]] * 2, "asked again after eight actions"
    assert [row[6] for row in rows] == [-1.0] * 8 + [-1.0], "below one half opens"
    assert {row[11] for row in rows} == {1.0}


def test_starvla_s_server_is_asked_in_every_step_of_simplerenv_and_its_last_seven_replies_are_averaged():
    """As starVLA's own client, which computes in single precision (tests/cases/make_starvla_requests.py)."""
    requests, image = [], np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    replies = [np.random.default_rng(k).uniform(-1, 1, (1, 16, 7)).astype(np.float32) for k in range(10)]
    with starvla(iter(replies * 2), requests, "starvla-simplerenv") as policy:
        for _ in range(2):
            policy.reset(TASK, 0)
            actions = [policy.act(observe(images={"3rd_view_camera": image})) for _ in replies]
            np.testing.assert_allclose(actions, STARVLA["simpler"]["actions"], atol=1e-6)
    assert {request["sha256"] for request in requests} == {STARVLA["simpler"]["frame"]}
    assert len(requests) == 20


# RoboCasa's robot in other projects' hands, written from their sources that the dialects name


def test_gr00t_s_own_kitchen_keys_are_sent_with_twelve_states_and_halved_pictures():
    cameras = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
    dialect = dialects.load_dialect("gr00t-robocasa-omron")
    joints = np.linspace(-1, 1, 7)
    extra = {"joint_pos": joints, "joint_vel": joints / 2, "gripper_qvel": np.array([0.1, -0.1])}
    assert dialect.wants.image_size == (512, 512)
    assert {*dialect.wants.extra} == {*extra}
    shown = observe_kitchen(*cameras, size=512, **extra)
    request = dialect.build_request(shown)
    states = {
        "gripper_qpos": [0.04, -0.04],
        "base_position": [0.5, -0.25, 0.75],
        "base_rotation": EYE_XYZW,
        "end_effector_position_relative": [0.25, 0.125, 0.5],
        "end_effector_rotation_relative": TURN_XYZW,
        "gripper_qvel": [0.1, -0.1],
        "end_effector_position_absolute": [0.75, -0.125, 1.25],
        "end_effector_rotation_absolute": TURN_XYZW,
        "joint_position": joints,
        "joint_position_cos": np.cos(joints),
        "joint_position_sin": np.sin(joints),
        "joint_velocity": joints / 2,
    }
    names = ("res256_image_side_0", "res256_image_side_1", "res256_image_wrist_0")
    language = "annotation.human.action.task_description"
    assert list(request) == [*(f"video.{name}" for name in names), *(f"state.{name}" for name in states), language]
    for name, values in states.items():
        sent = request[f"state.{name}"]
        assert (sent.dtype, sent.shape) == (np.float32, (1, 1, len(values)))
        np.testing.assert_array_equal(sent[0, 0], np.float32(values))
    for name, camera in zip(names, cameras, strict=True):
        blocks = shown.images[camera].reshape(256, 2, 256, 2, 3).astype(int).sum(axis=(1, 3))
        np.testing.assert_array_equal(request[f"video.{name}"][0, 0], (blocks + 2) // 4)
    assert request[language] == ["put it there"]


def test_lerobot_s_kitchen_has_the_base_first_in_states_and_actions():
    cameras = ("robot0_agentview_left", "robot0_eye_in_hand", "robot0_agentview_right")
    dialect, shown = dialects.load_dialect("lerobot-robocasa"), observe_kitchen(*cameras)
    request = dialect.build_request(shown)
    assert list(request) == [*(f"observation.images.{camera}" for camera in cameras), "observation.state", "task"]
    for camera in cameras:
        np.testing.assert_array_equal(request[f"observation.images.{camera}"], shown.images[camera])
    state = np.float32([0.5, -0.25, 0.75, *EYE_XYZW, 0.25, 0.125, 0.5, *TURN_XYZW, 0.04, -0.04])
    assert request["observation.state"].dtype == np.float32
    np.testing.assert_array_equal(request["observation.state"], state)
    base, mode, position, rotation, gripper = [0.1, 0.2, 0.3, 0.4], [0.9], [0.5, 0.6, 0.7], [-0.1, -0.2, -0.3], [0.2]
    (action,) = dialect.read_actions({"action": [[*base, *mode, *position, *rotation, *gripper]]})
    assert action.tolist() == [*position, *rotation, -1.0, *base, 1.0]


def test_starvla_s_server_of_pi0_gets_openpi_s_keys_and_answers_under_data():
    requests = []
    with starvla(np.zeros((10, 7), np.float32), requests, "starvla-openpi-libero", "starvla_openpi_server") as policy:
        policy.act(observe())
    assert list(requests[0])[:4] == ["observation/image", "observation/wrist_image", "observation/state", "prompt"]
    assert requests[0]["observation/state"].dtype == np.float32


def test_an_error_of_starvla_s_is_reported():
    failed = pytest.raises(PolicyError, match="out of memory")
    with starvla("CUDA out of memory", [], "starvla-libero") as policy, failed:
        policy.act(observe())
