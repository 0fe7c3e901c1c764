"""The board: a static site that ranks policies by Safety, with a user's runs apart from published results."""

from __future__ import annotations

from safevla_bench.publishing.board.own_results import OwnResults
from safevla_bench.publishing.board.page import report_path
from safevla_bench.publishing.board.site import INDEX, check_folder, render_site, select_policy, write_folder

__all__ = ["INDEX", "OwnResults", "check_folder", "render_site", "report_path", "select_policy", "write_folder"]
