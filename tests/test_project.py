"""Facts that stand in two places stay equal."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from safevla_bench import __version__

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_installed_distribution_have_the_package_s_version():
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == __version__
    assert version("safevla-bench") == __version__
