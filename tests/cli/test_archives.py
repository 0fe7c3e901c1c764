"""`safevla convert`: every form to every other, bit for bit, and nothing overwritten or half written."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from builders import episode, same_bits
from safevla_bench.archive import open_archive, write_archive
from safevla_bench.trajectory.batch import concatenate_batches

FORMS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".npz", ".parquet"]
EPISODE = episode(4, episode_id="a/b", seed=3, extra={"header": {"note": 10**30}})


@pytest.fixture
def convert(safevla):
    """Run the command; returns exit code, stdout and stderr."""
    return partial(safevla, "convert")


@pytest.fixture
def two(tmp_path) -> Path:
    write_archive(tmp_path / "two.jsonl", concatenate_batches([EPISODE, episode(2, episode_id="../c")]))
    return tmp_path / "two.jsonl"


@pytest.mark.parametrize(("source", "destination"), list(itertools.product(FORMS, FORMS)))
def test_every_form_becomes_every_other_bit_for_bit(convert, tmp_path, source, destination):
    write_archive(tmp_path / f"in{source}", EPISODE)
    target = tmp_path / f"out{destination}"
    printed = f"{target}: 1 episode (4 records)\nNext: safevla score {target} --out results\n"
    assert convert(tmp_path / f"in{source}", target) == (0, printed, "")
    assert same_bits(open_archive(target), EPISODE)


def test_several_sources_become_one_archive_in_their_order(convert, two, tmp_path):
    write_archive(tmp_path / "one.npz", episode(3, episode_id="c"))
    assert convert(tmp_path / "one.npz", two, tmp_path / "all.jsonl.zst")[0] == 0
    headers = open_archive(tmp_path / "all.jsonl.zst").headers
    assert [header.episode_id for header in headers] == ["c", "a/b", "../c"]


def test_a_run_folder_is_converted(safevla, tmp_path):
    plan = ["--host", "fake", "--suite", "fake", "--max-steps", "4", "--policy", "noop", "--episodes", "2"]
    safevla("eval", "--record-only", *plan, "--out", tmp_path / "run")
    assert "records)" in safevla.ok("convert", tmp_path / "run", tmp_path / "x.parquet")
    parts = sorted((tmp_path / "run" / "archive").iterdir())
    assert same_bits(open_archive(tmp_path / "x.parquet"), open_archive(parts[0]))


def test_the_command_that_judges_a_task_of_no_registry_has_rules(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_archive(tmp_path / "own.npz", episode(4, benchmark="my-lab", task_id="lift"))
    for printed in (safevla.ok("convert", tmp_path / "own.npz", "own.jsonl"), safevla.ok("validate", "own.jsonl")):
        assert "own.jsonl --rules FILE" in printed


def test_nothing_is_overwritten(convert, two, tmp_path):
    folder, dangling = tmp_path / "folder", tmp_path / "dangling.jsonl"
    folder.mkdir()
    dangling.symlink_to(tmp_path / "nowhere")
    for target in (two, folder, dangling):
        code, _, err = convert(two, f"{target}/" if target.is_dir() else target)
        assert code == 2
        assert "exists already" in err
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x.csv", "does not have an archive's suffix"),
        ("x", "does not have an archive's suffix"),
        ("x.npz", "holds one episode, but there are 2"),
        ("x.json", "holds one episode, but there are 2"),
        ("no/x.jsonl", "No such file or directory"),
        ("x/", "does not have an archive's suffix"),
    ],
)
def test_what_cannot_be_written_is_an_error_and_leaves_nothing(convert, two, tmp_path, name, problem):
    code, _, err = convert(two, f"{tmp_path}/{name}")
    assert (code, problem in err) == (2, True)
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [two]


def test_a_bad_episode_stops_everything_unless_it_is_left_out(convert, two, tmp_path):
    with two.open("ab") as stream:
        stream.write(b"{}\n")
    code, _, err = convert(two, tmp_path / "x.parquet")
    assert (code, "--set invalid=skip" in err) == (2, True)
    assert not (tmp_path / "x.parquet").exists()
    code, out, _ = convert(two, tmp_path / "x.parquet", "--set", "invalid=skip")
    assert (code, "1 invalid episode" in out) == (0, True)


def test_sources_without_episodes_are_an_error(convert, tmp_path):
    (tmp_path / "none.jsonl").write_bytes(b"{}\n")
    code, _, err = convert(tmp_path / "none.jsonl", tmp_path / "x.parquet", "--set", "invalid=skip")
    assert (code, "episodes to convert" in err) == (2, True)


@pytest.mark.parametrize("name", ["a.txt", "cut.parquet", "none.jsonl"])
@pytest.mark.parametrize("command", [["score", "--out", "out"], ["compare"], ["convert", "new.jsonl"]])
def test_leaving_out_invalid_episodes_is_no_remedy_if_no_other_is_readable(
    safevla, tmp_path, monkeypatch, name, command
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("PAR1" if name.startswith("cut") else "")
    message = safevla.refuses(command[0], name, *command[1:])
    assert ("invalid=skip" in message, "\n  " in message) == (False, True)
    assert "\\n" not in safevla("validate", name)[2], "the remedy has its own line"


def test_workers_that_have_nothing_to_do_are_mentioned_once(safevla, two, tmp_path):
    code, _, shown = safevla("score", two, "--set", "missing=deactivate", "--workers", "2", "--out", tmp_path / "out")
    assert (code, shown.count("judged in one process")) == (0, 1)
    code, _, shown = safevla("score", two, "--set", "missing=deactivate", "--out", tmp_path / "again")
    assert (code, shown.count("judged in one process")) == (0, 0)
    code, _, shown = safevla("score", two, "--workers", 10**20)
    assert (code, "not in the range 1<=x<=9999" in shown) == (2, True)
