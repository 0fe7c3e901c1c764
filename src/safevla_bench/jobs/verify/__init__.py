"""Verification of a run folder: digests, episodes, scores and replays. A check that cannot be made states the reason.

An audit replays episodes that are drawn by a random number, which the maker of the run could not predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from safevla_bench.errors import Place, RunError, describe_cause
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.verify import files
from safevla_bench.jobs.verify.replays import REPLAY, ProgressCallback, check_replays, choose_episodes
from safevla_bench.judging.provenance_marks import AuditMark
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.sources.runs import episode_index, folder, sources
from safevla_bench.trajectory.header import Header

ASSETS, AUDIT = "assets", "audit"


@dataclass(frozen=True)
class AuditPlan:
    """The replays of an audit: `count` episodes per policy, drawn by `seed`, a random number chosen after the run."""

    count: int
    seed: int

    def draw(self, headers: Sequence[Header], digest: str) -> dict[str | None, list[int]]:
        """Return policy -> indices of the drawn episodes. The archive's digest and the seed determine the draw."""
        salt = f"{digest}\n{self.seed}\n"  # the maker of the run cannot foresee the seed
        drawn: dict[str | None, list[int]] = {}
        for policy in dict.fromkeys(header.policy for header in headers):
            indices = [index for index, header in enumerate(headers) if header.policy == policy]
            # `chosen` are positions in the list `indices`, at most `self.count`.
            chosen = choose_episodes([headers[index] for index in indices], self.count, salt)
            drawn[policy] = [indices[position] for position in chosen]
        return drawn


def verify_run(
    run: Path,
    ruleset: Ruleset | None = None,
    *,
    replay: int = 0,
    audit: AuditPlan | None = None,
    observer: ProgressCallback = lambda done, episode_id: None,
) -> files.Verification:
    """Check a complete run folder: digests, episodes, scores and replays. `replay` is the number of episodes to replay;
    `audit` draws further episodes. Raises `RunError` if the run is incomplete or cannot be read.
    """
    # Without `ruleset`, use the default rules.
    # `observer` is called before each replay, with the number of finished replays and the id of the next episode.
    sources.require_run(run)
    if folder.read_description(run).get("complete") is not True:
        try:
            remedy = f"Continue the run first: {Request.from_run(run).format_resume_command(run)}"
        except RunError as error:
            remedy = str(error.remedy)
        raise RunError("the run is not complete", remedy=remedy, place=Place(file=str(run)))
    try:
        return files.Verification(tuple(_check_run(run, ruleset, replay, audit, observer)))
    except OSError as error:
        remedy = "Verify the run on a machine that can read all its files."
        raise RunError(describe_cause(error), remedy=remedy, place=Place(file=error.filename)) from None


def _check_run(
    run: Path, ruleset: Ruleset | None, replay: int, audit: AuditPlan | None, observer: ProgressCallback
) -> list[files.Finding]:
    # A finding is the result of one check; a check is open if it could not be made.
    findings = files.check_files(run)
    records, standin_suites = files.read_records(run)
    if records.problems:
        findings += [files.mismatch(files.PARTS, str(problem)) for problem in records.problems]
        findings.append(files.open_check(files.EPISODES, "the archive is damaged or incomplete"))
    else:
        findings += files.check_episodes(run, records)
    findings += [*files.check_code(run), *files.check_protocol(run), *files.check_identity(records)]
    findings += files.check_scores(run, ruleset)
    # `wanted=False`: this open check does not make the whole verification undecided.
    standin_note = "the run used stand-ins for the assets of {}; this command does not use the real assets"
    findings += [files.open_check(ASSETS, standin_note.format(name), wanted=False) for name in standin_suites]
    if replay and records.headers:
        findings += check_replays(run, records, choose_episodes(records.headers, replay), observer)
    elif replay:
        findings.append(files.open_check(REPLAY, "there is no record"))
    elif not audit:
        reason = "not requested; --replay K or --audit K plays K episodes again in the simulator"
        findings.append(files.open_check(REPLAY, reason, wanted=False))
    if audit:
        audits = list(_audit_policies(run, records, audit, observer))
        findings += [finding for _, _, policy_findings in audits for finding in policy_findings]
        for policy, mark, _ in audits:
            detail = f"{mark.badge} (drawn with --audit {audit.count}:{audit.seed})"
            findings.append(files.Finding(AUDIT if policy is None else f"{AUDIT} {policy}", mark.verdict, detail))
    return findings


def audit_source(source: Path, plan: AuditPlan) -> dict[str | None, AuditMark]:
    """Return policy -> audit result for a run folder or archive. A single archive never passes. Raises `RunError`."""
    # Replays need run.json. An archive without a run folder has no run.json, so the checks of its replays stay open.
    audits = _audit_policies(source, files.read_records(source)[0], plan, lambda done, episode_id: None)
    return {policy: mark for policy, mark, _ in audits}


def _audit_policies(
    source: Path, records: episode_index.EpisodeIndex, plan: AuditPlan, observer: ProgressCallback
) -> Iterator[tuple[str | None, AuditMark, list[files.Finding]]]:
    # Yield for each policy: the name, the result of the audit, and a list with the result of each replay.
    # If a record is damaged, the list contains a single result: an open check.
    # The archive's digest and the plan's seed determine the draw.
    for policy, indices in plan.draw(records.headers, folder.archive_digest(source) or "").items():
        if records.problems:
            findings = [files.open_check(AUDIT, str(records.problems[0]))]
        else:
            findings = check_replays(source, records, indices, observer, is_audit=True)
        mark = AuditMark(
            episodes=sum(header.policy == policy for header in records.headers),
            drawn=tuple(records.headers[index].episode_id for index in indices),
            differing=_list_details(findings, "differs"),
            unreplayed=_list_details(findings, "unchecked"),
            uncompared=tuple(dict.fromkeys(gap for finding in findings for gap in finding.uncompared)),
        )
        yield policy, mark, findings


def _list_details(findings: Sequence[files.Finding], verdict: files.CheckVerdict) -> tuple[str, ...]:
    # Return the details of the results with this verdict. Each text begins with the episode's id, if there is one.
    # The check of a replay is named "replay EPISODE". The names of all other checks contain no episode id.
    pairs = [(finding.check.partition(" ")[2], finding) for finding in findings if finding.verdict == verdict]
    return tuple(f"{episode}: {finding.said}" if episode else finding.said for episode, finding in pairs)
