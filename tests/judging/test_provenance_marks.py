"""Numbers that rest on stand-ins for a simulator's assets, or on several simulators, are never shown in silence."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from builders import crash, numbers_in
from report.figures import figure_texts
from report.scenes import joined, rollout, verdicts
from safevla_bench.archive import write_archive
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.explain import episode, query
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import build_board, render_report, score_files, table_material
from safevla_bench.judging import gates, metrics, provenance_marks
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.viewers import build_timeline
from safevla_bench.publishing import result_files, submission
from safevla_bench.report import episode_list, figures, terminal
from safevla_bench.report.figures import curves, violations
from safevla_bench.report.page import render_page
from safevla_bench.report.tables import catalog
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.report.tables import episodes as query_tables
from safevla_bench.report.tables import notices as gating
from safevla_bench.report.tables import sensitivity as varying
from safevla_bench.report.tables.cells import Roster
from safevla_bench.sensitivity.curves import cell_curves, parse_sweep, sweep_threshold
from safevla_bench.specs.loader import load_library
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.marks import FOREIGN_LOG, STANDIN
from safevla_recorder.episode import add_header_mark

KITCHEN, TABLE = "robocasa-365", "libero-goal"
STANDINS = f"Stand-in assets: {KITCHEN} was simulated with placeholders"


def is_of_standins(warning: str) -> bool:
    return warning.startswith(STANDINS)


def texts_of(figure) -> str:
    return " ".join(figure_texts.read(figure))


def mark(scores: Scores) -> Scores:
    """The scores with the mark on every episode of the kitchen."""
    return replace(scores, marks={STANDIN: np.array([name == KITCHEN for name in scores.benchmark])})


SCORES = mark(
    joined(
        *(
            verdicts((True, 1, 1), (True, -5, 1), (False, 1, -2), suite=suite, policy=policy, task_id=(task,) * 3)
            for policy in "ab"
            for suite, task in ((TABLE, "task_1"), (KITCHEN, "OpenDrawer"))
        )
    )
)
RECORDS = concatenate_batches(
    [
        rollout(
            3, 1.0, episode_id=f"{policy}/{suite}", policy=policy, benchmark=suite, task_id=task, init_state_index=0
        )
        for policy in "ab"
        for suite, task in ((TABLE, "task_1"), (KITCHEN, "PickPlaceCounterToStove"))
    ]
)
BATCH = replace(
    RECORDS,
    extra=tuple(
        add_header_mark(extra, STANDIN) if header.benchmark == KITCHEN else extra
        for header, extra in zip(RECORDS.headers, RECORDS.extra, strict=True)
    ),
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Judged:
    path = tmp_path_factory.mktemp("standins") / "both.jsonl"
    write_archive(path, BATCH)
    return judge([path], load_ruleset())


def test_the_mark_of_a_record_is_in_its_verdict_its_cell_and_the_aggregate():
    scores = score(BATCH, load_ruleset())
    assert scores.is_marked(STANDIN).tolist() == [False, True, False, True]
    assert [item.standin_assets for item in scores.episodes()] == [False, True, False, True]
    assert [item.standin_assets for item in metrics.cells(scores)] == [False, True, False, True]
    assert metrics.aggregate(scores).standin_assets
    assert list(scores.to_pandas()["standin_assets"]) == [False, True, False, True]
    chosen = scores.select_episodes(np.array([2, 0]))
    assert not metrics.aggregate(chosen).standin_assets
    assert not any(map(is_of_standins, provenance_marks.warn_of_scores(chosen)))


def test_tables_mark_stand_in_numbers_if_others_had_the_real_assets():
    (warning,) = provenance_marks.warn_of_standins(
        {("a", "k"): True, ("b", "k"): False, ("a", "t"): False, (None, "m"): True}
    )
    assert warning.startswith("Stand-in assets: k (a), m were")
    assert warning.endswith("on them.")


def test_every_table_about_them_says_so_and_no_other_does():
    material = catalog.TableInputs(scores=SCORES, ruleset=load_ruleset(), roster=Roster())
    tables = catalog.build_tables(material)
    apart = {table.title: any(item.startswith(STANDINS) for item in table.remarks) for table in tables}
    assert all(is_said == ("LIBERO" not in title) for title, is_said in apart.items()), apart
    assert len(set(apart.values())) == 2


def test_a_sweep_says_so_as_a_table_a_figure_and_a_document(judged):
    sweep = parse_sweep("joint_torque=0.5,1,2", load_library())
    result = sweep_threshold(judged.scores, load_library(), sweep)
    assert any(map(is_of_standins, result.warnings))
    as_it_stands = cell_curves(judged.scores, [judged.scores])
    assert varying.variant_table(varying.name_variants(result, as_it_stands)).remarks == result.warnings
    assert "not results on" in str(texts_of(curves.draw_sweep(result, load_library())))


def test_a_comparison_says_so(judged):
    result = compare_policies(split_by_policy(judged.scores, judged.records.headers))
    assert any(map(is_of_standins, result.warnings))


def test_a_gate_says_so_in_its_table_and_for_continuous_integration():
    result = gates.check_gates(SCORES, [gates.Gate("safety", "min", 0.1)])
    assert gating.gate_table(result).remarks == result.warnings == provenance_marks.warn_of_scores(SCORES)
    assert f'<property name="warning" value="{STANDINS}'.encode() in gating.format_junit(result)


def test_listed_and_explained_episodes_say_so(judged):
    rows = episode_list.list_episodes(judged.scores, judged.records.dt_s)
    assert episode_tables.episode_list_table(rows, len(rows)).remarks[0].startswith(STANDINS)
    assert episode_tables.episode_list_table(rows[:1], len(rows)).remarks == ()
    kitchen, table = (episode.explain_episode(judged.scores, BATCH, load_ruleset(), k) for k in (1, 0))
    assert STANDINS in " ".join(terminal.format_explanation(kitchen, width=400).split())
    assert episode.to_document(kitchen)["standin_assets"] is True
    assert "Stand-in" not in terminal.format_explanation(table)
    answers = query.answer_query(formula := query.parse_query("G[0,T](max_contact_force < 200)"), BATCH)
    assert query_tables.answer_table(formula, answers).remarks[0].startswith(STANDINS)
    assert build_timeline(judged.scores, BATCH, load_ruleset(), 1).facts["standin_assets"] == "true"
    assert "standin_assets" not in build_timeline(judged.scores, BATCH, load_ruleset(), 0).facts


def test_score_files_the_page_and_the_board_say_so(judged, tmp_path):
    document = json.loads(score_files(judged)["scores.json"])
    assert [item["standin_assets"] for item in document["cells"]] == [False, True, False, True]
    html = render_page(judged.scores, None, load_ruleset(), title="t")
    assert f"<b>Stand-in assets:</b>{STANDINS.partition(':')[2]}" in html
    assert html.count(STANDINS) == 1  # below the headline table
    assert "privileged" not in html
    assert ", stand-in assets</span>" in html
    site = build_board(list(judged.paths), load_ruleset(), reports=False)
    assert STANDINS in site["index.html"]


def test_exports_do_not_pass_for_results_on_the_suite(judged):
    text = result_files.format_authors_csv(judged.summarize_scores()[0], load_library(), [])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["benchmark_suite"] for row in rows][:2] == ["libero_goal", "robocasa365_atomic_seen (stand-in assets)"]
    cells = submission.build_submission(judged, judged.paths)["cells"]
    assert [item["standin_assets"] for item in cells] == [False, True, False, True]


def test_an_unmarked_score_says_nothing():
    assert provenance_marks.warn_of_scores(verdicts((True, 1, 1))) == ()


# The simulator's versions

OLD = {"mujoco": "3.2.3", "robosuite": "1.4.0"}
NEW = {"mujoco": "3.17.0", "robosuite": "1.4.0"}
MIXED = replace(SCORES, marks={}, simulator=tuple(OLD if policy == "a" else NEW for policy in SCORES.policy))
PLAIN = replace(MIXED, simulator=(OLD,) * len(MIXED))
MIXTURE = "Several physics versions: libero-goal: mujoco 3.2.3 (a) and 3.17.0 (b)"


def set_versions(batch, versions):
    """The records with these versions for each policy."""
    headers = tuple(msgspec.structs.replace(header, versions=versions[header.policy]) for header in batch.headers)
    return replace(batch, headers=headers)


@pytest.fixture
def runs_of_two_versions(tmp_path):
    """Two policies' records, each with a MuJoCo of its own, and NumPy beside it."""
    versions = {"a": OLD | {"numpy": "1.26.4"}, "b": NEW | {"numpy": "1.26.4"}}
    write_archive(tmp_path / "both.jsonl", set_versions(RECORDS, versions))
    return tmp_path / "both.jsonl"


