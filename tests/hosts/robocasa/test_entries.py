"""The paper's RoboCasa entries on the real host: it shows what they are asked with, in RoboCasa's own numbers."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from policies.servers.expected_requests import refusal, reply
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.request import entry_fields
from safevla_bench.policies.servers import dialects, entries
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import plan_episodes

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ENTRIES = [
    entry.name
    for entry in entries.paper_entries()
    if entry.host == "robocasa" and not entry.auxiliary and entry.dialect != "unknown"
]
BUTTON = 16


class Answering:
    """Answers in this process as the entry's server would, and keeps what it was asked."""

    def __init__(self, entry):
        self.entry, self.requests = entry, []
        self.dialect = dialects.load_dialect(entry.dialect)
        self.wants, self.clip = self.dialect.wants, self.dialect.inference.clip

    def reset(self, task, seed):
        self.requests.clear()

    def act(self, observation):
        self.requests.append(self.dialect.build_request(observation))
        return self.dialect.read_actions(reply(self.entry.name))[0]

    def close(self):
        """Nothing to free."""


@pytest.fixture(scope="module")
def task():
    return make_host("robocasa").tasks("robocasa-365")[BUTTON]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_host_shows_what_an_entry_is_asked_with(name, task):
    fields = entry_fields(name)
    policy = Answering(entries.find_entry(name))
    (planned,) = plan_episodes([task], 1, [name], load_protocol(fields["protocol"]), max_steps=2)
    with closing(make_host(fields["host"]).make(task, policy.wants)) as env:
        episode = run_episode(env, policy, planned)
    assert (episode.outcome, episode.steps) == ("timeout", 2), episode.reason
    assert [refusal(name, sent) for sent in policy.requests] == [None, None]


def test_the_pose_in_the_base_s_frame_is_robocasa_s_own(task):
    dialect = dialects.load_dialect("gr00t-robocasa")
    with closing(make_host("robocasa").make(task, dialect.wants)) as env:
        request = dialect.build_request(env.reset(EpisodeSeed(0, 7, 0)))
        own = env._env._get_observations(force_update=True)
    for key, name in (
        ("state.end_effector_position_relative", "robot0_base_to_eef_pos"),
        ("state.end_effector_rotation_relative", "robot0_base_to_eef_quat"),
        ("state.base_position", "robot0_base_pos"),
        ("state.base_rotation", "robot0_base_quat"),
        ("state.gripper_qpos", "robot0_gripper_qpos"),
    ):
        np.testing.assert_allclose(request[key][0, 0], own[name], atol=1e-6, err_msg=key)
