"""The entries. The paper's nine are each asked through a server that refuses any other request than its project's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from policies.servers.expected_requests import EXPECTED, leaves, refusal, reply
from policies.servers.strict_server import StrictServer
from safevla_bench.errors import PolicyError, ReplyError, ServerRefusedError
from safevla_bench.hosts import protocols
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import ChunkModel, dialects, entries, transforms
from safevla_bench.report.published import LEADERBOARD, PAPER, load_published

STILL = (0.0,) * 6 + (-1.0,)

NINE = tuple(EXPECTED)
CARRIED_OUT = {"openpi-libero": 5, "openpi-robocasa": 5, "gr00t-libero": 8, "rldx-robocasa": 8, "openvla-libero": 1}
"""Actions of a reply of 16 before the next request."""
PAPER_S = [entry for entry in entries.paper_entries() if entry.listed == "paper"]
MAIN = [entry for entry in PAPER_S if not entry.auxiliary]


def observation(dialect):
    """What a host shows, of one's own making: cameras that differ, and a pose in general position."""
    rng = np.random.default_rng(0)
    shape = (*dialect.wants.image_size, 3)
    return Observation(
        instruction="put the bowl on the plate",
        eef_pos_m=np.array([0.5, -0.1, 1.2]),
        eef_quat_wxyz=np.array([0.5, 0.5, 0.5, 0.5]),
        gripper_qpos=np.array([0.03, -0.02]),
        images={camera: rng.integers(0, 256, shape, dtype=np.uint8) for camera in dialect.wants.cameras},
        base_pos_m=np.array([0.2, 0.3, 0.0]),
        base_quat_wxyz=np.array([np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)]),
    )


def task(entry):
    return Task(entry.suites[0], "task_0", 0, "a task", "do it", STILL)


@pytest.fixture(params=NINE)
def served(request):
    """An entry, its server and the entry's policy, asked on its first suite."""
    server = StrictServer(request.param)
    entry = entries.find_entry(request.param)
    where = " ".join(f"{suite}={server.url}" for suite in entry.suites)
    policy = make_policy(entry.name, {"server": where})
    policy.reset(task(entry), 0)
    yield entry, server, policy
    policy.close()
    server.close()


def test_the_nine_are_the_paper_s_cells():
    played = {(entry.policy, suite, entry.auxiliary) for entry in PAPER_S for suite in entry.suites}
    assert played == {(cell.policy, cell.benchmark, cell.auxiliary) for cell in load_published(PAPER).cells}
    assert len(MAIN) == 9
    assert [entry.name for entry in MAIN] == list(NINE)


@pytest.mark.parametrize("entry", MAIN, ids=lambda entry: entry.name)
def test_an_entry_runs_as_many_episodes_as_the_paper_and_has_its_training(entry):
    trials = protocols.load_protocol(entry.protocol).trials
    for cell in load_published(PAPER).cells:
        if cell.policy == entry.policy and cell.benchmark in entry.suites:
            assert cell.training == entry.training
            assert trials[cell.benchmark] * (18 if entry.host == "robocasa" else 10) == cell.n


@pytest.mark.parametrize("entry", entries.paper_entries(), ids=lambda entry: entry.name)
def test_what_an_entry_says_has_a_source_or_is_named_unknown(entry):
    assert set(entry.sources) == {"checkpoints", "serve", *entry.host_arguments}
    for field in ("serve", "protocol", "dialect", "project"):
        assert getattr(entry, field) != entries.UNKNOWN or entry.unknown, field
    assert not any(entries.UNKNOWN in where for where in entry.checkpoints.values()) or entry.unknown
    assert set(entry.checkpoints) <= {entries.EVERY, *entry.suites}
    assert entry.is_runnable or entry.auxiliary or entry.listed == "board"
    assert entries.paper_entries()[: len(PAPER_S)] == tuple(PAPER_S)


