"""`compare`, `sensitivity`, `samplesize`, `gate`: what a user sees, the exit codes, and numbers that agree."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from builders import episode
from safevla_bench.archive import append
from safevla_bench.archive.npz import encode_npz
from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.sources.runs.parts import RawEpisode
from safevla_bench.sources.runs.writer import RunWriter


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    return demo.unpack_archive(tmp_path_factory.mktemp("demo") / "out")


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Two runs of one plan, in which the fake host's third task always crashes."""
    folder = tmp_path_factory.mktemp("fake")
    request = Request(host="fake", suites=("fake",), episodes=2, max_steps=60)
    for name, policies in (("one", ("random",)), ("two", ("scripted:hasty", "noop"))):
        roll_out(replace(request, policies=policies), folder / name)
    return folder


def archive(path, policy: str, count: int = 6, **changes: object):
    for k in range(count):
        append(path, episode(episode_id=f"{policy}/{k}", policy=policy, init_state_index=k, seed=0, **changes))
    return path


def test_the_demo_s_policies_are_compared_with_each_other(safevla, shipped):
    code, out, err = safevla("compare", shipped)
    assert (code, err) == (0, "")
    assert "2 policies on the same 10 episodes" in out
    assert "A = scripted:careful, B = scripted:hasty" in out
    assert re.search(r"all, pooled +Safety %‡ +50\.0 +8\.4–76\.3 +0\.031 .* 0\.125 +5:0  needs 6 tasks\n", out)
    assert "McNemar, mid-p (SR, Safety, Clean, SBU, P[U|S]); sign flips (VSI)" in out


def test_the_json_has_what_the_table_shows(safevla, shipped):
    found = json.loads(safevla("compare", shipped, "--metric", "safety", "--format", "json")[1])
    (metric,) = found["scopes"][-1]["metrics"]
    (difference,) = metric["differences"]
    assert (difference["only_first"], difference["only_second"], difference["p_value"]) == (
        5,
        0,
        pytest.approx(1 / 2**5),
    )
    assert [one["value"] for one in metric["standings"]] == [1.0, 0.5]
    assert (difference["p_by_task"], difference["tasks"], difference["better"]) == (0.125, 5, None)
    assert difference["tasks_needed"] == 6
    assert metric["primary"]


def test_a_run_against_itself_is_identical_on_all_pairs(safevla, shipped):
    _, out, _ = safevla("compare", shipped, shipped, "--policy", "scripted:hasty")
    assert "are identical on all 10 pairs: success, safety and severity." in out
    assert out.count("identical") == 19  # 18 numbers and the sentence


def test_runs_of_one_plan_are_paired_and_their_crashes_counted(safevla, fake):
    code, out, _ = safevla("compare", fake / "one", fake / "two")
    assert code == 0
    assert "3 policies on the same 4 episodes (2 lost by some)" in out
    assert "Crashed or stopped: random 2, scripted:hasty 2, noop 2" in out
    assert "Letters" in out
    assert "after adjustment for the pairs of policies (Holm)" in out
    assert "scripted:hasty saw simulator state" in out


@pytest.mark.parametrize("option", [["--mid-p"], ["--test", "boschloo"]])
def test_there_is_one_test_of_each_kind_to_choose(safevla, shipped, option):
    assert safevla("compare", shipped, *option)[0] == 2


def test_runs_that_are_no_pairs_are_refused_unless_taken_as_independent(safevla, fake, shipped):
    code, _, err = safevla("compare", fake / "one", shipped)
    assert code == 2
    assert "scripted:careful lacks 6 episodes that another ran: fake/task_0 state 0 seed 0" in err
    assert "--unpaired" in err
    code, _, err = safevla("compare", fake / "one", shipped, "--unpaired", "--policy", "random",
                           "--policy", "scripted:careful")  # fmt: skip
    assert code == 2
    assert "no task was run by two of the policies: random ran fake/task_0, fake/task_1; scripted:careful ran" in err
    code, out, _ = safevla("compare", fake / "one", shipped, "--unpaired", "--metric", "sr")
    assert code == 0
    assert "3 policies on independent episodes" in out
    assert "Only tasks that both policies ran are compared. Not run by all: fake/task_0 (random 2)" in out
    assert "Cochran-Mantel-Haenszel, mid-p (SR); none: no task that both ran (SR)" in out


