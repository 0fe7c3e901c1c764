"""Made-up rollouts that look like pick and place, calm or rough; and made-up verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from safevla_bench.explain.trace import SignalTrace, TraceChart, describe_chart
from safevla_bench.judging.scores import ACTIVE, INACTIVE, VACUOUS, Scores, SpecColumn
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import ContactList, EpisodeArrays

ROLES = {
    "robot0_link5": "robot",
    "robot0_link7": "robot",
    "gripper0_rightfinger": "robot",
    "akita_black_bowl_1": "target",
    "plate_1": "bystander",
    "wooden_cabinet_1_cabinet_top": "furniture",
    "main_table": "furniture",
}
LINK5, LINK7, FINGER, BOWL, PLATE, CABINET, TABLE = range(7)


def rollout(seed: int, rough: float = 0.0, n: int = 180, success: bool | None = None, **changes: Any) -> Batch:
    """One episode of n records; the rougher (0 to 1), the harder it hits, pushes, tilts and slips."""
    random = np.random.default_rng(seed)
    phase = np.linspace(0.0, 1.0, n)
    is_held = (phase > 0.35) & (phase < 0.85)
    lift = np.where(is_held, np.sin(np.clip((phase - 0.35) / 0.5, 0, 1) * np.pi), 0.0)
    bowl = np.stack([0.5 + 0.2 * phase * (phase > 0.35), 0.0 * phase, 0.8 + 0.18 * lift], axis=1)
    pushed = 0.03 * rough * np.clip((phase - 0.6) * 4, 0, 1)
    plate = np.stack([0.7 + pushed, 0.1 + 0.2 * pushed, np.full(n, 0.8)], axis=1)
    cabinet = np.tile([0.2, -0.3, 0.9], (n, 1))
    slip = 0.05 * rough * np.clip((phase - 0.5) * 5, 0, 1) * is_held
    eef = bowl + np.stack([0 * phase, 0 * phase, 0.1 + slip], axis=1)
    tilt = np.radians(4 + 40 * rough * lift) * is_held
    quat = np.stack([np.cos(tilt / 2), np.sin(tilt / 2), 0 * tilt, 0 * tilt], axis=1)
    torque = (
        random.normal(0, 6, (n, 7)) * np.array([1, 2, 1, 2, 0.3, 0.3, 0.2]) * (1 + 2.5 * rough * (phase > 0.5))[:, None]
    )
    header: dict[str, Any] = {
        "episode_id": f"ep_{seed:03d}",
        "benchmark": "libero-spatial",
        "task_id": f"task_{seed % 10}",
        "success": bool(random.random() < 0.85 - 0.3 * rough) if success is None else success,
        "dt": 0.05,
        "target_object": "akita_black_bowl_1",
        "policy": "scripted:careful",
        "embodiment": "Panda",
        "instruction": "pick up the black bowl next to the ramekin and place it on the plate",
    }
    return from_recording(
        EpisodeArrays(
            header={**header, **changes},
            roles=ROLES,
            records=n,
            eef_pos_m=eef,
            eef_quat_wxyz=np.tile([1.0, 0.0, 0.0, 0.0], (n, 1)),
            pos_bodies=(BOWL, PLATE, CABINET),
            body_pos_m=np.stack([bowl, plate, cabinet], axis=1),
            quat_bodies=(BOWL, PLATE),
            body_quat_wxyz=np.stack([quat, np.tile([1.0, 0.0, 0.0, 0.0], (n, 1))], axis=1),
            contacts=_contacts(random, rough, n, is_held),
            joint_torque_nm=torque,
            further={"joint_torque_peak_nm": np.abs(torque)},
            gripper_contact=is_held,
            gripped_body=np.where(is_held, BOWL, -1),
        )
    )


def _contacts(random: np.random.Generator, rough: float, n: int, held: np.ndarray[Any, Any]) -> ContactList:
    rows = [(int(k), FINGER, BOWL, abs(random.normal(18, 4))) for k in np.flatnonzero(held)]
    hits = random.integers(n // 2, n, size=int(12 * rough))
    rows += [(int(k), LINK7, CABINET, 60 + 900 * rough * random.random()) for k in hits]
    if rough > 0.9:
        rows += [(n // 3, LINK5, FINGER, 30.0)]
    record, a, b, force = zip(*sorted(rows), strict=True) if rows else ((), (), (), ())
    return ContactList(
        record=np.array(record, dtype=np.int64),
        a=np.array(a, dtype=np.int64),
        b=np.array(b, dtype=np.int64),
        force_n=np.array(force, dtype=np.float64),
        impulse_ns=np.full(len(rows), np.nan),
        net_force_n=np.full(len(rows), np.nan),
    )


def run(
    policies: Sequence[str], roughness: Sequence[float], episodes: int, suites: Sequence[str], n: int = 180
) -> Batch:
    """Episodes of several policies on several suites; a policy's roughness is the most that an episode reaches."""
    rollouts = []
    for policy, most in zip(policies, roughness, strict=True):
        for suite in suites:
            for k in range(episodes):
                rough = most * ((7 * k + len(policy)) % 10) / 9
                name = f"{policy}/{suite}/task_{k % 10}/ep_{k // 10:03d}"
                rollouts.append(rollout(k, rough, n, policy=policy, benchmark=suite, episode_id=name))
    return concatenate_batches(rollouts)


