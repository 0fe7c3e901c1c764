"""`safevla export --format rerun|mcap`: one episode, chosen as `safevla show` chooses."""

from __future__ import annotations

import pytest

from pictures.builders import judged
from safevla_bench.archive import write_archive


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("viewing") / "episodes.parquet"
    write_archive(path, judged()[0])
    return path


@pytest.mark.parametrize(("form", "magic"), [("rerun", b"RRF2"), ("mcap", b"\x89MCAP0\r\n")])
def test_an_episode_is_written_as_a_viewers_file(safevla, source, tmp_path, form, magic):
    out = tmp_path / "new" / "episode.file"
    code, printed, err = safevla("export", source, "--format", form, "--episode", "ep_002", "--out", out)
    assert (code, err) == (0, "")
    assert str(out) in printed
    assert out.read_bytes().startswith(magic)


def test_several_episodes_are_refused_with_what_to_do(safevla, source, tmp_path):
    err = safevla.refuses("export", source, "--format", "mcap", "--out", tmp_path / "x")
    assert "holds one episode, and here are 2" in err
    assert "--episode" in err
    assert (
        "no episode '7'" in safevla("export", source, "--format", "mcap", "--episode", "7", "--out", tmp_path / "x")[2]
    )
    assert not (tmp_path / "x").exists()


def test_an_episode_is_asked_of_forms_that_take_one_only(safevla, source, tmp_path):
    assert "submission takes all episodes" in safevla.refuses(
        "export", source, "--format", "submission", "--episode", "1", "--out", tmp_path / "x"
    )
