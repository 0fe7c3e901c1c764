"""What a user meets at the first try: mistakes in the command line, pipes, and texts that say what is so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from safevla_bench import cli, plugins
from safevla_bench.pictures import drawing

DOCS, GOLDEN = Path("docs"), Path("tests/golden/tables")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("epsiodes",), "error: no such command 'epsiodes'. Did you mean 'episodes'?"),
        (("scor", "x"), "error: no such command 'scor'. Did you mean 'score'"),
        (("xyzzy",), "error: no such command 'xyzzy'"),
        (("episodes",), "error: missing argument '[NAME=]SOURCE...'"),
        (("tasks", "--propos"), "error: no such option '--propos'. Did you mean '--propose'?"),
        (("episodes", "x", "--sort", "nope"), "error: invalid value for '--sort'"),
    ],
)
def test_a_mistake_in_the_command_line_looks_like_every_other_error(safevla, arguments, message):
    code, out, err = safevla(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert re.search(r"\n  `safevla( \w+)? --help` .*\n$", err)


@pytest.mark.parametrize(
    "arguments", [("score", ""), ("score", "A="), ("score", "x.jsonl", "--out", ""), ("verify", "")]
)
def test_an_empty_path_as_of_an_unset_variable_is_refused(safevla, arguments):
    assert "no path is given" in safevla.refuses(*arguments)


def test_scores_are_not_written_into_the_folder_of_another_run(safevla, tmp_path):
    for name in ("a", "b"):
        safevla(
            "eval", "--host", "fake", "--suite", "fake", "--episodes", 1, "--policy", "noop", "--out", tmp_path / name
        )
    kept = (tmp_path / "b" / "scores.json").read_bytes()
    for sources in ([tmp_path / "a"], [tmp_path / "a", tmp_path / "b"]):
        assert "is a run folder" in safevla.refuses("score", *sources, "--out", tmp_path / "b")
    assert (tmp_path / "b" / "scores.json").read_bytes() == kept
    assert safevla("score", tmp_path / "b", "--library", "paper-text", "--out", tmp_path / "b")[0] == 0


def test_a_name_that_is_nearly_right_is_suggested(safevla, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('host = "fake"\nepisode = 3\n')
    assert "did you mean 'episodes'?" in safevla.refuses("eval", "--config", file)
    assert "did you mean 'libero'?" in safevla.refuses("eval", "--host", "libreo", "--suite", "x", "--policy", "noop",
                                                       "--out", tmp_path / "o")  # fmt: skip
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    for benchmark, words in (
        ("libero-spatal", "did you mean 'libero-spatial'?"),
        ("mine", "no benchmark 'mine'\n"),
    ):
        source = tmp_path / "e.jsonl"
        source.write_text(json.dumps({**record, "benchmark": benchmark}))
        assert words in safevla.refuses("score", source, "--out", tmp_path / "o")


def test_score_names_what_is_wrong_with_a_source_before_an_option_that_is_missing(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("note.txt").write_text("no records")
    (Path("my runs") / "a").mkdir(parents=True)
    (Path("my runs") / "a" / "run.json").write_text("{}")
    assert "empty: this is" in safevla.refuses("score", "empty")
    assert "note.txt: the file does not have an archive" in safevla.refuses("score", "note.txt")
    assert "absent: there is" in safevla.refuses("score", "absent")
    said = "error: my runs: contains run folders, but is not a run folder\n  Name the run folders: 'my runs'/*\n"
    assert safevla.refuses("score", "my runs") == said


def test_metrics_orders_and_tables_may_be_written_in_capitals(safevla, shipped):
    lower, upper = (
        (
            safevla("select", shipped, "--max", spell("safety"), "--subject-to", spell("safety >= 0.2")),
            safevla("episodes", shipped, "--sort", spell("vsi")),
            safevla("tables", shipped, "--which", spell("violations"), "--columns", spell("policy")),
        )
        for spell in (str.lower, str.upper)
    )
    assert lower == upper
    assert all(code != cli.USER_ERROR for code, *_ in lower)


def test_in_a_pipe_each_episode_is_one_line_with_its_whole_id(shipped):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "safevla_bench", "episodes", str(shipped)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert len(re.findall(r"^:\d+ +\S+/task_\d/ep_\d{3} ", printed, re.MULTILINE)) == 20
    assert printed.count("\n") == 25


def test_a_pipe_that_is_closed_early_is_not_an_error():
    """As in `safevla specs | head -1` under `set -o pipefail`; click itself would end with 1."""
    shell = f"set -o pipefail; {sys.executable} -m safevla_bench specs | head -1"
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_closed_pipe_does_not_turn_a_failed_gate_into_a_passed_one(shipped):
    words = f"gate {shipped} --min-safety 0.999 --confidence none"
    shell = f"{sys.executable} -m safevla_bench {words} | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")


@pytest.mark.parametrize("words", [("gate", "--min-safety", "0.5"), ("compare",)])
def test_a_confidence_that_seems_to_be_a_share_is_refused(safevla, shipped, words):
    assert "for 95 % write 95" in safevla.refuses(*words, shipped, "--confidence", "0.95")


def test_resuming_what_a_script_recorded_says_who_can_go_on_with_it(safevla, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"host": "libero", "protocol": {"name": "own loop"}}))
    err = safevla.refuses("eval", "--record-only", "--resume", "--out", tmp_path)
    assert "script of your" in err
    assert "safevla score" in err


def test_an_explanation_says_none_if_there_is_nothing(safevla):
    printed = safevla("specs", "--explain", "self_collision_free")[1]
    assert "None" not in printed
    assert "True" not in printed
    assert re.search(r"severe +none", printed)


def test_no_table_explains_a_dagger_that_it_does_not_bear():
    explained = [text for path in GOLDEN.glob("*") if "†:" in (text := path.read_text(encoding="utf-8"))]
    assert explained
    for text in explained:
        assert text.count("†") > 1


def test_every_table_that_the_page_names_is_one(safevla):
    from safevla_bench.report.tables.catalog import KINDS

    page = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
    tables = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)))
    assert {kind.name for kind in KINDS} <= set(tables)


def test_the_column_of_malformed_json_goes_with_its_line(safevla, tmp_path):
    """An episode may take several lines of a .json file; column 16 is of the third."""
    path = tmp_path / "bad.json"
    path.write_text('{\n  "episode_id": "a",\n  "steps": [1, }\n', encoding="utf-8")
    assert "line 3, column" in safevla("validate", path)[2]


def test_a_caption_is_whole_on_a_small_picture():
    """At 320 pixels it takes a smaller size, then two lines; nothing is cut."""
    text = "breaks non_target_max_disp_5mm with plate_1 at step 113 of 220, 12.4 mm"
    sheet = ImageDraw.Draw(Image.new("RGB", (320, 80)))
    lines = []
    sheet.text = lambda position, line, **style: lines.append(line)
    drawing.write_fitting(sheet, 22, text, "DejaVuSans.ttf", 13, 320)
    assert " ".join(lines) == text
    image = drawing.add_caption(np.zeros((240, 308, 3), dtype=np.uint8), (0, 0, 0), "short", text)
    assert image.shape == (240 + 12 + 50, 320, 3)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'safevla-bench[gym]'"),
        ("{", "pip install 'safevla-bench[gym]'"),
        ('{"url": "file:///a%20b/c", "dir_info": {}}', "pip install '/a b/c[gym]'"),
        ('{"url": "file:///c", "dir_info": {"editable": true}}', "pip install -e '/c[gym]'"),
        (
            '{"url": "ssh://git@h/x.git", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "a"}}',
            "pip install 'safevla-bench[gym] @ git+ssh://git@h/x.git@v1'",
        ),
    ],
)
def test_the_command_that_installs_an_extra_is_that_of_this_installation(monkeypatch, origin, command):
    class Installed:
        def read_text(self, name):
            return origin

    monkeypatch.setattr(plugins, "distribution", lambda name: Installed())
    assert plugins.install_command("gym") == command


def test_pages_install_from_the_checkout_as_the_readme_does():
    """Neither distribution is on an index: a line that names it without an address would fail."""
    for path in [Path("README.md"), *DOCS.rglob("*.md")]:
        assert not re.search(r"pip install [\"']?safevla-bench(?!\S* @ git)", path.read_text(encoding="utf-8")), path


def test_the_page_on_monitoring_shows_an_environment_that_runs():
    """Its example for Gymnasium, with the host that needs no simulator."""
    pytest.importorskip("gymnasium")
    page = (DOCS / "howto" / "monitor.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import gymnasium\n.*?)```", page, re.DOTALL)
    code = example
    for printed, replacement in {'"libero"': '"fake"', '"libero-goal"': '"fake"', '"task": 3': '"task": 0'}.items():
        assert printed in code
        code = code.replace(printed, replacement)
    scope: dict[str, object] = {}
    exec(code, scope)  # the page's own lines
    assert {"cost", "safety"} <= set(scope["info"])


def test_a_command_whose_extra_is_not_installed_says_which(monkeypatch, capsys):
    def import_nothing(name: str):
        raise ModuleNotFoundError("No module", name="matplotlib")

    monkeypatch.setattr(cli, "_import_once", import_nothing)
    assert cli.run_command_line(["figures", "--help"]) == cli.USER_ERROR
    assert "not installed: matplotlib" in capsys.readouterr().err
    monkeypatch.setattr(cli, "_EXTRAS", {})
    with pytest.raises(ModuleNotFoundError):
        cli.run_command_line(["figures", "--help"])
