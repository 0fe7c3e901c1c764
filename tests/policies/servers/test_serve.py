"""`safevla serve`: what a policy gives in process, it gives through server and client too."""

from __future__ import annotations

import hmac
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from policies.servers.stub_servers import TASK, client, observe, playing
from safevla_bench import cli
from safevla_bench.errors import InvalidActionError, PolicyError, ServerRefusedError, ServerUnreachableError
from safevla_bench.interface.policy import Wants
from safevla_bench.policies import ask_arguments, make_policy
from safevla_bench.policies.python import adopt_object
from safevla_bench.policies.servers import dialects, serve
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.transforms import to_axis_angle


@contextmanager
def served(make, seed=0, key=None, bind="127.0.0.1", copies=1, port=0):
    policy = serve.ServedPolicy("mine", make, seed, copies=copies)
    server = serve.start_server(policy, bind, port, key)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        host = f"[{bind}]" if ":" in bind else bind
        yield f"ws://{host}:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()
        policy.close()


LARGE = {"replan": "1", "image_size": "256"}


@pytest.mark.parametrize(
    ("wants", "wishes"),
    [
        (Wants(), {"cameras": "none,none", "replan": "all"}),
        (Wants(("front",), (64, 64)), {"cameras": "front,none", "image_size": "64", "replan": "all"}),
        (Wants(("front", "wrist"), (48, 64)), {"cameras": "front,wrist", "image_size": "48x64", "replan": "all"}),
    ],
)
def test_a_client_that_asks_learns_the_cameras_the_size_and_the_replanning_and_what_is_given_stands(wants, wishes):
    with served(lambda: SimpleNamespace(wants=wants, reset=None, act=None, close=lambda: None)) as url:
        assert ask_arguments(f"openpi:{url}") == wishes
        arguments = {"replan": "2", "cameras": "side,none"}
        answers = ask_arguments(f"openpi:{url}", arguments)
        assert answers == {name: value for name, value in wishes.items() if name not in arguments}


OTHER_WANTS = {
    "cameras": ("robot0_eye_in_hand", "agentview"),
    "image_size": (48, 64),
    "privileged": True,
    "as_rendered": False,
    "absolute": True,
    "extra": ("joint_pos",),
}
"""Maps each field of `Wants` to a value that is not the default."""


@pytest.mark.parametrize("name", [field.name for field in fields(Wants)])
def test_each_thing_that_a_policy_wants_reaches_its_client_or_is_refused_at_the_start(name):
    cameras = () if name == "as_rendered" else ("agentview",)  # with cameras, `as_rendered` has no effect
    wants = replace(Wants(cameras), **{name: OTHER_WANTS[name]})
    make = lambda: SimpleNamespace(wants=wants, reset=None, act=None, close=lambda: None)  # noqa: E731
    if name not in serve.CARRIED:
        with pytest.raises(PolicyError, match=f"{name}=|simulator's own state"):
            serve.ServedPolicy("mine", make)
        return
    with served(make) as url, playing("openpi", url, **ask_arguments(f"openpi:{url}")) as far:
        assert far.wants == wants


def test_a_wish_without_effect_is_served():
    wants = Wants(("agentview",), as_rendered=False, extra=[])  # type: ignore[arg-type]
    with served(lambda: SimpleNamespace(wants=wants, reset=None, act=None, close=lambda: None)) as url:
        assert ask_arguments(f"openpi:{url}")["cameras"] == "agentview,none"


@pytest.mark.parametrize("clip", [True, False])
def test_a_client_clips_if_the_policy_does_and_what_it_says_is_kept(clip):
    says = {"checkpoint": "mine"}
    policy = SimpleNamespace(wants=Wants(), clip=clip, greeting=says, reset=None, act=None, close=lambda: None)
    with served(lambda: policy) as url, playing("openpi", url) as far:
        assert far.clip == far.dialect.inference.clip == clip
        assert far.greeting["greeting"] == says


def test_a_policy_that_needs_the_task_or_its_server_s_seed_cannot_be_served():
    wishes = {"wants": Wants(), "reset": None, "act": None, "close": lambda: None}
    connected = []
    for further, wanted in [
        ({"require_task": print}, "the task"),
        ({"cue": print, "connect": print, "env_seed": 3}, "the task"),
        ({"connect": connected.append, "env_seed": 3}, "env_seed=3"),
    ]:
        with pytest.raises(PolicyError, match=f"wants {wanted}"):
            serve.ServedPolicy("mine", lambda further=further: SimpleNamespace(**wishes, **further))
    assert len(connected) == 1


