"""A judged episode for viewers: rough enough to break something."""

from __future__ import annotations

from report.scenes import rollout
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import concatenate
from safevla_bench.viewers import timeline


def judged(rough: float = 1.0):
    """The batch of a calm and a rough episode, and their scores."""
    batch = concatenate([rollout(1, 0.05, 60), rollout(2, rough, 60)])
    return batch, score(batch, library(), registry())


def shown(index: int = 1):
    batch, scores = judged()
    return timeline(scores, batch, library(), index)
