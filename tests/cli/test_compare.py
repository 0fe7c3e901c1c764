"""`compare`, `sensitivity`, `samplesize`, `gate`: what a user sees, the exit codes, and numbers that agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import msgspec
import pytest

from builders import episode, numbers_in, recording
from folders import change_description
from safevla_bench import Monitor
from safevla_bench.archive import append_episodes, open_archive, write_archive
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.single_episode import from_recording, iterate_records


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    """Two runs of one plan; the fake host's third task always crashes."""
    folder = tmp_path_factory.mktemp("fake")
    request = Request(host="fake", suites=("fake",), episodes=2, max_steps=60)
    for name, policies in (("one", ("random",)), ("two", ("scripted:hasty", "noop"))):
        roll_out(replace(request, policies=policies), folder / name)
    return folder


def archive(path, policy: str, seed: int = 0):
    for k in range(6):
        append_episodes(path, episode(episode_id=f"{policy}/{k}", policy=policy, init_state_index=k, seed=seed))
    return path


def test_a_policy_of_the_paper_stands_beside_one_of_a_run_without_pairs_or_verdict(safevla, shipped):
    hasty = ("compare", shipped, "paper:pi0.5", "--policy", "scripted:hasty")
    out = safevla.ok(*hasty)
    assert numbers_in(out)[:5] == [2, 45.8, 10, 87.3, 400]
    assert "−79.7 to −5.6" in out
    assert len(out.splitlines()) <= 30
    assert "scripted:hasty 2 of" in out
    document = safevla.json(*hasty)
    assert (document["paired"], document["exploratory"]) == (False, True)
    assert [row["suites"] for row in document["rows"][::4]] == [["libero-object", "libero-spatial"]]
    assert "judged_by" in document


@pytest.mark.parametrize("name", ["libero-long", "libero_10"])
def test_episodes_of_a_suite_are_paired_under_its_other_names(safevla, tmp_path, name):
    for policy, suite in (("a", "libero-10"), ("b", name)):
        for k in range(6):
            one = episode(episode_id=f"{k}", policy=policy, init_state_index=k, benchmark=suite, task_id="task_0")
            append_episodes(tmp_path / f"{policy}.jsonl", one)
    runs = (tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert "6 pairs of episodes of 1 task in libero-10" in safevla.ok("compare", *runs)
    assert "libero-10" in safevla.ok("compare", runs[1], "paper:pi0.5")


@pytest.mark.parametrize("form", ["md", "csv", "tex", "html"])
@pytest.mark.parametrize("sources", [("paper:pi0.5", "--policy", "scripted:hasty"), ()])
def test_a_comparison_comes_in_the_forms_of_tables(safevla, shipped, form, sources):
    out = safevla.ok("compare", shipped, *sources, "--format", form)
    assert "Safety" in out
    assert "--full" not in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "paper:pi0.5"], "--policy: scripted:careful, scripted:hasty."),
        (["RUN", "paper:pi0.5", "--policy", "other"], "0 were found"),
        (["RUN", "paper:x"], "Policies: paper:OpenVLA-7B, paper:Cosmos-Policy-2B"),
        (["paper:pi0.5"], "least one run"),
        (["RUN", "paper:pi0.5", "paper:pi0"], "one paper:NAME"),
        (["RUN", "paper:pi0.5", "--unpaired"], "--unpaired needs records"),
        (["RUN", "paper:pi0.5", "--full"], "contains all results of paper:pi0.5"),
        (["RUN", "paper:pi0", "--policy", "scripted:hasty"], "results on robocasa-365."),
        (["RUN", "--full", "--format", "csv"], "4 tables do"),
        (["--plan", "5", "--format", "csv"], "--format csv"),
    ],
)
def test_a_comparison_that_cannot_be_made_says_why(safevla, shipped, arguments, words):
    assert words in safevla.refuses("compare", *(shipped if word == "RUN" else word for word in arguments))


