"""Delays: no delay changes nothing; a late answer is carried out late, and the world goes on meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from folders import contents
from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.jobs.evaluation.request import Request, RequestedPolicy
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies.coupling import Coupling, Delay, DelayedPolicy
from safevla_bench.policies.python import InProcessPolicy
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.trajectory.marks import DELAY

TASK = make_host("fake").tasks("fake")[0]
DT_S = 0.05


class Counts:
    """Says in each action which observation it is for, and its place in its chunk; the gripper is closed."""

    def __init__(self, chunk: int | None = None) -> None:
        self.chunk = chunk

    def act(self, observation: Observation):
        step = observation.eef_pos_m[0]
        rows = np.array([[step, k, 0, 0, 0, 0, 1.0] for k in range(self.chunk or 1)])
        return rows if self.chunk else rows[0]


def observation(step: int) -> Observation:
    return Observation("", np.array([float(step), 0, 0]), np.zeros(4), np.zeros(2))


def play(policy, delay: Delay, steps: int) -> list[str]:
    """Each step's action as `seen+place`; `-` holds with the gripper open, `=` with it closed."""
    delayed = DelayedPolicy(InProcessPolicy("mine", policy), delay, DT_S)
    delayed.reset(TASK, 0)
    actions = [delayed.act(observation(step)) for step in range(1, steps + 1)]
    return [f"{a[0]:.0f}+{a[1]:.0f}" if a[0] else "=" if a[6] > 0 else "-" for a in actions]


@pytest.mark.parametrize(
    ("chunk", "delay", "actions"),
    [
        (None, 0, "1+0 2+0 3+0 4+0"),
        (3, 0, "1+0 1+1 1+2 4+0 4+1 4+2 7+0"),
        (None, 1, "- 1+0 2+0 3+0"),
        (None, 3, "- - - 1+0 = = 4+0 ="),
        (5, 2, "- - 1+0 1+1 1+2 1+3 1+4 6+2 6+3 6+4 9+2 9+3"),
    ],
)
def test_the_world_holds_until_the_first_answer_and_the_rest_of_a_chunk_is_carried_out_while_the_next_is_made(
    chunk, delay, actions
):
    """Without a delay every action is the policy's own; actions for past steps are left out."""
    assert play(Counts(chunk), Delay(delay), len(actions.split())) == actions.split()


@pytest.mark.parametrize("delay", [None, 0, 1, 2, 7])
@pytest.mark.parametrize("chunk", [None, 1, 3, 5])
def test_each_action_is_known_by_the_number_of_its_chunk_and_its_step_in_it(chunk, delay):
    policy = InProcessPolicy("mine", Counts(chunk))
    policy = policy if delay is None else DelayedPolicy(policy, Delay(delay), DT_S)
    for _ in range(2):  # each episode counts its chunks from 0
        policy.reset(TASK, 0)
        chunks = {}
        for step in range(1, 20):
            asked_at, place, *_ = policy.act(observation(step))
            if chunk is None or not asked_at:
                assert policy.chunk_step is None
            else:
                number, at = policy.chunk_step
                assert at == place
                assert chunks.setdefault(number, asked_at) == asked_at
        assert list(chunks) == list(range(len(chunks)))
        assert len({*chunks.values()}) == len(chunks) or delay


