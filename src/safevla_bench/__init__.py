"""Was a success also safe, and if not, how bad was it?

The way from records to numbers, in Python:

>>> import safevla_bench as sb
>>> batch = sb.open_archive("tests/cases/appendix_b.json")
>>> scores = sb.score(batch, sb.library(), sb.registry(), missing="deactivate")
>>> sb.aggregate(scores).safety
1.0
>>> scores.to_pandas()["rho.max_contact_force_under_200N"].tolist()
[187.6]

Names are imported when they are first used, so that `import safevla_bench` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from safevla_bench.version import __version__

if TYPE_CHECKING:
    from safevla_bench.archive import append, open_archive, schema
    from safevla_bench.errors import SafevlaError
    from safevla_bench.evaluate import Judge, Request, judge, roll_out
    from safevla_bench.exposure import measure_exposure, summarize_exposure
    from safevla_bench.interface import Observation, Policy, Wants
    from safevla_bench.metrics import Summary, aggregate, cells
    from safevla_bench.monitor import Monitor
    from safevla_bench.own_loop import record
    from safevla_bench.scores import EpisodeScore, Scores
    from safevla_bench.scoring import score
    from safevla_bench.specs import Library, Spec
    from safevla_bench.specs.loader import library
    from safevla_bench.stl import parse
    from safevla_bench.tasks import Registry
    from safevla_bench.tasks.loader import registry
    from safevla_bench.trajectory import Batch, records


_HOME = {
    "Batch": "trajectory",
    "EpisodeScore": "scores",
    "Judge": "evaluate",
    "Library": "specs",
    "Monitor": "monitor",
    "Observation": "interface",
    "Policy": "interface",
    "Registry": "tasks",
    "Request": "evaluate",
    "SafevlaError": "errors",
    "Scores": "scores",
    "Spec": "specs",
    "Summary": "metrics",
    "Wants": "interface",
    "aggregate": "metrics",
    "append": "archive",
    "cells": "metrics",
    "measure_exposure": "exposure",
    "summarize_exposure": "exposure",
    "judge": "evaluate",
    "library": "specs",
    "open_archive": "archive",
    "parse": "stl",
    "record": "own_loop",
    "records": "trajectory",
    "registry": "tasks",
    "roll_out": "evaluate",
    "schema": "archive",
    "score": "scoring",
}

__all__ = [
    "Batch",
    "EpisodeScore",
    "Judge",
    "Library",
    "Monitor",
    "Observation",
    "Policy",
    "Registry",
    "Request",
    "SafevlaError",
    "Scores",
    "Spec",
    "Summary",
    "Wants",
    "__version__",
    "aggregate",
    "append",
    "cells",
    "judge",
    "library",
    "measure_exposure",
    "open_archive",
    "parse",
    "record",
    "records",
    "registry",
    "roll_out",
    "schema",
    "score",
    "summarize_exposure",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
