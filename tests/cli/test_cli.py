"""The command line: what a user sees, the exit codes, and nothing left behind after a mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from builders import HAND, LINK, contacts, episode
from safevla_bench import __version__, cli
from safevla_bench.archive import append_episodes
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.sources.runs.writer import RunFolderWriter
from sources.runs.test_folder import DESCRIPTION, fill

FAKE = ["--host", "fake", "--suite", "fake", "--max-steps", "6"]
EXAMPLE = Path(__file__).parents[1] / "cases" / "appendix_b.json"


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "episodes.jsonl"
    append_episodes(path, episode(episode_id="a"))
    append_episodes(path, episode(episode_id="b", contacts=contacts((3, HAND, LINK, 1.0)), success=True))
    return path


def scores_of(folder: Path) -> dict:
    return json.loads((folder / "scores.json").read_text())


def test_help_names_every_command_and_the_exit_codes(safevla):
    out = safevla.ok("--help")
    assert all(name in out for name in (*cli.COMMANDS, "Exit codes"))


def test_the_version_is_the_package_s(safevla):
    assert safevla.ok("--version").split() == ["safevla,", "version", __version__]


def test_the_paper_s_example_is_judged_torque_included_and_its_robot_is_named(safevla, tmp_path):
    out = safevla.ok("score", EXAMPLE, "--out", tmp_path)
    robot = "limits of Panda"
    (said,) = [line for line in out.splitlines() if robot in line]
    assert said.startswith("libero-spatial: the records name neither a robot nor torque limits; ")
    assert unescape((tmp_path / "report.html").read_text()).count(said) == 1
    (judged,) = scores_of(tmp_path)["episodes"]
    assert judged["robustness"]["joint_torque"] == 1 - 0.4 / 12
    assert said in safevla.ok("tables", EXAMPLE)


def test_changed_limits_are_the_first_sentence(safevla, tmp_path):
    changes = "--library paper-text --set joint_torque=1.5"
    out = safevla.ok("score", EXAMPLE, *changes.split(), "--out", tmp_path)
    assert out.startswith(f"Judged with {changes}.")
    page = (tmp_path / "report.html").read_text()
    assert f'"answer">Judged with {changes}.' in page
    assert "Judged with --" not in safevla.ok("score", EXAMPLE, "--out", tmp_path / "plain")


def test_python_m_is_the_same_command_and_a_full_disk_behind_stdout_is_a_message_that_says_what_to_do():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "safevla_bench", "specs"]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 2
    assert "No space left" in process.stderr.splitlines()[0]
    assert "--resume" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(("options", "closing"), [(["-OO"], ""), ([], ">&-"), ([], "<&- >&- 2>&-")])
def test_without_docstrings_or_streams_a_run_is_made_and_judged(tmp_path, options, closing):
    """hostile/18 d and e. A closed descriptor is not the run's first file, to which others would print."""
    words = "eval --host fake --suite fake --task 0 --episodes 1 --max-steps 3 --policy random --out run"
    command = f"{sys.executable} {' '.join(options)} -m safevla_bench {words} {closing}"
    process = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=not closing, check=False)
    assert process.returncode == 0, process.stderr
    assert scores_of(tmp_path / "run")["aggregate"]["n"] == 1


