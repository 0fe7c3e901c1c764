"""The client of vla-evaluation-harness's model servers against a strict one."""

from __future__ import annotations

import io
import json
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

from policies.servers.stub_servers import TASK, VLA_EVAL_REQUEST, client, demand, observe, playing, vla_eval, websockets
from policies.servers.test_codecs import same
from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import dialects
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.vla_eval import adapt_dialect, check_requirements, describe_task

REQUESTS = json.loads((Path(__file__).parents[2] / "cases" / "vla_eval_requests.json").read_text())


def acts(payload: dict, number: int) -> dict:
    return {"payload": {"actions": np.array([0.1, 0, 0, 0, 0, 0, -0.3 if number else 0.0])}}


def test_an_episode_is_greeted_announced_played_and_ended():
    log: list[dict] = []

    def answer(payload, number):
        demand(payload, VLA_EVAL_REQUEST)
        return acts(payload, number)

    with websockets(vla_eval(answer, log)) as server, playing("vla-eval", server.url) as policy:
        first, second = policy.act(observe()), policy.act(observe())
        policy.reset(TASK, 0)
    kinds = ["hello", "episode_start", "observation", "observation"]
    assert [(message["type"], message["seq"]) for message in log[:4]] == list(zip(kinds, [1, 2, 3, 4], strict=True))
    assert log[1]["payload"]["task"] == {"name": "put it there", "suite": "libero_spatial", "task_id": 0}
    later = [(message["type"], message["seq"]) for message in log[4:]]  # of two connections, a thread each
    assert ("episode_end", 5) in later
    assert [message for message in later if message[1] < 3] == [("hello", 1), ("episode_start", 2)]
    assert first[6] == 1.0, "its gripper closes at zero"
    assert second[6] == -1.0


def test_an_error_at_the_start_of_an_episode_is_reported_whenever_it_arrives():
    """Upstream answers `episode_start` only if it fails, as src/vla_eval/model_servers/serve.py of vla-eval 0.8.0."""
    failed = threading.Event()

    def fail(connection):
        for frame in connection:
            message = VLA_EVAL.unpack(frame)
            if message["type"] == "episode_start":
                payload = {"error": "episode_start_failed: KeyError: 'libero_spatial'"}
                connection.send(VLA_EVAL.pack({**message, "type": "error", "payload": payload}))
                failed.set()
            elif message["type"] == "hello":
                connection.send(VLA_EVAL.pack({**message, "payload": {}}))

    with websockets(fail) as server, playing("vla-eval", server.url) as policy:
        assert failed.wait(60)
        time.sleep(0.1)  # until the message has arrived
        with pytest.raises(PolicyError, match="failed: episode_start_failed: KeyError") as caught:
            policy.act(observe())
    assert not isinstance(caught.value, ServerLostError), "it would be tried again"


def test_a_server_that_requests_another_seed_than_the_environment_s_is_refused():
    seeds = iter([0, 3])

    def greet(connection):
        for frame in connection:
            message = VLA_EVAL.unpack(frame)
            if message["type"] == "hello":
                payload = {"observation_params": {"env_seed": next(seeds)}}
                connection.send(VLA_EVAL.pack({**message, "payload": payload}))

    with websockets(greet) as server, closing(client("vla-eval", server.url)) as policy:
        policy.connect(TASK)
        with pytest.raises(ServerRefusedError, match="another seed than before"):
            policy.reset(TASK, 0)


def test_images_go_as_png_where_that_is_asked_and_hold_the_same_pixels():
    """As src/vla_eval/protocol/image_codec.py at e1ee9ad marks and decodes them."""
    sent: list[bytes] = []
    with (
        websockets(vla_eval(lambda payload, number: sent.append(payload) or acts(payload, number), [])) as server,
        playing("vla-eval", server.url, images="png") as policy,
    ):
        policy.act(observe())
    image = sent[0]["images"]["agentview"]
    assert (image["__image__"], image["format"], image["shape"]) == (True, "png", [256, 256, 3])
    pixels = np.array(PillowImage.open(io.BytesIO(image["data"])))
    np.testing.assert_array_equal(pixels, observe().images["agentview"][:, ::-1])
    with pytest.raises(PolicyError, match="images=jpeg"):
        client("vla-eval", "ws://127.0.0.1:1", images="jpeg")


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            {"type": "error", "payload": {"error": "observation_failed: X"}},
            PolicyError,
            "failed: observation_failed: X",
        ),
        ({**acts({}, 0), "seq": 99}, ServerLostError, "sent action 99"),
        ({**acts({}, 0), "type": "hello"}, ServerLostError, "sent hello [0-9]+"),
    ],
)
def test_an_error_and_an_answer_to_something_else_are_errors(answer, kind, words):
    with (
        websockets(vla_eval(lambda payload, number: answer, [])) as server,
        playing("vla-eval", server.url) as policy,
        pytest.raises(kind, match=words),
    ):
        policy.act(observe())


