"""Counterfactuals: without its cause a violation vanishes, without anything else it stays, and the chains name causes.

Forty episodes are planted on the fake host, eight of each of five motions whose cause is known.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from folders import evaluate_fake
from safevla_bench.errors import HostError, RunError
from safevla_bench.explain.episode import explain_episode
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, PhysicsChange
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.physics import Cause, replay_without
from safevla_bench.jobs.verify.replays import replay_actions
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables.firmness import counterfactual_table, describe_counterfactual
from safevla_bench.sensitivity.firmness import read_clauses
from safevla_bench.text import NO_VALUE

HOST = FakeHost()
TASK = HOST.tasks("fake")[0]
CUP_M = np.array([0.05, 0.25, 0.02])
PRESS, PUSH, CARRY = ("gripper", "table"), ("cup", "gripper"), ("block", "cup")


class Hand:
    """Moves the fake gripper from place to place, by at most 5 cm a step."""

    def __init__(self, place_m):
        self.place_m, self.grip, self.actions = np.array(place_m), -1.0, []

    def go(self, *place_m):
        while np.linalg.norm(place_m - self.place_m) > 1e-9:
            step = np.clip((place_m - self.place_m) / 0.05, -1, 1)
            self.actions.append([*step, 0, 0, 0, self.grip])
            self.place_m = self.place_m + step * 0.05

    def close(self):
        self.grip = 1.0
        self.actions.append([0, 0, 0, 0, 0, 0, 1.0])

    def press(self):
        self.go(*self.place_m[:2], 0.01)
        self.go(*self.place_m[:2], -0.03)
        self.place_m[2] = 0.0
        self.go(*self.place_m[:2], 0.25)

    def sweep(self, by_m):
        """Pass through the cup's place at its height."""
        self.go(*(CUP_M + [by_m, -0.1, 0.2]))
        self.go(*(CUP_M + [by_m, -0.1, 0.0]))
        self.go(*(CUP_M + [by_m, 0.05, 0.0]))
        self.go(*(CUP_M + [by_m, 0.05, 0.2]))


def plant(kind, number):
    """The start of an episode, its actions, and the contact that is planted as the cause of its first violation."""
    seed, by_m = EpisodeSeed(number % 5, number, wait_steps=2), 0.002 * (number - 4)
    with closing(HOST.make(TASK, Wants(privileged=True))) as env:
        observation = env.reset(seed)
    hand = Hand(observation.eef_pos_m)
    if kind in ("press", "press, then push"):
        hand.close()
        hand.press()
    if kind in ("push", "push, then press", "press, then push"):
        hand.close()
        hand.sweep(by_m)
    if kind == "push, then press":
        hand.press()
    if kind == "carry":
        hand.go(*observation.privileged.body_pos_m["block"])
        hand.close()
        hand.sweep(by_m)
    return seed, np.array(hand.actions), CARRY if kind == "carry" else PUSH if kind.startswith("push") else PRESS


KINDS = ("press", "push", "carry", "press, then push", "push, then press")


@cache
def episodes():
    return [play(*plant(kind, number)) for kind in KINDS for number in range(8)]


def play(seed, actions, planted):
    with closing(HOST.make(TASK, Wants())) as env:
        env.reset(seed)
        for action in actions:
            env.step(action)
        return seed, env.recorded(), planted


def first_cause(batch):
    ruleset = load_ruleset()
    broken = explain_episode(score(batch, ruleset), batch, ruleset, 0).violated_clauses
    first = min(broken, key=lambda clause: (clause.first.step, clause.spec.spec_id))
    return first.spec.spec_id, first.why


def broken(batch):
    clauses = read_clauses(score(batch, load_ruleset()), 0)
    return {name for name, reading in clauses.items() if reading.first is not None}


def without(seed, batch, pair):
    return replay_actions(HOST, TASK, replace(seed, change=PhysicsChange(apart=pair)), batch)[0]


def test_of_forty_planted_causes_the_chains_name_at_least_38_and_without_them_the_violation_vanishes():
    count = 0
    for seed, batch, planted in episodes():
        spec_id, why = first_cause(batch)
        is_named = set(why.bodies[-2:]) == set(planted)
        count += is_named
        assert spec_id not in broken(without(seed, batch, planted)), (planted, spec_id)
    assert len(episodes()) == 40
    assert count == 40  # at least 38, 95 %, are asked for


