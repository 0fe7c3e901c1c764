"""What others recorded: demonstrations to play again (`takes`), and results that hold successes only (`results`).

Nothing here is a trajectory record: there are no contacts and no forces, so nothing is judged before it is replayed.
"""

from safevla_bench.foreign.demonstrations import takes
from safevla_bench.foreign.results import ForeignEpisode, ForeignResults, results
from safevla_bench.foreign.take import Take

__all__ = ["ForeignEpisode", "ForeignResults", "Take", "results", "takes"]
