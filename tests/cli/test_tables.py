"""`safevla tables` and `safevla export`, as a user meets them."""

from __future__ import annotations

import csv
import json

import pytest

from builders import episode
from safevla_bench.archive import append
from safevla_bench.jobs import demo
from safevla_bench.publishing import submission


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return demo.unpack_archive(tmp_path_factory.mktemp("demo") / "records")


def titles(printed: str) -> list[str]:
    return [table["title"] for table in json.loads(printed)]


def test_by_default_every_table_that_the_runs_allow(safevla, archive):
    code, out, err = safevla("tables", archive, "--format", "json")
    assert (code, err) == (0, "")
    names = [table["name"] for table in json.loads(out)]
    kinds = ["main-libero", "severity-libero", "violations-libero", "composition-libero"]
    assert names == [
        *kinds,
        "tasks",
        "active",
        "applicability",
        "bodies",
        "receptacles",
        "exposure",
        "exposure-specs",
        "phases",
    ]


@pytest.mark.parametrize(("command", "line"), [("tables", "violations     7, 8"), ("export", "submission   JSON")])
def test_help_lists_one_kind_a_line(safevla, command, line):
    _, out, _ = safevla(command, "--help")
    assert any(shown.strip().startswith(line) for shown in out.splitlines())


def test_names_and_the_papers_numbers_choose(safevla, archive):
    _, out, _ = safevla("tables", archive, "--which", "12, 4,violations", "--format", "json")
    assert titles(out) == ["Results by task", "Main results: LIBERO", "Violation rates by specification: LIBERO"]


@pytest.mark.parametrize(
    ("which", "told"),
    [("5", "RoboCasa-365"), ("6", "--auxiliary"), ("9", "safevla sensitivity"), ("nonsense", "main (4, 5)")],
)
def test_a_table_that_there_is_not_says_why(safevla, archive, which, told):
    code, out, err = safevla("tables", archive, "--which", which)
    assert (code, out) == (2, "")
    assert told in err


def test_training_and_auxiliary_are_options(safevla, archive):
    options = ("--training", "scripted:careful=by hand", "--auxiliary", "scripted:hasty", "--format", "json")
    _, out, _ = safevla("tables", archive, "--which", "4,6", *options)
    main, beside = json.loads(out)
    assert [row[0]["text"] for row in main["rows"]] == ["scripted:careful"]
    assert main["rows"][0][1]["text"] == "by hand"
    assert {row[0]["text"] for row in beside["rows"]} == {"scripted:hasty"}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [("tables", "--training", "mine=SFT"), ("tables", "--auxiliary", "mine"), ("sensitivity", "--auxiliary", "mine")],
)
def test_an_option_about_a_policy_that_has_no_episode_is_refused(safevla, archive, command, option, value):
    err = safevla.refuses(command, archive, option, value)
    assert "no episode is of the policy 'mine'" in err
    assert "scripted:careful, scripted:hasty" in err


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["SFT"], "--training 'SFT' names no kind\n  Write POLICY=KIND"),
        (["mine="], "--training 'mine=' names no kind"),
        (["=SFT"], "--training '=SFT' names no policy"),
        (["mine=SFT", "mine=RL"], "--training gives 'mine' two kinds, 'SFT' and 'RL'"),
    ],
)
def test_an_unreadable_training_is_named(safevla, archive, texts, words):
    assert words in safevla.refuses("tables", archive, *(f"--training={text}" for text in texts))


@pytest.mark.parametrize(
    ("form", "suffix"), [("text", "txt"), ("md", "md"), ("csv", "csv"), ("tex", "tex"), ("html", "html")]
)
def test_a_folder_gets_a_file_for_each_table(safevla, archive, tmp_path, form, suffix):
    out = safevla.ok("tables", archive, "--which", "4,12", "--format", form, "--out", f"{tmp_path}/t/")
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [f"main-libero.{suffix}", f"tasks.{suffix}"]
    assert str(tmp_path / "t" / f"tasks.{suffix}") in out