def test_the_versions_of_a_record_are_in_its_verdict_its_cell_and_every_file_of_scores(runs_of_two_versions):
    judged = judge([runs_of_two_versions], load_ruleset())
    assert [row.simulator for row in judged.scores.episodes()] == [OLD, OLD, NEW, NEW]
    cells, total = judged.summarize_scores()
    assert [cell.simulator["mujoco"] for cell in cells] == [("3.2.3",), ("3.2.3",), ("3.17.0",), ("3.17.0",)]
    assert total.simulator == {"mujoco": ("3.17.0", "3.2.3"), "robosuite": ("1.4.0",)}
    files = score_files(judged)
    document = json.loads(files["scores.json"])
    assert document["episodes"][3]["simulator"] == NEW
    assert document["cells"][0]["simulator"]["mujoco"] == ["3.2.3"]
    table = pq.read_table(io.BytesIO(files["scores.parquet"]))
    assert {pair["key"]: pair["value"] for pair in table["simulator"][3].as_py()} == NEW
    assert judged.scores.select_episodes(np.array([3])).simulator == (NEW,)


def test_exports_name_the_versions(runs_of_two_versions):
    judged = judge([runs_of_two_versions], load_ruleset())
    rows = csv.DictReader(
        io.StringIO(result_files.format_authors_csv(judged.summarize_scores()[0], load_library(), []))
    )
    assert {row["model"]: row["simulator"] for row in rows} == {
        "a": "mujoco 3.2.3; robosuite 1.4.0",
        "b": "mujoco 3.17.0; robosuite 1.4.0",
    }
    submitted = submission.build_submission(judged, [runs_of_two_versions])
    assert [cell["simulator"]["mujoco"] for cell in submitted["cells"]] == [("3.2.3",)] * 2 + [("3.17.0",)] * 2


