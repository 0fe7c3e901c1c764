"""Numbers that rest on stand-ins for a simulator's assets are never shown without saying so."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from report.figures import figure_texts
from report.scenes import SPECS, joined, rollout, verdicts
from safevla_bench import compare, evaluate, gates, metrics, provenance_marks, sensitivity, viewers
from safevla_bench.archive import write_archive
from safevla_bench.explain import episode, query
from safevla_bench.report import authors_csv, episode_list, figures, render_page, terminal
from safevla_bench.report.figures import sweeps
from safevla_bench.report.tables import Roster, catalog
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.report.tables import episodes as query_tables
from safevla_bench.report.tables import gates as gating
from safevla_bench.report.tables import sensitivity as varying
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scores import Scores
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.trajectory import concatenate_batches, mark_standin

KITCHEN, TABLE = "robocasa-365", "libero-goal"
SAID = f"Stand-in assets: {KITCHEN} was simulated with placeholders"


def said(figure) -> str:
    return " ".join(text for text, _ in figure_texts.words(figure))


def marked(scores: Scores) -> Scores:
    """The scores with the mark on every episode of the kitchen."""
    return replace(scores, standin=tuple(name == KITCHEN for name in scores.benchmark))


SCORES = marked(
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
        mark_standin(extra) if header.benchmark == KITCHEN else extra
        for header, extra in zip(RECORDS.headers, RECORDS.extra, strict=True)
    ),
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> evaluate.Judged:
    path = tmp_path_factory.mktemp("standins") / "both.jsonl"
    write_archive(path, BATCH)
    return evaluate.judge([path], load_ruleset())


def test_the_mark_of_a_record_is_in_its_verdict_its_cell_and_the_aggregate():
    scores = score(BATCH, load_ruleset())
    assert scores.standin == (False, True, False, True)
    assert [one.standin_assets for one in scores.episodes()] == [False, True, False, True]
    assert [one.standin_assets for one in metrics.cells(scores)] == [False, True, False, True]
    assert metrics.aggregate(scores).standin_assets
    assert list(scores.to_pandas()["standin_assets"]) == [False, True, False, True]
    chosen = scores.select_episodes(np.array([2, 0]))
    assert not metrics.aggregate(chosen).standin_assets
    assert provenance_marks.warn_of_scores(chosen) == ()


def test_whose_numbers_they_are_is_said_where_others_had_the_real_assets():
    (told,) = provenance_marks.warn_of_standins(
        {("a", "k"): True, ("b", "k"): False, ("a", "t"): False, (None, "m"): True}
    )
    assert told.startswith("Stand-in assets: k (a), m were simulated")
    assert told.endswith("no results on them.")


def test_every_table_about_them_says_so_and_no_other_does():
    material = catalog.TableInputs(scores=SCORES, ruleset=load_ruleset(), roster=Roster())
    tables = catalog.build_tables(material)
    apart = {table.title: any(one.startswith(SAID) for one in table.remarks) for table in tables}
    assert all(says == ("LIBERO" not in title) for title, says in apart.items()), apart
    assert len(set(apart.values())) == 2


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_figure_says_so(name):
    shown = figures.FigureInput(SCORES, np.full(len(SCORES), 0.05), np.full(len(SCORES), 9))
    assert "no results on it" in said(figures.FIGURES[name].draw(shown))
    plain = replace(shown, scores=replace(SCORES, standin=()))
    assert "Stand-in" not in said(figures.FIGURES[name].draw(plain))


def test_a_sweep_says_so_as_a_table_a_figure_and_a_document(judged):
    asked = sensitivity.parse_sweep("joint_torque=0.5,1,2", library())
    found = sensitivity.sweep_threshold(judged.scores, library(), asked)
    assert found.warnings[0].startswith(SAID)
    assert varying.sweep_table(found).remarks == found.warnings
    assert "no results on it" in said(sweeps.draw_sweep(sweeps.prepare_sweep(found, library())))
    assert varying.variant_table(sensitivity.ablate_thresholds(judged.scores, library())).remarks == found.warnings


def test_a_comparison_says_so(judged):
    found = compare.compare_policies(compare.split_by_policy(judged.scores, judged.records.headers))
    assert found.warnings[0].startswith(SAID)


def test_a_gate_says_so_in_its_table_and_for_continuous_integration():
    found = gates.check_gates(SCORES, [gates.Gate("safety", "min", 0.1)])
    assert gating.gate_table(found).remarks == found.warnings == provenance_marks.warn_of_scores(SCORES)
    assert f'<property name="warning" value="{SAID}'.encode() in gating.format_junit(found)


def test_listed_and_explained_episodes_say_so(judged):
    rows = episode_list.list_episodes(judged.scores, judged.records.dt_s)
    assert episode_tables.episode_list_table(rows, len(rows)).remarks[0].startswith(SAID)
    assert episode_tables.episode_list_table(rows[:1], len(rows)).remarks == ()
    kitchen, table = (episode.explain_episode(judged.scores, BATCH, load_ruleset(), k) for k in (1, 0))
    assert SAID in " ".join(terminal.format_explanation(kitchen, width=400).split())
    assert episode.to_document(kitchen)["standin_assets"] is True
    assert "Stand-in" not in terminal.format_explanation(table)
    answers = query.answer_query(asked := query.parse_query("G[0,T](max_contact_force < 200)"), BATCH)
    assert query_tables.answer_table(asked, answers).remarks[0].startswith(SAID)
    assert viewers.build_timeline(judged.scores, BATCH, load_ruleset(), 1).facts["standin_assets"] == "true"
    assert "standin_assets" not in viewers.build_timeline(judged.scores, BATCH, load_ruleset(), 0).facts


def test_score_files_the_page_and_the_board_say_so(judged, tmp_path):
    held = json.loads(evaluate.score_files(judged)["scores.json"])
    assert [one["standin_assets"] for one in held["cells"]] == [False, True, False, True]
    html = render_page(judged.scores, None, load_ruleset(), title="t")
    assert f"<b>Stand-in assets:</b>{SAID.partition(':')[2]}" in html
    assert html.count(SAID) == 1  # below the headline table
    assert "privileged" not in html
    assert ", stand-in assets</span>" in html
    site = evaluate.build_board(list(judged.paths), load_ruleset(), reports=False)
    assert all(SAID in html for path, html in site.items() if path.startswith(("policies/a-", "policies/b-")))
    assert SAID in site["index.html"]


def test_exports_do_not_pass_for_results_on_the_suite(judged):
    text = authors_csv.format_authors_csv(judged.summarize_scores()[0], library(), "x")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["benchmark_suite"] for row in rows][:2] == ["libero_goal", "robocasa365_atomic_seen (stand-in assets)"]
    cells = evaluate.build_submission(judged, judged.paths).cells
    assert [one.standin_assets for one in cells] == [False, True, False, True]


def test_an_unmarked_score_says_nothing():
    assert provenance_marks.warn_of_scores(verdicts((True, 1, 1))) == ()
    assert len(SPECS) == 3
