"""What a release writes: one version everywhere, the day, and a results-version if numbers move."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / ".ci" / "release.py"))
KNOWN = "recorder/src/safevla_recorder/known_differences.json"
CHANGELOG = "# Changelog\n\n## [0.2.0] - not yet released\n{}\n## [0.1.0] - 2026-11-01\n\n### Results\n- all\n"


def texts(changelog: str, version: str = "0.2.0") -> dict[str, str]:
    def read(name: str) -> str:
        return changelog if name == "CHANGELOG.md" else (ROOT / name).read_text(encoding="utf-8")

    return RELEASE["new_texts"](read, version, "2026-12-24")


def test_a_release_has_one_version_and_day_and_an_earlier_section_stays():
    files = texts(CHANGELOG.format("- quicker\n"))
    assert '__version__ = "0.2.0"' in files["recorder/src/safevla_recorder/version.py"]
    assert "version: 0.2.0\ndate-released: 2026-12-24\nlicense" in files["CITATION.cff"]
    assert "## [0.2.0] - 2026-12-24\n- quicker\n\n## [0.1.0] - 2026-11-01\n" in files["CHANGELOG.md"]
    assert KNOWN not in files


def test_a_release_that_moves_numbers_is_a_new_results_version_once():
    versions = json.loads(texts(CHANGELOG.format("### Results\n- slip\n"))[KNOWN])
    assert versions["results_since"] == ["0.1.0", "0.2.0"]
    assert KNOWN not in texts(CHANGELOG.format(""), "0.1.0")


def test_a_version_without_a_section_is_refused():
    with pytest.raises(SystemExit, match=r"no section .## \[0\.3\.0\]|nothing that matches"):
        texts(CHANGELOG.format(""), "0.3.0")
