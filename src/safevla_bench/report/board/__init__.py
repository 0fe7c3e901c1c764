"""The board: a static site that ranks policies by Safety, a user's runs apart from published results."""

from __future__ import annotations

from safevla_bench.report.board.file_names import report_page
from safevla_bench.report.board.folder import check, write
from safevla_bench.report.board.own_results import Measured
from safevla_bench.report.board.policy_pages import only
from safevla_bench.report.board.provenance import protocols
from safevla_bench.report.board.site import INDEX, site

__all__ = ["INDEX", "Measured", "check", "only", "protocols", "report_page", "site", "write"]
