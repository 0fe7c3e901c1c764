"""Was a success also safe, and if not, how bad was it?

The way from records to numbers, in Python:

>>> import safevla_bench as sb
>>> batch = sb.open_archive("tests/cases/appendix_b.json")
>>> scores = sb.score(batch, sb.load_ruleset())
>>> sb.aggregate(scores).safety
1.0
>>> scores.to_pandas()["rho.max_contact_force_under_200N"].tolist()
[187.6]

Names are imported when they are first used, so that `import safevla_bench` costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

from safevla_bench.version import __version__

if TYPE_CHECKING:  # for type checkers and editors, which cannot follow `_HOMES`
    from safevla_bench import archive as _archive
    from safevla_bench import specs as _specs
    from safevla_bench import stl as _stl
    from safevla_bench import tasks as _tasks
    from safevla_bench import trajectory as _trajectory
    from safevla_bench.archive import open_archive as open_archive
    from safevla_bench.errors import SafevlaError as SafevlaError
    from safevla_bench.explain.exposure import measure_exposure as measure_exposure
    from safevla_bench.explain.exposure import summarize_exposure as summarize_exposure
    from safevla_bench.interface import Observation as Observation
    from safevla_bench.interface import Policy as Policy
    from safevla_bench.interface import Wants as Wants
    from safevla_bench.jobs.evaluation import Evaluation as Evaluation
    from safevla_bench.jobs.evaluation import Request as Request
    from safevla_bench.jobs.evaluation import evaluate as evaluate
    from safevla_bench.jobs.evaluation import judge as judge
    from safevla_bench.jobs.evaluation import load as load
    from safevla_bench.jobs.evaluation import roll_out as roll_out
    from safevla_bench.judging.metrics import Summary as Summary
    from safevla_bench.judging.metrics import aggregate as aggregate
    from safevla_bench.judging.metrics import cells as cells
    from safevla_bench.judging.monitor import Monitor as Monitor
    from safevla_bench.judging.ruleset import Ruleset as Ruleset
    from safevla_bench.judging.ruleset import load_ruleset as load_ruleset
    from safevla_bench.judging.scores import EpisodeScore as EpisodeScore
    from safevla_bench.judging.scores import Scores as Scores
    from safevla_bench.judging.scoring import score as score
    from safevla_bench.specs import Library as Library
    from safevla_bench.specs import Spec as Spec
    from safevla_bench.tasks import Registry as Registry
    from safevla_bench.trajectory import Batch as Batch
    from safevla_recorder import record as record
    from safevla_recorder import record_until_closed as record_until_closed

    append_episodes = _archive.append
    iterate_records = _trajectory.records
    load_library = _specs.library
    load_registry = _tasks.registry
    parse_formula = _stl.parse
    record_schema = _archive.schema

_HOMES = {
    "safevla_bench.archive": ("append_episodes=append", "open_archive", "record_schema=schema"),
    "safevla_bench.errors": ("SafevlaError",),
    "safevla_bench.jobs.evaluation": ("Evaluation", "Request", "evaluate", "judge", "load", "roll_out"),
    "safevla_bench.explain.exposure": ("measure_exposure", "summarize_exposure"),
    "safevla_bench.interface": ("Observation", "Policy", "Wants"),
    "safevla_bench.judging.metrics": ("Summary", "aggregate", "cells"),
    "safevla_bench.judging.monitor": ("Monitor",),
    "safevla_bench.judging.ruleset": ("Ruleset", "load_ruleset"),
    "safevla_bench.judging.scores": ("EpisodeScore", "Scores"),
    "safevla_bench.judging.scoring": ("score",),
    "safevla_bench.specs": ("Library", "Spec", "load_library=library"),
    "safevla_bench.stl": ("parse_formula=parse",),
    "safevla_bench.tasks": ("Registry", "load_registry=registry"),
    "safevla_bench.trajectory": ("Batch", "iterate_records=records"),
    "safevla_recorder": ("record", "record_until_closed"),
}
"""Module -> its public names, as NAME or NAME=ITS NAME THERE. This is the only list of them at run time."""
_PLACES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2]) for module, names in _HOMES.items() for name in names
}
_FORMER = {
    "append": "append_episodes",
    "library": "load_library",
    "parse": "parse_formula",
    "records": "iterate_records",
    "registry": "load_registry",
    "schema": "record_schema",
}
"""Former public name -> the one that says what it does; the former ones work for one release."""
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> object:
    """Return a public name, importing its module on first use; former names work with a `DeprecationWarning`.

    Raises `AttributeError` for any other name.
    """
    if name in _FORMER:
        message = f"safevla_bench.{name} is called {_FORMER[name]} now; the old name goes with the next release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
    if _FORMER.get(name, name) not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[_FORMER.get(name, name)]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    """Return the public names, sorted; the former ones are left out."""
    return sorted(__all__)
