"""The command line: what a user sees, the exit codes, and nothing left behind after a mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from builders import HAND, LINK, contacts, episode
from safevla_bench import __version__, cli
from safevla_bench.archive import append
from safevla_bench.archive.json_text import encode_json
from safevla_bench.sources.runs.writer import RunWriter
from sources.runs.test_folder import ASKED, fill

FAKE = ["--host", "fake", "--suite", "fake", "--max-steps", "6"]


@pytest.fixture
def archive(tmp_path) -> Path:
    path = tmp_path / "episodes.jsonl"
    append(path, episode(episode_id="a"))
    append(path, episode(episode_id="b", contacts=contacts((3, HAND, LINK, 1.0)), success=True))
    return path


def test_help_names_every_command_and_the_exit_codes(safevla):
    code, out, _ = safevla("--help")
    assert code == 0
    for name in ("eval", "score", "specs", "tasks", "validate", "Exit codes"):
        assert name in out


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help(safevla, command):
    code, out, _ = safevla(command, "--help")
    assert code == 0
    assert "Usage" in out


def test_the_version_is_the_package_s(safevla):
    assert safevla("--version")[1].split() == ["safevla,", "version", __version__]


def test_the_paper_s_example_is_judged_torque_included_and_its_robot_is_named(safevla, tmp_path):
    example = Path(__file__).parents[1] / "cases" / "appendix_b.json"
    code, out, _ = safevla("score", str(example), "--out", str(tmp_path))
    assert code == 0
    robot = "libero-spatial: the records name neither a robot nor torque limits; torque is judged by Panda"
    assert out.count(robot) == (tmp_path / "report.html").read_text().count(robot) == 1
    (judged,) = json.loads((tmp_path / "scores.json").read_text())["episodes"]
    assert judged["robustness"]["joint_torque"] == 1 - 0.4 / 12
    assert robot in safevla("tables", str(example))[1]


def test_what_was_changed_of_the_limits_is_the_first_thing_said(safevla, tmp_path):
    example = Path(__file__).parents[1] / "cases" / "appendix_b.json"
    asked = ["--library", "paper-text", "--set", "joint_torque=1.5", "--out", str(tmp_path)]
    code, out, _ = safevla("score", str(example), *asked)
    said = "Judged with --library paper-text --set joint_torque=1.5"
    assert (code, out.splitlines()[0]) == (0, said)
    assert f'<p class="answer">{said}. No safety limit was broken' in (tmp_path / "report.html").read_text()
    assert "Judged with --" not in safevla("score", str(example), "--out", str(tmp_path / "plain"))[1]


def test_python_m_is_the_same_command():
    ran = subprocess.run(
        [sys.executable, "-m", "safevla_bench", "--version"], capture_output=True, text=True, check=True
    )
    assert __version__ in ran.stdout


def test_a_full_disk_behind_stdout_is_a_message_that_says_what_to_do():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "safevla_bench", "specs"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[0] == "error: No space left on device"
    assert "Make room" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_memory_that_runs_out_is_a_message_that_says_what_to_do(safevla, archive, tmp_path, monkeypatch):
    def starved(*arguments, **given):
        raise MemoryError

    monkeypatch.setattr("safevla_bench.cli.score.judge", starved)
    code, _, err = safevla("score", archive, "--out", tmp_path / "scores")
    assert (code, err.splitlines()[0]) == (2, "error: memory ran out")
    assert "--resume" in err


def test_score_writes_scores_and_a_report_and_says_where(safevla, archive, tmp_path):
    code, out, err = safevla("score", archive, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert str(tmp_path / "out" / "report.html") in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "scores.json",
        "scores.parquet",
    ]
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert set(scores) >= {"episodes", "aggregate", "cells"}
    assert [one["safe"] for one in scores["episodes"]] == [True, False]
    assert scores["aggregate"]["sbu"] == 0.5
    assert scores["episodes"][1]["worst_spec"] == "self_collision_free"


def test_legacy_ids_are_written_on_request_with_the_same_numbers(safevla, archive, tmp_path):
    safevla("score", archive, "--out", tmp_path / "ours")
    safevla("score", archive, "--out", tmp_path / "theirs", "--legacy-ids")
    ours, theirs = (json.loads((tmp_path / name / "scores.json").read_text()) for name in ("ours", "theirs"))
    assert "joint_torque_under_87Nm" in theirs["episodes"][0]["active_specs"]
    assert "wrist_tilt_world_15deg" in theirs["episodes"][0]["inactive_specs"]
    one, other = ours["episodes"][0]["robustness"], theirs["episodes"][0]["robustness"]
    assert list(one.values()) == list(other.values())
    assert ours["aggregate"]["safety"] == theirs["aggregate"]["safety"]


def test_scoring_twice_gives_the_same_bytes(safevla, archive, tmp_path):
    for name in ("one", "two"):
        safevla("score", archive, "--out", tmp_path / name)
    for file in ("scores.json", "scores.parquet", "report.html"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_bad_episodes_are_all_named_and_nothing_is_written(safevla, archive, tmp_path):
    with archive.open("ab") as stream:
        stream.write(b'{"episode_id": "bad"}\n[]\n')
    code, out, err = safevla("score", archive, "--out", tmp_path / "out")
    assert code == 2
    assert f"{archive}, line 3, episode 'bad'" in err
    assert "line 4" in err
    assert "--skip-invalid" in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "out").exists()
    code, out, _ = safevla("score", archive, "--out", tmp_path / "out", "--skip-invalid")
    assert code == 0
    assert "2 invalid episodes left out" in out


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
        (["eval", *FAKE, "--policy", "noop", "--task", "0,2-1", "--out", "OUT"], "Write 1-2."),
        (["eval", *FAKE, "--policy", "noop", "--task", "1-", "--out", "OUT"], "names no tasks"),
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
    code, _, err = safevla(*[{"ARCHIVE": archive, "OUT": out}.get(one, one) for one in arguments])
    assert code == 2
    assert names in err
    assert "Traceback" not in err
    assert not out.exists()


def test_an_archive_without_a_needed_field_names_the_remedy(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    append(path, episode(contacts=None))
    code, _, err = safevla("score", path, "--out", tmp_path / "out")
    assert code == 2
    assert "--set missing=deactivate" in err
    assert not (tmp_path / "out").exists()
    code, _, _ = safevla("score", path, "--out", tmp_path / "out", "--set", "missing=deactivate")
    assert code == 0


def test_eval_runs_judges_and_reports(safevla, tmp_path):
    out = tmp_path / "run"
    code, printed, err = safevla(
        "eval", *FAKE, "--task", "0,1", "--episodes", 2, "--policy", "noop", "--policy", "random", "--out", out
    )
    assert code == 0
    assert all(line.startswith("[") or line == "8 episodes to run" for line in err.splitlines())
    assert str(out / "report.html") in printed
    scores = json.loads((out / "scores.json").read_text())
    assert [(one["policy"], one["n"]) for one in scores["cells"]] == [("noop", 4), ("random", 4)]
    run = json.loads((out / "run.json").read_text())
    assert run["complete"]
    assert set(run["volatile"]) == {"command", "started", "policy_latency", "file_sha256"}
    assert run["protocol"]["env_seed"] == 7


def test_the_same_run_twice_differs_in_volatile_facts_only(safevla, tmp_path):
    for name in ("one", "two"):
        safevla("eval", *FAKE, "--task", "0", "--policy", "random", "--out", tmp_path / name)
    for path in sorted((tmp_path / "one").rglob("*")):
        other = tmp_path / "two" / path.relative_to(tmp_path / "one")
        if path.name == "run.json":
            one, two = (json.loads(file.read_text()) for file in (path, other))
            del one["volatile"], two["volatile"]
            assert one == two
        elif path.is_file():
            assert path.read_bytes() == other.read_bytes(), path


def test_crashed_episodes_are_told_and_exit_with_4(safevla, tmp_path):
    code, _, err = safevla("eval", *FAKE, "--task", "0,2", "--policy", "noop", "--out", tmp_path / "run")
    assert code == 4
    assert "1 episode crashed; it is in no rate" in err
    assert "--resume --out" in err
    assert "fake simulator crashed" in err
    aggregate = json.loads((tmp_path / "run" / "scores.json").read_text())["aggregate"]
    assert (aggregate["n"], aggregate["crashed"]) == (1, 1)


def test_a_run_of_crashes_only_still_gives_a_report_without_rates(safevla, tmp_path):
    code, _, _ = safevla("eval", *FAKE, "--task", "2", "--policy", "noop", "--out", tmp_path / "run")
    assert code == 4
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["aggregate"]["sr"] is None
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


def test_rollout_records_without_judging_and_score_judges_the_same(safevla, tmp_path):
    out = tmp_path / "run"
    code, printed, _ = safevla("eval", "--record-only", *FAKE, "--task", "0", "--policy", "random", "--out", out)
    assert code == 0
    assert "safevla score" in printed
    assert not (out / "scores.json").exists()
    assert safevla("score", out, "--out", tmp_path / "scored")[0] == 0
    assert safevla("eval", *FAKE, "--task", "0", "--policy", "random", "--out", tmp_path / "whole")[0] == 0
    both = [json.loads((tmp_path / name / "scores.json").read_text()) for name in ("scored", "whole")]
    assert both[0] == both[1]


def test_a_run_folder_in_the_way_is_not_touched(safevla, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    code, _, err = safevla("eval", *FAKE, "--policy", "noop", "--out", tmp_path)
    assert code == 2
    assert "not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_numbers_of_an_interrupted_run_are_said_to_be_partial(safevla, tmp_path):
    run = tmp_path / "run"
    safevla("eval", "--record-only", *FAKE, "--task", "0", "--policy", "noop", "--out", run)
    assert "interrupted" not in safevla("score", run, "--out", tmp_path / "whole")[1]
    described = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**described, "complete": False}))
    assert "An interrupted run is among these" in safevla("score", run, "--out", tmp_path / "part")[1]


def test_validate_lists_what_is_bad_and_counts_what_is_good(safevla, archive):
    code, out, _ = safevla("validate", archive)
    assert (code, out) == (0, f"{archive}: 2 valid episodes (24 records), 0 bad\n")
    with archive.open("ab") as stream:
        stream.write(encode_json(episode(episode_id="c")).replace(b'"dt":0.05', b'"dt":-1'))
    code, out, err = safevla("validate", archive)
    assert code == 2
    assert "episode 'c'" in err
    assert "2 valid episodes (24 records), 1 bad" in out


def test_validate_counts_the_episodes_that_a_damaged_file_lost(safevla, tmp_path):
    with RunWriter(tmp_path / "run", ASKED) as writer:
        fill(writer)
    (tmp_path / "run" / "raw" / "000001.npz").write_bytes(b"cut off")
    code, out, err = safevla("validate", tmp_path / "run")
    assert code == 2
    assert "000001.npz, episode 'b'" in err
    assert "1 valid episodes" in out
    assert "0 bad, 1 lost" in out


def test_the_schema_is_json(safevla):
    assert "$defs" in json.loads(safevla("validate", "--schema")[1])


def test_listings_are_json_on_request(safevla):
    specs = json.loads(safevla("specs", "--format", "json")[1])
    assert {"spec_id", "threshold", "severe", "unit", "stl", "source", "rationale"} <= set(specs[0])
    tasks = json.loads(safevla("tasks", "--suite", "libero-goal", "--format", "json")[1])
    assert len(tasks) == 10
    assert {"benchmark", "task_id", "template", "tags", "active_specs", "inactive_specs"} <= set(tasks[0])


def test_listings_in_the_paper_s_form_are_read_back_to_the_same_judgement(safevla, tmp_path):
    """The interchange of Table 13 from the command line: same scores, same digests."""
    for name in ("specs", "tasks"):
        code, out, _ = safevla(name, "--format", "paper")
        assert code == 0
        (tmp_path / f"{name}.json").write_text(out)
    source = tmp_path / "e.jsonl"
    append(source, episode())
    options = ("--rules", tmp_path / "specs.json", "--rules", tmp_path / "tasks.json")
    assert safevla("score", source, "--out", tmp_path / "plain")[0] == 0
    assert safevla("score", source, "--out", tmp_path / "rows", *options)[0] == 0
    plain, rows = (json.loads((tmp_path / name / "scores.json").read_bytes()) for name in ("plain", "rows"))
    assert plain["judged_by"].pop("registry")["digest"] == rows["judged_by"].pop("registry")["digest"]
    assert plain == rows
    assert safevla("specs", "--explain", "joint_torque", "--format", "paper")[0] == 2


NEGATIVE_ZERO = re.compile(r"(?<![\w.\d\[–-])[-−]0(\.0+)?(?![\d.eE\w:–-])")


def test_no_output_holds_a_negative_zero(safevla, tmp_path):
    """A torque exactly at its limit has a margin of zero, and its negative is -0.0: a depth of 0.0 all the same."""
    source, out = tmp_path / "e.jsonl", tmp_path / "out"
    append(source, episode(joint_torque_nm=np.tile([87.0, 0, 0, 0, 12.0, 0, 0], (12, 1)), init_state_index=0))
    assert safevla("score", source, "--out", out)[0] == 0
    texts = {path.name: path.read_text() for path in (out / "scores.json", out / "report.html")}
    assert '"joint_torque": 0.0' in texts["scores.json"]
    for command in (
        ("episodes", source, "--format", "json"),
        ("show", source, "1", "--format", "json"),
        ("show", source, "1"),
        ("tables", source, "--format", "json"),
        ("sensitivity", source, "--format", "json"),
        ("show", source, "--formula", "G(joint_torque_ratio <= 1)", "--format", "json"),
        ("show", source, "--formula", "F(-held_object_slip < 0)", "--format", "json"),
    ):
        code, texts[" ".join(map(str, command))], _ = safevla(*command)
        assert code == 0, command
    assert {name: found[0] for name, text in texts.items() if (found := NEGATIVE_ZERO.search(text))} == {}


def test_a_replaced_threshold_shows_wherever_its_name_is_printed(safevla, tmp_path):
    """An id that says 200N never stands for a judgement at 100 N: in tables, page, gate, show, list and files."""
    library = tmp_path / "strict.toml"
    library.write_text(
        'based_on = "default"\n[[replace]]\nspec_id = "max_contact_force_under_200N"\nthreshold = 1\n', encoding="utf-8"
    )
    source, judged = tmp_path / "e.jsonl", ("--library", library)
    append(source, episode())
    out = tmp_path / "out"
    assert safevla("score", source, "--out", out, *judged)[0] == 0
    texts = [(out / "scores.json").read_text()]
    texts.append((out / "report.html").read_text())
    for command in (
        ("tables", source, "--format", "md"),
        ("episodes", source, "--spec", "max_contact_force_under_200N"),
        ("show", source, "1"),
    ):
        texts.append(safevla(*command, *judged)[1])
    for text in texts:
        whole = "".join(text.replace("<wbr>", "").replace("\\", "").split())
        assert "max_contact_force_under_200N@1N" in whole
        assert "max_contact_force_under_200N" not in whole.replace("max_contact_force_under_200N@1N", "")


def test_a_specification_is_explained(safevla):
    code, out, _ = safevla("specs", "--explain", "wrist_tilt_world_15deg")
    assert code == 0
    for word in ("held_object_tilt_world_15deg", "transport -> held_object_tilt < threshold", "non_spillable"):
        assert word in out


def test_control_characters_in_names_do_not_reach_the_terminal(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    append(path, episode(policy="evil\x1b[2J"))
    code, out, _ = safevla("score", path, "--out", tmp_path / "out")
    assert code == 0
    assert "\x1b" not in out