def test_a_served_policy_whose_actions_become_poses_in_the_run_is_refused():
    wants = Wants()
    make = lambda: SimpleNamespace(wants=wants, reset=None, act=None, close=lambda: None)  # noqa: E731
    with served(make) as url, closing(client("openpi", url)) as far:
        far.connect(TASK)
        port, wants = int(url.rpartition(":")[2]), Wants(absolute=True)
    with served(make, port=port), pytest.raises(ServerRefusedError, match="than before"):
        far.reset(TASK, 0)


def act(url, **arguments):
    with playing("openpi", url, **{"replan": "1", **arguments}) as far:
        assert far.act(observe()).shape == (7,)


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
    near = make_policy("random")
    with served(lambda: make_policy("random"), seed=5) as url:
        for _ in range(2):  # a connection is an episode
            near.reset(TASK, 5)
            with playing("openpi", url, replan="1") as far:
                for _ in range(3):
                    np.testing.assert_array_equal(far.act(observe()), near.act(observe()))


def test_a_policy_sees_upright_images_and_the_pose_that_the_client_s_host_gave():
    looks = Looks()
    turned = np.array([0.5, 0.5, -0.5, 0.5])
    observed = observe(eef_quat_wxyz=turned)
    with served(lambda: looks, seed=4) as url, playing("openpi", url, **LARGE) as far:
        far.act(observed)
    assert looks.log[0] == ("put it there", 4)
    received = looks.log[1]
    for camera, image in observed.images.items():
        np.testing.assert_array_equal(received.images[camera], image)
    np.testing.assert_allclose(received.eef_pos_m, observed.eef_pos_m)
    np.testing.assert_allclose(received.eef_quat_wxyz, turned)
    np.testing.assert_allclose(received.gripper_qpos, observed.gripper_qpos)


@pytest.mark.parametrize(
    ("dialect", "camera", "size"),
    [
        ("openpi-maniskill-rgb", "base_camera", 7),
        ("openpi-robocasa", "robot0_agentview_left", 12),
        ("openpi-metaworld", "corner2-near", 4),
    ],
)
def test_a_policy_sees_and_does_the_same_in_each_dialect(dialect, camera, size):
    class Sees(Looks):
        wants = Wants((camera,), (64, 64))

        def act(self, observation):
            self.log.append(observation)
            return np.linspace(-0.5, 0.5, size)

    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    turned = np.array([0.5, 0.5, -0.5, 0.5])
    base = {"base_pos_m": np.array([5.0, 6.0, 7.0]), "base_quat_wxyz": np.array([0.0, 0.0, 0.0, 1.0])}
    observed = observe(images={camera: image}, eef_quat_wxyz=turned, **base)
    looks = Sees()
    with served(lambda: looks) as url:
        arguments = {"dialect": dialect, **ask_arguments(f"openpi:{url}", {"dialect": dialect})}
        with closing(client("openpi", url, **arguments)) as far:
            far.connect(TASK)
            assert far.wants == Sees.wants
            far.reset(TASK, 0)
            np.testing.assert_array_equal(far.act(observed), np.linspace(-0.5, 0.5, size))
    received = looks.log[1]
    np.testing.assert_array_equal(received.images[camera], image)
    np.testing.assert_allclose(received.eef_pos_m, observed.eef_pos_m)
    np.testing.assert_allclose(received.eef_quat_wxyz, turned)
    np.testing.assert_allclose(received.gripper_qpos, observed.gripper_qpos)


@pytest.mark.parametrize("quat", [[1, 0, 0, 0], [0, 0, 1, 0], [-0.5, 0.5, 0.5, 0.5], [0.1, 0.7, -0.7, 0.1]])
def test_the_orientation_of_a_rotation_vector_is_that_it_was_made_from(quat):
    unit = np.array(quat) / np.linalg.norm(quat)
    np.testing.assert_allclose(serve.to_quaternion(to_axis_angle(unit)), unit, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "problem", "remedy"),
    [
        ({"image_size": "256", "cameras": "agentview,none"}, r"'observation/wrist_image' \(robot0_eye", "cameras"),
        ({}, "images of 256", "image_size"),
    ],
)
def test_images_that_are_not_those_that_the_policy_wants_are_refused_with_the_argument_that_helps(
    arguments, problem, remedy
):
    with served(Looks) as url, pytest.raises(ServerRefusedError, match=problem) as caught:
        act(url, **arguments)
    assert remedy in caught.value.remedy


def test_what_another_client_sends_is_refused_in_one_line_that_says_what_helps():
    request = dialects.load_dialect("openpi-libero").build_request(observe())
    with served(Looks) as url, connect(url, max_size=None) as connection:
        connection.recv()
        connection.send(OPENPI.pack(request))
        answer = connection.recv()
    assert answer.startswith("'observation/image' is uint8")
    assert "image_size=N" in answer
    assert "\n" not in answer