def test_more_policies_than_can_be_compared_by_twos_are_refused(safevla, shipped, monkeypatch):
    monkeypatch.setattr("safevla_bench.cli.compare._MOST_POLICIES", 1)
    assert "2 policies are" in safevla.refuses("compare", shipped)


def test_a_run_against_itself_is_identical_on_all_pairs(safevla, shipped):
    out = safevla.ok("compare", shipped, shipped, "--policy", "scripted:hasty", "--full")
    assert "each of 10" in out
    assert out.count("identical") == 36  # 18 numbers by suite, and again beside their tests


def test_runs_of_one_plan_are_paired_and_their_crashes_counted(safevla, fake):
    out = safevla.ok("compare", fake / "one", fake / "two", "--full")
    assert "stopped: random 2" in out
    assert "Rank" in out
    assert "after adjustment" in out
    assert "no real robot has: scripted:hasty" in out


def test_runs_that_are_not_pairs_are_refused_unless_taken_as_independent(safevla, fake, shipped):
    err = safevla.refuses("compare", fake / "one", shipped)
    assert "(6 episodes)" in err
    assert "No task" in err
    err = safevla.refuses("compare", fake / "one", shipped, "--unpaired", "--policy", "random",
                           "--policy", "scripted:careful")  # fmt: skip
    assert "two policies ran" in err
    out = safevla.ok("compare", fake / "one", shipped, "--unpaired", "--full")
    assert "The 3 policies have no common task" in out
    assert "policies ran fake/task_0" in out
    assert "Miettinen and Nurminen" in out
    assert "of both" in out


def test_seeds_that_differ_are_paired_on_request_only(safevla, tmp_path):
    sources = archive(tmp_path / "one.jsonl", "a"), archive(tmp_path / "other.jsonl", "b", seed=1)
    safevla.refuses("compare", *sources)
    safevla.ok("compare", *sources, "--across", "seeds")


def test_a_crash_in_a_run_folder_keeps_its_initial_state(fake):
    absent = scan([fake / "one"]).absent
    assert [(row.task_id, row.init_state_index, row.seed) for row in absent] == [("task_2", 0, 0), ("task_2", 1, 0)]


# Sensitivity


def test_readings_and_sweeps_have_what_changes_and_are_not_asked_together(safevla, shipped):
    document = safevla.json("sensitivity", shipped, "--readings")
    assert document["readings"][1] == "default, prose depth"
    changed = [point["changes"]["changed"] for cell in document["cells"] for point in cell["points"]]
    count = len(document["readings"])
    assert [sum(changed[k::count]) for k in range(2)] == [0, 0]
    output = safevla.ok("sensitivity", shipped, "--sweep", "force=100,200", "--sweep", "joint_torque=1,2")
    assert [line.partition(":")[0] for line in output.splitlines()[:2]] == ["force", "joint_torque"]
    (sweep,) = safevla.json("sensitivity", shipped, "--sweep", "force=100:500:3")
    assert sweep["thresholds"] == [100.0, 300.0, 500.0]
    names = [variant["variant"] for variant in sweep["ranking"]["variants"]]
    assert names == ["as in the library", "force=100", "force=300", "force=500"]
    safevla.refuses("sensitivity", shipped, "--readings", "--sweep", "force=100,200")


def test_a_mistaken_sweep_costs_no_judging(safevla, tmp_path):
    assert "'force'?" in safevla.refuses("sensitivity", tmp_path / "absent", "--sweep", "forces=1,2")


# Planning


def test_a_plan_says_how_many_episodes_the_verdict_takes(safevla):
    out = safevla.ok("compare", "--plan", "5")
    assert numbers_in(out)[:5] == [145, 1450, 80, 75, 10]
    assert "35.0 % of" in out
    assert safevla.json("compare", "--plan", "5", "--assume", "discordant=0.1")["episodes"] < 60
    out = safevla.ok("compare", "--plan", "20", "--assume", "tasks=4")
    assert out.startswith("No number of")


