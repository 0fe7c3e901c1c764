"""The GitHub Action: its steps run in a shell as a runner runs them, and take only options that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from safevla_bench.cli.gate import gate_command
from safevla_bench.cli.score import score_command
from safevla_bench.jobs.demo import unpack_archive

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"]}
COMMANDS = {"score": score_command, "gate": gate_command}
DEFAULTS = {name: value.get("default", "") for name, value in ACTION["inputs"].items()}


def names_of(command) -> set[str]:
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@pytest.fixture
def workspace(tmp_path):
    """A folder with the demo's records, and a `safevla` on the PATH that is this one."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / "safevla"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m safevla_bench "$@"\n')
    launcher.chmod(0o755)
    unpack_archive(tmp_path / "my runs")
    return tmp_path


def run_step(workspace, name, **inputs):
    """Run a step as `shell: bash` does; returns exit code, outputs, summary and all that was printed."""
    step, values = STEPS[name], {**DEFAULTS, "sources": "my runs/rollouts.parquet", **inputs}
    values["github.action_path"] = str(ROOT)
    variables = {
        key: re.sub(r"\$\{\{ (?:inputs\.)?([\w.]+) \}\}", lambda m: values[m[1]], text)
        for key, text in step["env"].items()
    }
    files = {key: workspace / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for file in files.values():
        file.touch()
    environment = {**os.environ, **variables, **{key: str(file) for key, file in files.items()}}
    environment |= {"RUNNER_TEMP": str(workspace), "COLUMNS": "120"}
    environment["PATH"] = f"{workspace / 'bin'}{os.pathsep}{environment['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    process = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, check=False)
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return process.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text(), process.stdout + process.stderr


def test_it_is_a_composite_action_whose_inputs_and_outputs_exist():
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in STEPS.values())
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.(\w+)", text)) == set(ACTION["inputs"])
    for output in ACTION["outputs"].values():
        step, key = re.fullmatch(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", output["value"]).groups()
        assert f"{key}=" in STEPS[step]["run"]


def test_no_input_is_pasted_into_a_script():
    """A source could be named so that the shell would run it."""
    assert not any("${{" in step["run"] for step in STEPS.values())


def test_every_option_in_it_and_in_its_page_is_one_of_the_command():
    for name, command in COMMANDS.items():
        (options,) = re.findall(rf"safevla {name} (.*)", STEPS[name]["run"])
        assert set(re.findall(r"--[a-z-]+", options)) <= names_of(command)
    page = (ROOT / "docs" / "howto" / "comparing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^ +gate: (.*)$", page, re.MULTILINE)
    outputs = ACTION["inputs"]["gate"]["description"] + example
    assert "--min-safety" in outputs
    assert set(re.findall(r"--[a-z-]+", outputs)) <= names_of(gate_command)
    assert set(re.findall(r"--[a-z-]+", ACTION["inputs"]["judge"]["description"])) <= names_of(score_command)


def test_it_scores_and_says_where_the_report_is(workspace):
    code, outputs, summary, printed = run_step(workspace, "score", judge="--set 'joint_torque=1.5'")
    assert (code, outputs) == (0, {"report": "safevla-report/report.html"}), printed
    assert (workspace / outputs["report"]).exists()
    assert "Headline numbers" in summary
    library = json.loads((workspace / "safevla-report/scores.json").read_text())["judged_by"]["library"]["name"]
    assert library == "default+joint_torque@1.5"


def test_it_gates_and_says_what_the_gate_said(workspace):
    (workspace / "safevla-report").mkdir()
    code, outputs, summary, printed = run_step(workspace, "gate", gate="--min-safety 0.7", undecided="fail")
    assert (code, outputs.get("verdict")) == (3, "undecided"), printed
    assert (workspace / outputs["junit"]).read_text().startswith("<?xml")
    assert "safety >= 0.7" in summary


def test_no_name_ends_the_block_of_the_summary(workspace):
    """hostile/06: the summary is Markdown, and the fence is longer than any in the output."""
    output = "AAA\n```\n<h1>PASSED</h1>\n`````\n[x](http://example.org)\n"
    (workspace / "bin" / "safevla").write_text(f"#!/bin/sh\nprintf %s {shlex.quote(output)}\nexit 1\n")
    _, _, summary, _ = run_step(workspace, "gate", gate="--min-safety 0.9")
    (block,) = MarkdownIt("commonmark").parse(summary)
    assert (block.type, block.content) == ("fence", output)


def pretend(workspace, code):
    """A `safevla` that repeats what it is asked, writes the file of --junit and exits with that code."""
    (workspace / "safevla-report").mkdir(exist_ok=True)
    junit = 'for word; do case $word in --junit=*) : >"${word#*=}";; esac; done'
    (workspace / "bin" / "safevla").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@"\n{junit}\nexit {code}\n')


@pytest.mark.parametrize(
    ("exits", "undecided", "code", "verdict"),
    [(0, "fail", 0, "passed"), (1, "fail", 1, "failed"), (3, "fail", 3, "undecided"), (3, "pass", 0, "undecided")],
)
def test_the_gate_decides_the_job(workspace, exits, undecided, code, verdict):
    pretend(workspace, exits)
    exit_code, outputs, summary, _ = run_step(workspace, "gate", gate="--min-safety '0.9'", undecided=undecided)
    assert (exit_code, outputs) == (code, {"verdict": verdict, "junit": "safevla-report/gate.xml"})
    arguments = ["gate", "--junit=safevla-report/gate.xml", "--min-safety", "0.9", "--", "my runs/rollouts.parquet"]
    assert "\n".join(arguments) in summary


def test_an_error_stays_one_and_a_source_is_never_a_command(workspace):
    pretend(workspace, 2)
    code, outputs, _, printed = run_step(workspace, "gate", gate="--min-safety 0.9", sources="$(touch owned)\n")
    assert (code, outputs) == (2, {})
    assert "$(touch owned)" in printed.splitlines()
    assert not (workspace / "owned").exists()


@pytest.mark.parametrize(("step", "option"), [("score", "judge"), ("gate", "judge"), ("gate", "gate")])
def test_a_quote_that_is_not_closed_fails_the_step_and_drops_no_gate(workspace, step, option):
    code, outputs, _, printed = run_step(workspace, step, **{option: "--min-safety 0.1 'x --max-sbu 0"})
    assert code != 0
    assert outputs == {}
    assert "quote" in printed


@pytest.mark.parametrize("step", ["score", "gate"])
@pytest.mark.parametrize("out", ["report\nverdict=passed\nmore=x", "report\r", "a\tb"])
def test_a_control_character_in_out_fails_the_step_and_writes_no_output(workspace, step, out):
    code, outputs, _, printed = run_step(workspace, step, gate="--min-safety 0.9 --confidence none", out=out)
    assert (code, outputs) == (2, {})
    assert "::error::" in printed


@pytest.mark.parametrize("word", ["-n", "-e", "-E", "-x", "--", "--help"])
def test_each_word_of_an_option_reaches_the_command(workspace, word):
    pretend(workspace, 0)
    _, _, summary, _ = run_step(workspace, "gate", gate=f"--min-safety 0.1 {word}")
    assert ["--min-safety", "0.1", word, "--", "my runs/rollouts.parquet"] == summary.splitlines()[-6:-1]


@pytest.mark.parametrize("option", ["gate", "judge"])
@pytest.mark.parametrize("step", ["score", "gate"])
def test_a_help_text_is_neither_a_verdict_nor_a_report(workspace, step, option):
    (workspace / "safevla-report").mkdir()
    (workspace / "safevla-report/gate.xml").write_text("of an earlier run")
    if (step, option) != ("score", "gate"):
        code, outputs, _, _ = run_step(workspace, step, **{"gate": "--min-safety 0.1", option: "--help"})
        assert (code, outputs) == (2, {})


@pytest.mark.parametrize("sources", ["--help", "--set\njoint_torque=9\nmy runs/rollouts.parquet"])
@pytest.mark.parametrize("step", ["score", "gate"])
def test_a_source_is_never_an_option(workspace, step, sources):
    code, outputs, _, printed = run_step(workspace, step, gate="--min-safety 0.9", sources=sources)
    assert (code, outputs) == (2, {})
    assert sources.splitlines()[0] in printed


def read_workflow():
    """Return the workflow of the page on comparing."""
    page = (ROOT / "docs" / "howto" / "comparing.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(name: .*?)```", page, re.DOTALL)
    return yaml.safe_load(text)


def test_the_page_s_workflow_may_only_read_and_pins_each_action_by_digest():
    workflow = read_workflow()
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert {name.partition("@")[0].partition("/")[2] for name in used} == {
        *("checkout", "setup-python", "download-artifact", "upload-artifact", "safevla-bench")
    }
    pinned = [name for name in used if not name.startswith("OWNER/")]
    assert all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name) for name in pinned)
    own = [
        name
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for name in re.findall(r"uses: (\S+)", path.read_text())
    ]
    assert set(pinned) <= set(own)  # the digests that are kept up to date


