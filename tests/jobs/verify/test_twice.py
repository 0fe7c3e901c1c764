"""The same run twice gives the same bytes in every file, wherever it is written, but for the facts of the day."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from folders import contents
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.sources.runs.parts import FORMS

FAKE = Request(host="fake", suites=("fake",), tasks=(0, 2), episodes=2, policies=("random", "noop"), max_steps=6)
LIBERO = Request(host="libero", suites=("libero-object",), tasks=(0,), policies=("random", "noop"), max_steps=4)


def twice(asked, tmp_path):
    """The same run in two places, said to be of two days."""
    made = []
    for day in ("monday", "tuesday"):
        folder = tmp_path / day / "run"
        folder.parent.mkdir()
        evaluate_request(replace(asked, volatile={"started": day}), load_ruleset(), folder)
        made.append(folder)
    return made


def same_but_for_the_day(one, other):
    assert contents(one) == contents(other)
    held = [json.loads((folder / RUN).read_bytes()) for folder in (one, other)]
    assert held[0] != held[1]
    assert held[0].pop("volatile") != held[1].pop("volatile")
    assert held[0] == held[1]


@pytest.mark.parametrize("form", FORMS)
def test_on_the_fake_host(tmp_path, form):
    one, other = twice(replace(FAKE, archive=form), tmp_path)
    same_but_for_the_day(one, other)
    assert {"run.json", "manifest.json", "episodes.parquet", "scores.json", "scores.parquet", "report.html"} <= set(
        contents(one)
    )


@pytest.mark.long
@pytest.mark.libero
def test_on_libero(tmp_path):
    same_but_for_the_day(*twice(LIBERO, tmp_path))
