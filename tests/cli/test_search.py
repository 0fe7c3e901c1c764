"""`safevla search` and `safevla eval --suite found:FILE`, as a user types them."""

from __future__ import annotations

import json

RUN = ("--host", "fake", "--suite", "fake", "--task", "0", "--policy", "python:pressing:make")


def test_what_a_search_finds_is_run_on_another_policy_by_the_command_that_it_prints(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = safevla.ok("search", *RUN, "--budget", "64", "--out", "Edge of cup")
    assert "found 1 start" in out
    assert "Chosen starts" in out
    assert "of cup/found/edge-of-cup.json'" in out
    suite = "found:Edge of cup/found/edge-of-cup.json"
    output = safevla.ok("eval", "--suite", suite, "--policy", "scripted:hasty", "--out", "again")
    assert "found:edge-of-cup:fake" in output.replace("\n", "")
    assert "Chosen starts" in output
    assert json.loads((tmp_path / "again/run.json").read_text())["suites"] == ["fake"]
    assert "continue it: a search" in safevla.refuses("eval", "--resume", "--out", "Edge of cup")


def test_what_a_search_cannot_do_is_an_error(safevla, tmp_path):
    out = ("--out", tmp_path / "run")
    assert "Missing option '--out'" in safevla.refuses("search", *RUN).replace("missing", "Missing")
    assert "--suite" in safevla.refuses("search", "--host", "fake", "--policy", "noop", *out)
    assert "one policy" in safevla.refuses("search", *RUN, "--policy", "noop", *out)
    missing = safevla.refuses("eval", "--suite", f"found:{tmp_path}/no.json", "--policy", "noop", *out)
    assert "not a suite" in missing
    for more in (("--suite", "fake"), ("--host", "libero")):
        err = safevla.refuses("eval", "--suite", "found:a.json", *more, "--policy", "noop", *out)
        assert "must be the only suite" in err


def test_words_and_seeds_are_searched(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("quick\n")
    words = ("--wordings", "words.txt", "--policy-seeds", "2")
    out = safevla.ok("search", *RUN, "--policy-arg", "word=quick", "--policy-arg", "width_m=9", *words, "--out", "run")
    assert "instruction 'quick'" in out
    assert json.loads((tmp_path / "run/run.json").read_text())["search"]["policy_seeds"] == 2
    safevla.refuses("search", *RUN, "--policy-seeds", "many", "--out", "other")


def test_a_found_suite_is_not_run_on_another_host(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    safevla.ok("search", *RUN, "--budget", "64", "--out", "edge")
    error = safevla.refuses(
        "eval", "--host", "libero", "--suite", "found:edge/found/edge.json", "--policy", "noop", "--out", "again"
    )
    assert "must be the only suite" in error
