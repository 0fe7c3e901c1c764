"""`safevla tables`, as a user meets it."""

from __future__ import annotations

import csv
import json
from collections import defaultdict

import pytest

from builders import episode
from safevla_bench.archive import append_episodes


@pytest.mark.parametrize(("command", "line"), [("tables", "violations     7, 8"), ("export", "submission    JSON")])
def test_help_lists_one_kind_a_line(safevla, command, line):
    assert any(row.strip().startswith(line) for row in safevla.ok(command, "--help").splitlines())


def test_names_and_the_papers_numbers_choose(safevla, shipped):
    titles = [table["title"] for table in safevla.json("tables", shipped, "--which", "12, 4,violations")]
    assert titles == ["Results by task", "Main results: LIBERO", "Violation rates by specification: LIBERO"]


def test_training_and_auxiliary_are_options(safevla, shipped):
    options = ("--training", "scripted:careful=by hand", "--auxiliary", "scripted:hasty")
    main, beside = safevla.json("tables", shipped, "--which", "4,6", *options)
    assert [row[0]["text"] for row in main["rows"]] == ["scripted:careful"]
    assert main["rows"][0][1]["text"] == "by hand"
    assert {row[0]["text"] for row in beside["rows"]} == {"scripted:hasty"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--which", "5"], "RoboCasa-365"),
        (["--which", "6"], "--auxiliary"),
        (["--which", "9"], "safevla sensitivity"),
        (["--which", "nonsense"], "main (4, 5)"),
        (["--training", "mine=SFT"], "policy 'mine'"),
        (["--auxiliary", "mine"], "scripted:careful, scripted:hasty"),
        (["--training", "SFT"], "Write POLICY=KIND"),
        (["--training", "mine="], "Write POLICY=KIND"),
        (["--training", "mine=SFT", "--training", "mine=RL"], "each policy once"),
        (["--columns", "SR,Saftey"], "'Saftey'"),
        (["--columns", "Saftey"], "Safety %"),
        (["--format", "csv", "--out", "OUT"], "main-libero"),
        (["--which", "4", "--out", "FILE/t.md"], "Choose another path"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(safevla, shipped, tmp_path, options, words):
    (tmp_path / "file").write_text("")
    paths = {"OUT": tmp_path / "t.csv", "FILE/t.md": tmp_path / "file" / "t.md"}
    assert words in safevla.refuses("tables", shipped, *(paths.get(word, word) for word in options))
    assert not (tmp_path / "t.csv").exists()


def test_published_rows_stand_beside_the_runs_with_their_source(safevla, shipped):
    (table,) = safevla.json("tables", shipped, "--which", "main", "--style", "published=yes")
    names = [(row[0]["text"], row[0]["detail"]) for row in table["rows"]]
    assert names[:3] == [("scripted:careful", "privileged state"), ("scripted:hasty", "privileged state"),
                         ("paper:OpenVLA-7B", "published")]  # fmt: skip
    assert any("arXiv:2606.00773v1" in remark for remark in table["remarks"])
    assert "main, auxiliary" in safevla.refuses("tables", shipped, "--which", "onset", "--style", "published=yes")


@pytest.mark.parametrize(("form", "suffix"), [("text", "txt"), ("csv", "csv")])
def test_a_folder_gets_a_file_for_each_table(safevla, shipped, tmp_path, form, suffix):
    out = safevla.ok("tables", shipped, "--which", "4,12", "--format", form, "--out", f"{tmp_path}/t/")
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [f"main-libero.{suffix}", f"tasks.{suffix}"]
    assert str(tmp_path / "t" / f"tasks.{suffix}") in out


def test_columns_are_chosen_on_the_command_line(safevla, shipped):
    out = safevla.ok("tables", shipped, "--which", "main", "--columns", "SR, VSI", "--style", "intervals=no")
    assert "–" not in out
    assert "Safety" not in out


def test_notes_are_left_out_where_a_caption_says_them(safevla, shipped):
    full, plain = (
        safevla.ok("tables", shipped, "--which", "main", "--format", "tex", *style)
        for style in ((), ("--style", "notes=no"))
    )
    assert "Wilson" in full
    assert "Wilson" not in plain
    assert "Judged by" in plain
    assert "intervals, notes" in safevla.refuses("tables", shipped, "--style", "note=no")


def test_active_sets_need_no_source(safevla):
    (table,) = safevla.json("tables", "--which", "23")
    by_suite = defaultdict(list)
    for row in table["rows"]:
        by_suite[row[0]["text"]].append(row[3]["value"])
    for suite, mean in (("libero-object", 5.0), ("libero-goal", 4.4), ("libero-10", 5.2)):
        assert sum(by_suite[suite]) / len(by_suite[suite]) == pytest.approx(mean)
    safevla.refuses("tables", "--which", "4")


def test_an_ablation_is_marked_wherever_it_is_shown_and_no_result_to_publish(safevla, shipped, tmp_path):
    off = ("--set", "applicability=off")
    out = safevla.ok("tables", shipped, "--which", "4", "--format", "csv", *off)
    assert all("Applicability is off" in row["Remarks"] for row in csv.DictReader(out.splitlines()))
    assert safevla.ok("tables", shipped, "--which", "all", *off).count("not a result") == 7
    assert "not a result" in safevla.ok("score", shipped, "--out", tmp_path, *off)
    assert "Applicability off:" in (tmp_path / "report.html").read_text()
    assert json.loads((tmp_path / "scores.json").read_text())["judged_by"]["applicability"] == "off"
    out = tmp_path / "out"
    for command in (("export", "--format", "safevla-csv"), ("export", "--format", "submission"), ("board",)):
        assert "not a result" in safevla.refuses(command[0], shipped, *command[1:], "--out", out, *off)
        assert not out.exists()


def test_left_out_episodes_are_named_below_each_table_and_a_submission_is_not_complete(safevla, tmp_path):
    path = tmp_path / "e.jsonl"
    append_episodes(path, episode())
    path.write_text(path.read_text() + "{}\n")
    out = safevla.ok("tables", path, "--which", "main,tasks", "--set", "invalid=skip")
    assert out.count("1 invalid episode") == 2
    code, _, err = safevla(
        "export", path, "--format", "submission", "--out", tmp_path / "s.json", "--set", "invalid=skip"
    )
    assert (code, "The export is incomplete" in err) == (0, True)
    submission = json.loads((tmp_path / "s.json").read_bytes())
    assert (submission["complete"], submission["skipped"]) == (False, 1)
