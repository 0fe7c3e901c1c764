"""The forms of issues ask what an answer needs, and the tools of developers are those of make."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes_and_requires_what_doctor_says_of_the_machine(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels", "title"}
    assert all(field["type"] in KINDS and field["attributes"]["label"] for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    (doctor,) = [field for field in form["body"] if field["id"] == "doctor"]
    assert "doctor --format json" in doctor["attributes"]["description"]
    assert doctor["validations"] == {"required": True}


def test_pre_commit_runs_the_tools_of_make_from_its_environment():
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert repo["repo"] == "local"
    for hook in repo["hooks"]:
        words = [word for word in hook["entry"].split() if word not in ("--fix", "HEAD")]  # HEAD: what is not committed
        assert words[0].startswith(".venv/bin/")
        assert "$(BIN)/" + " ".join(words).removeprefix(".venv/bin/") in makefile


def test_the_container_of_developers_is_a_target_of_the_dockerfile():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))["build"]
    recipe = (ROOT / ".devcontainer" / container["dockerfile"]).read_text(encoding="utf-8")
    assert f" AS {container['target']}\n" in recipe
