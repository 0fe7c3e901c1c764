"""The GR00T client against a strict REP socket."""

from __future__ import annotations

import numpy as np
import pytest

from policies.servers.test_openpi import TASK, seen
from safevla_bench.errors import (
    PolicyError,
    ServerLostError,
    ServerRefusedError,
    ServerUnreachableError,
)
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN
from safevla_bench.policies.servers.gr00t import Modality, parse_modalities
from stub_servers import GR00T_KEYS, GR00T_NESTED, GR00T_REQUEST, demand, gr00t, gr00t_action, gr00t_modalities

BEGUN = ["ping", "reset", "get_modality_config"]


def client(url: str, **arguments: str):
    return make_policy(f"gr00t:{url}", {"connect_timeout_s": "0.5", "timeout_s": "5", **arguments})


def strictly(endpoint: str, data: dict) -> object:
    if endpoint == "get_action":
        demand(data["observation"], GR00T_REQUEST)
        assert data["options"] is None
        return gr00t_action(16, 0.25)
    if endpoint == "reset":
        assert data == {"options": None}
        return {}
    assert endpoint in ("ping", "get_modality_config")
    return {"status": "ok"}


def test_each_modality_has_its_key_and_the_answer_s_parts_are_joined():
    with gr00t(strictly) as server:
        made = client(server.url)
        made.reset(TASK, 0)
        action = made.act(seen())
        made.close()
    assert server.calls == [*BEGUN, "get_action"]
    np.testing.assert_array_equal(action[:6], 0.25)
    assert action[6] == 1.0, "below one half it closes"


def test_eight_actions_of_a_chunk_are_carried_out():
    with gr00t(strictly) as server:
        made = client(server.url)
        made.reset(TASK, 0)
        for _ in range(9):
            made.act(seen())
        made.close()
    assert server.calls.count("get_action") == 2


def test_a_token_goes_into_every_request_and_a_wrong_one_is_told(monkeypatch):
    with gr00t(strictly, token="s3cret") as server:
        with pytest.raises(ServerRefusedError, match="Unauthorized"):
            client(server.url).reset(TASK, 0)
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        made = client(server.url)
        made.reset(TASK, 0)
        made.act(seen())
        made.close()


def test_the_server_s_error_is_told():
    def fails(endpoint, data):
        return {"error": "CUDA out of memory"} if endpoint == "get_action" else {}

    with gr00t(fails) as server:
        made = client(server.url)
        made.reset(TASK, 0)
        with pytest.raises(PolicyError, match="failed: CUDA out of memory") as caught:
            made.act(seen())
        made.close()
    assert not isinstance(caught.value, ServerLostError)


def test_after_a_timeout_the_socket_is_made_anew_and_asks_again():
    silent = [True]

    def answer(endpoint, data):
        if endpoint == "get_action" and silent[0]:
            silent[0] = False
            return None
        return strictly(endpoint, data)

    with gr00t(answer) as first, gr00t(strictly) as second:
        made = client(f"{first.url},{second.url}", timeout_s="3")
        made.reset(TASK, 0)
        with pytest.raises(ServerLostError, match=r"no answer for 3 s") as caught:
            made.act(seen())
        assert "timeout_s=SECONDS" in caught.value.remedy
        made.reset(TASK, 0)  # the first is still silent: the next of the list is asked
        assert made.act(seen()).shape == (7,)
        assert second.calls == [*BEGUN, "get_action"]
        made.close()


def test_a_server_that_is_not_there_is_told():
    made = client("tcp://127.0.0.1:1", connect_timeout_s="0.2")
    with pytest.raises(ServerUnreachableError, match="no answer to a ping"):
        made.reset(TASK, 0)
    made.close()


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"action": 1}, PolicyError, "answered with a dict"),
        ([], PolicyError, "answered with a list"),
        ([{"action.x": np.zeros((1, 16, 1), np.float32)}, {}], ServerRefusedError, "no 'action.y'"),
        ([{key: np.zeros((2, 16, 1)) for key in gr00t_action(1)[0]}, {}], ServerRefusedError, "shape"),
    ],
)
def test_an_answer_of_another_form_is_refused(answer, error, words):
    with gr00t(lambda endpoint, data: answer if endpoint == "get_action" else {}) as server:
        made = client(server.url)
        made.reset(TASK, 0)
        with pytest.raises(error, match=words):
            made.act(seen())
        made.close()


def test_main_s_servers_get_arrays_as_msgpack_numpy_packs_them_and_the_tags_as_files():
    for mark, codec, form in (
        ("__ModalityConfig__", GR00T_MAIN, b"kind"),
        ("__ModalityConfig_class__", GR00T, b"as_npy"),
    ):

        def answer(endpoint, data, mark=mark):
            return gr00t_modalities(mark) if endpoint == "get_modality_config" else strictly(endpoint, data)

        with gr00t(answer, codec=codec, mark=form) as server:
            made = client(server.url)
            made.reset(TASK, 0)
            assert made.act(seen())[:6] == pytest.approx(0.25)
            made.close()


@pytest.mark.parametrize("refusal", ["Observation must contain a 'video' key", "'video'"])
def test_a_server_without_the_wrapper_is_asked_once_flat_and_then_nested(refusal):
    """`refusal` is the text of a strict server (an assertion of GR00T's), and of one that is not (a KeyError's)."""

    def nested(endpoint, data):
        if endpoint == "get_action":
            if "video" not in data["observation"]:
                return {"error": refusal}
            demand(data["observation"], GR00T_NESTED)
            assert data["observation"]["language"] == {"annotation.human.action.task_description": [["put it there"]]}
            return [{key: np.full((1, 16, 1), 0.25, dtype=np.float32) for key in GR00T_KEYS}, {}]
        return gr00t_modalities() if endpoint == "get_modality_config" else strictly(endpoint, data)

    with gr00t(nested) as server:
        made = client(server.url)
        for _ in range(2):
            made.reset(TASK, 0)
            assert made.act(seen())[:6] == pytest.approx(0.25)
        made.close()
    assert server.calls.count("get_action") == 3, "the second episode knows the form"