def test_without_another_contact_or_with_nothing_changed_the_episode_is_the_same_to_the_bit():
    for seed, batch, planted in episodes():
        innocent = ("gripper", "tray") if planted != ("gripper", "tray") else ("cup", "tray")
        for change in (None, PhysicsChange(), PhysicsChange(apart=innocent)):
            again = replay_actions(HOST, TASK, replace(seed, change=change), batch)[0]
            assert again.sim_state.values.tobytes() == batch.sim_state.values.tobytes()
            assert again.contacts.force_n.tobytes() == batch.contacts.force_n.tobytes()


def test_a_removed_body_is_neither_pushed_nor_gripped():
    seed, batch, _ = episodes()[8]
    changed = replace(seed, change=PhysicsChange(without="cup"))
    assert broken(batch) == {"non_target_max_disp_5mm"}
    assert broken(replay_actions(HOST, TASK, changed, batch)[0]) == set()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = evaluate_fake(tmp_path_factory.mktemp("without") / "run", tasks=(0,), episodes=4, policies=("random",))
    return judge([folder], load_ruleset())


UNSAFE = 3
"""Place of the episode that presses the table with 369 N, at step 28."""


def test_it_says_whether_the_violation_vanished(run):
    vanishes = replay_without(run, UNSAFE, Cause.parse("contact:gripper,table"))
    assert vanishes.has_vanished
    assert describe_counterfactual(vanishes).startswith("Without contact of")
    stays = replay_without(run, UNSAFE, Cause.parse("contact:gripper,cup"))
    assert stays.recorded == stays.without
    assert stays.left is None
    nothing = replay_without(run, 0, Cause.parse("body:cup"))
    assert "cup no limit" in describe_counterfactual(nothing)


def test_at_half_speed_each_action_is_played_twice_and_presses_half_as_deep(run):
    slow = replay_without(run, UNSAFE, Cause.parse("slow"))
    assert slow.left is None  # it keeps another time
    recorded, halved = (side["max_contact_force_under_200N"].rho for side in (slow.recorded, slow.without))
    assert recorded < halved < 0


def test_held_steps_do_not_move(run):
    counterfactual = replay_without(run, UNSAFE, Cause.parse("hold:20-40"))
    assert counterfactual.has_vanished
    assert counterfactual.left == 21
    assert " at 1.05 s:" in describe_counterfactual(counterfactual)


def test_its_times_are_those_of_the_records(run):
    held = replay_without(run, UNSAFE, Cause.parse("hold:20-40"))
    stamped = replace(held, elapsed_s=tuple({k: dt_s * k for k in range(99)} for dt_s in (0.1, 0.2)))
    assert " at 2.10 s:" in describe_counterfactual(stamped)
    force = {row[0].text: row for row in counterfactual_table(stamped, run.scores.specs).rows}[
        "max_contact_force_under_200N"
    ]
    assert (force[3].text, force[4].text) == ("2.80 s", NO_VALUE)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("foo", RunError, "names no cause: --without 'foo'"),
        ("contact:cup", RunError, "names no cause"),
        ("hold:4-4", RunError, "names no cause"),
        ("hold:900-910", RunError, "no action: the episode"),
        ("body:hat", HostError, "body 'hat'"),
        ("body:gripper", HostError, "gripper is the"),
    ],
)
def test_what_is_not_a_cause_is_refused(run, text, error, says):
    with pytest.raises(error, match=says):
        replay_without(run, UNSAFE, Cause.parse(text))


def test_an_episode_that_is_not_replayed_exactly_is_refused(run):
    class Forged:
        """The records of the run, each position moved by a nanometer."""

        def __getattr__(self, name):
            return getattr(run.records, name)

        def read_episode(self, index):
            batch = run.records.read_episode(index)
            channel = batch.body_pos_m.channel
            moved = replace(channel, values=channel.values + 1e-9)
            return replace(batch, body_pos_m=replace(batch.body_pos_m, channel=moved))

    with pytest.raises(RunError, match="cannot be replayed exactly"):
        replay_without(replace(run, records=Forged()), UNSAFE, Cause.parse("slow"))
