"""The board: a static site that ranks policies by Safety, a user's runs apart from published results."""

from __future__ import annotations

from safevla_bench.report.board.measured import Measured
from safevla_bench.report.board.naming import report_page
from safevla_bench.report.board.origin import protocols
from safevla_bench.report.board.portraits import only
from safevla_bench.report.board.site import INDEX, site
from safevla_bench.report.board.writing import check, write

__all__ = ["INDEX", "Measured", "check", "only", "protocols", "report_page", "site", "write"]
