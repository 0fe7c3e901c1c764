"""The GR00T client against a strict REP socket."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import pytest
import zmq

from policies.servers.stub_servers import (
    GR00T_KEYS,
    GR00T_NESTED,
    GR00T_REQUEST,
    TASK,
    client,
    demand,
    gr00t,
    gr00t_action,
    gr00t_modalities,
    observe,
    playing,
)
from safevla_bench.errors import PolicyError, ServerLostError, ServerRefusedError, ServerUnreachableError
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN
from safevla_bench.policies.servers.gr00t import Modality, parse_modalities

BEGUN = ["ping", "reset", "get_modality_config"]


def strict(endpoint: str, data: dict) -> object:
    if endpoint == "get_action":
        demand(data["observation"], GR00T_REQUEST)
        assert data["options"] is None
        return gr00t_action(16, 0.25)
    if endpoint == "reset":
        assert data == {"options": None}
        return {}
    assert endpoint in ("ping", "get_modality_config")
    return {"status": "ok"}


def strict_but(**answers):
    """Answers of a strict server, some endpoints' replaced: a value, or a function of the data."""

    def answer(endpoint, data):
        if endpoint not in answers:
            return strict(endpoint, data)
        return answers[endpoint](data) if callable(answers[endpoint]) else answers[endpoint]

    return answer


def test_each_modality_has_its_key_the_answer_s_parts_are_joined_and_eight_actions_carried_out():
    with gr00t(strict) as server, playing("gr00t", server.url) as policy:
        actions = [policy.act(observe()) for _ in range(9)]
    assert server.calls == [*BEGUN, "get_action", "get_action"]
    np.testing.assert_array_equal(actions[0][:6], 0.25)
    assert actions[0][6] == 1.0, "below one half it closes"


def test_a_token_goes_into_every_request_and_a_wrong_one_is_an_error(monkeypatch):
    with gr00t(strict, token="s3cret") as server:
        with pytest.raises(ServerRefusedError, match="Unauthorized"):
            client("gr00t", server.url).reset(TASK, 0)
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        with playing("gr00t", server.url) as policy:
            policy.act(observe())


def test_after_a_timeout_the_socket_is_made_anew_and_asks_the_next_of_the_list():
    silent = strict_but(get_action=None)
    with gr00t(silent) as first, gr00t(strict) as second:
        with playing("gr00t", f"{first.url},{second.url}", timeout_s="1") as policy:
            with pytest.raises(ServerLostError, match="answer for 1") as caught:
                policy.act(observe())
            assert "timeout_s=SECONDS" in caught.value.remedy
            policy.reset(TASK, 0)  # the first is still silent
            assert policy.act(observe()).shape == (7,)
        assert second.calls == [*BEGUN, "get_action"]


def test_a_server_that_is_not_there_is_unreachable():
    with pytest.raises(ServerUnreachableError, match="a ping"):
        client("gr00t", "tcp://127.0.0.1:1").reset(TASK, 0)


@pytest.mark.parametrize(("address", "allowed"), [("tcp://[::1]:5555", 1), ("tcp://localhost:5555", 0)])
def test_zeromq_is_told_of_an_ipv6_address(address, allowed):
    with closing(client("gr00t", address).model) as model:
        model._socket = model._open_socket()
        assert model._socket.getsockopt(zmq.IPV6) == allowed


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_server_that_went_away_is_noticed_at_once_even_if_another_took_its_place(is_restarted):
    with gr00t(strict) as server:
        policy = client("gr00t", server.url, replan="1", timeout_s="60")
        policy.reset(TASK, 0)
        policy.act(observe())
    url = server.url if is_restarted else "tcp://127.0.0.1:*"
    with closing(policy), gr00t(strict, url=url), pytest.raises(ServerLostError, match="closed the connection"):
        policy.act(observe())


def test_a_server_that_is_busy_has_the_time_of_an_answer():
    def ping(data):
        time.sleep(1)
        return {"status": "ok"}

    with gr00t(strict_but(ping=ping)) as server, playing("gr00t", server.url, connect_timeout_s="0.5") as policy:
        assert policy.act(observe()).shape == (7,)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"action": 1}, PolicyError, "with a dict"),
        ([], PolicyError, "with a list"),
        ({"error": "CUDA out of memory"}, PolicyError, "failed: CUDA out"),
        ([{"action.x": np.zeros((1, 16, 1), np.float32)}, {}], ServerRefusedError, "no 'action.y'"),
        ([{key: np.zeros((2, 16, 1)) for key in gr00t_action(1)[0]}, {}], ServerRefusedError, "shape"),
    ],
)
def test_an_error_and_an_answer_of_another_form_are_errors_and_no_loss_of_the_server(answer, error, words):
    with gr00t(strict_but(get_action=answer)) as server, playing("gr00t", server.url) as policy:
        with pytest.raises(error, match=words) as caught:
            policy.act(observe())
        assert not isinstance(caught.value, ServerLostError)


@pytest.mark.parametrize(
    ("mark", "codec", "form"),
    [("__ModalityConfig__", GR00T_MAIN, b"kind"), ("__ModalityConfig_class__", GR00T, b"as_npy")],
)
def test_main_s_servers_get_arrays_as_msgpack_numpy_packs_them_and_the_tags_as_files(mark, codec, form):
    answer = strict_but(get_modality_config=gr00t_modalities(mark))
    with gr00t(answer, codec=codec, mark=form) as server, playing("gr00t", server.url) as policy:
        assert policy.act(observe())[:6] == pytest.approx(0.25)


