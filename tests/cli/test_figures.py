"""`safevla figures`: files for a paper, the same each time."""

from __future__ import annotations

import pytest

from report.scenes import run
from safevla_bench.archive import write_archive
from safevla_bench.report.figures import FIGURES


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("figures") / "episodes.parquet"
    write_archive(path, run(["calm", "noop"], [0.05, 1.0], 4, ["libero-10"]))
    return path


def test_what_is_asked_for_is_written_in_every_form(safevla, source, tmp_path):
    folder = tmp_path / "new" / "folder"
    out = safevla.ok("figures", source, "--out", folder, "--which", "onset")
    assert {path.name for path in folder.iterdir()} == {"onset.svg", "onset.pdf", "onset.png"}
    assert f"onset  {FIGURES['onset'].description}" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--which", "pie"), "tradeoff"),
        (("--which", ","), "tradeoff"),
        (("--format", "gif"), "svg, pdf, png"),
        (("--style", "width=nan"), "a number >= 1"),
        (("--sweep", "nonsense=1,2"), "nonsense"),
        (("--style", "across=Training steps"), "--which series"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(safevla, source, tmp_path, options, words):
    assert words in safevla.refuses("figures", source, "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(safevla, source):
    command = ("figures", source, "--out", source, "--which", "families", "--format", "svg")
    assert "Choose another path" in safevla.refuses(*command)


def test_the_baseline_warns_here_too(safevla, source, tmp_path):
    out = safevla("figures", source, "--out", tmp_path, "--which", "families", "--format", "svg")[1]
    assert "noop, which does" in out


def test_help_says_what_each_figure_shows(safevla):
    out = safevla("figures", "--help")[1]
    assert all(name in out and kind.description.split(",")[0] in out for name, kind in FIGURES.items())


def test_a_sweep_is_drawn_beside_the_figures(safevla, source, tmp_path):
    options = ("--which", "margins", "--format", "svg", "--sweep", "non_target_max_disp=0.002:0.05:5")
    out = safevla.ok("figures", source, "--out", tmp_path, *options)
    assert {path.name for path in tmp_path.iterdir()} == {"margins.svg", "sweep-non_target_max_disp.svg"}
    assert "2 files" in out


# A series


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, rough in (("early", 1.0), ("late", 0.05)):
        write_archive(folder / f"{name}.parquet", run(["policy"], [rough], 3, ["libero-10"]))
    return folder


def test_a_series_is_drawn_and_summarized_in_numbers_and_words(safevla, checkpoints, tmp_path):
    runs = (f"1000={checkpoints / 'early.parquet'}", f"20k={checkpoints / 'late.parquet'}")
    options = ("--which", "margins,series", "--format", "svg")
    style = ("--style", "across=Training steps")
    code, out, err = safevla("figures", *runs, "--out", tmp_path, *options, *style)
    assert (code, err) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"margins.svg", "series.svg"}
    text = " ".join(out.split())
    assert "2 files" in text
    assert "over the first" in text
    assert "above 1000" in text


@pytest.mark.parametrize(
    ("names", "problem"),
    [(("1000", "1000"), "label '1000'"), (("base", "1000"), "policy name 'base'")],
)
def test_what_makes_no_series_is_an_error_before_anything_is_written(safevla, checkpoints, tmp_path, names, problem):
    runs = [f"{name}={checkpoints / file}.parquet" for name, file in zip(names, ("early", "late"), strict=True)]
    assert problem in safevla.refuses("figures", "--which", "series", *runs, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