def test_a_margin_says_what_is_equivalent(safevla, shipped):
    _, out, _ = safevla("compare", shipped, "--metric", "safety", "--margin", "99")
    assert "± 99" in out
    found = json.loads(safevla("compare", shipped, "--metric", "safety", "--margin", "99", "--format", "json")[1])
    assert found["margin"] == 0.99
    assert [one["differences"][0]["margin"] for scope in found["scopes"] for one in scope["metrics"]] == ["open"] * 3
    assert safevla("compare", shipped, "--margin", "0")[0] == 2


def test_seeds_that_differ_are_paired_on_request_only(safevla, tmp_path):
    one = archive(tmp_path / "one.jsonl", "a")
    other = tmp_path / "other.jsonl"
    for k in range(6):
        append(other, episode(episode_id=f"b{k}", policy="b", init_state_index=k, seed=1))
    assert safevla("compare", one, other)[0] == 2
    assert safevla("compare", one, other, "--across-seeds")[0] == 0


def test_records_without_an_initial_state_cannot_be_paired(safevla, tmp_path):
    path = tmp_path / "episodes.jsonl"
    for policy in ("a", "b"):
        append(path, episode(episode_id=f"{policy}0", policy=policy))
    code, _, err = safevla("compare", path)
    assert code == 2
    assert "do not say from which initial state" in err


def test_an_unknown_policy_is_named_with_those_there_are(safevla, shipped):
    code, _, err = safevla("compare", shipped, "--policy", "nobody")
    assert code == 2
    assert "no source has the policy 'nobody'" in err
    assert "scripted:careful, scripted:hasty" in err


def test_a_crash_in_a_run_folder_keeps_its_initial_state(fake):
    absent = scan([fake / "one"]).absent
    assert [(one.task_id, one.init_state_index, one.seed) for one in absent] == [("task_2", 0, 0), ("task_2", 1, 0)]


# Sensitivity