def greeting(gripper="binary_close_positive", **wishes):
    return {"observation_params": wishes, "action_spec": {"gripper": {"format": gripper}}}


def adapt(hello, *, dialect="vla-eval-libero", chosen=False):
    """What `begin` does with a greeting."""
    wishes = hello.get("observation_params") or {}
    adapted = adapt_dialect(dialects.load_dialect(dialect), wishes)
    check_requirements(wishes, hello.get("action_spec") or {}, adapted, chosen=chosen)
    return adapted


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize(
    ("hello", "dialect", "words"),
    [
        ({"action_spec": {"position": {"format": "absolute_xyz"}}}, "vla-eval-libero", "absolute positions"),
        (greeting(send_state=True), "openvla-libero", "send_state"),
        (greeting(send_wrist_image=True), "openvla-libero", "send_wrist_image"),
        (greeting(control_mode="arm_pd_ee_target_base_pose"), "vla-eval-libero", "control mode arm_pd_ee_target"),
    ],
)
def test_what_it_cannot_do_is_refused_whoever_chose_it(hello, dialect, words, chosen):
    with pytest.raises(PolicyError, match=words):
        adapt(hello, dialect=dialect, chosen=chosen)


@pytest.mark.parametrize(
    ("format_", "dialect"), [("continuous_01", "vla-eval-libero"), ("binary_close_positive", "vla-eval-robocasa")]
)
def test_another_gripper_is_refused_unless_the_dialect_was_chosen(format_, dialect):
    with pytest.raises(PolicyError, match=format_) as caught:
        adapt(greeting(format_), dialect=dialect)
    assert "dialect" in caught.value.remedy
    adapt(greeting(format_), dialect=dialect, chosen=True)


def summary(message):
    """As in tests/cases/make_vla_eval_requests.py: the pixels of each image in one number."""
    images = {
        name: int(np.sum(image.astype(np.int64).ravel() * np.arange(1, image.size + 1) % 65521))
        for name, image in message["images"].items()
    }
    return {**message, "images": images}


def drawn_image(number):
    """The harness's image as the simulator renders it, from the bottom row; an observation holds it upright."""
    return np.random.default_rng(number).integers(0, 256, (256, 256, 3), dtype=np.uint8)


def one_rotation(first, second):
    """Whether two axis-angles are one rotation; at half a turn both directions are."""
    return np.allclose(first, second, atol=1e-6) or (
        np.isclose(np.linalg.norm(first), np.pi, atol=1e-5) and np.allclose(first, -second, atol=1e-5)
    )


@pytest.mark.parametrize("server", REQUESTS["asked"])
@pytest.mark.parametrize("number", range(4))
def test_a_request_is_the_harness_s_own_for_what_the_server_asks(server, number):
    """Keys, dtypes, pixels and states, made by the harness for five of its servers."""
    dialect = adapt(greeting(**REQUESTS["asked"][server]))
    quat = np.array(REQUESTS["quaternions_xyzw"][number])
    observed = observe(
        images={"agentview": drawn_image(0)[::-1], "robot0_eye_in_hand": drawn_image(1)[::-1]},
        eef_pos_m=np.array([0.1, -0.2, 0.9]),
        eef_quat_wxyz=(quat / np.linalg.norm(quat))[[3, 0, 1, 2]],
        gripper_qpos=np.array([0.04, -0.04]),
    )
    sent = summary(dialect.build_request(observed))
    harness = VLA_EVAL.unpack(bytes.fromhex(REQUESTS["libero"][server][number]))["payload"]
    assert set(sent) == set(harness)
    sent_pose, pose = sent.pop("controller_states", None), harness.pop("controller_states", None)
    assert (sent_pose is None) == (pose is None)
    if pose is not None:
        assert (sent_pose.dtype, sent_pose.shape) == (pose.dtype, pose.shape)
        np.testing.assert_array_equal(sent_pose[[0, 1, 2, 6, 7]], pose[[0, 1, 2, 6, 7]])
        assert one_rotation(sent_pose[3:6], pose[3:6])
    same({key: sent[key] for key in harness}, harness)