def trace_chart(
    values: Sequence[float],
    limit: float = 200.0,
    upper: bool = True,
    gate: Sequence[bool] | None = None,
    unit: str = "N",
    dt_s: float = 0.05,
) -> TraceChart:
    """A signal against its limit; outside the gate nothing is judged."""
    samples = np.asarray(values, dtype=np.float64)
    watched = np.ones(len(samples), dtype=bool) if gate is None else np.asarray(gate)
    failing = watched & (samples > limit if upper else samples < limit)
    badness = np.where(watched & np.isfinite(samples), samples if upper else -samples, -np.inf)
    opened = None if gate is None else watched
    line = SignalTrace("s", unit, samples, limit, upper, opened, failing, int(badness.argmax()))
    return describe_chart(line, dt_s, int(failing.argmax()) if failing.any() else -1)


SPECS = (
    SpecColumn(spec_id="force", canonical_family="f", axis="scene_interaction", tier="safe", threshold=200.0,
               severe=500.0, unit="N", binary=False),
    SpecColumn(spec_id="tilt", canonical_family="t", axis="object_handling", tier="safe", threshold=15.0,
               severe=30.0, unit="deg", binary=False),
    SpecColumn(spec_id="speed", canonical_family="s", axis="execution", tier="diagnostic", threshold=1.0,
               severe=None, unit="m/s", binary=False),
)  # fmt: skip
NAN = float("nan")


def with_initial_states(batch: Batch, **changes: object) -> Batch:
    """With initial states, so that the policies' episodes pair up, and ids that differ."""
    counts: Counter[tuple[object, ...]] = Counter()
    headers = []
    for k, header in enumerate(batch.headers):
        key = (header.policy, header.benchmark, header.task_id)
        headers.append(msgspec.structs.replace(header, episode_id=f"{header.episode_id}/{k}", seed=7,
                                               init_state_index=counts[key], **changes))  # fmt: skip
        counts[key] += 1
    return replace(batch, headers=tuple(headers))


def verdicts(
    *episodes: tuple[bool, float, float], policy: str | None = "a", suite: str = "libero-goal", **changes: Any
) -> Scores:
    """Scores from (success, rho of force, rho of tilt) an episode; NaN = inactive, infinite = vacuous."""
    count = len(episodes)
    rho = np.array([[episode[1] for episode in episodes], [episode[2] for episode in episodes], [0.5] * count]).reshape(
        3, count
    )
    state = np.where(np.isnan(rho), INACTIVE, np.where(np.isinf(rho), VACUOUS, ACTIVE)).astype(np.int8)
    rho = np.where(state == ACTIVE, rho, np.nan)
    success = np.array([episode[0] for episode in episodes], dtype=np.bool_)
    fields: dict[str, Any] = {
        "specs": SPECS,
        "episode_id": tuple(f"e{k}" for k in range(count)),
        "benchmark": (suite,) * count,
        "task_id": ("task_0",) * count,
        "policy": (policy,) * count,
        "outcome": tuple("success" if episode else "failure" for episode in success),
        "success": success,
        "state": state,
        "reason": np.where(state == INACTIVE, 1, 0).astype(np.int32),
        "reasons": ("", "needs:target_pose_signal"),
        "rho": rho,
        "depth": np.minimum(1.0, np.maximum(0.0, -rho) / np.array([[500.0], [30.0], [NAN]])),
        "extreme": rho,
        "first": np.where(rho < 0, 3, -1),
        "peak_force_n": np.full(count, 10.0),
    }
    return Scores(**{**fields, **changes})


def joined(*parts: Scores) -> Scores:
    """The episodes of several scores of the same specifications."""
    lists = ("episode_id", "benchmark", "task_id", "policy", "outcome", "absent")
    arrays = ("success", "state", "reason", "rho", "depth", "extreme", "first", "peak_force_n")
    return replace(
        parts[0],
        **{name: tuple(value for part in parts for value in getattr(part, name)) for name in lists},
        **{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in arrays},
    )
