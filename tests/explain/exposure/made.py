"""Episodes that hit or hold, made by hand, and what is measured of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from builders import LINK, PLATE, contacts, episode
from safevla_bench.explain.exposure import measure_exposure
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import library
from safevla_bench.tasks.loader import registry

LIBRARY, REGISTRY = library(), registry()


def measured(batch, **options):
    ruleset = Ruleset(LIBRARY, REGISTRY, **options)
    scores = score(batch, ruleset)
    return measure_exposure(batch, scores, ruleset), scores


def hit(*rows, impulse=None, n=12, **changes):
    """An episode with contacts of the link and the plate, (record, force)."""
    touching = contacts(*((record, LINK, PLATE, force) for record, force in rows))
    if impulse is not None:
        touching = replace(touching, impulse_ns=np.array(impulse, dtype=np.float64))
    return episode(n, contacts=touching, **changes)


def held(grip, height, **changes):
    """An episode in which the bowl is gripped and lifted as said, record by record."""
    n = len(grip)
    position = np.tile([[0.5, 0.0, 0.8], [0.6, 0.1, 0.8], [0.9, 0.0, 0.7]], (n, 1, 1))
    position[:, 0, 2] += height
    fields = {"benchmark": "libero-goal", "task_id": "task_8", "gripper_contact": np.array(grip, dtype=np.bool_)}
    return episode(n, body_pos_m=position, **{**fields, **changes})