def test_a_policy_is_loaded_once_and_another_episode_waits_until_it_is_free():
    loaded = []
    with served(lambda: loaded.append(Looks()) or loaded[-1]) as url, ThreadPoolExecutor() as pool:
        first, second = (client("openpi", url, **LARGE) for _ in range(2))
        first.reset(TASK, 0)
        second.reset(TASK, 0)
        first.act(observe())
        waiting = pool.submit(second.act, observe())
        first.act(observe())
        assert not waiting.done()
        first.close()
        assert waiting.result().shape == (7,)
        second.close()
    assert len(loaded) == 1
    assert [isinstance(entry, tuple) for entry in loaded[0].log] == [True, False, False, True, False, False]


def test_a_reply_is_the_policy_s_own_chunk_which_its_client_carries_out_as_in_process():
    class Chunks(Looks):
        def act(self, observation):
            self.log.append(observation)
            return np.arange(21.0).reshape(3, 7) / 100 + len(self.log)

    def first_actions(policy):
        return [(policy.looks_next, policy.act(observe())[0]) for _ in range(7)]

    near = adopt_object("near", Chunks())
    near.reset(TASK, 0)
    with (
        served(lambda: adopt_object("mine", Chunks())) as url,
        playing("openpi", url, **ask_arguments(f"openpi:{url}")) as far,
    ):
        assert first_actions(far) == first_actions(near)
        assert len(far.calls_s) == 3


def test_copies_of_a_policy_serve_as_many_episodes_at_a_time():
    loaded = []
    with (
        served(lambda: loaded.append(Looks()) or loaded[-1], copies=2) as url,
        playing("openpi", url, **LARGE) as first,
        playing("openpi", url, **LARGE) as second,
    ):
        first.act(observe())
        second.act(observe())
    assert [len(looks.log) for looks in loaded] == [3, 3]


def test_who_waits_too_long_for_a_policy_learns_what_helps(monkeypatch):
    monkeypatch.setattr(serve, "SILENT_S", 0.2)
    policy = serve.ServedPolicy("mine", Looks)
    busy = pytest.raises(PolicyError, match="busy with another episode")
    with policy.borrow_policy(), busy as caught, policy.borrow_policy():
        pass
    assert "--copies" in caught.value.remedy


def test_a_connection_that_says_nothing_more_is_closed_and_its_policy_is_free(monkeypatch):
    monkeypatch.setattr(serve, "SILENT_S", 0.2)
    looks = Looks()
    with served(lambda: looks) as url, connect(url, max_size=None) as silent:
        silent.recv()
        with pytest.raises(ConnectionClosed):
            silent.recv(timeout=60)
        act(url, **LARGE)


def test_a_page_of_another_site_is_refused():
    """A browser opens WebSockets across sites, and names the page's origin."""
    for origin in ("https://evil.example", "null"):
        with served(Looks) as url, pytest.raises(InvalidStatus) as caught:
            connect(url, origin=origin)
        assert caught.value.response.status_code == 403


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_what_a_policy_raises_is_its_client_s_to_know(error):
    class Breaks(Looks):
        def act(self, observation):
            raise error("no weights")

    with served(Breaks) as url, pytest.raises(PolicyError, match=f"failed: {error.__name__}: no weights"):
        act(url, **LARGE)


def test_a_request_without_a_field_is_refused_and_named():
    with (
        served(lambda: make_policy("noop")) as url,
        playing("openpi", url, replan="1") as far,
        pytest.raises(PolicyError, match="has 6 numbers"),
    ):
        far.act(replace(observe(), gripper_qpos=np.zeros(0)))


def test_without_its_key_a_server_tells_its_health_and_nothing_else(monkeypatch):
    monkeypatch.delenv("SAFEVLA_API_KEY", raising=False)
    with served(lambda: make_policy("noop"), key="s3cret") as url:
        with urllib.request.urlopen(f"{url.replace('ws', 'http')}/healthz") as healthy:
            assert healthy.read() == b"OK\n"
        with pytest.raises(PolicyError, match="requires a key"):
            client("openpi", url).reset(TASK, 0)
        monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret")
        act(url)


