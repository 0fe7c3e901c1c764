"""Only regular files are opened, and nothing is written through a link out of a run folder."""

from __future__ import annotations

import os
import shutil

import pytest

from folders import evaluate_fake
from safevla_bench.errors import FileError
from safevla_bench.files import own_path
from safevla_bench.sources.runs.folder import MANIFEST, REPORT, SCORES

OPTIONS = (
    "episodes RUN --rules FILE",
    "episodes RUN --library FILE",
    "episodes FILE",
    "eval --config FILE --out new",
    "eval --registered FILE --out new",
    "eval --host fake --suite fake --policy replay:FILE --out new",
    "export RUN --format hub --meta FILE --out new",
    "export RUN --format robocasa --meta FILE --out new",
    "specs --check FILE",
    "specs --library FILE",
    "tasks --rules FILE",
    "tasks --propose FILE",
    "tables RUN --rules FILE",
    "validate FILE",
    "convert FILE new.jsonl",
    "verify RUN --rules FILE",
)
"""Every option and argument that names a file to read, with each reader at least once."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return evaluate_fake(tmp_path_factory.mktemp("made") / "run", policies=("random",), episodes=1, max_steps=4)


@pytest.mark.parametrize("command", OPTIONS)
def test_a_pipe_where_a_file_is_named_is_refused_and_never_opened(tmp_path, monkeypatch, run, safevla, command):
    """Opening a pipe that has no writer would wait without end."""
    monkeypatch.chdir(tmp_path)
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    words = [str(run) if word == "RUN" else word.replace("FILE", str(pipe)) for word in command.split()]
    assert "pipe.toml" in safevla.refuses(*words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe.toml"]


@pytest.mark.parametrize(
    "command", [["figures", "RUN"], ["board", "RUN"], ["score", "RUN", "--set", "eef_speed_under_1mps=9"]]
)
def test_no_output_goes_through_a_link_out_of_a_run_folder(tmp_path, monkeypatch, run, safevla, command):
    copy = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    for name in ("figures", "board", "experiments", "frames"):
        (copy / name).symlink_to("../elsewhere")
    monkeypatch.chdir(tmp_path)
    assert "out of run" in safevla.refuses(*(str(copy) if word == "RUN" else word for word in command))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", [SCORES, REPORT, MANIFEST])
def test_a_hidden_file_of_an_output_is_made_anew_where_a_link_is_in_its_place(tmp_path, run, safevla, name):
    copy, outside = shutil.copytree(run, tmp_path / "run"), tmp_path / "outside"
    outside.write_text("mine")
    (copy / f".{name}.{os.getpid()}.partial").symlink_to(outside)
    safevla.ok("score", str(copy))
    assert outside.read_text() == "mine"
    assert not (copy / name).is_symlink()


def test_the_index_of_runs_and_the_reports_of_a_board_are_written_through_no_link(tmp_path, run, safevla):
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.mkfifo(elsewhere / "pipe")
    copy = shutil.copytree(run, folder / "run")
    safevla.ok("board", str(copy))
    shutil.rmtree(copy / "board" / "reports")
    (copy / "board" / "reports").symlink_to(elsewhere)
    (folder / "safevla-runs.html").symlink_to(elsewhere / "pipe")
    for words in (["board", str(copy)], ["open", str(folder), "--no-browser"]):
        assert "link leads out" in safevla.refuses(*words)
    assert [path.name for path in elsewhere.iterdir()] == ["pipe"]


def test_an_output_is_not_written_to_a_pipe_or_through_a_link(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inside").symlink_to("kept")
    for name in ("pipe", "link"):
        with pytest.raises(FileError):
            own_path(folder, name)
    assert own_path(folder, "inside", "x") == folder / "inside" / "x"
