"""Facts that stand in two places stay equal."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import safevla_recorder
from safevla_bench import __version__

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_installed_distribution_have_the_package_s_version():
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == __version__
    assert version("safevla-bench") == __version__


def test_both_distributions_have_the_same_version_and_one_requires_the_other():
    assert version("safevla-recorder") == safevla_recorder.__version__ == __version__
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"safevla-recorder=={__version__}" in required


def test_the_recorder_needs_numpy_alone_from_python_3_8_on():
    project = tomllib.loads((ROOT / "recorder" / "pyproject.toml").read_text())["project"]
    assert [re.match(r"[\w-]+", name)[0] for name in project["dependencies"]] == ["numpy"]
    assert not any("<" in name for name in project["dependencies"])
    assert project["requires-python"] == ">=3.8"
