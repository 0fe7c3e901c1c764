"""Was a success also safe, and if not, how bad was it?

From records to numbers in Python:

>>> import safevla_bench as sb
>>> batch = sb.open_archive("tests/cases/appendix_b.json")
>>> scores = sb.score(batch, sb.load_ruleset())
>>> sb.aggregate(scores).safety
1.0
>>> scores.to_pandas()["rho.max_contact_force_under_200N"].tolist()
[187.6]

Names are imported on first use, so that `import safevla_bench` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from safevla_bench.version import __version__

if TYPE_CHECKING:  # for type checkers and editors, which cannot follow `_HOMES`
    from safevla_bench.archive import append_episodes as append_episodes
    from safevla_bench.archive.record_schema import record_schema as record_schema
    from safevla_bench.errors import SafevlaError as SafevlaError
    from safevla_bench.explain.exposure import measure_exposure as measure_exposure
    from safevla_bench.explain.exposure import summarize_exposure as summarize_exposure
    from safevla_bench.interface.policy import Observation as Observation
    from safevla_bench.interface.policy import Policy as Policy
    from safevla_bench.interface.policy import Wants as Wants
    from safevla_bench.jobs.evaluation.judgement import judge as judge
    from safevla_bench.jobs.evaluation.request import Request as Request
    from safevla_bench.jobs.evaluation.results import Evaluation as Evaluation
    from safevla_bench.jobs.evaluation.results import evaluate as evaluate
    from safevla_bench.jobs.evaluation.results import load as load
    from safevla_bench.jobs.evaluation.rollouts import roll_out as roll_out
    from safevla_bench.judging.metrics import Summary as Summary
    from safevla_bench.judging.metrics import aggregate as aggregate
    from safevla_bench.judging.metrics import cells as cells
    from safevla_bench.judging.monitor import Monitor as Monitor
    from safevla_bench.judging.ruleset import Ruleset as Ruleset
    from safevla_bench.judging.ruleset import load_ruleset as load_ruleset
    from safevla_bench.judging.scores import EpisodeScore as EpisodeScore
    from safevla_bench.judging.scores import Scores as Scores
    from safevla_bench.judging.scoring import score as score
    from safevla_bench.sources.runs.episode_index import open_archive as open_archive
    from safevla_bench.specs.loader import load_library as load_library
    from safevla_bench.specs.spec import Library as Library
    from safevla_bench.specs.spec import Spec as Spec
    from safevla_bench.stl.parser import parse_formula as parse_formula
    from safevla_bench.tasks.entries import Registry as Registry
    from safevla_bench.tasks.loader import load_registry as load_registry
    from safevla_bench.trajectory.batch import Batch as Batch
    from safevla_bench.trajectory.single_episode import iterate_records as iterate_records
    from safevla_recorder import record as record
    from safevla_recorder import record_until_closed as record_until_closed

_HOMES = {  # module -> its public names: the only list of them at run time
    "safevla_bench.archive": ("append_episodes",),
    "safevla_bench.archive.record_schema": ("record_schema",),
    "safevla_bench.errors": ("SafevlaError",),
    "safevla_bench.jobs.evaluation.judgement": ("judge",),
    "safevla_bench.jobs.evaluation.request": ("Request",),
    "safevla_bench.jobs.evaluation.results": ("Evaluation", "evaluate", "load"),
    "safevla_bench.jobs.evaluation.rollouts": ("roll_out",),
    "safevla_bench.explain.exposure": ("measure_exposure", "summarize_exposure"),
    "safevla_bench.interface.policy": ("Observation", "Policy", "Wants"),
    "safevla_bench.judging.metrics": ("Summary", "aggregate", "cells"),
    "safevla_bench.judging.monitor": ("Monitor",),
    "safevla_bench.judging.ruleset": ("Ruleset", "load_ruleset"),
    "safevla_bench.judging.scores": ("EpisodeScore", "Scores"),
    "safevla_bench.judging.scoring": ("score",),
    "safevla_bench.sources.runs.episode_index": ("open_archive",),
    "safevla_bench.specs.loader": ("load_library",),
    "safevla_bench.specs.spec": ("Library", "Spec"),
    "safevla_bench.stl.parser": ("parse_formula",),
    "safevla_bench.tasks.entries": ("Registry",),
    "safevla_bench.tasks.loader": ("load_registry",),
    "safevla_bench.trajectory.batch": ("Batch",),
    "safevla_bench.trajectory.single_episode": ("iterate_records",),
    "safevla_recorder": ("record", "record_until_closed"),
}
_PLACES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> object:
    """Return a public name, importing its module on first use. Raises `AttributeError` for any other name."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, sorted."""
    return sorted(__all__)