def test_sensitivity_shows_the_nine_variants_of_each_cell_and_the_means_of_each_host(safevla, shipped, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = safevla("sensitivity", shipped)
    assert code == 0
    assert out.count("Displacement 10 mm") == 6  # four cells, their mean, the ranking
    assert "Means of each host beside the paper's Table 9" in out
    found = json.loads(safevla("sensitivity", shipped, "--format", "json")[1])
    assert [len(curve["points"]) for curve in found["curves"]] == [9] * 4
    (mean,) = found["means"]
    assert (mean["host"], mean["cells"], len(mean["variants"])) == ("LIBERO", 4, 9)
    assert mean["variants"][1]["paper"]["safety"] == 0.764
    assert "Does the ranking by Safety change? Safest first: scripted:careful, scripted:hasty" in out
    assert "No pair of policies is shown to be turned over by any of the 9 variants." in out
    assert len(found["ranking"]["variants"]) == 9


def test_an_auxiliary_policy_is_kept_out_of_the_means_unless_it_is_to_be_included(safevla, shipped):
    def hosts(*options):
        found = json.loads(safevla("sensitivity", shipped, *options, "--format", "json")[1])
        return {mean["host"]: mean["policies"] for mean in found["means"]}

    both, hasty = ["scripted:careful", "scripted:hasty"], ["scripted:hasty"]
    assert hosts() == {"LIBERO": both}
    assert hosts("--auxiliary", "scripted:hasty") == {"LIBERO": both[:1], "auxiliary entries": hasty}
    assert hosts("--auxiliary", "scripted:hasty", "--include-auxiliary") == {"LIBERO": both}
    code, _, err = safevla("sensitivity", shipped, "--readings", "--include-auxiliary")
    assert code == 2
    assert "are about means" in err


def test_readings_are_tabulated_for_each_cell_with_what_changes(safevla, shipped, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = safevla("sensitivity", shipped, "--readings")
    assert code == 0
    for name in ("default", "default, prose depth", "paper-text", "paper-as-run"):
        assert out.count(f"  {name}  ") == 4
    found = json.loads(safevla("sensitivity", shipped, "--readings", "--format", "json")[1])
    assert found["readings"][1] == "default, prose depth"
    changed = [point["changes"]["changed"] for cell in found["cells"] for point in cell["points"]]
    assert [sum(changed[k::4]) for k in range(2)] == [0, 0]


def test_readings_and_sweeps_are_not_asked_together(safevla, shipped):
    assert safevla("sensitivity", shipped, "--readings", "--sweep", "force=100,200")[0] == 2


def test_sweeps_show_each_threshold_in_its_unit_and_mark_the_library_s(safevla, shipped, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    code, out, _ = safevla(
        "sensitivity", shipped, "--sweep", "non_target_max_disp=0.005,0.01", "--sweep", "force=100:500:3"
    )
    assert code == 0
    assert "[mm]" in out
    assert "5†" in out
    assert "[N]" in out
    assert "The library's threshold, 200 N" in out
    found = json.loads(safevla("sensitivity", shipped, "--sweep", "force=100:500:3", "--format", "json")[1])
    assert [one["thresholds"] for one in found] == [[100.0, 300.0, 500.0]]
    names = [variant["variant"] for variant in found[0]["ranking"]["variants"]]
    assert names == ["as it stands", "force=100", "force=300", "force=500"]


def test_a_library_that_must_be_judged_anew_is(safevla, shipped):
    code, out, _ = safevla("sensitivity", shipped, "--library", "paper-text")
    assert code == 0
    assert "All relaxed" in out


def test_a_mistaken_sweep_costs_no_judging(safevla, tmp_path):
    code, _, err = safevla("sensitivity", tmp_path / "absent", "--sweep", "forces=1,2")
    assert code == 2
    assert "did you mean 'force'?" in err


# Planning


def test_a_plan_says_how_many_episodes_the_verdict_takes_or_what_a_number_shows(safevla):
    code, out, _ = safevla("compare", "--plan", "5")
    assert code == 0
    assert out.startswith("It takes 135 episodes of each task, 1350 of each policy, to tell 80 % from 75 % on 10 tasks")
    assert "the difference is the same in each task and 35.0 % of the pairs differ" in out
    assert "tell 80 % from 75 % on 10 tasks" in safevla("compare", "--plan", "5", "--task-episodes", "50")[1]
    alone = json.loads(safevla("compare", "--plan", "5", "--discordant", "0.1", "--format", "json")[1])
    assert alone["episodes"] < 60
    code, out, _ = safevla("compare", "--plan", "20", "--task-count", "4")
    assert (code, out.split(". ")[0]) == (
        0, "No number of episodes tells 80 % from 60 % on 4 tasks, at 95 %, with a chance of 80 %",
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["--plan", "0"], ["--plan", "60", "--baseline", "0.5"], ["--plan", "5", "--sequential"], []]
)
def test_samplesize_refuses_what_cannot_be(safevla, arguments):
    assert safevla("compare", *arguments)[0] == 2


# Gates


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["--min-safety", "0.2", "--confidence", "none"], 0, "passed"),
        (["--min-safety", "0.2", "--min-sr", "0.9", "--confidence", "none"], 1, "failed"),
        (["--min-safety", "0.3"], 3, "undecided"),
        (["--min-safety", "0.3", "--confidence", "95"], 3, "undecided"),
        (["--max-vsi", "0.9", "--max-sbu", "0.9"], 0, "passed"),
    ],
)
def test_the_exit_code_of_a_gate_is_its_verdict(safevla, shipped, arguments, code, verdict):
    found = safevla("gate", shipped, *arguments)
    assert found[0] == code
    assert f"Gates: {verdict}" in found[1]
    assert json.loads(safevla("gate", shipped, *arguments, "--format", "json")[1])["verdict"] == verdict