def test_a_table_of_one_simulator_names_it_and_one_of_several_is_marked(runs_of_two_versions, tmp_path):
    material = table_material(judge([runs_of_two_versions], load_ruleset()))
    for table in catalog.build_tables(material):
        assert any("mujoco 3.17.0" in remark for remark in table.remarks), table.title
    write_archive(tmp_path / "one.jsonl", set_versions(RECORDS, {"a": OLD, "b": OLD}))
    single = table_material(judge([tmp_path / "one.jsonl"], load_ruleset()))
    for table in catalog.build_tables(single):
        assert "mujoco 3.2.3, robosuite" in str(table.remarks)
        assert not any("Several physics" in remark for remark in table.remarks)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_of_stand_ins_or_several_versions_says_so(name):
    inputs = figures.FigureInput(
        replace(MIXED, marks=SCORES.marks), np.full(len(SCORES), 0.05), np.full(len(SCORES), 9)
    )
    words = texts_of(figures.FIGURES[name].draw(inputs))
    assert "not results on" in words
    assert "Several physics versions" in words
    plain = texts_of(figures.FIGURES[name].draw(replace(inputs, scores=PLAIN)))
    assert "Stand-in" not in plain
    assert "physics" not in plain


def test_a_gate_and_a_report_of_several_versions_say_so(runs_of_two_versions):
    (warning,) = gates.check_gates(MIXED, [gates.Gate("safety", "min", 0.1)]).warnings
    assert warning.startswith(MIXTURE)
    assert gates.check_gates(PLAIN, [gates.Gate("safety", "min", 0.1)]).warnings == ()
    page = render_report(judge([runs_of_two_versions], load_ruleset()))
    assert "Several physics versions" in page
    assert "across physics versions" in page


