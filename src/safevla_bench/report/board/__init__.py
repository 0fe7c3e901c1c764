"""The board: a static site that ranks policies by Safety, with a user's runs apart from published results."""

from __future__ import annotations

from safevla_bench.report.board.file_names import report_path
from safevla_bench.report.board.folder import check_folder, write_folder
from safevla_bench.report.board.own_results import OwnResults
from safevla_bench.report.board.policy_pages import select_policy
from safevla_bench.report.board.site import INDEX, render_site

__all__ = ["INDEX", "OwnResults", "check_folder", "render_site", "report_path", "select_policy", "write_folder"]