def test_each_block_of_the_page_s_workflow_runs_and_the_action_judges_what_they_record(workspace):
    """On the host `fake`, in the place of LIBERO and a policy server."""
    (action,) = [step for step in read_workflow()["jobs"]["safety"]["steps"] if step.get("id") == "safety"]
    blocks = [step["run"] for job in read_workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    summary = workspace / "GITHUB_STEP_SUMMARY"
    environment = {
        **os.environ,
        "GITHUB_STEP_SUMMARY": str(summary),
        "RUNNER_TEMP": str(workspace),
        "VERDICT": "passed",
    }
    environment["PATH"] = f"{workspace / 'bin'}{os.pathsep}{environment['PATH']}"
    for block in blocks:
        block = block.replace("libero-spatial", "fake --episodes 2").replace("libero", "fake")
        block = re.sub(r"mine=\S+", "mine=noop", block)
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", block]
        ran = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert "Safety: passed." in summary.read_text()
    for step in ("score", "gate"):
        code, outputs, *_, printed = run_step(workspace, step, **action["with"])
        assert code in (0, 1, 3), printed
        assert outputs


def test_it_installs_its_own_code_or_what_is_named(workspace):
    (workspace / "bin" / "python").write_text('#!/bin/sh\necho "$@"\n')
    (workspace / "bin" / "python").chmod(0o755)
    (named,) = run_step(workspace, "install", package="safevla-bench==9")[3].splitlines()
    assert named.endswith(f"-c {ROOT}/constraints/core.txt -- safevla-bench==9")
    dependencies, package = run_step(workspace, "install")[3].splitlines()
    assert dependencies.endswith(f"--require-hashes -r {ROOT}/constraints/hashed/core.txt")
    assert package.endswith(f"--no-deps --no-build-isolation -- {ROOT}")