@pytest.mark.parametrize(
    ("described", "words", "remedy"),
    [
        (gr00t_modalities(video=["ego"]), r"takes video\.ego, which the dialect 'gr00t-libero'", "No dialect"),
        (gr00t_modalities(frames=4), "takes 4 frames of video", "No dialect"),
        (gr00t_modalities(action=["left_arm"]), r"gives action\.left_arm, .* reads action\.x", "No dialect"),
        (gr00t_modalities(language=["task"]), "takes task, which", "No dialect"),
        (
            {
                **gr00t_modalities(
                    video=["robot0_eye_in_hand"],
                    state=["gripper_qpos"],
                    language=["annotation.human.task_description"],
                    action=["end_effector_position", "end_effector_rotation"]
                    + ["gripper_close", "base_motion", "control_mode"],
                )
            },
            "takes video.robot0_eye_in_hand",
            "dialect=gr00t-robocasa",
        ),
    ],
)
def test_a_model_of_other_keys_or_frames_is_refused_before_an_action(described, words, remedy):
    def answer(endpoint, data):
        return described if endpoint == "get_modality_config" else strictly(endpoint, data)

    with gr00t(answer) as server:
        with pytest.raises(ServerRefusedError, match=words) as caught:
            client(server.url).reset(TASK, 0)
        assert remedy in caught.value.remedy
    assert "get_action" not in server.calls


def test_n1_5_describes_its_modalities_as_json_text_with_whole_keys():
    text = '{"delta_indices": [0], "modality_keys": ["video.image", "video.wrist_image"]}'
    config = {"video": {"__ModalityConfig_class__": True, "as_json": text}, "state": "unreadable"}
    assert parse_modalities(config) == {"video": Modality(("video.image", "video.wrist_image"), 1)}
    assert parse_modalities(None) == {}


def test_a_server_that_dies_in_a_call_is_noticed_at_once_not_after_the_time_for_an_answer():
    with gr00t(lambda endpoint, data: b"" if endpoint == "get_action" else strictly(endpoint, data)) as server:
        made = client(server.url, timeout_s="600")
        made.reset(TASK, 0)
        with pytest.raises(ServerLostError, match="closed the connection"):
            made.act(seen())
        made.close()


def test_a_server_of_n1_5_gets_the_observation_alone_and_answers_with_the_action_alone():
    def older(endpoint, data):
        if endpoint == "reset":
            return {"error": "Unknown endpoint: reset"}
        if endpoint == "get_action":
            demand(data, GR00T_REQUEST)
            return gr00t_action(16, 0.25)[0]
        return {}

    with gr00t(older) as server:
        made = client(server.url)
        for _ in range(2):
            made.reset(TASK, 0)
            assert made.act(seen())[:6] == pytest.approx(0.25)
        made.close()
    assert made.greeting["get_action"] == "the observation alone"


def test_its_modalities_are_kept_and_a_server_that_tells_none_is_asked_all_the_same():
    config = {
        "video": {"__ModalityConfig_class__": True, "as_json": {"delta_indices": [0], "modality_keys": ["image"]}},
    }

    def tells(endpoint, data):
        return config if endpoint == "get_modality_config" else strictly(endpoint, data)

    def fails(endpoint, data):
        return {"error": "no"} if endpoint == "get_modality_config" else strictly(endpoint, data)

    for answer, told in ((tells, {"modality_config": config}), (fails, {})):
        with gr00t(answer) as server:
            made = client(server.url)
            made.reset(TASK, 0)
            made.act(seen())
            made.close()
        assert made.greeting == {"get_action": "observation and options", **told}


def test_a_server_that_cannot_read_messagepack_is_told():
    with gr00t(lambda endpoint, data: b"ERROR") as server:
        with pytest.raises(ServerRefusedError, match="cannot read what it was sent") as caught:
            client(server.url).reset(TASK, 0)
        assert "pickle" in caught.value.remedy


def test_a_server_with_a_memory_has_it_reset_by_the_first_request_of_an_episode_alone():
    asked: list[dict] = []

    def remembers(endpoint, data):
        if endpoint == "get_action":
            asked.append(data["options"])
            widths = {"end_effector_position": 3, "end_effector_rotation": 3, "gripper_close": 1}
            widths |= {"base_motion": 4, "control_mode": 1}
            return [{f"action.{key}": np.zeros((1, 8, width), np.float32) for key, width in widths.items()}, {}]
        return {}

    cameras = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
    kitchen = seen(
        images={camera: np.zeros((256, 256, 3), np.uint8) for camera in cameras},
        base_pos_m=np.zeros(3),
        base_quat_wxyz=np.array([1.0, 0, 0, 0]),
    )
    with gr00t(remembers) as server:
        made, other = (client(server.url, dialect="rldx-robocasa", replan="1") for _ in range(2))
        for _ in range(2):
            made.reset(TASK, 0)
            made.act(kitchen)
            made.act(kitchen)
        other.reset(TASK, 0)
        other.act(kitchen)
        made.close()
        other.close()
    assert [options["reset_memory"] for options in asked] == [[True], [False], [True], [False], [True]]
    assert len({options["session_ids"][0] for options in asked[:4]}) == 1
    assert asked[4]["session_ids"] != asked[0]["session_ids"]