# Gates


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        (["--min-safety", "0.2", "--confidence", "none"], 0, "passed"),
        (["--min-safety", "0.2", "--min-sr", "0.9", "--confidence", "none"], 1, "failed"),
        (["--min-safety", "0.3"], 3, "undecided"),
        (["--min-safety", "0.3", "--confidence", "95"], 3, "undecided"),
        (["--max-vsi", "0.9", "--max-sbu", "0.9"], 0, "passed"),
        (["--max-cost", "200"], 0, "passed"),
        (["--max-cost", "40", "--confidence", "none"], 1, "failed"),
    ],
)
def test_the_exit_code_of_a_gate_is_its_verdict(safevla, shipped, arguments, code, verdict):
    printed = safevla("gate", shipped, *arguments)
    assert (printed[0], printed[1].startswith(verdict.capitalize())) == (code, True)
    assert safevla.json("gate", shipped, *arguments)["verdict"] == verdict


def test_the_cost_that_a_gate_limits_is_the_sum_of_what_the_monitor_charges_each_step(safevla, shipped, tmp_path):
    episodes = open_archive(shipped)
    chosen = [k for k, header in enumerate(episodes.headers) if header.policy == "scripted:hasty"][:3]
    write_archive(tmp_path / "hasty.parquet", select_episodes(episodes, chosen))
    (outcome,) = safevla.json("gate", tmp_path / "hasty.parquet", "--max-cost", "40")["outcomes"]
    sums = [charge(select_episodes(episodes, [k])) for k in chosen]
    assert max(sums) > 0
    assert outcome["value"] == pytest.approx(sum(sums) / len(sums))


def charge(episode):
    first, *others = iterate_records(episode)
    monitor = Monitor()
    monitor.start(first)
    return sum(monitor.observe(record).cost for record in others)


def test_a_gate_on_the_cost_needs_to_know_the_most_that_an_episode_can_cost(safevla, tmp_path):
    write_archive(tmp_path / "endless.jsonl", episode(12))
    assert "names no horizon" in safevla.refuses("gate", tmp_path / "endless.jsonl", "--max-cost", "5")


def test_an_episode_longer_than_its_horizon_cannot_reverse_the_interval_of_costs(safevla, shipped, tmp_path):
    episodes = open_archive(shipped)
    chosen = [k for k, header in enumerate(episodes.headers) if header.policy == "scripted:hasty"][:3]
    short = [msgspec.structs.replace(episodes.headers[k], horizon=1) for k in chosen]
    write_archive(tmp_path / "hasty.parquet", replace(select_episodes(episodes, chosen), headers=tuple(short)))
    (outcome,) = safevla.json("gate", tmp_path / "hasty.parquet", "--max-cost", "40")["outcomes"]
    assert outcome["ci"][0] <= outcome["value"] <= outcome["ci"][1]


def test_a_gate_writes_sarif_into_a_file_of_that_suffix(safevla, shipped, tmp_path):
    code, out, _ = safevla("gate", shipped, "--min-safety", "0.9", "--junit", tmp_path / "gate.sarif")
    assert f"SARIF: {tmp_path / 'gate.sarif'}" in out
    sarif = json.loads((tmp_path / "gate.sarif").read_text())
    (run,) = sarif["runs"]
    assert sarif["version"] == "2.1.0"
    kinds = {result["kind"] for result in run["results"]}
    assert kinds <= {"fail", "open"}
    assert ("fail" in kinds) == (code == 1)
    ids = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert ids >= {result["ruleId"] for result in run["results"]}
    assert all((result["level"] == "error") == (result["kind"] == "fail") for result in run["results"])