def test_the_others_are_the_board_s_newer_rows_and_what_the_harness_serves():
    others = {
        kind: [entry for entry in entries.paper_entries() if entry.listed == kind] for kind in ("board", "harness")
    }
    newer = {mean.policy for mean in load_published(LEADERBOARD).means} - {entry.policy for entry in PAPER_S}
    assert {entry.policy for entry in others["board"]} == newer
    assert {(entry.transport, entry.dialect) for entry in others["harness"]} == {("vla-eval", "vla-eval-libero")}
    for entry in others["harness"]:
        several = len(set(entry.checkpoints.values())) > 1
        assert several == ("SUITE" in entry.serve), "one command starts one server for all suites, or one for each"
        assert make_policy(entry.name, {"server": " ".join(f"{suite}=a" for suite in entry.suites)}).wants.cameras


@pytest.mark.parametrize("entry", MAIN, ids=lambda entry: entry.name)
def test_an_entry_waits_as_its_benchmark_s_own_evaluators_do(entry):
    """LIBERO's ten settling steps; none beyond the kitchen's own in RoboCasa; never until things are at rest."""
    protocol = protocols.load_protocol(entry.protocol)
    waits = {protocol.wait_steps_by_suite.get(suite, protocol.wait_steps) for suite in entry.suites}
    assert (waits, protocol.rest_steps) == ({0 if entry.host == "robocasa" else 10}, 0)


def test_the_server_answers_what_the_entry_asks(served):
    entry, server, policy = served
    observed = observation(policy.dialect)
    carried_out = CARRIED_OUT.get(entry.dialect, 16)
    actions = [policy.act(observed) for _ in range(carried_out + 1)]
    assert {action.shape for action in actions} == {(12 if entry.host == "robocasa" else 7,)}
    assert len(server.requests) == 2
    for sent in server.requests:
        assert refusal(entry.name, sent) is None


def test_images_and_states_are_in_their_places(served):
    _, _, policy = served
    observed = observation(policy.dialect)
    request = dict(leaves(policy.dialect.build_request(observed)))
    dialect = policy.dialect
    images = {field.path: dialect.view(observed.images[field.camera]) for field in dialect.fields if field.camera}
    for path, image in images.items():
        np.testing.assert_array_equal(request[path].reshape(image.shape), image)
    assert len({image.tobytes() for image in images.values()}) == len(images)


def test_the_base_frame_is_the_robot_s():
    dialect = dialects.load_dialect("openpi-robocasa")
    state = dialect.build_request(observation(dialect))["observation/state"]
    # The base is turned by 90 degrees to the left: what lies (0.3, -0.4) away in the world is at (-0.4, -0.3) in it.
    np.testing.assert_allclose(state[:3], [-0.4, -0.3, 1.2], atol=1e-12)
    from scipy.spatial.transform import Rotation

    turned = Rotation.from_quat(state[3:7])
    expected = Rotation.from_euler("z", -90, degrees=True) * Rotation.from_quat([0.5, 0.5, 0.5, 0.5])
    assert (turned * expected.inv()).magnitude() < 1e-12
    assert state[6] >= 0  # of q and -q the one with w >= 0
    np.testing.assert_array_equal(state[7:10], [0.2, 0.3, 0.0])
    np.testing.assert_array_equal(state[14:], [0.03, -0.02])


def test_the_grippers_of_the_replies_become_the_host_s():
    assert dialects.load_dialect("gr00t-libero").read_actions(reply("gr00t-n1.7@libero"))[:, 6].tolist() == [-1.0] * 16
    mobile = dialects.load_dialect("gr00t-robocasa").read_actions(reply("gr00t-n1.5@robocasa-365"))
    assert mobile[0].tolist() == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, -1.0, 0.08, 0.09, 0.1, 0.11, -1.0]


def test_parts_of_a_reply_that_differ_in_steps_cannot_be_read():
    answer = reply("gr00t-n1.7@libero")
    with pytest.raises(ReplyError, match=r"steps: .*16, 3"):
        dialects.load_dialect("gr00t-libero").read_actions({**answer, "action.gripper": np.ones((1, 3, 1))})