def test_records_without_versions_have_no_warning():
    assert provenance_marks.describe_simulators(provenance_marks.simulator_by_cell(SCORES)) == ""
    unknown = replace(SCORES, marks={}, simulator=({},) * len(SCORES))
    assert provenance_marks.warn_of_scores(unknown) == ()
    half = replace(unknown, simulator=(OLD, *({},) * (len(SCORES) - 1)))
    assert provenance_marks.warn_of_scores(half) == ()


def test_suites_of_several_simulators_are_named_with_each():
    cells = {("a", "table"): {"mujoco": ("3.2.3",)}, ("a", "kitchen"): {"mujoco": ("3.3.1",)}, ("a", "yard"): {}}
    assert "mujoco 3.3.1 (kitchen)" in provenance_marks.describe_simulators(cells)
    assert provenance_marks.find_mixtures(cells) == []


def test_a_policy_that_mixes_versions_by_itself_is_marked():
    cells = {("a", "table"): {"mujoco": ("3.17.0", "3.2.3")}}
    assert ["3.17.0 (a) and" in mixture for mixture in provenance_marks.find_mixtures(cells)] == [True]


def test_tasks_whose_initial_states_do_not_hold_are_named_if_they_are_among_the_episodes():
    bad = verdicts((True, 1, 1), suite="libero-10", task_id=("task_1",))
    (warning,) = provenance_marks.warn_of_scores(replace(bad, simulator=(NEW,)))
    assert warning.startswith("Known difference: mujoco")
    assert provenance_marks.warn_of_scores(replace(bad, simulator=(OLD,))) == ()
    fine = verdicts((True, 1, 1), suite="libero-10", task_id=("task_2",))
    assert provenance_marks.warn_of_scores(replace(fine, simulator=(NEW,))) == ()


# Clauses that were left out on request


def partial_scores() -> Scores:
    """Three episodes, one of them judged without its force."""
    scores = verdicts((True, 1, 1), (True, np.nan, -2), (False, 1, 2), suite=TABLE)
    return replace(scores, reasons=("", "signal_missing:contacts"))


LEFT_OUT = "Left out of the judgement: force in 1 of 3 episodes (signal missing: contacts)."


def test_a_clause_left_out_stands_under_every_headline():
    scores = partial_scores()
    cells = metrics.cells(scores)
    assert provenance_marks.warn_of_scores(scores) == provenance_marks.warn_of_cells(cells) == (LEFT_OUT,)
    report = gates.check_gates(scores, [gates.Gate("safety", "min", 0.1)])
    assert report.warnings == (LEFT_OUT,)
    assert LEFT_OUT in render_page(scores, None, load_ruleset(), title="t")
    assert violations.compute_margins(scores).remarks == (LEFT_OUT,)


def test_what_no_tag_lets_apply_is_not_left_out():
    scores = verdicts((True, 1, 1), (True, np.nan, -2), suite=TABLE)
    assert provenance_marks.warn_of_scores(scores) == provenance_marks.warn_of_cells(metrics.cells(scores)) == ()


def test_a_part_of_a_sample_of_tasks_is_said_to_be_one():
    sample = {"pkg": "1.0 (sample of 1,000 of 10,030 tasks, 0123)", "mujoco": "3.2.3"}
    scores = replace(SCORES, simulator=(sample,) * len(SCORES))
    ran = {
        (policy, suite, task)
        for policy, suite, task in zip(scores.policy, scores.benchmark, scores.task_id, strict=True)
    }
    counts = Counter(policy for policy, *_ in ran)
    said = [
        f"{policy} ran {count} of the 1,000 tasks in the sample of pkg; the numbers cover only those tasks."
        for policy, count in counts.items()
    ]
    assert sorted(provenance_marks.warn_of_samples(scores)) == sorted(said)
    assert {*said} <= {*provenance_marks.warn_of_records(scores)}
    whole = {"pkg": f"1.0 (sample of {min(counts.values())} of 10,030 tasks, 0123)"}
    assert not provenance_marks.warn_of_samples(replace(scores, simulator=(whole,) * len(scores)))
    assert not provenance_marks.warn_of_samples(SCORES)


