"""`eval --filter` and `--delay`, and what the commands behind them say of such runs."""

from __future__ import annotations

import json

import pytest

from safevla_bench.sources.runs.folder import REPORT, read_description

RUN = ("--host", "fake", "--suite", "fake", "--task", "0", "--episodes", "2", "--max-steps", "15")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def policies(folder):
    return {row["policy"]: row for row in read_description(folder)["policies"]}


def test_a_run_with_and_one_without_a_filter_are_compared_on_the_same_starts(safevla, tmp_path):
    safevla.ok("eval", *RUN, "--policy", "random", "--out", "without")
    out = safevla.ok("eval", *RUN, "--policy", "random", "--filter", "speed-cap", "--out", "with")
    assert "the filter speed-cap" in out
    output = safevla.ok("compare", "without", "with")
    assert "With random (filter=speed-cap), " in output
    assert "2 pairs" in output
    (item,) = json.loads(safevla.ok("compare", "without", "with", "--format", "json"))["interventions"]
    assert (item["policy"], item["without"]) == ("random (filter=speed-cap)", "random (no filter)")
    assert item["changed"] <= item["actions"] == 30
    safevla.ok("score", "without", "with", "--out", "both")
    page = (tmp_path / "both" / REPORT).read_text()
    assert "a filter changed" in page
    assert "clean successes" in page
    assert "compared: policy_action" in safevla.ok("verify", "with", "--replay", "2")


def test_filters_and_delays_may_be_of_one_policy_alone(safevla, tmp_path):
    roster = ("--policy", "raw=random", "--policy", "random")
    safevla.ok("eval", *RUN, *roster, "--filter", "random=speed-cap:share=0.2", "--delay", "raw=2", "--out", "run")
    rows = policies(tmp_path / "run")
    assert (rows["random"]["filter"], rows["raw"]["delay"]) == ("speed-cap:share=0.2", "2")
    assert "filter" not in rows["raw"]
    assert "delay" not in rows["random"]
    assert "With random, " in safevla.ok("compare", "run")
    safevla.ok("eval", "--resume", "--out", "run")


def test_the_last_of_several_values_counts_even_if_it_was_given_before(safevla, tmp_path):
    delays = [word for delay in ("random=2", "random=3", "random=2", "5", "6", "5") for word in ("--delay", delay)]
    safevla.ok("eval", *RUN, "--policy", "random", "--policy", "noop", *delays, "--out", "run")
    rows = policies(tmp_path / "run")
    assert (rows["random"]["delay"], rows["noop"]["delay"]) == ("2", "5")


def test_runs_that_differ_in_their_delay_make_a_series(safevla, tmp_path):
    for delay in ("0", "2"):
        safevla.ok("eval", *RUN, "--policy", "random", "--delay", delay, "--out", f"d{delay}")
    out = safevla.ok("figures", "--which", "series", "0=d0", "2=d2", "--format", "svg", "--out", "figures")
    assert "their labels" in out
    assert (tmp_path / "figures" / "series.svg").exists()
    assert "2 control steps" in safevla.ok("score", "d2")


def test_an_unknown_filter_is_an_error_before_anything_is_written(safevla, tmp_path):
    error = safevla.refuses("eval", *RUN, "--policy", "random", "--filter", "x=speed-cap", "--out", "run")
    assert "filter 'x=speed-cap'" in error
    assert not (tmp_path / "run").exists()