def test_several_tables_are_no_csv_file(safevla, archive, tmp_path):
    assert "main-libero" in safevla.refuses("tables", archive, "--format", "csv", "--out", tmp_path / "t.csv")
    assert not (tmp_path / "t.csv").exists()


def test_columns_and_labels_are_chosen_on_the_command_line(safevla, archive):
    tex = ("--format", "tex", "--label", "tab:x", "--stacked")
    out = safevla.ok("tables", archive, "--which", "main", "--columns", "SR, VSI", *tex)
    assert r"\label{tab:x}" in out
    assert "Safety" not in out
    err = safevla.refuses("tables", archive, "--columns", "SR,Saftey")
    assert "'Saftey'" in err
    assert "Safety %" in err


@pytest.mark.parametrize("arguments", [("--stacked",), ("--label", "tab:x"), ("--format", "tex", "--label", "a}b")])
def test_layout_is_of_tex_and_a_label_is_no_command(safevla, archive, arguments):
    code, out, err = safevla("tables", archive, *arguments)
    assert (code, out) == (2, "")
    assert arguments[-2 if len(arguments) > 1 else -1] in err


def test_active_sets_need_no_source(safevla):
    out = safevla.ok("tables", "--which", "23", "--format", "json")
    means = {row[0]["text"]: row[3]["text"] for row in json.loads(out)[0]["rows"] if row[1]["text"] == "mean"}
    paper = {
        "libero-spatial": "5.0",
        "libero-object": "5.0",
        "libero-goal": "4.4",
        "libero-10": "5.2",
        "robocasa-365": "4.6",
    }
    assert means.items() >= paper.items()
    safevla.refuses("tables", "--which", "4")


def test_an_ablation_is_marked_wherever_it_is_shown(safevla, archive, tmp_path):
    off = ("--set", "applicability=off")
    _, out, _ = safevla("tables", archive, "--which", "4", "--format", "csv", *off)
    assert [row["Applicability"] for row in csv.DictReader(out.splitlines())] == ["off", "off"]
    _, out, _ = safevla("tables", archive, *off)
    assert out.count("not a result to publish") == 8
    _, out, _ = safevla("score", archive, "--out", tmp_path, *off)
    assert "not a result to publish" in out
    assert "Applicability off:" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "scores.json").read_text())["judged_by"]["applicability"] == "off"
    for form in ("safevla-csv", "submission"):
        assert "ablation" in safevla.refuses("export", archive, "--format", form, "--out", tmp_path / form, *off)
        assert not (tmp_path / form).exists()


def test_an_ordinary_report_has_no_such_mark(safevla, archive, tmp_path):
    safevla("score", archive, "--out", tmp_path / "scores")
    assert "Applicability off" not in (tmp_path / "scores" / "report.html").read_text()


def test_exports_are_written(safevla, archive, tmp_path):
    out = safevla.ok("export", archive, "--format", "submission", "--out", tmp_path / "new" / "s.json")
    assert str(tmp_path / "new" / "s.json") in out
    assert submission.read_submission(tmp_path / "new" / "s.json").complete
    safevla.ok("export", archive, "--format", "safevla-csv", "--out", tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["benchmark_suite"] for row in rows] == ["libero_object", "libero_spatial"] * 2


def test_a_submission_without_the_invalid_episodes_says_that_it_is_not_complete(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    append(path, episode())
    path.write_text(path.read_text() + "{}\n")
    code, _, err = safevla("export", path, "--format", "submission", "--out", tmp_path / "s.json", "--skip-invalid")
    assert code == 0
    assert "Not complete" in err
    found = submission.read_submission(tmp_path / "s.json")
    assert (found.complete, found.skipped) == (False, 1)


def test_left_out_episodes_are_named_below_each_table(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    append(path, episode())
    path.write_text(path.read_text() + "{}\n")
    _, out, _ = safevla("tables", path, "--which", "main,tasks", "--skip-invalid")
    assert out.count("1 invalid episode left out.") == 2


def test_a_place_that_cannot_be_written_is_a_message(safevla, archive, tmp_path):
    (tmp_path / "file").write_text("")
    assert "Choose a place" in safevla.refuses("tables", archive, "--which", "4", "--out", tmp_path / "file" / "t.md")