def test_a_request_of_simplerenv_is_the_harness_s_own_byte_by_byte_and_states_are_refused():
    dialect = adapt(greeting(success_mode="truncation", max_episode_steps=120), dialect="vla-eval-simplerenv")
    picture = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    observed = observe(images={"3rd_view_camera": picture}, instruction="put carrot on plate")
    payload = summary(dialect.build_request(observed))
    frame = VLA_EVAL.pack({"type": "observation", "payload": payload, "seq": 1, "timestamp": 1.0})
    assert frame.hex() == REQUESTS["simpler"]
    grips = [dialect.read_actions({"actions": [0.0] * 6 + [grip]})[0, 6] for grip in (0.5, 0.51)]
    assert grips == [-1.0, 1.0]
    with pytest.raises(PolicyError, match="for send_state"):
        adapt(greeting(send_state=True), dialect="vla-eval-simplerenv")
    task = Task("simpler-widowx", "any", 0, "any", "put carrot on plate", (0.0,) * 7)
    assert describe_task(task) == {"name": "widowx_carrot_on_plate", "task_name": "widowx_carrot_on_plate"}


def test_a_request_of_a_kitchen_is_the_harness_s_own():
    harness = VLA_EVAL.unpack(bytes.fromhex(REQUESTS["robocasa"]))["payload"]
    dialect = adapt(greeting("binary_close_01"), dialect="vla-eval-robocasa")
    cameras = [name.removeprefix("video.") for name in harness["images"]]
    observed = observe(
        images={camera: drawn_image(k) for k, camera in enumerate(cameras)},
        base_pos_m=np.zeros(3),
        base_quat_wxyz=np.array([1.0, 0, 0, 0]),
    )
    sent = summary(dialect.build_request(observed))
    assert list(sent["state"]) == list(harness["state"])
    assert {key: (value.dtype, value.shape) for key, value in sent["state"].items()} == {
        key: (value.dtype, value.shape) for key, value in harness["state"].items()
    }
    same({**sent, "state": None}, {**harness, "state": None})


def test_a_task_is_named_as_the_harness_names_it():
    assert describe_task(TASK) == {"name": "put it there", "suite": "libero_spatial", "task_id": 0}
    kitchen = Task("robocasa-365", "OpenDrawer", 6, "OpenDrawer", "open the drawer", (0.0,) * 12)
    assert describe_task(kitchen) == {"name": "OpenDrawer", "suite": "atomic_seen"}


def asking(greeting, log):
    """A server with that greeting."""

    def handle(connection):
        connection.recv()
        connection.send(VLA_EVAL.pack({"type": "hello", "payload": greeting, "seq": 1, "timestamp": 0.0}))
        vla_eval(acts, log)(connection)

    return handle


def test_what_a_server_asks_for_is_known_before_an_environment_is_made_and_may_not_change_then():
    wishes = {"absolute_action": True, "env_seed": 0}
    with websockets(lambda connection: asking(greeting(**wishes), [])(connection)) as server:
        policy = client("vla-eval", server.url)
        assert policy.wants.cameras == ("agentview", "robot0_eye_in_hand")
        policy.connect(TASK)
        assert policy.wants == Wants(("agentview",), (256, 256), absolute=True)
        assert policy.env_seed == 0
        policy.reset(TASK, 0)
        wishes["send_wrist_image"] = True
        with pytest.raises(ServerRefusedError, match="other observations, actions"):
            policy.reset(TASK, 0)


def test_a_server_is_refused_before_an_episode_is_announced():
    log: list[dict] = []
    with websockets(asking(greeting("continuous_01"), log)) as server, pytest.raises(ServerRefusedError):
        client("vla-eval", server.url).reset(TASK, 0)
    assert log == []
