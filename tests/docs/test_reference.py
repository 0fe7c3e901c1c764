"""The reference on the site is made from code: what code has, it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from safevla_bench.cli import run_command_line, safevla
from safevla_bench.jobs.evaluation.judgement import HOST_REGISTRY
from safevla_bench.judging.registration import REGISTERED
from safevla_bench.sources.runs.folder import DECISION
from safevla_bench.sources.runs.parts import RAW
from safevla_recorder.folder import LOCK

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference(load_tool) -> ModuleType:
    return load_tool("site_reference")


def test_every_key_of_a_file_is_explained(reference):
    pages = reference.build_pages()
    assert set() == reference.UNEXPLAINED, "say in docs/tools/reference_keys.toml what they mean"
    assert "`contacts`" in pages["record"]
    assert "`requires_all`" in pages["files"]


def test_a_key_that_is_not_explained_is_found(reference, monkeypatch):
    monkeypatch.setattr(reference, "UNEXPLAINED", set())
    monkeypatch.delitem(reference.KEYS["SpecRow"], "severe")
    reference.files_page()
    assert {"SpecRow.severe"} == reference.UNEXPLAINED


def test_every_public_name_has_a_heading_and_one_without_stands_under_more(reference, monkeypatch):
    assert "## More" not in reference.api_page()
    monkeypatch.setitem(reference.API, "Errors", ())
    assert "autoclass:: safevla_bench.SafevlaError" in reference.api_page().partition("## More")[2]


def test_every_option_of_every_command_is_on_its_page(reference):
    pages = reference.command_pages()
    context = click.Context(safevla)
    for name in safevla.list_commands(context):
        for parameter in safevla.get_command(context, name).params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0] in pages[name]


def test_the_page_of_the_run_folder_names_every_file_and_key_of_a_run(reference, tmp_path):
    folder = tmp_path / "run"
    arguments = ["--host", "fake", "--suite", "fake", "--task", "all", "--episodes", "1", "--policy", "scripted:hasty"]
    run_command_line(["eval", *arguments, "--library", "paper-text", "--out", str(folder)])
    run_command_line(["frames", str(folder), "--worst", "1"])
    documented = reference.KEYS["run_folder"]["files"]
    patterns = [re.sub("N+", r"\\d+", re.escape(name)).replace("EPISODE", "[a-z0-9-]+") for name in documented]
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert [name for name in files if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
    assert len(files) > 8
    assert {LOCK, f"{RAW}/NNNNNN.npz", f"{RAW}/NNNNNN.json"} <= set(documented)

    description = json.loads((folder / "run.json").read_bytes())
    assert set(description) | {DECISION, HOST_REGISTRY, REGISTERED} <= set(reference.KEYS["run_json"])
    assert set(description["volatile"]) <= set(reference.KEYS["run_json_volatile"])
    assert set(json.loads((folder / "manifest.json").read_bytes())) == set(reference.KEYS["manifest_json"])


@pytest.mark.parametrize("text", ["a [b] *c* _d_ <e> | f", "plain"])
def test_help_is_shown_as_it_is(reference, text):
    from markdown_it import MarkdownIt

    html = MarkdownIt().renderInline(reference.escape_markdown(text))
    assert html.replace("&lt;", "<").replace("&gt;", ">") == text


def test_the_page_of_symptoms_quotes_what_doctor_says():
    sources = [
        *(ROOT / "src/safevla_bench/jobs/doctor").glob("*.py"),
        ROOT / "src/safevla_bench/hosts/libero/tasks.py",
    ]
    sources.append(ROOT / "src/safevla_bench/judging/action_statistics.py")
    messages = re.sub(r'"\s*\n\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in sources))
    page = (ROOT / "docs" / "howto" / "symptoms.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^(?:error|warning)  +\w+: (.*)$|^ +→ (.*)$", page, re.M)
    parts = [part.strip() for pair in quoted for line in pair for part in line.split("…")]
    foreign = {"RuntimeError: The MUJOCO_EGL_DEVICE_ID environment variable must be an integer between"}  # MuJoCo's
    missing = [
        part for part in parts
        if len(part) > 6 and part not in foreign | {"unset MUJOCO_EGL_DEVICE_ID"} and part not in messages
    ]  # fmt: skip
    assert missing == []
    assert len(parts) > 10
