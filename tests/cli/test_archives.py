"""`safevla convert`: every form to every other, bit for bit, and nothing overwritten or half written."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from builders import episode, same_bits
from safevla_bench import cli
from safevla_bench.archive import open_archive, read_episodes, write_archive
from safevla_bench.trajectory.batch import Batch, concatenate_batches

FORMS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".npz", ".parquet"]
EPISODE = episode(4, episode_id="a/b", seed=3, extra={"header": {"note": 10**30}})


@pytest.fixture
def convert(capsys):
    """Run the command in this process; returns exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.run_command_line(["convert", *(str(one) for one in arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def two(tmp_path) -> Path:
    write_archive(tmp_path / "two.jsonl", concatenate_batches([EPISODE, episode(2, episode_id="../c")]))
    return tmp_path / "two.jsonl"


@pytest.mark.parametrize(("source", "destination"), list(itertools.product(FORMS, FORMS)))
def test_every_form_becomes_every_other_bit_for_bit(convert, tmp_path, source, destination):
    write_archive(tmp_path / f"in{source}", EPISODE)
    target = tmp_path / f"out{destination}"
    assert convert(tmp_path / f"in{source}", target) == (0, f"{target}: 1 episode (4 records)\n", "")
    assert same_bits(open_archive(target), EPISODE)


def test_there_and_back_gives_the_same_bytes(convert, two, tmp_path):
    convert(two, tmp_path / "x.parquet")
    convert(tmp_path / "x.parquet", tmp_path / "back.jsonl")
    assert (tmp_path / "back.jsonl").read_bytes() == two.read_bytes()


def test_several_episodes_become_a_folder_of_npz_files(convert, two, tmp_path):
    code, out, _ = convert(two, f"{tmp_path}/out/")
    assert (code, out) == (0, f"{tmp_path}/out/: 2 episodes (6 records)\n")
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == ["episode-00000.npz", "episode-00001.npz"]
    found = [one for one in read_episodes(paths) if isinstance(one, Batch)]
    assert same_bits(concatenate_batches(found), open_archive(two))


def test_several_sources_become_one_archive_in_their_order(convert, two, tmp_path):
    write_archive(tmp_path / "one.npz", episode(3, episode_id="c"))
    assert convert(tmp_path / "one.npz", two, tmp_path / "all.jsonl.zst")[0] == 0
    headers = open_archive(tmp_path / "all.jsonl.zst").headers
    assert [header.episode_id for header in headers] == ["c", "a/b", "../c"]


def test_a_run_folder_is_converted(convert, tmp_path, capsys):
    arguments = ["--host", "fake", "--suite", "fake", "--max-steps", "4", "--policy", "noop", "--episodes", "2"]
    assert cli.run_command_line(["eval", "--record-only", *arguments, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    code, out, _ = convert(tmp_path / "run", tmp_path / "x.parquet")
    assert code == 0
    assert "records)" in out
    parts = sorted((tmp_path / "run" / "archive").iterdir())
    assert same_bits(open_archive(tmp_path / "x.parquet"), open_archive(parts[0]))


def test_nothing_is_overwritten(convert, two, tmp_path):
    for target in (two, tmp_path / "folder", tmp_path / "dangling.jsonl"):
        if target.name == "folder":
            target.mkdir()
        if target.name == "dangling.jsonl":
            target.symlink_to(tmp_path / "nowhere")
        code, _, err = convert(two, f"{target}/" if target.is_dir() else target)
        assert code == 2
        assert "exists already" in err
    assert not list((tmp_path / "folder").iterdir())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("x.csv", "not an archive by its name"),
        ("x", "not an archive by its name"),
        ("x.npz", "holds one episode, these are 2"),
        ("x.json", "holds one episode, these are 2"),
        ("no/x.jsonl", "No such file or directory"),
        ("no/x/", "No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_said_and_leaves_nothing(convert, two, tmp_path, name, problem):
    code, _, err = convert(two, f"{tmp_path}/{name}")
    assert code == 2
    assert problem in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == [two]


def test_a_bad_episode_stops_everything_unless_it_is_left_out(convert, two, tmp_path):
    with two.open("ab") as stream:
        stream.write(b"{}\n")
    code, _, err = convert(two, tmp_path / "x.parquet")
    assert (code, "--skip-invalid" in err) == (2, True)
    assert not (tmp_path / "x.parquet").exists()
    code, out, _ = convert(two, tmp_path / "x.parquet", "--skip-invalid")
    assert (code, "2 episodes (6 records); 1 invalid episode left out" in out) == (0, True)


def test_two_policies_may_share_an_id_in_one_archive_and_one_policy_may_not_repeat_it(convert, tmp_path):
    for name, policy in (("p", "p"), ("q", "q"), ("again", "p")):
        write_archive(tmp_path / f"{name}.npz", episode(2, policy=policy))
    assert convert(tmp_path / "p.npz", tmp_path / "q.npz", tmp_path / "x.parquet")[0] == 0
    assert [header.policy for header in open_archive(tmp_path / "x.parquet").headers] == ["p", "q"]
    code, _, err = convert(tmp_path / "p.npz", tmp_path / "again.npz", tmp_path / "y.parquet")
    assert (code, "the episode_id is repeated" in err) == (2, True)


def test_sources_without_episodes_are_an_error(convert, tmp_path):
    (tmp_path / "none.jsonl").write_bytes(b"{}\n")
    code, _, err = convert(tmp_path / "none.jsonl", tmp_path / "x.parquet", "--skip-invalid")
    assert (code, "no episodes to convert" in err) == (2, True)
