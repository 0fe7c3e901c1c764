"""Was a success also safe, and if not, how bad was it?

The way from records to numbers, in Python:

>>> import safevla_bench as sb
>>> batch = sb.open_archive("tests/cases/appendix_b.json")
>>> scores = sb.score(batch, sb.load_ruleset(missing="deactivate"))
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

if TYPE_CHECKING:  # for type checkers and editors, which cannot follow `_HOMES`
    from safevla_bench.archive import append as append
    from safevla_bench.archive import open_archive as open_archive
    from safevla_bench.archive import schema as schema
    from safevla_bench.errors import SafevlaError as SafevlaError
    from safevla_bench.evaluate import Request as Request
    from safevla_bench.evaluate import judge as judge
    from safevla_bench.evaluate import roll_out as roll_out
    from safevla_bench.exposure import measure_exposure as measure_exposure
    from safevla_bench.exposure import summarize_exposure as summarize_exposure
    from safevla_bench.interface import Observation as Observation
    from safevla_bench.interface import Policy as Policy
    from safevla_bench.interface import Wants as Wants
    from safevla_bench.metrics import Summary as Summary
    from safevla_bench.metrics import aggregate as aggregate
    from safevla_bench.metrics import cells as cells
    from safevla_bench.monitor import Monitor as Monitor
    from safevla_bench.ruleset import Ruleset as Ruleset
    from safevla_bench.ruleset import load_ruleset as load_ruleset
    from safevla_bench.scores import EpisodeScore as EpisodeScore
    from safevla_bench.scores import Scores as Scores
    from safevla_bench.scoring import score as score
    from safevla_bench.specs import Library as Library
    from safevla_bench.specs import Spec as Spec
    from safevla_bench.specs.loader import library as library
    from safevla_bench.stl import parse as parse
    from safevla_bench.tasks import Registry as Registry
    from safevla_bench.tasks.loader import registry as registry
    from safevla_bench.trajectory import Batch as Batch
    from safevla_bench.trajectory import records as records
    from safevla_recorder import record as record

_HOMES = {
    "safevla_bench.archive": ("append", "open_archive", "schema"),
    "safevla_bench.errors": ("SafevlaError",),
    "safevla_bench.evaluate": ("Request", "judge", "roll_out"),
    "safevla_bench.exposure": ("measure_exposure", "summarize_exposure"),
    "safevla_bench.interface": ("Observation", "Policy", "Wants"),
    "safevla_bench.metrics": ("Summary", "aggregate", "cells"),
    "safevla_bench.monitor": ("Monitor",),
    "safevla_bench.ruleset": ("Ruleset", "load_ruleset"),
    "safevla_bench.scores": ("EpisodeScore", "Scores"),
    "safevla_bench.scoring": ("score",),
    "safevla_bench.specs": ("Library", "Spec", "library"),
    "safevla_bench.stl": ("parse",),
    "safevla_bench.tasks": ("Registry", "registry"),
    "safevla_bench.trajectory": ("Batch", "records"),
    "safevla_recorder": ("record",),
}
"""Module -> the public names that it defines. This is the only list of them at run time."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
