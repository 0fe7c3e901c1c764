"""Runs in a browser of this machine: an index of the runs of a folder, their reports, and comparisons of any two."""

from safevla_bench.browse.run_list import RunRow, find_runs, list_runs
from safevla_bench.browse.server import RunServer, start_server
from safevla_bench.browse.site import Reply, RunSite

__all__ = ["Reply", "RunRow", "RunServer", "RunSite", "find_runs", "list_runs", "start_server"]