@pytest.mark.parametrize(
    "refusal",
    ["Observation must contain a 'video' key", "'video'", "\"observation is missing the 'video' modality dict\""],
)
def test_a_server_without_the_wrapper_is_asked_once_flat_and_then_nested(refusal):
    """`refusal` is the text of a strict server (an assertion of GR00T's), of one that is not (a KeyError's), and of
    starVLA's."""

    def act(data):
        if "video" not in data["observation"]:
            return {"error": refusal}
        demand(data["observation"], GR00T_NESTED)
        assert data["observation"]["language"] == {"annotation.human.action.task_description": [["put it there"]]}
        return [{key: np.full((1, 16, 1), 0.25, dtype=np.float32) for key in GR00T_KEYS}, {}]

    answer = strict_but(get_action=act, get_modality_config=gr00t_modalities())
    with gr00t(answer) as server, playing("gr00t", server.url) as policy:
        for _ in range(2):
            policy.reset(TASK, 0)
            assert policy.act(observe())[:6] == pytest.approx(0.25)
    assert server.calls.count("get_action") == 3, "the second episode knows the form"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (gr00t_modalities(video=["ego"]), "dialect 'gr00t-libero'"),
        (gr00t_modalities(frames=4), "takes 4 frames"),
        (gr00t_modalities(action=["left_arm"]), r"gives action\.left_arm"),
        (gr00t_modalities(language=["task"]), "takes task, which"),
    ],
)
def test_a_model_of_other_keys_or_frames_is_refused_before_an_action(config, words):
    with gr00t(strict_but(get_modality_config=config)) as server, pytest.raises(ServerRefusedError, match=words):
        client("gr00t", server.url).reset(TASK, 0)
    assert "get_action" not in server.calls


def test_n1_5_describes_its_modalities_as_json_text_with_whole_keys():
    text = '{"delta_indices": [0], "modality_keys": ["video.image", "video.wrist_image"]}'
    config = {"video": {"__ModalityConfig_class__": True, "as_json": text}, "state": "unreadable"}
    assert parse_modalities(config) == {"video": Modality(("video.image", "video.wrist_image"))}
    assert parse_modalities(None) == {}


def test_a_server_of_n1_5_gets_the_observation_alone_and_answers_with_the_action_alone():
    def act(data):
        demand(data, GR00T_REQUEST)
        return gr00t_action(16, 0.25)[0]

    older = strict_but(reset={"error": "Unknown endpoint: reset"}, get_action=act)
    with gr00t(older) as server, playing("gr00t", server.url) as policy:
        for _ in range(2):
            policy.reset(TASK, 0)
            assert policy.act(observe())[:6] == pytest.approx(0.25)
    assert policy.greeting["get_action"] == "the observation alone"


CONFIG = {"video": {"__ModalityConfig_class__": True, "as_json": {"delta_indices": [0], "modality_keys": ["image"]}}}


@pytest.mark.parametrize(("answer", "config"), [(CONFIG, {"modality_config": CONFIG}), ({"error": "no"}, {})])
def test_its_modalities_are_kept_and_a_server_that_gives_none_is_asked_all_the_same(answer, config):
    with gr00t(strict_but(get_modality_config=answer)) as server, playing("gr00t", server.url) as policy:
        policy.act(observe())
    assert policy.greeting == {"get_action": "observation and options", **config}


def test_a_server_that_pickles_is_refused():
    with gr00t(lambda endpoint, data: b"ERROR") as server, pytest.raises(ServerRefusedError, match="cannot be read"):
        client("gr00t", server.url).reset(TASK, 0)


def test_a_server_with_a_memory_has_it_reset_by_the_first_request_of_an_episode_alone():
    options_sent: list[dict] = []
    widths = {"end_effector_position": 3, "end_effector_rotation": 3, "gripper_close": 1}
    widths |= {"base_motion": 4, "control_mode": 1}

    def act(data):
        options_sent.append(data["options"])
        return [{f"action.{key}": np.zeros((1, 8, width), np.float32) for key, width in widths.items()}, {}]

    cameras = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
    kitchen = observe(
        images={camera: np.zeros((256, 256, 3), np.uint8) for camera in cameras},
        base_pos_m=np.zeros(3),
        base_quat_wxyz=np.array([1.0, 0, 0, 0]),
    )
    with gr00t(strict_but(get_action=act)) as server:
        first, second = (client("gr00t", server.url, dialect="rldx-robocasa", replan="1") for _ in range(2))
        for policy, count in ((first, 2), (first, 2), (second, 1)):
            policy.reset(TASK, 0)
            for _ in range(count):
                policy.act(kitchen)
        first.close()
        second.close()
    assert [options["reset_memory"] for options in options_sent] == [[True], [False], [True], [False], [True]]
    assert len({options["session_ids"][0] for options in options_sent[:4]}) == 1
    assert options_sent[4]["session_ids"] != options_sent[0]["session_ids"]


def test_of_two_complaints_about_video_that_about_the_form_sent_first_is_reported():
    def act(data):
        return {"error": "no video.ego" if "video.image" in data["observation"] else "no state"}

    answer = strict_but(get_action=act, get_modality_config={})
    with gr00t(answer) as server, playing("gr00t", server.url) as policy:
        with pytest.raises(PolicyError, match=r"failed: no video\.ego"):
            policy.act(observe())
        assert server.calls.count("get_action") == 2
