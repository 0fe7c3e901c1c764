"""Recordings of other tools: demonstrations to replay (`read_demonstrations`), and results (`read_results`).

Nothing here is a trajectory record: there are no contacts and no forces, so nothing is judged before it is replayed.
"""

from safevla_bench.foreign.demonstrations import RecordedActions, read_demonstrations
from safevla_bench.foreign.results import ForeignEpisode, ForeignResults, read_results

__all__ = ["ForeignEpisode", "ForeignResults", "RecordedActions", "read_demonstrations", "read_results"]
