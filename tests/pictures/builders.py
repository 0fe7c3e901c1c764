"""Judged episodes for viewers: one calm, one rough enough to break something."""

from __future__ import annotations

from report.scenes import rollout
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.trajectory.batch import concatenate_batches


def judged(rough: float = 1.0):
    """The batch of a calm and a rough episode, and their scores."""
    batch = concatenate_batches([rollout(1, 0.05, 60), rollout(2, rough, 60)])
    return batch, score(batch, load_ruleset())
