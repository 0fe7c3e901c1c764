"""The register: every episode is on it, filed under what it is, with nothing made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from report.scenes import NAN, joined, rollout, run, verdicts
from safevla_bench.exposure import PHASES
from safevla_bench.exposure.phases import holding, phases
from safevla_bench.report import episode_table as module
from safevla_bench.report.episode_table import ENDINGS, register
from safevla_bench.scores import Absent
from safevla_bench.scoring import score
from safevla_bench.signals import Reading
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import select

LIBRARY, REGISTRY = library(), registry()
BATCH = run(["calm", "rough"], [0.1, 1.0], 4, ["libero-goal", "libero-10"])
SCORES = score(BATCH, LIBRARY, REGISTRY)
GONE = Absent(
    episode_id="gone", benchmark="libero-goal", task_id="task_0", policy="calm", outcome="crashed", reason="E: x"
)


def test_every_episode_is_listed_once_in_the_order_of_the_sources():
    found = register(replace(SCORES, absent=(GONE,)), BATCH, LIBRARY).entries
    assert [one.number for one in found] == list(range(1, len(SCORES) + 2))
    assert [one.episode_id for one in found] == [*SCORES.episode_id, "gone"]


def test_facets_file_each_episode_under_its_own_choices_and_count_them():
    found = register(SCORES, BATCH, LIBRARY)
    for facet in found.facets:
        filed = [one.facets[facet.name].split() for one in found.entries]
        for index, (_, count) in enumerate(facet.choices):
            assert sum(str(index) in mine for mine in filed) == count
    policies = dict(enumerate(label for label, _ in found.facets[0].choices))
    assert [policies[int(one.facets["policy"])] for one in found.entries] == list(SCORES.policy)


def test_an_episode_is_filed_under_exactly_the_specifications_that_it_breaks():
    found = register(SCORES, BATCH, LIBRARY)
    (facet,) = [one for one in found.facets if one.name == "broken"]
    for k, one in enumerate(found.entries):
        broken = {facet.choices[int(index)][0] for index in one.facets["broken"].split()}
        assert broken == {SCORES.specs[c].spec_id for c in SCORES.scored if SCORES.violated[c, k]}
        assert broken == {clause.spec_id for clause in one.clauses if clause.violated}


def test_each_scored_specification_is_either_judged_or_says_why_not():
    for one in register(SCORES, BATCH, LIBRARY).entries:
        told = [clause.spec_id for clause in one.clauses] + [spec.spec_id for spec in one.unjudged]
        assert sorted(told) == sorted(SCORES.specs[k].spec_id for k in SCORES.scored)
        assert all(spec.why for spec in one.unjudged)


def test_a_crashed_episode_has_a_reason_and_no_verdict():
    one = register(verdicts(absent=(GONE,)), None, LIBRARY).entries[0]
    assert (one.kind, one.lost, one.vsi, one.first, one.clauses) == ("cr", ("E: x",), "—", "—", ())
    assert one.keys.split()[1:2] + one.keys.split()[4:] == ["-"] * 4


def test_an_episode_without_a_verdict_is_not_called_safe():
    one = register(verdicts((True, NAN, NAN)), None, LIBRARY).entries[0]
    assert one.ending == ENDINGS["nv"]
    assert one.vsi == "—"


def test_without_records_verdicts_are_told_and_nothing_is_drawn():
    found = register(SCORES, None, LIBRARY)
    assert found.drawn == 0
    assert all(clause.spark is None for one in found.entries for clause in one.clauses)
    assert any(clause.verdict.startswith("violated by") for one in found.entries for clause in one.clauses)


def test_only_so_many_are_drawn_and_those_are_the_worst(monkeypatch):
    monkeypatch.setattr(module, "MOST_DRAWN", 3)
    found = register(SCORES, BATCH, LIBRARY)
    drawn = [k for k, one in enumerate(found.entries) if any(clause.spark for clause in one.clauses)]
    assert len(drawn) == found.drawn == 3
    assert min(SCORES.vsi[drawn]) >= max(np.delete(SCORES.vsi, drawn))


def test_records_are_found_whatever_their_order():
    turned = select(BATCH, list(range(len(BATCH)))[::-1])
    assert register(SCORES, turned, LIBRARY) == register(SCORES, BATCH, LIBRARY)


def test_natural_order_puts_task_10_behind_task_9():
    scores = joined(*(verdicts((True, 1, 1), policy=f"p{k}") for k in (10, 9, 2)))
    (facet,) = [one for one in register(scores, None, LIBRARY).facets if one.name == "policy"]
    assert [label for label, _ in facet.choices] == ["p2", "p9", "p10"]


def test_names_that_are_hard_to_order_have_one_order_all_the_same():
    names = ["p1", "p01", "p" + "9" * 10_000, "p\u0661", "", "p"]
    orders = []
    for turned in (names, names[::-1]):
        scores = joined(*(verdicts((True, 1, 1), policy=name) for name in turned))
        orders.append([label for label, _ in register(scores, None, LIBRARY).facets[0].choices])
    assert orders[0] == orders[1]


def test_phases_fill_the_episode_and_their_times_add_up():
    batch = rollout(3, 0.5, n=100)
    scores = score(batch, LIBRARY, REGISTRY)
    phase = phases(Reading(batch), holding(batch, REGISTRY))
    (one,) = register(scores, batch, LIBRARY, [phase]).entries
    assert (phase >= 0).all()
    assert sum(int(part.width) for part in one.phases.strip) == pytest.approx(1000, abs=len(one.phases.strip))
    assert sum(float(time.split()[0]) for _, _, time in one.phases.said) == pytest.approx(100 * 0.05)
    assert {name for _, name, _ in one.phases.said} <= set(PHASES)
    assert all(entry.phases is None for entry in register(scores, batch, LIBRARY).entries)


@pytest.mark.parametrize(
    ("rho", "said"),
    [(-30.0, "violated by 30.0\N{NO-BREAK SPACE}N, depth 0.06"), (12.0, "kept by 12.0\N{NO-BREAK SPACE}N")],
)
def test_a_verdict_says_by_how_much(rho, said):
    one = register(verdicts((True, rho, NAN)), None, LIBRARY).entries[0]
    assert [clause.verdict for clause in one.clauses] == [said]