@pytest.mark.parametrize("stops", [False, True])
def test_a_record_holds_the_origin_of_each_executed_action_and_nothing_without_chunks(stops):
    class Ends(Counts):
        def act(self, observation):
            self.asked = getattr(self, "asked", 0) + 1
            last = [[0.0] * 6 + [np.nan if stops and self.asked == 3 else 0.0]]
            return np.concatenate([np.zeros((2, 7)), last]) if self.chunk else np.zeros(7)

    for chunk in (None, 3):
        env = make_host("fake").make(TASK, Wants())
        planned = replace(plan_episodes([TASK], 1, ["mine"], load_protocol())[0], horizon=11)
        record = run_episode(env, InProcessPolicy("mine", Ends(chunk)), planned).batch
        channel = record.channel("chunk_step")
        assert channel.present[0] == (chunk is not None)
        if chunk:
            rows = channel.episode_rows(0)
            assert len(rows) == len(record.action.episode_rows(0)) == (8 if stops else 11)
            assert rows.tolist() == [[k // 3, k % 3] for k in range(len(rows))]


@pytest.mark.parametrize(("text", "steps"), [("0", 0), ("3", 3), ("120ms", 2), ("130ms", 3), ("24ms", 0)])
def test_a_delay_is_the_nearest_number_of_control_steps(text, steps):
    assert Delay.parse(text).count_steps(DT_S, took_s=9.0) == steps
    assert Delay.parse("measured").count_steps(DT_S, took_s=0.13) == 3


@pytest.mark.parametrize("text", ["", "-1", "1.5", "ms", "1e3ms", "fast"])
def test_another_text_is_not_a_delay(text):
    with pytest.raises(PolicyError, match="not a delay"):
        Delay.parse(text)


REQUEST = Request(host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("scripted:hasty",))


def late(text: str) -> Request:
    return replace(REQUEST, policies=(RequestedPolicy("scripted:hasty", coupling=Coupling(delay=text)),))


def run(folder, request):
    roll_out(request, folder)
    return read_sources([folder])[0]


def test_a_run_without_a_delay_is_the_same_run_byte_for_byte_but_for_its_statement(tmp_path):
    run(tmp_path / "without", REQUEST)
    run(tmp_path / "zero", late("0"))
    without, zero = (
        {name: content for name, content in contents(tmp_path / folder).items() if name != "manifest.json"}
        for folder in ("without", "zero")
    )
    assert zero["run.json"]["policies"][0].pop("delay") == "0"
    assert without == zero


def test_the_record_says_how_late_the_answers_were_and_repeats(tmp_path):
    batch = run(tmp_path / "late", late("2"))
    mark = batch.extra[0]["header"][DELAY]
    assert mark == {"answers": mark["answers"], "mean_steps": 2.0, "most_steps": 2}
    assert (batch.action.episode_rows(0)[:2] == TASK.still).all()
    again = run(tmp_path / "again", late("100ms"))
    assert again.sim_state.values.tobytes() == batch.sim_state.values.tobytes()
    assert read_description(tmp_path / "late")["policies"][0]["delay"] == "2"


class Slow(Counts):
    def act(self, observation):
        self.clock[0] += 0.1
        return super().act(observation)


def test_a_measured_delay_is_what_each_answer_took_and_is_marked_as_measured(monkeypatch):
    policy = Slow()
    policy.clock = [0.0]
    monkeypatch.setattr("safevla_bench.policies.coupling.time.perf_counter", lambda: policy.clock[0])
    delayed = DelayedPolicy(InProcessPolicy("mine", policy), Delay.parse("measured"), DT_S)
    delayed.reset(TASK, 0)
    assert [delayed.act(observation(step))[0] for step in range(1, 6)] == [0, 0, 1, 0, 3]
    assert delayed.marks[DELAY] == {"answers": 3, "mean_steps": 2.0, "most_steps": 2, "measured": True}


def test_images_are_looked_at_in_steps_that_ask_the_policy():
    steps_asked = []

    class Looks(Counts):
        def act(self, observation):
            steps_asked.append(int(observation.eef_pos_m[0]))
            return super().act(observation)

    delayed = DelayedPolicy(InProcessPolicy("mine", Looks(4)), Delay(2), DT_S)
    delayed.reset(TASK, 0)
    looked = [1]
    for step in range(1, 20):
        delayed.act(observation(step))
        looked += [step + 1] if delayed.looks_next else []
    assert set(steps_asked) <= set(looked)
    assert len(looked) < 19
