"""Made-up verdicts by the hundred: as many policies, suites and episodes as a figure is tried with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from builders import crash
from safevla_bench.judging.scores import ACTIVE, INACTIVE, VACUOUS, Scores, SpecColumn
from safevla_bench.specs.loader import load_library

LONG = (
    "openvla-oft-7b-libero-spatial-object-goal-10-finetuned-step-150000",
    "openvla-oft-7b-libero-spatial-object-goal-10-finetuned-step-300000",
    "physical-intelligence/pi0.5-libero-lora-r32-bfloat16-horizon-10",
    "physical-intelligence/pi0-fast-libero-lora-r32-bfloat16-horizon-10",
    "nvidia/gr00t-n1.7-3b-libero-posttrained-denoise-steps-8-seed-42",
    "cosmos-policy-2b-libero-all-suites-ema-0.9999-checkpoint-120k",
    "smolvla-450m-libero-community-finetune-batch-64-lr-1e-4-epoch-30",
    "rldx-1-ft-rc365-atomic-seen-target-split-layouts-1-to-10-v2",
    "xiaomi-robotics-1-libero-plus-augmented-views-and-lighting-run-7",
    "scripted:careful-with-a-name-that-says-rather-too-much-about-it",
)
SPECS = tuple(
    SpecColumn(
        spec_id=spec.spec_id, canonical_family=spec.canonical_family, axis=spec.axis, tier=spec.tier,
        threshold=spec.threshold, severe=spec.severe, unit=spec.unit, binary=spec.binary,
    )
    for spec in load_library().safe
)  # fmt: skip
RECORDS, DT_S = 240, 0.05


def crowd(
    policies: Sequence[str], episodes: int, suites: Sequence[str] = ("libero-spatial",), **changes: Any
) -> Scores:
    """Verdicts of policies alike in most, each specification broken in some episodes, inactive or vacuous in others.

    `bad` says how often limits break, 0 to 1; `seed` makes other numbers.
    """
    random = np.random.default_rng(changes.pop("seed", 5))
    bad = changes.pop("bad", 0.15)
    count = len(policies) * len(suites) * episodes
    number = len(SPECS)
    threshold = np.array([[spec.threshold] for spec in SPECS])
    state = np.full((number, count), ACTIVE, dtype=np.int8)
    state[2, random.random(count) < 0.1] = VACUOUS
    state[1] = INACTIVE
    broken = random.random((number, count)) < bad * np.linspace(0.02, 1, number)[:, None]
    margin = np.where(broken, -random.gamma(0.7, 1.2, (number, count)) - 1e-3, random.random((number, count)))
    rho = np.where(state == ACTIVE, margin * threshold, np.nan)
    severe = np.array([[spec.severe or np.nan] for spec in SPECS])
    depth = np.minimum(1.0, np.maximum(0.0, -rho) / np.where(np.isnan(severe), 1e-9, severe))
    success = random.random(count) < 0.93
    name = np.repeat(np.arange(len(policies)), len(suites) * episodes)
    suite = np.tile(np.repeat(np.arange(len(suites)), episodes), len(policies))
    fields: dict[str, Any] = {
        "specs": SPECS,
        "episode_id": tuple(f"e{k}" for k in range(count)),
        "benchmark": tuple(suites[k] for k in suite),
        "task_id": ("task_0",) * count,
        "policy": tuple(policies[k] for k in name),
        "outcome": tuple("success" if succeeded else "failure" for succeeded in success),
        "success": success,
        "state": state,
        "reason": np.where(state == INACTIVE, 1, 0).astype(np.int32),
        "reasons": ("", "needs a tag"),
        "rho": rho,
        "depth": depth,
        "extreme": rho,
        "first": np.where(rho < 0, random.integers(0, RECORDS, (number, count)), -1),
        "peak_force_n": np.full(count, 10.0),
    }
    return Scores(**{**fields, **changes})


def crashed(policies: Sequence[str], suites: Sequence[str] = ("libero-spatial",)) -> Scores:
    """Nothing but crashes."""
    absent = tuple(
        crash(episode_id=f"x{k}", benchmark=suite, policy=policy, reason="boom")
        for policy in policies
        for suite in suites
        for k in range(3)
    )
    return crowd(policies, 0, suites, absent=absent)