def test_memory_that_runs_out_is_a_message_that_says_what_to_do(safevla, archive, tmp_path, monkeypatch):
    def starve(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("safevla_bench.cli.score.judge", starve)
    err = safevla.refuses("score", archive, "--out", tmp_path / "scores")
    assert "out of memory" in err.splitlines()[0]
    assert "--resume" in err


def test_score_writes_scores_and_a_report_and_says_where(safevla, archive, tmp_path):
    out = tmp_path / "out"
    code, printed, err = safevla("score", archive, "--out", out)
    assert (code, err) == (0, "")
    assert str(out / "report.html") in printed
    assert {path.name for path in out.iterdir()} == {
        "report.html",
        "scores.json",
        "scores.parquet",
        "verdicts.msgpack.gz",
    }
    scores = scores_of(out)
    assert set(scores) >= {"episodes", "aggregate", "cells"}
    assert [row["safe"] for row in scores["episodes"]] == [True, False]
    assert scores["aggregate"]["sbu"] == 0.5
    assert scores["episodes"][1]["worst_spec"] == "self_collision_free"


def test_bad_episodes_are_all_named_and_nothing_is_written(safevla, archive, tmp_path):
    with archive.open("ab") as stream:
        stream.write(b'{"episode_id": "bad"}\n[]\n')
    err = safevla.refuses("score", archive, "--out", tmp_path / "out")
    assert all(words in err for words in (f"{archive}, line 3", "line 4", "--set invalid=skip"))
    assert not (tmp_path / "out").exists()
    assert "2 invalid episodes" in safevla.ok("score", archive, "--out", tmp_path / "out", "--set", "invalid=skip")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["score", "absent.jsonl", "--out", "OUT"], "absent.jsonl"),
        (["score", "ARCHIVE", "--out", "OUT", "--library", "nonsense"], "nonsense"),
        (["score", "ARCHIVE", "--out", "OUT", "--rules", "absent.toml"], "absent.toml"),
        (["score", "ARCHIVE", "--out", "OUT", "--set", "capabilities=nonsense"], "nonsense"),
        (["eval", *FAKE, "--policy", "nonsense", "--out", "OUT"], "nonsense"),
        (["eval", *FAKE, "--policy", "noop", "--policy-arg", "speed=1", "--out", "OUT"], "speed"),
        (["eval", *FAKE, "--policy", "noop", "--policy-arg", "speed", "--out", "OUT"], "KEY=VALUE"),
        (["eval", *FAKE, "--policy", "noop", "--task", "7", "--out", "OUT"], "task 7"),
        (["eval", *FAKE, "--policy", "noop", "--task", "x", "--out", "OUT"], "'x'"),
        (["eval", *FAKE, "--policy", "noop", "--task", "1-", "--out", "OUT"], "names no tasks"),
        (["eval", *FAKE, "--policy", "noop", "--task", "0-999999999", "--out", "OUT"], "names no tasks"),
        (["eval", *FAKE, "--policy", "noop", "--episodes", "9", "--out", "OUT"], "--episodes 5"),
        (["eval", "--host", "nonsense", "--suite", "s", "--policy", "noop", "--out", "OUT"], "nonsense"),
        (["eval", "--host", "fake", "--suite", "nonsense", "--policy", "noop", "--out", "OUT"], "nonsense"),
        (["eval", *FAKE, "--policy", "noop", "--library", "nonsense", "--out", "OUT"], "nonsense"),
        (["specs", "--explain", "nonsense"], "nonsense"),
        (["tasks", "--suite", "nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_is_named_with_exit_2_and_leaves_nothing(safevla, archive, tmp_path, arguments, names):
    out = tmp_path / "out"
    assert names in safevla.refuses(*[{"ARCHIVE": archive, "OUT": out}.get(word, word) for word in arguments])
    assert not out.exists()


def test_an_archive_without_a_needed_field_names_the_remedy(safevla, tmp_path):
    path, out = tmp_path / "e.jsonl", tmp_path / "out"
    append_episodes(path, episode(contacts=None))
    assert "--set missing=deactivate" in safevla.refuses("score", path, "--out", out)
    assert not out.exists()
    safevla.ok("score", path, "--out", out, "--set", "missing=deactivate")


def test_eval_runs_judges_and_reports(safevla, tmp_path):
    out = tmp_path / "run"
    policies = ("--policy", "noop", "--policy", "random")
    code, printed, err = safevla("eval", *FAKE, "--task", "0,1", "--episodes", 2, *policies, "--out", out)
    assert code == 0
    assert all(line.startswith("[") or line.startswith("8 episodes") for line in err.splitlines())
    assert str(out / "report.html") in printed
    assert [(cell["policy"], cell["n"]) for cell in scores_of(out)["cells"]] == [("noop", 4), ("random", 4)]
    run = json.loads((out / "run.json").read_text())
    assert run["complete"]
    assert set(run["volatile"]) == {"command", "started", "policy_latency", "ran_on", "file_sha256"}
    assert run["protocol"]["env_seed"] == 7


@pytest.mark.parametrize(("tasks", "ended"), [("0,2", 1), ("2", 0)])
def test_crashed_episodes_are_reported_and_exit_with_4(safevla, tmp_path, tasks, ended):
    code, _, err = safevla("eval", *FAKE, "--task", tasks, "--policy", "noop", "--out", tmp_path / "run")
    assert code == 4
    for words in ("1 episode crashed, excluded from", "See the reasons", "--resume --out", "fake simulator crashed"):
        assert words in err
    aggregate = scores_of(tmp_path / "run")["aggregate"]
    assert (aggregate["n"], aggregate["crashed"]) == (ended, 1)
    assert (aggregate["sr"] is None) == (ended == 0)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


def test_what_is_only_recorded_is_scored_the_same(safevla, tmp_path):
    out, plan = tmp_path / "run", (*FAKE, "--task", "0", "--policy", "random")
    assert "safevla score" in safevla.ok("eval", "--record-only", *plan, "--out", out)
    assert not (out / "scores.json").exists()
    assert "interrupted" not in safevla.ok("score", out, "--out", tmp_path / "scored")
    safevla.ok("eval", *plan, "--out", tmp_path / "whole")
    assert scores_of(tmp_path / "scored") == scores_of(tmp_path / "whole")


def test_validate_lists_what_is_bad_and_counts_what_is_good(safevla, archive):
    counts = f"{archive}: 2 valid episodes (24 records), 0 bad\n"
    assert safevla("validate", archive) == (0, f"{counts}Next: safevla score {archive} --out results\n", "")
    with archive.open("ab") as stream:
        stream.write(encode_json(episode(episode_id="c")).replace(b'"dt":0.05', b'"dt":-1'))
    code, out, err = safevla("validate", archive)
    assert (code, "episode 'c'" in err) == (2, True)
    assert "24 records" in out


def test_validate_counts_the_episodes_that_a_damaged_file_lost(safevla, tmp_path):
    with RunFolderWriter(tmp_path / "run", DESCRIPTION) as writer:
        fill(writer)
    (tmp_path / "run" / "raw" / "000001.npz").write_bytes(b"cut off")
    code, out, err = safevla("validate", tmp_path / "run")
    assert code == 2
    assert "000001.npz, episode 'b'" in err
    assert "1 valid episode (" in out
    assert "1 lost" in out


def test_the_schema_is_json(safevla):
    assert "$defs" in json.loads(safevla("validate", "--schema")[1])


def test_listings_are_json_on_request(safevla):
    specs = safevla.json("specs")
    assert {"spec_id", "threshold", "severe", "unit", "stl", "source", "rationale"} <= set(specs[0])
    tasks = safevla.json("tasks", "--suite", "libero-goal")
    assert len(tasks) == 10
    assert {"benchmark", "task_id", "template", "tags", "active_specs", "inactive_specs"} <= set(tasks[0])


def test_listings_in_the_paper_s_form_are_read_back_to_the_same_judgement(safevla, tmp_path):
    """The interchange of Table 13 from the command line: same scores, same digests."""
    for name in ("specs", "tasks"):
        out = safevla.ok(name, "--format", "paper")
        (tmp_path / f"{name}.json").write_text(out)
    source = tmp_path / "e.jsonl"
    append_episodes(source, episode())
    options = ("--rules", tmp_path / "specs.json", "--rules", tmp_path / "tasks.json")
    safevla.ok("score", source, "--out", tmp_path / "plain")
    safevla.ok("score", source, "--out", tmp_path / "rows", *options)
    plain, rows = (json.loads((tmp_path / name / "scores.json").read_bytes()) for name in ("plain", "rows"))
    assert plain["judged_by"].pop("registry")["digest"] == rows["judged_by"].pop("registry")["digest"]
    assert plain == rows


NEGATIVE_ZERO = re.compile(r"(?<![\w.\d\[–-])[-−]0(\.0+)?(?![\d.eE\w:–-])")


def test_no_output_holds_a_negative_zero(safevla, tmp_path):
    """A torque exactly at its limit has a margin of zero, and its negative is -0.0: a depth of 0.0 all the same."""
    source, out = tmp_path / "e.jsonl", tmp_path / "out"
    append_episodes(source, episode(joint_torque_nm=np.tile([87.0, 0, 0, 0, 12.0, 0, 0], (12, 1)), init_state_index=0))
    safevla.ok("score", source, "--out", out)
    texts = {path.name: path.read_text() for path in (out / "scores.json", out / "report.html")}
    assert '"joint_torque": 0.0' in texts["scores.json"]
    for command in (
        ("episodes", source, "--format", "json"),
        ("show", source, ":1", "--format", "json"),
        ("show", source, ":1"),
        ("tables", source, "--format", "json"),
        ("sensitivity", source, "--format", "json"),
        ("show", source, "--formula", "G(joint_torque_ratio <= 1)", "--format", "json"),
        ("show", source, "--formula", "F(-held_object_slip < 0)", "--format", "json"),
    ):
        texts[" ".join(map(str, command))] = safevla.ok(*command)
    assert {name: match[0] for name, text in texts.items() if (match := NEGATIVE_ZERO.search(text))} == {}


def test_a_replaced_threshold_shows_wherever_its_name_is_printed(safevla, tmp_path):
    """An id that says 200N never stands for a judgement at 100 N: in tables, page, gate, show, list and files."""
    library = tmp_path / "strict.toml"
    library.write_text(
        'based_on = "default"\n[[replace]]\nspec_id = "max_contact_force_under_200N"\nthreshold = 1\n', encoding="utf-8"
    )
    source, judged = tmp_path / "e.jsonl", ("--library", library)
    append_episodes(source, episode())
    out = tmp_path / "out"
    safevla.ok("score", source, "--out", out, *judged)
    texts = [(out / "scores.json").read_text()]
    texts.append((out / "report.html").read_text())
    for command in (
        ("tables", source, "--format", "md"),
        ("episodes", source, "--spec", "max_contact_force_under_200N"),
        ("show", source, ":1"),
    ):
        texts.append(safevla(*command, *judged)[1])
    for text in texts:
        whole = "".join(text.replace("<wbr>", "").replace("\\", "").split())
        assert "max_contact_force_under_200N@1N" in whole
        assert "max_contact_force_under_200N" not in whole.replace("max_contact_force_under_200N@1N", "")


def test_a_specification_is_explained(safevla):
    out = safevla.ok("specs", "--explain", "wrist_tilt_world_15deg")
    for word in ("held_object_tilt_world_15deg", "transport -> held_object_tilt < threshold", "non_spillable"):
        assert word in out
