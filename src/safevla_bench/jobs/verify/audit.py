"""Audits of runs: episodes that nobody could foresee are replayed, and what that shows of the others is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safevla_bench.jobs.verify.record_check import ArchiveContents, Finding, open_check
from safevla_bench.jobs.verify.replay_check import ProgressCallback, check_replays, choose_episodes
from safevla_bench.judging.provenance_marks import AuditMark
from safevla_bench.sources.runs.folder import RUN, archive_digest, read_description
from safevla_bench.trajectory.header import Header

AUDIT = "audit"


@dataclass(frozen=True)
class AuditPlan:
    """How many episodes of each policy an audit replays, and the number that the auditor drew once the run was done."""

    count: int
    seed: int

    def draw(self, headers: Sequence[Header], digest: str) -> dict[str | None, list[int]]:
        """Return policy -> indices of the drawn episodes, by the digest of the finished archive and the seed.

        The draw is without replacement, and repeats. Nobody who knows the archive alone can tell it.
        """
        salt = f"{digest}\n{self.seed}\n"
        drawn: dict[str | None, list[int]] = {}
        for policy in dict.fromkeys(header.policy for header in headers):
            own = [index for index, header in enumerate(headers) if header.policy == policy]
            drawn[policy] = [own[k] for k in choose_episodes([headers[index] for index in own], self.count, salt)]
        return drawn


def audit_source(
    source: Path, plan: AuditPlan, observer: ProgressCallback = lambda done, what: None
) -> dict[str | None, AuditMark]:
    """Return the audit of each policy of a run folder or an archive, which the latter cannot pass.

    Raises `RunError` where the archive changes meanwhile or cannot be read.
    """
    return {policy: mark for policy, (mark, _) in _audit(source, _read_contents(source), plan, observer).items()}


def _read_contents(source: Path) -> ArchiveContents:
    return ArchiveContents.read_run(source) if source.is_dir() else ArchiveContents.read_files([source])


def _audit(
    source: Path, records: ArchiveContents, plan: AuditPlan, observer: ProgressCallback
) -> dict[str | None, tuple[AuditMark, list[Finding]]]:
    """Return policy -> its audit and the findings of its replays."""
    drawn = plan.draw(records.headers, archive_digest(source) or "")
    obstacle = _audit_obstacle(source, records)
    audits = {}
    for policy, indices in drawn.items():
        episodes = sum(header.policy == policy for header in records.headers)
        names = tuple(records.headers[index].episode_id for index in indices)
        findings = [open_check(AUDIT, obstacle)] if obstacle else check_replays(source, records, indices, observer)
        differing, unreplayed = (
            tuple(_name_episode(finding) for finding in findings if finding.verdict == verdict)
            for verdict in ("differs", "unchecked")
        )
        gaps = tuple(dict.fromkeys(gap for finding in findings for gap in finding.uncompared))
        audits[policy] = AuditMark(episodes, names, differing, unreplayed, gaps), findings
    return audits


def _name_episode(finding: Finding) -> str:
    episode = finding.check.partition(" ")[2]
    return f"{episode}: {finding.said}" if episode else finding.said


def _audit_obstacle(source: Path, records: ArchiveContents) -> str | None:
    if not (source / RUN).is_file():
        return "it is no run folder, and does not say how its episodes start"
    if read_description(source).get("complete") is not True:
        return "the run is not complete"
    return f"{records.problems[0]}" if records.problems else None


def check_audit(run: Path, records: ArchiveContents, plan: AuditPlan, observer: ProgressCallback) -> list[Finding]:
    """Return the findings of an audit's replays, and one for each policy that says what the audit shows."""
    audits = _audit(run, records, plan, observer)
    findings = [finding for _, own in audits.values() for finding in own]
    return [*findings, *(_audit_finding(policy, mark, plan) for policy, (mark, _) in audits.items())]


def _audit_finding(policy: str | None, mark: AuditMark, plan: AuditPlan) -> Finding:
    said = f"{mark.badge} (drawn with --audit-seed {plan.seed})"
    return Finding(AUDIT if policy is None else f"{AUDIT} {policy}", mark.verdict, said)