def test_a_gate_writes_junit_xml_and_says_where(safevla, shipped, tmp_path):
    code, out, _ = safevla("gate", shipped, "--min-safety", "0.9", "--junit", tmp_path / "gate.xml")
    assert code == 1
    assert str(tmp_path / "gate.xml") in out
    root = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (root.get("tests"), root.get("failures")) == ("2", "1")


def test_a_run_with_crashes_passes_only_where_that_is_allowed(safevla, fake, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    point = ("--confidence", "none")
    code, out, _ = safevla("gate", fake / "two", "--min-safety", "0.7", *point)
    assert code == 3
    assert "unknown in 2 episodes (crashed); --allow-crashed gates the others" in out
    assert safevla("gate", fake / "two", "--min-safety", "0.7", "--allow-crashed", *point)[0] == 0
    assert safevla("gate", fake / "two", "--min-safety", "0.6", *point)[0] == 0  # as 4 of 6 pass
    assert safevla("gate", fake / "two", "--min-sr", "1", "--allow-crashed", *point)[0] == 1


def test_five_seeds_of_a_state_gate_as_one_observation(safevla, tmp_path):
    """Of 25 safe episodes from five states a limit of 0.6 is open: taken as independent they passed it."""
    of_five_states = [
        "--host",
        "fake",
        "--suite",
        "fake",
        "--policy",
        "noop",
        "--max-steps",
        "4",
        "--protocol",
        "safevla-bench-rl",
    ]
    for name, tasks, episodes in (("seeds", "0", "25"), ("states", "0", "5")):
        arguments = [*of_five_states, "--task", tasks, "--episodes", episodes, "--out", tmp_path / name]
        assert safevla("eval", "--record-only", *arguments)[0] == 0
    found = [
        json.loads(safevla("gate", tmp_path / name, "--min-safety", "0.6", "--format", "json")[1])["outcomes"][0]
        for name in ("seeds", "states")
    ]
    assert [one["n"] for one in found] == [25, 5]
    assert [one["verdict"] for one in found] == ["undecided", "undecided"]
    assert found[0]["ci"] == found[1]["ci"]


def test_an_interrupted_run_does_not_pass(safevla, tmp_path):
    one = episode(init_state_index=0)
    (header,) = one.headers
    row = RawEpisode(
        episode_id=header.episode_id,
        policy="a",
        benchmark=header.benchmark,
        task_id=header.task_id,
        episode=0,
        init_state_index=0,
        env_seed=None,
        seed=None,
        policy_seed=None,
        horizon=None,
        outcome="success",
        steps=3,
    )
    with RunWriter(tmp_path / "run", {"host": "fake"}) as writer:
        writer.add_episode(0, row, encode_npz(one))
    code, out, _ = safevla("gate", tmp_path / "run", "--min-safety", "0.1")
    assert code == 3
    assert "interrupted" in out


def test_skipped_episodes_do_not_pass(safevla, tmp_path):
    path = archive(tmp_path / "episodes.jsonl", "a")
    path.write_bytes(path.read_bytes() + b'{"episode_id": "bad"}\n')
    assert safevla("gate", path, "--min-safety", "0.1")[0] == 2
    code, out, _ = safevla("gate", path, "--min-safety", "0.1", "--skip-invalid")
    assert code == 3
    assert "1 invalid episode" in out


def test_a_gate_without_a_limit_is_a_mistake(safevla, shipped):
    code, _, err = safevla("gate", shipped)
    assert code == 2
    assert "there is no gate" in err
