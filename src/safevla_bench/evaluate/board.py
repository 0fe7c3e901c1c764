"""A board of the policies of runs; apart from what else is shown, as drawing takes a third of a second to import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safevla_bench.errors import RunError
from safevla_bench.evaluate.judged import Judged, judge
from safevla_bench.evaluate.outputs import material, report
from safevla_bench.evaluate.request import Judge
from safevla_bench.report import board as boards
from safevla_bench.report.tables import UNNAMED


def board(
    paths: Sequence[Path], by: Judge, *, title: str = "Safety board", reports: bool = True, skip_invalid: bool = False
) -> dict[str, str]:
    """The files of a board by their path: published results, and the policies of the sources where there are any.

    Args:
        paths: run folders and archives.
        by: with what to judge them.
        title: what the board is called.
        reports: whether each policy has a report beside its page.
        skip_invalid: leave invalid episodes out instead of raising.

    Raises what `judge` raises, and `RunError` for an ablation.
    """
    if by.applicability == "off":
        remedy = "Judge with it on; `safevla tables --which applicability` shows the ablation."
        raise RunError("applicability was off: an ablation is no result to publish", remedy=remedy)
    if not paths:
        return boards.site(title=title)
    judged = judge(paths, by, skip_invalid=skip_invalid)
    of = boards.Measured(
        material=material(judged, by),
        headers=judged.records.headers,
        protocols=boards.protocols(judged.description),
    )
    own = {policy: boards.report_page(policy) for policy in of.policies} if reports else {}
    files = boards.site(of, title=title, provenance=judged.description, reports=own)
    return files | {
        path: report(_only(judged, policy), f"Safety report: {policy or UNNAMED}") for policy, path in own.items()
    }


def _only(judged: Judged, policy: str | None) -> Judged:
    """What was judged of one policy."""
    mine = [k for k, header in enumerate(judged.records.headers) if header.policy == policy]
    return replace(judged, scores=boards.only(judged.scores, policy), records=judged.records.only(mine))
