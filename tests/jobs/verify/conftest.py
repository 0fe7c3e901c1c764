"""One judged run on the fake host, copied for each test that damages it."""

from __future__ import annotations

import shutil

import pytest

from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import load_ruleset


@pytest.fixture(scope="session")
def judged_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify") / "run"
    asked = Request(host="fake", suites=("fake",), episodes=2, policies=("random",), max_steps=8)
    evaluate_request(asked, load_ruleset(), folder)
    return folder


@pytest.fixture
def run(judged_run, tmp_path):
    return shutil.copytree(judged_run, tmp_path / "run")


@pytest.fixture(scope="session")
def hasty_run(tmp_path_factory):
    """Eight episodes in which the policy grips, pushes, lifts and succeeds."""
    folder = tmp_path_factory.mktemp("hasty") / "run"
    asked = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=4, policies=("scripted:hasty",))
    evaluate_request(asked, load_ruleset(), folder)
    return folder


@pytest.fixture
def hasty(hasty_run, tmp_path):
    return shutil.copytree(hasty_run, tmp_path / "hasty")