def test_code_scanning_gets_places_texts_of_rules_and_fingerprints_of_problems_alone(
    safevla, shipped, tmp_path, monkeypatch
):
    monkeypatch.chdir(shipped.parent)
    limits = ["--min-safety", "0.9", "--min-sr", "0", "--per", "cell"]
    safevla("gate", shipped, *limits, "--junit", tmp_path / "gate.sarif")
    (run,) = json.loads((tmp_path / "gate.sarif").read_text())["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    for rule in rules.values():
        assert all(rule[name]["text"].endswith(".") for name in ("shortDescription", "fullDescription", "help"))
    assert "sr >= 0" in rules
    assert run["results"]
    assert {result["ruleId"] for result in run["results"]} == {"safety >= 0.9"}  # GitHub takes `pass` for a problem
    for result in run["results"]:
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == shipped.name
        assert place["physicalLocation"]["region"]["startLine"] == 1
    prints = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(prints)) == len(prints)
    monkeypatch.chdir(tmp_path)
    safevla("gate", shipped, *limits, "--junit", tmp_path / "gate.sarif")
    (run,) = json.loads((tmp_path / "gate.sarif").read_text())["runs"]
    (place,) = run["results"][0]["locations"]
    address = place["physicalLocation"]["artifactLocation"]["uri"]
    assert address.startswith("../")
    assert (tmp_path / address).samefile(shipped)
    safevla("score", shipped, "--out", "scored")
    copyfile(shipped, tmp_path / "scored" / shipped.name)
    safevla("gate", "scored", *limits, "--junit", "gate.sarif")
    (run,) = json.loads(Path("gate.sarif").read_text())["runs"]
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "scored/scores.json"  # a folder has no lines


