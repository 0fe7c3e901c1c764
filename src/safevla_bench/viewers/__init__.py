"""One judged episode for a viewer: what happened (`timeline`) as a file for Rerun or, as MCAP, for Foxglove."""

from safevla_bench.viewers.foxglove import mcap
from safevla_bench.viewers.rerun import rrd
from safevla_bench.viewers.timeline import Timeline, timeline

__all__ = ["Timeline", "mcap", "rrd", "timeline"]
