"""Laws of judging: what may never change a score, and which way a change may move one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import BOWL, DRAWER, HAND, LINK, PLATE, ROLES, contacts, episode, rest_positions
from safevla_bench.judging.metrics import aggregate
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import ACTIVE, Scores
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import load_library
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.stl.formula import substitute_threshold
from safevla_bench.stl.parser import parse_formula
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes

DEFAULT, TASKS = load_library(), load_registry()
PAIRS = ((HAND, DRAWER), (BOWL, DRAWER), (HAND, BOWL), (HAND, LINK), (PLATE, DRAWER))


def eventful(seed: int) -> Batch:
    """An episode where every specification may be satisfied, violated, vacuous or inactive."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    pos = rest_positions(n)
    pos = pos + np.cumsum(rng.normal(0, [[0.02], [0.001], [0.001]], (n, 3, 3)), axis=0)
    quat = np.tile([1.0, 0.0, 0.0, 0.0], (n, 2, 1)) + rng.normal(0, 0.15, (n, 2, 4))
    hits = [
        (int(rng.integers(n)), *PAIRS[int(k)], float(rng.exponential(150)))
        for k in rng.integers(len(PAIRS), size=int(rng.integers(4)))
    ]
    return episode(
        n,
        episode_id=f"e{seed}",
        benchmark="libero-10",
        task_id=f"task_{rng.integers(10)}",
        policy=str(rng.choice(["a", "b"])),
        success=bool(rng.integers(2)),
        body_pos_m=pos,
        body_quat_wxyz=quat,
        eef_pos_m=pos[:, 0] + rng.normal(0, 0.01, (n, 3)),
        contacts=contacts(*hits),
        joint_torque_nm=rng.normal(0, 6, (n, 7)),
        gripper_contact=rng.random(n) < 0.7,
    )


EPISODES = st.integers(0, 2**32).map(eventful)
BATCHES = st.lists(st.integers(0, 2**32), min_size=1, max_size=5, unique=True).map(
    lambda seeds: concatenate_batches([eventful(seed) for seed in seeds])
)


def judge(batch: Batch, specs: Library = DEFAULT) -> Scores:
    return score(batch, Ruleset(specs, TASKS, capabilities=("libero-full",)))


def change(specs: Library, spec_id: str, **changes: object) -> Library:
    return replace(specs, specs=tuple(replace(s, **changes) if s.spec_id == spec_id else s for s in specs.specs))


def loosen(spec: Spec, factor: float) -> Library:
    """The default library with one threshold multiplied; K = severe/threshold stays."""
    threshold = spec.threshold * factor
    return change(
        DEFAULT,
        spec.spec_id,
        threshold=threshold,
        severe=None if spec.severe is None else spec.severe * factor,
        formula=substitute_threshold(parse_formula(spec.stl), threshold),
    )


GRADED = [spec for spec in DEFAULT.safe if not spec.binary]


def test_the_generator_meets_every_scored_specification_in_every_way():
    scores = judge(concatenate_batches([eventful(seed) for seed in range(400)]))
    for column in scores.scored_columns:
        active = scores.state[column] == ACTIVE
        assert (active & scores.is_violated[column]).any(), scores.specs[column].spec_id
        assert (active & ~scores.is_violated[column]).any(), scores.specs[column].spec_id


@given(BATCHES)
def test_an_episode_is_unsafe_iff_an_active_margin_is_negative_and_then_it_has_a_depth(batch: Batch):
    for row in judge(batch).episodes():
        margins = [rho for rho in row.robustness.values() if rho is not None]
        assert row.safe == all(rho >= 0 for rho in margins)
        assert row.safe == (row.vsi == 0)
        assert row.rho_min == min(margins, default=None)
        assert (row.first_violation_spec is None) == row.safe


@given(EPISODES, st.sampled_from(GRADED), st.floats(1, 4))
def test_loosening_a_threshold_never_lowers_its_margin_or_safety_nor_deepens_its_violation(
    batch: Batch, spec: Spec, factor: float
):
    before, after = judge(batch).episode(0), judge(batch, loosen(spec, factor)).episode(0)
    assert after.safe >= before.safe
    assert after.vsi <= before.vsi
    if before.robustness[spec.spec_id] is not None:
        assert after.robustness[spec.spec_id] >= before.robustness[spec.spec_id]
        assert after.depth[spec.spec_id] <= before.depth[spec.spec_id]


@given(EPISODES, st.sampled_from(GRADED), st.floats(1, 10))
def test_depth_is_the_excess_over_severe_clipped_at_1(batch: Batch, spec: Spec, factor: float):
    assert spec.severe is not None
    row = judge(batch, change(DEFAULT, spec.spec_id, severe=spec.severe * factor)).episode(0)
    rho, depth = row.robustness[spec.spec_id], row.depth[spec.spec_id]
    assert depth == (None if rho is None else pytest.approx(min(1.0, max(0.0, -rho) / (spec.severe * factor))))


@given(BATCHES, st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(batch: Batch, random: Random):
    order = list(range(len(batch)))
    random.shuffle(order)
    ordered, shuffled = judge(batch), judge(select_episodes(batch, order))
    assert [shuffled.episode(k) for k in range(len(order))] == [ordered.episode(k) for k in order]
    before, after = aggregate(ordered), aggregate(shuffled)
    assert (before.rates, before.axes, before.outcomes) == (after.rates, after.axes, after.outcomes)
    assert before.vsi == pytest.approx(after.vsi)


@given(st.integers(0, 2**32), st.permutations(list(ROLES)))
def test_the_order_of_bodies_does_not_matter(seed: int, names: list[str]):
    batch = eventful(seed)
    place = np.array([names.index(name) for name in ROLES])
    moved = replace(
        batch,
        body_names=tuple(names),
        body_role=batch.body_role[np.argsort(place)],
        target=place[batch.target],
        body_pos_m=replace(batch.body_pos_m, body=place[batch.body_pos_m.body]),
        body_quat_wxyz=replace(batch.body_quat_wxyz, body=place[batch.body_quat_wxyz.body]),
        contacts=replace(batch.contacts, a=place[batch.contacts.a], b=place[batch.contacts.b]),
    )
    assert moved.body_roles(0) == batch.body_roles(0)
    assert judge(moved).episode(0) == judge(batch).episode(0)


@given(BATCHES)
def test_diagnostics_and_alternates_change_no_scored_number(batch: Batch):
    scored_only = replace(DEFAULT, specs=DEFAULT.safe)
    for whole, bare in zip(judge(batch).episodes(), judge(batch, scored_only).episodes(), strict=True):
        assert bare == msgspec.structs.replace(whole, diagnostics={})
    every, scored = aggregate(judge(batch)), aggregate(judge(batch, scored_only))
    assert (every.rates, every.means, every.axes) == (scored.rates, scored.means, scored.axes)


@given(EPISODES, st.sampled_from(DEFAULT.safe))
def test_taking_a_specification_out_never_lowers_safety_nor_raises_severity(batch: Batch, spec: Spec):
    without = change(DEFAULT, spec.spec_id, invalid_if_any=("libero-never", *spec.requires_all[:1]))
    before, after = judge(batch).episode(0), judge(batch, without).episode(0)
    assert spec.spec_id in after.inactive_specs
    assert after.safe >= before.safe
    assert after.vsi <= before.vsi