def test_a_host_that_does_not_show_a_base_is_an_error():
    dialect = dialects.load_dialect("openpi-robocasa")
    observed = observation(dialect)
    still = replace(observed, base_pos_m=None, base_quat_wxyz=None)
    with pytest.raises(PolicyError, match="needs eef_pos_in_base"):
        dialect.build_request(still)


def test_a_checkpoint_a_suite_is_a_server_a_suite():
    entry = entries.find_entry("openvla-7b@libero")
    with pytest.raises(PolicyError, match="--server libero-spatial=ws://a"):
        entries.assign_servers(entry, ("ws://a",))
    chosen = entries.assign_servers(entry, ("libero-goal=ws://a", "libero-10=ws://b"))
    assert chosen == {"libero-goal": "ws://a", "libero-10": "ws://b"}
    every = entries.assign_servers(entries.find_entry("pi0.5@libero"), ("ws://a", "libero-10=ws://b"))
    assert every == {
        **dict.fromkeys(("libero-spatial", "libero-object", "libero-goal"), "ws://a"),
        "libero-10": "ws://b",
    }


class Replying(ChunkModel):
    """A model that gives the same reply to everything."""

    def __init__(self, reply):
        super().__init__(dialects.load_dialect("vla-eval-libero"))
        self.reply = reply

    def begin(self, task, seed): ...

    def query(self, observation):
        return self.reply


def test_a_server_whose_first_reply_cannot_be_read_is_refused_after_another_suite_s_could_be():
    entry = entries.find_entry("openvla-7b@libero")
    right, wrong = (Replying({"actions": np.zeros((1, width))}) for width in (7, 6))
    models = {entry.suites[0]: right, entry.suites[1]: wrong}
    policy = entries.EntryPolicy(entry, models, None)
    policy.reset(task(entry), 0)
    observed = observation(policy.dialect)
    assert policy.act(observed).shape == (7,)
    policy.reset(replace(task(entry), benchmark=entry.suites[1]), 0)
    with pytest.raises(ServerRefusedError, match="has the shape"):
        policy.act(observed)
    with pytest.raises(PolicyError, match=f"named for {entry.name}"):
        policy.reset(replace(task(entry), benchmark=entry.suites[2]), 0)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("pi9@libero", {}, r"(?s)no entry 'pi9@libero'.*pi0.5@libero"),
        ("pi0.5@libero", {}, r"(?s)server.*serve_policy\.py"),
        ("being-h0.5-2b@robocasa-pnp", {"server": "ws://a"}, "run: the protocol"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(name, arguments, problem):
    with pytest.raises(PolicyError, match=problem):
        make_policy(name, arguments)


def test_every_dialect_and_its_release_can_be_loaded():
    for name in dialects.dialect_names():
        dialect = dialects.load_dialect(name)
        assert protocols.load_protocol(dialect.file.release).inference is not None
        assert dialects.dialect_values(dialect)["name"] == name
    with pytest.raises(PolicyError, match=r"(?s)no dialect 'openpy'.*openpi-libero"):
        dialects.load_dialect("openpy")


def test_a_run_says_how_a_policy_and_an_entry_are_asked_with_their_arguments():
    policy = make_policy("openpi:127.0.0.1:9", {"replan": "3"})
    values = dialects.dialect_values(policy.dialect)
    assert (values["name"], values["release"], values["replan"], values["clip"]) == ("openpi-libero", "openpi", 3, True)
    assert make_policy("pi0.5@libero", {"server": "127.0.0.1:9", "replan": "2"}).dialect.replan == 2


def test_a_mistake_in_a_reader_of_states_is_not_a_state_that_the_host_does_not_show(monkeypatch):
    broken = {**transforms.STATES, "eef_pos": lambda seen: seen.eef_pos_m + "m"}
    monkeypatch.setattr(transforms, "STATES", broken)
    with pytest.raises(TypeError):
        transforms.state_part("eef_pos", SimpleNamespace(eef_pos_m=1.0))
