"""A policy server is examined by what it answers to a made-up scene, over every wire, and a wrong one is named."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from itertools import chain, repeat

import numpy as np
import pytest

from policies.servers.stub_servers import (
    OFT_REQUEST,
    OPENPI_REQUEST,
    gr00t,
    gr00t_modalities,
    http_server,
    openpi,
    vla_eval,
    websockets,
)
from policies.servers.stub_servers import openvla as openvla_pages
from policies.servers.test_serve import served
from safevla_bench import plugins
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.doctor import server as examined
from safevla_bench.jobs.doctor.machine import Diagnosis
from safevla_bench.jobs.doctor.server import examine_server
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import KINDS, dialects

ROWS = np.tile([0.2, -0.1, 0.3, 0.02, 0.01, -0.03, -1.0], (10, 1))


@pytest.fixture(autouse=True)
def openvla_is_installed(monkeypatch):
    """The entry point of `openvla`, also where the package was installed before it had one."""
    point = plugins.EntryPoint("openvla", "safevla_bench.policies.servers.openvla:make", "safevla_bench.policies")
    entry_points = plugins.entry_points
    monkeypatch.setattr(
        plugins, "entry_points", lambda **named: [point] if named.get("name") == "openvla" else entry_points(**named)
    )


def look(server: str, **options: object) -> dict[str, Diagnosis]:
    arguments = {"connect_timeout_s": "5", "timeout_s": "5", **options.pop("arguments", {})}
    findings = list(examine_server(server, arguments, **options))
    assert all(finding.level == "ok" or finding.remedy for finding in findings)
    return {finding.check: finding for finding in findings}


@contextmanager
def openpi_server(actions: np.ndarray = ROWS, expected: object = OPENPI_REQUEST):
    with websockets(openpi(lambda request, number: {"actions": actions}, expected)) as peer:
        yield f"openpi:{peer.url}"


def gr00t_endpoints(endpoint: str, data: dict) -> object:
    if endpoint == "get_modality_config":
        return gr00t_modalities()
    keys = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    return [{f"action.{key}": np.full((1, 16, 1), 0.1, np.float32) for key in keys}, {}]


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ([0, 0, 0, 0, 0], "0 of 4 repeated requests had another answer"),
        ([0, 0, 0.25, 0, 0], "1 of 4 repeated requests had another answer, largest difference 0.25\n"),
        ([0, 0.1, 0.2, 0.3, 0.4], "4 of 4 repeated requests had another answer, largest difference 0.4\n"),
    ],
)
def test_a_server_that_answers_the_same_question_otherwise_is_named(noise, words):
    answers = chain(noise, repeat(0))
    with websockets(openpi(lambda request, number: {"actions": ROWS + next(answers)}, OPENPI_REQUEST)) as peer:
        finding = look(f"openpi:{peer.url}")["repeats"]
    assert finding.level == "ok"
    assert finding.found.startswith(words)
    assert ("compare two runs" in finding.found) == any(noise)


def test_a_server_that_plays_chunks_itself_is_asked_for_the_first_action_of_an_episode_each_time():
    played = []

    def answer(request, number):
        starts = sum(message["type"] == "episode_start" for message in played)
        place = sum(message["type"] == "observation" for message in played) - starts
        return {"payload": {"actions": np.float32(ROWS[0] + 0.1 * place)}}

    with websockets(vla_eval(answer, played)) as peer:
        finding = look(f"vla-eval:{peer.url}")["repeats"]
    assert "0 of 4" in finding.found


def test_replies_of_another_length_are_other_answers():
    assert examined.describe_repeats([ROWS, ROWS[:5]]).startswith("1 of 1")


# Each wire


def test_openpi_s_server_is_shown_with_its_keys_its_actions_and_its_command():
    with openpi_server() as address:
        findings = look(address)
    assert {finding.level for finding in findings.values()} == {"ok"}
    assert f"asked as {address}" in findings["wire"].found
    assert "openpi's policies" in findings["dialect"].found
    assert "'observation/state' float64 [8]" in findings["request"].found
    assert findings["reply"].found == "'actions' float64 [10, 7]"
    assert "10 actions" in findings["chunk"].found
    assert '{"model": "stub"}' in findings["server"].found
    assert "x            0.200    0.200    0.200" in findings["actions"].found
    command = "safevla eval --host libero --suite libero-spatial --policy"
    assert findings["eval"].found.startswith(f"{command} {address} ")
    assert findings["first try"].found == f"{findings['eval'].found} --task 0 --episodes 1"


def test_a_gr00t_server_is_asked_without_a_scheme():
    with gr00t(gr00t_endpoints) as server:
        findings = look(f"gr00t:{server.url.removeprefix('tcp://')}")
    assert findings["dialect"].found.startswith("gr00t-libero")
    assert "16 actions" in findings["chunk"].found


def test_a_harness_server_is_sent_what_it_asks_for():
    log: list[dict] = []
    answer = {"payload": {"actions": np.float32(ROWS[0])}}
    with websockets(vla_eval(lambda request, number: answer, log)) as peer:
        findings = look(f"vla-eval:{peer.url}")
    assert findings["request"].found == "'images' {'agentview' uint8 [256, 256, 3]}\n'task_description' str"
    start, *others = [message["payload"] for message in log if message["type"] == "episode_start"]
    assert others[:4] == [start] * 4, "each request begins an episode: some servers remember what they answered"
    assert start["task"]["suite"] == "libero_spatial"


def test_openvla_s_server_is_shown_with_the_statistics_that_it_is_sent():
    with http_server(openvla_pages(lambda request, number: ROWS[0])) as server:
        findings = look(f"openvla:{server.url}")
    assert findings["dialect"].found.startswith("openvla-rest-libero")
    assert "'unnorm_key' str" in findings["request"].found


def test_oft_s_server_is_asked_in_its_own_dialect_and_the_command_says_so():
    pages = openvla_pages(lambda request, number: [*ROWS[:8]], OFT_REQUEST)
    with http_server(pages) as server:
        findings = look(f"openvla:{server.url}")
    assert "not openvla-rest-libero: " in findings["dialect"].found
    assert findings["reply"].found == "'actions' 8 x float64 [7]"
    assert "--policy-arg dialect=openvla-oft-rest-libero" in findings["eval"].found


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_default_dialect_of_its_own_and_an_example_that_is_a_policy(kind):
    assert dialects.load_dialect_file(kind.dialect).transport == kind.name
    assert make_policy(kind.example).dialect.name == kind.dialect


# What is found out


def test_the_dialect_that_a_server_takes_is_found():
    request = {
        "observation/image": ("|u1", (224, 224, 3)),
        "observation/wrist_image": ("|u1", (224, 224, 3)),
        "observation/right_image": ("|u1", (224, 224, 3)),
        "observation/state": ("<f8", (16,)),
        "prompt": str,
    }
    actions = np.tile(np.linspace(0.1, 0.4, 12), (10, 1))
    with openpi_server(actions, request) as address:
        findings = look(address)
        only_libero = look(address, host="libero")
        chosen = look(address, arguments={"dialect": "openpi-robocasa"})
    assert findings["dialect"].found.startswith("openpi-robocasa")
    assert "base turn" in findings["actions"].found
    assert "--suite robocasa-365" in findings["eval"].found
    assert "dialect=openpi-robocasa" in findings["eval"].found
    assert only_libero["dialect"].level == "error"
    assert chosen["eval"].found.count("dialect=") == 1


def test_a_server_of_simplerenv_is_asked_for_its_task_and_the_command_names_the_robot():
    request = {"examples": list, "do_sample": bool, "use_ddim": bool, "num_ddim_steps": int, "unnorm_key": str}
    replies = {"data": {"actions": np.full((1, 16, 7), 0.1, np.float32)}}
    with websockets(openpi(lambda sent, number: replies, request)) as peer:
        findings = look(f"openpi:{peer.url}", arguments={"dialect": "starvla-simplerenv"})
    assert "--host-arg robot=widowx" in findings["eval"].found
    assert "16 actions" in findings["chunk"].found
    assert findings["pictures"].found.startswith("orientation not checked")


def test_a_served_policy_is_asked_as_it_wants_and_the_command_needs_no_argument_for_it():
    class Still:
        wants = Wants(cameras=("agentview",), image_size=(64, 64))

        def reset(self, task, seed): ...

        def act(self, observation):
            return ROWS[0]

        def close(self): ...

    with served(Still) as url:
        findings = look(f"openpi:{url}")
    assert findings["asks for"].found.startswith("cameras=agentview,none, image_size=64, replan=all: ")
    assert "all executed" in findings["chunk"].found
    assert not {"image_size=64", "replan=all"} & set(shlex.split(findings["eval"].found))
    assert "'observation/image' uint8 [64, 64, 3]" in findings["request"].found
    assert "wrist" not in findings["request"].found


def test_the_arguments_that_are_given_stand_in_the_command_and_a_short_chunk_is_told():
    with openpi_server(ROWS[:3]) as address:
        findings = look(address)
    assert findings["chunk"].level == "warning"
    words = shlex.split(findings["eval"].found)
    assert {"connect_timeout_s=5", "replan=3"} <= set(words)


# Actions


def check(dialect="openpi-libero", actions=ROWS, **columns):
    """Return the findings of ROWS with other numbers in some columns, by their names."""
    actions = actions.copy()
    for name, values in columns.items():
        actions[:, {"x": 0, "pitch": 4, "gripper": 6}[name]] = values
    findings = examined.check_actions(actions, dialects.load_dialect(dialect))
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (1e-3, "nearly no motion"),
        (0.0, "nearly no motion"),
        (0.1, "nearly no motion"),
        (300.0, "the largest z is 90"),
        (5.0, "beyond ±1"),
        (1.0, None),
    ],
)
def test_a_mistake_of_scale_shows(scale, words):
    findings = check(actions=np.concatenate([ROWS[:, :6] * scale, ROWS[:, 6:]], axis=1))
    assert ("range" in findings) == (words is not None)
    assert words is None or words in findings["range"].found


def test_saturated_arms_show_and_one_number_at_the_limit_does_not():
    assert "saturated" in check(actions=np.sign(ROWS))["range"].found
    assert [finding.level for finding in check(x=1.0).values()] == ["ok"]


@pytest.mark.parametrize(("values", "is_odd"), [((0.0, 0.6), True), ((1.0, 1.0), False), ((-1.0, 1.0), False)])
def test_a_gripper_between_0_and_1_shows_if_it_goes_to_the_simulator_as_it_is(values, is_odd):
    gripper = np.linspace(*values, len(ROWS))
    assert ("gripper" in check(gripper=gripper)) is is_odd
    assert "gripper" not in check("gr00t-libero", gripper=gripper)


def test_a_number_that_is_not_finite_is_an_error_with_its_place():
    actions = ROWS.copy()
    actions[2, 3] = np.nan
    (finding,) = check(actions=actions).values()
    assert (finding.level, "action 2 is" in finding.found) == ("error", True)


# A wrong server


@pytest.mark.parametrize("server", ["localhost:8000", "ws://localhost:8000", "nonsense", "http://user:pa55word@host:1"])
def test_a_server_without_its_kind_is_asked_nothing_and_the_kinds_are_named(server):
    (finding,) = examine_server(server)
    assert (finding.check, finding.level) == ("server", "error")
    assert all(kind.example in finding.remedy for kind in KINDS.values())
    assert "pa55word" not in finding.found


def test_replies_that_no_dialect_reads_are_described():
    with openpi_server(np.zeros((10, 3))) as address:
        findings = look(address)
    assert findings["dialect"].level == "error"
    assert "(10, 3)" in findings["dialect"].found
    assert "eval" not in findings


def test_openvla_s_error_is_told_once_with_the_name_to_try():
    with http_server(openvla_pages(lambda request, number: "error")) as server:
        findings = list(examine_server(f"openvla:{server.url}", {"connect_timeout_s": "5"}))
    errors = [finding for finding in findings if finding.level == "error"]
    assert len(errors) == 1
    assert "libero_spatial_no_noops" in errors[0].remedy


def test_a_host_without_a_dialect_of_the_wire_says_so():
    with http_server(openvla_pages(lambda request, number: ROWS[0])) as server:
        findings = look(f"openvla:{server.url}", host="robocasa")
    assert "host 'robocasa'" in findings["dialect"].found


def test_a_server_is_left_alone_afterwards(monkeypatch):
    closed, close = [], examined.servers.ChunkedPolicy.close
    monkeypatch.setattr(examined.servers.ChunkedPolicy, "close", lambda policy: closed.append(policy) or close(policy))
    with gr00t(gr00t_endpoints) as server:
        look(f"gr00t:{server.url}")
    assert len(closed) == 2, "the one that learns what the server asks for, and the one that asks it"


def test_the_made_up_scene_is_the_same_each_time():
    wants = Wants(cameras=("agentview", "robot0_eye_in_hand"), image_size=(32, 48))
    first, again = (examined.servers.make_observation(wants, "put it there") for _ in range(2))
    for camera in wants.cameras:
        assert first.images[camera].shape == (32, 48, 3)
        np.testing.assert_array_equal(first.images[camera], again.images[camera])
