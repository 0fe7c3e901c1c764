"""One judged episode for a viewer: its timeline as a recording for Rerun, or as an MCAP file for Foxglove."""

from safevla_bench.pictures.viewers.foxglove import encode_mcap
from safevla_bench.pictures.viewers.rerun import encode_rrd
from safevla_bench.pictures.viewers.timeline import Timeline, build_timeline

__all__ = ["Timeline", "build_timeline", "encode_mcap", "encode_rrd"]