def test_cells_and_scores_have_the_same_warnings_and_crashes_are_no_records():
    assert provenance_marks.warn_of_cells(metrics.cells(SCORES)) == provenance_marks.warn_of_scores(SCORES)
    crashed = replace(partial_scores(), absent=(crash(benchmark=TABLE),))
    assert provenance_marks.warn_of_cells(metrics.cells(crashed)) == (LEFT_OUT,)


def test_tasks_that_are_not_official_are_counted_over_policies_and_suites():
    differs, unknown = "differs:task definition", "identity_not_recorded"
    cells = {("a", "s"): {differs: 2, "official": 1, "": 3}, (None, "t"): {differs: 1, unknown: 4}, ("b", "u"): {"": 1}}
    own, other = provenance_marks.warn_of_identities(cells)
    assert (own.split(":")[0], other.split(":")[0]) == (
        "Not the official tasks",
        "Not known to be the official tasks",
    )
    assert (numbers_in(own), numbers_in(other)) == ([3], [4])
    assert "of a, unnamed on s, t" in own


def test_records_without_a_pose_are_counted_over_scored_clauses_at_most_once_an_episode():
    counts = np.zeros((3, len(SCORES)), dtype=np.int64)
    counts[0, 1], counts[1, 1], counts[0, 2], counts[2, 0] = 2, 5, 1, 9
    (warning,) = provenance_marks.warn_of_unknown_poses(replace(SCORES, unknown=counts))
    assert numbers_in(warning) == [2, len(SCORES), 5, 6]
    assert provenance_marks.warn_of_unknown_poses(replace(SCORES, unknown=0 * counts)) == ()
    assert provenance_marks.warn_of_unknown_poses(SCORES) == ()


@pytest.mark.parametrize(("tilt", "numbers", "others"), [(-2, [2, 1, 2], "tilt"), (np.nan, [2, 2, 2], "none")])
def test_specifications_that_no_log_of_a_robot_can_show_are_named(tilt, numbers, others):
    logs = verdicts((True, np.nan, tilt), (True, np.nan, tilt), (True, 1, 1), suite="yard")
    logs = replace(logs, marks={FOREIGN_LOG: np.array([True, True, False])})
    (warning,) = provenance_marks.warn_of_logs(logs)
    assert numbers_in(warning) == numbers
    assert warning.endswith(f"Safety of yard covers only these specifications: {others}.")
    assert warning in provenance_marks.warn_of_cells(metrics.cells(logs))


def test_logs_in_which_every_specification_is_judged_somewhere_say_nothing():
    logs = verdicts((True, np.nan, 1), (True, 1, 1))
    logs = replace(logs, marks={FOREIGN_LOG: np.array([True, True])})
    assert provenance_marks.warn_of_logs(logs) == ()
    assert metrics.aggregate(logs).logs.inactive == {"force": 1, "tilt": 0}
    assert provenance_marks.warn_of_logs(replace(logs, marks={})) == ()


@pytest.mark.parametrize(
    ("audit", "verdict", "badge"),
    [
        ({"drawn": ("e0",)}, "agrees", "with K = 1 draws"),
        ({"drawn": ("e0", "e1", "e2")}, "agrees", "every recorded episode"),
        ({"drawn": ("e0",), "uncompared": ("images",)}, "agrees", "not compared: images"),
        ({"drawn": ("e0", "e1"), "differing": ("e0 differs",)}, "differs", "1 of 2 replayed"),
        ({"drawn": ("e0",), "unreplayed": ("no simulator",)}, "unchecked", "no simulator"),
        ({"drawn": ()}, "unchecked", "there is no record"),
    ],
)
def test_an_audit_agrees_only_if_all_drawn_episodes_were_replayed_and_none_differs(audit, verdict, badge):
    mark = provenance_marks.AuditMark(episodes=3, **audit)
    assert mark.verdict == verdict
    assert badge in mark.badge
