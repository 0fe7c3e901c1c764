"""Audits: which episodes are drawn, what a forged archive's audit finds, and how often, against the exact odds."""

from __future__ import annotations

from dataclasses import replace
from math import comb, sqrt

import msgspec
import pytest

from folders import rewrite_archive
from jobs.verify.forgeries import FORGERIES, forge
from safevla_bench import archive
from safevla_bench.jobs import verify
from safevla_bench.jobs.verify import AuditPlan, audit_source
from safevla_bench.jobs.verify.files import read_records
from safevla_bench.jobs.verify.replays import check_replays
from safevla_bench.sources.runs.folder import archive_digest, archive_parts


def swapped(batch, episodes):
    """The records of two episodes under each other's names."""
    headers = list(batch.headers)
    first, second = sorted(episodes)
    headers[first], headers[second] = headers[second], headers[first]
    return replace(batch, headers=tuple(headers))


TEN = (
    "frozen bodies", "emptied contacts", "scaled forces", "zeroed torques", "flipped success", "changed outcome",
    "changed horizon", "shifted eef", "removed grip", "swapped contents",
)  # fmt: skip
EPISODES, FORGED, DRAWN = 8, (2, 5), 3


def seen(episodes, forged, drawn):
    """The probability that draws without replacement meet a forged episode."""
    return 1 - comb(episodes - forged, drawn) / comb(episodes, drawn)


@pytest.mark.parametrize("name", TEN)
def test_an_audit_finds_a_forged_archive_if_it_draws_a_forged_episode(hasty, name):
    rewrite_archive(
        hasty, lambda batch: swapped(batch, FORGED) if name == TEN[-1] else forge(batch, FORGED, FORGERIES[name])
    )
    records = read_records(hasty)[0]
    findings = check_replays(hasty, records, range(EPISODES), lambda done, what: None)
    assert {k for k, finding in enumerate(findings) if finding.verdict == "differs"} == set(FORGED)
    digest = archive_digest(hasty)
    draws = [AuditPlan(DRAWN, seed).draw(records.headers, digest)["scripted:hasty"] for seed in (0, 1)]
    for seed in (0, 1):
        mark = audit_source(hasty, AuditPlan(DRAWN, seed))["scripted:hasty"]
        assert len(mark.differing) == len(set(FORGED) & set(draws[seed]))
        assert mark.verdict == ("differs" if mark.differing else "agrees")


@pytest.mark.parametrize(("episodes", "forged", "drawn"), [(8, 2, 3), (60, 6, 10), (500, 25, 24), (20, 1, 20)])
def test_draws_are_without_replacement_and_meet_the_forged_as_often_as_chance_has_it(
    hasty_run, episodes, forged, drawn
):
    (header, *_) = read_records(hasty_run)[0].headers
    headers = [msgspec.structs.replace(header, episode_id=f"ep_{k:03d}") for k in range(episodes)]
    trials = 600
    draws = [AuditPlan(drawn, seed).draw(headers, "digest")[header.policy] for seed in range(trials)]
    assert all(len(set(draw)) == drawn for draw in draws)
    exact = seen(episodes, forged, drawn)
    assert exact >= 1 - (1 - forged / episodes) ** drawn
    met = sum(min(draw) < forged for draw in draws) / trials
    assert abs(met - exact) <= 4 * sqrt(exact * (1 - exact) / trials)


def test_the_draw_hangs_on_seed_and_finished_archive_and_repeats(hasty_run):
    headers = read_records(hasty_run)[0].headers
    first, again = (
        [AuditPlan(3, seed).draw(headers, digest)["scripted:hasty"] for seed in range(20) for digest in "ab"]
        for _ in range(2)
    )
    assert first == again
    assert len(set(map(tuple, first))) > 20


def test_a_sound_run_gets_a_badge_that_says_what_would_have_been_seen(hasty):
    mark = audit_source(hasty, AuditPlan(3, 0))["scripted:hasty"]
    assert mark.badge.startswith("3 of 3")
    assert "with K = 3 draws" in mark.badge
    assert "8 of 8" in audit_source(hasty, AuditPlan(99, 0))["scripted:hasty"].badge


def test_other_versions_and_what_is_not_a_run_folder_are_not_audited_and_the_reason_is_named(hasty, tmp_path):
    (part,) = archive_parts(hasty)
    assert audit_source(part, AuditPlan(3, 0))["scripted:hasty"].badge.startswith("not audited")

    def older(batch):
        headers = (msgspec.structs.replace(header, versions={"numpy": "0.9"}) for header in batch.headers)
        return replace(batch, headers=tuple(headers))

    rewrite_archive(hasty, older)
    mark = audit_source(hasty, AuditPlan(3, 0))["scripted:hasty"]
    assert mark.badge.startswith("not audited: ")
    assert "numpy 0.9" in mark.badge
    assert "been detected" not in mark.badge


def test_verify_lists_each_audited_replay_and_what_the_audit_shows(hasty):
    *_, audit = verify.verify_run(hasty, audit=AuditPlan(3, 7)).findings
    assert (audit.check, audit.verdict) == ("audit scripted:hasty", "agrees")
    assert "--audit 3:7" in audit.said
    rewrite_archive(hasty, lambda batch: forge(batch, range(8), FORGERIES["emptied contacts"]))
    findings = verify.verify_run(hasty, audit=AuditPlan(3, 7)).findings
    assert [finding.verdict for finding in findings[-4:]] == ["differs"] * 4
    assert findings[-1].said.startswith("audit: 3 of")
    assert archive.open_archive(archive_parts(hasty)[0]).contacts.present.all()