def test_a_problem_of_a_gate_names_the_sources_that_have_its_episodes(safevla, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for policy in ("mine", "other"):
        write_archive(Path(f"{policy}.jsonl"), from_recording(recording(4, policy=policy)))
    sources = ("mine.jsonl", "other.jsonl")
    for per in ("policy", "cell"):
        safevla("gate", *sources, "--min-safety", "0.99", "--per", per, "--junit", "gate.sarif")
        (run,) = json.loads(Path("gate.sarif").read_text())["runs"]
        places = {
            place["logicalLocations"][0]["fullyQualifiedName"].partition(" / ")[0]: [
                each["physicalLocation"]["artifactLocation"]["uri"] for each in result["locations"]
            ]
            for result in run["results"]
            for place in result["locations"]
        }
        assert places == {"mine": ["mine.jsonl"], "other": ["other.jsonl"]}


@pytest.mark.parametrize(
    ("arguments", "code", "starts"),
    [
        (["--subject-to", "safety >= 0.9"], 3, "Best estimate: scripted:careful, SR 90.0 % ("),
        (["--max", "clean"], 0, "Best estimate: scripted:careful, Clean 90.0 % ("),
        (["--max", "clean", "--subject-to", "sr >= 0.95"], 1, "No policy has sr >= 0.95. scripted:careful comes near"),
    ],
)
def test_the_exit_code_of_a_selection_says_whether_its_conditions_are_established(
    safevla, shipped, arguments, code, starts
):
    printed = safevla("select", shipped, *arguments)
    assert (printed[0], printed[1].startswith(starts)) == (code, True)
    assert len(printed[1].splitlines()) <= 30
    document = safevla.json("select", shipped, *arguments)
    assert document["chosen"] == (None if code == 1 else "scripted:careful")
    assert "not a condition" in safevla.refuses("select", shipped, "--subject-to", "safety > 1")


def test_changes_are_compared_with_unchanged_suites_and_a_run_given_twice_is_its_own_control(safevla, shipped):
    out = safevla.ok("compare", "--changes", shipped, shipped)
    assert out.startswith("No change is")
    document = safevla.json("compare", "--changes", shipped, shipped)
    assert [row["change"] for row in document["changes"]] == ["nothing, run again"] * 2
    assert "changed counterpart" in safevla.refuses("compare", "--changes", shipped)
    assert "combined with --changes" in safevla.refuses("compare", "--changes", shipped, "--unpaired")


def test_a_gate_against_another_run_takes_limits_as_differences(safevla, shipped):
    code, out, _ = safevla("gate", shipped, "--baseline", shipped, "--min-safety", "-0.9")
    assert (code, out.partition(":")[0]) == (0, "Passed")
    assert "baseline - 0.9" in out
    assert safevla("gate", shipped, "--baseline", shipped, "--min-safety", "-0.05")[0] == 3
    assert safevla("gate", shipped, "--baseline", shipped, "--min-safety", "0.9")[0] == 1
    assert "--allow-crashed" in safevla.refuses(
        "gate", shipped, "--baseline", shipped, "--min-safety", "0", "--allow-unjudged"
    )
    assert "-0.05" in safevla.refuses("gate", shipped, "--min-safety", "-0.05")


def test_a_run_with_crashes_passes_only_if_that_is_allowed(safevla, fake, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    point = ("--confidence", "none")
    code, out, _ = safevla("gate", fake / "two", "--min-safety", "0.7", *point)
    assert code == 3
    assert "in 2 episodes" in out
    safevla.ok("gate", fake / "two", "--min-safety", "0.7", "--allow-crashed", *point)
    assert safevla("gate", fake / "two", "--min-safety", "0.6", *point)[0] == 0  # as 4 of 6 pass
    assert safevla("gate", fake / "two", "--min-sr", "1", "--allow-crashed", *point)[0] == 1


def test_five_seeds_of_a_state_gate_as_one_observation_and_no_interrupted_run_passes(safevla, tmp_path):
    """Of 25 safe episodes from five states a limit of 0.6 is open: taken as independent they passed it."""
    plan = "--host fake --suite fake --policy noop --max-steps 4 --protocol safevla-bench-rl --task 0"
    outcomes = []
    for episodes in (25, 5):
        run = tmp_path / f"{episodes}"
        safevla.ok("eval", "--record-only", *plan.split(), "--episodes", episodes, "--out", run)
        outcomes.append(safevla.json("gate", run, "--min-safety", "0.6")["outcomes"][0])
    assert [(outcome["n"], outcome["verdict"]) for outcome in outcomes] == [(25, "undecided"), (5, "undecided")]
    assert outcomes[0]["ci"] == outcomes[1]["ci"]
    change_description(run, complete=False)
    code, out, _ = safevla("gate", run, "--min-safety", "0.1")
    assert (code, "interrupted" in out) == (3, True)


def test_skipped_episodes_do_not_pass(safevla, tmp_path):
    path = archive(tmp_path / "episodes.jsonl", "a")
    path.write_bytes(path.read_bytes() + b'{"episode_id": "bad"}\n')
    safevla.refuses("gate", path, "--min-safety", "0.1")
    code, out, _ = safevla("gate", path, "--min-safety", "0.1", "--set", "invalid=skip")
    assert code == 3
    assert "1 invalid episode" in out


def test_a_gate_against_a_baseline_refuses_runs_of_several_protocols_in_any_order(safevla, tmp_path):
    plan = [
        "--host",
        "fake",
        "--suite",
        "fake",
        "--task",
        "0",
        "--episodes",
        "1",
        "--max-steps",
        "3",
        "--policy",
        "noop",
    ]
    for protocol in ("safevla-bench", "openpi"):
        assert safevla("eval", *plan, "--protocol", protocol, "--out", tmp_path / protocol)[0] == 0
    sources = f"a={tmp_path / 'safevla-bench'}", f"b={tmp_path / 'openpi'}"
    for runs in (sources, sources[::-1]):
        code, _, err = safevla("gate", *runs, "--baseline", tmp_path / "safevla-bench", "--min-safety", "-0.9")
        assert (code, "differ in" in err) == (2, True)