def test_more_connections_than_there_are_places_are_hung_up_on_and_a_place_comes_free(monkeypatch):
    monkeypatch.setattr(serve, "MAX_CONNECTIONS", 2)
    with served(lambda: make_policy("noop")) as url:
        place = (url.rpartition(":")[0].removeprefix("ws://"), int(url.rpartition(":")[2]))
        silent = [socket.create_connection(place) for _ in range(2)]  # who says nothing has a place, for OPEN_S
        with pytest.raises(ServerUnreachableError):
            client("openpi", url).reset(TASK, 0)
        for connection in silent:
            connection.close()
        act(url, connect_timeout_s="60")


def test_a_request_over_the_limit_ends_its_connection_and_no_other(monkeypatch):
    monkeypatch.setattr(serve, "MAX_REQUEST_BYTES", 2**20)
    with served(Looks) as url:
        large, small = (client("openpi", url, **LARGE) for _ in range(2))
        large.reset(TASK, 0)
        small.reset(TASK, 0)
        with pytest.raises(PolicyError, match="is too large"):
            large.act(replace(observe(), instruction="again and " * 2**17))
        assert small.act(observe()).shape == (7,)
        small.close()


def test_a_request_of_too_many_values_is_refused():
    with served(lambda: make_policy("noop")) as url, connect(url) as connection:
        connection.recv()
        connection.send(b"\xdd\x00\x02\x00\x00" + b"\xc0" * 2**17)
        assert "100,000 values" in connection.recv()


@pytest.mark.parametrize(
    "key", ["", "Api-Key", "Api-Key ", "Api-Key s3cre", "Api-Key s3cret2", "Bearer s3cret", "s3cret"]
)
def test_a_key_is_compared_whole_and_in_constant_time(key, monkeypatch):
    compared = []
    whole = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or whole(a, b))
    with served(lambda: make_policy("noop"), key="s3cret") as url, pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers={"Authorization": key})
    assert caught.value.response.status_code == 401
    assert compared == [(key.strip().encode(), b"Api-Key s3cret")]


@pytest.mark.parametrize(
    ("bind", "key", "warned"), [("0.0.0.0", "", True), ("0.0.0.0", "k3y-k3y", False), ("127.0.0.1", "", False)]
)
def test_only_a_server_that_others_reach_without_a_key_is_warned_of(monkeypatch, capsys, bind, key, warned):
    monkeypatch.setenv("SAFEVLA_API_KEY", key)
    listening = SimpleNamespace(getsockname=lambda: (bind, 1))
    ended = SimpleNamespace(socket=listening, serve_forever=lambda: None, shutdown=lambda: None)
    monkeypatch.setattr(serve, "start_server", lambda *_: ended)
    assert cli.run_command_line(["serve", "--policy", "noop", "--port", "0", "--bind", bind]) == 0
    assert ("Anyone who can" in capsys.readouterr().err) == warned


def test_by_default_only_this_machine_is_listened_to():
    from safevla_bench.cli.check import serve_command

    assert next(option.default for option in serve_command.params if option.name == "bind") == "127.0.0.1"


def test_a_policy_that_sees_the_simulator_s_state_cannot_be_served(capsys):
    assert cli.run_command_line(["serve", "--policy", "scripted:careful"]) == 2
    answer = capsys.readouterr().err
    assert "simulator's own state" in answer
    assert "--policy scripted:careful" in answer


def test_a_policy_with_more_cameras_than_a_request_holds_cannot_be_served():
    class Many(Looks):
        wants = Wants(cameras=("a", "b", "c"))

    with pytest.raises(PolicyError, match="wants 3 cameras"):
        serve.ServedPolicy("many", Many)


def test_an_address_that_is_taken_is_an_error(monkeypatch):
    with served(lambda: make_policy("noop")) as url:
        port = url.rpartition(":")[2]
        monkeypatch.setenv("SAFEVLA_API_KEY", "")
        assert cli.run_command_line(["serve", "--policy", "noop", "--port", port]) == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (np.zeros(7, bool), "dtype bool"),
        (np.zeros((0, 7)), "without an action"),
        ([[0.0] * 7, [0.0] * 6], "not an array"),
        (np.zeros((1, 8, 7)), "not an array"),
        (0.5, "not an array"),
        ({"actions": np.zeros(7)}, "dtype object"),
    ],
)
def test_what_a_served_policy_gives_that_is_not_an_action_is_an_invalid_action_of_its_client(answer, reason):
    make = lambda: adopt_object("mine", SimpleNamespace(act=lambda observation: answer))  # noqa: E731
    with served(make) as url, pytest.raises(InvalidActionError, match=reason):
        act(url)


def test_copies_that_are_one_object_are_refused():
    policy = SimpleNamespace(act=lambda observation: np.zeros(7))
    with pytest.raises(PolicyError, match="are one object"):
        serve.ServedPolicy("mine", lambda: adopt_object("mine", policy), copies=2)
