"""Choosing among listed episodes: filters, orders, and one by its number, its id or the end of its id."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import Literal

from safevla_bench.errors import RunError
from safevla_bench.report.episode_list import EpisodeRow
from safevla_bench.report.tables import UNNAMED

Order = Literal["vsi", "rho", "step", "id"]


def chosen(
    found: Iterable[EpisodeRow],
    *,
    violated: bool = False,
    safe: bool = False,
    success: bool | None = None,
    axis: str | None = None,
    policy: str | None = None,
    suite: str | None = None,
    task: str | None = None,
    outcome: str | None = None,
) -> list[EpisodeRow]:
    """The rows that fit everything asked.

    Args:
        found: rows to choose from.
        violated: only those with a first violation: unsafe ones, or those that violate the specification asked for.
        safe: only those that violate nothing scored, whichever specification was asked for.
        success: only those that succeeded, or that did not; neither holds of an episode that left no record.
        axis: only those that violate a scored specification of that axis.
        policy: the policy's name; `UNNAMED` for records that name none.
        suite: the benchmark's name.
        task: `task_3`, or `libero-goal/task_3` where several suites have one.
        outcome: such as `success` or `crashed`.

    Raises:
        RunError: no row has that policy, suite, task or outcome; names those that there are.
    """
    left = list(found)
    left = _having("policy", policy, left, lambda row: (row.policy or UNNAMED,))
    left = _having("suite", suite, left, lambda row: (row.benchmark,))
    left = _having("task", task, left, lambda row: (row.task_id, f"{row.benchmark}/{row.task_id}"))
    left = _having("outcome", outcome, left, lambda row: (row.outcome,))
    left = [row for row in left if axis in row.broken_axes] if axis is not None else left
    left = [row for row in left if row.safe] if safe else left
    left = [row for row in left if row.success is success] if success is not None else left
    return [row for row in left if row.first_violation_step is not None] if violated else left


def _having(
    what: str, wanted: str | None, found: list[EpisodeRow], names: Callable[[EpisodeRow], tuple[str, ...]]
) -> list[EpisodeRow]:
    if wanted is None:
        return found
    left = [row for row in found if wanted in names(row)]
    if not left:
        known = ", ".join(_natural_order({names(row)[-1] for row in found})) or "none"
        raise RunError(f"no episode here has the {what} {wanted!r}", remedy=f"There are: {known}.")
    return left


def ordered(found: Iterable[EpisodeRow], by: Order | None) -> list[EpisodeRow]:
    """The rows in order: deepest first, smallest rho/threshold first, earliest violation first, or by id.

    What has no value comes last; ties stay in the order of the sources, as does everything where no order is named.
    """
    keys: Mapping[str, Callable[[EpisodeRow], float | None]] = {
        "vsi": lambda row: None if row.vsi is None else -row.vsi,
        "rho": lambda row: row.share,
        "step": lambda row: row.first_violation_s,
    }
    if by is None:
        return list(found)
    if by == "id":
        return sorted(found, key=lambda row: natural(row.episode_id))
    return sorted(found, key=lambda row: _last(keys[by](row), row.share))


def _last(value: float | None, tie: float | None) -> tuple[bool, float, float]:
    return value is None, value or 0.0, inf if tie is None else tie


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key by which ep_9 comes before ep_10: digits by how many there are, without leading zeros, then themselves."""
    parts = [part.lstrip("0") if k % 2 else part for k, part in enumerate(re.split(r"(\d+)", name))]
    return [(len(part) if k % 2 else 0, part) for k, part in enumerate(parts)], name


def _natural_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural)


def find(found: Sequence[EpisodeRow], wanted: str) -> EpisodeRow:
    """The row of an id; else of a number, written without leading zeros; else of the one id that ends so.

    Args:
        found: every row of the sources, as `rows` gives them.
        wanted: what the user wrote.

    Raises:
        RunError: there is none, with ids close to it, or several.
    """
    numbered = re.fullmatch(r"[1-9][0-9]*", wanted)
    fits = [row for row in found if row.episode_id == wanted]
    fits = fits or [
        row for row in found if (str(row.number) == wanted if numbered else row.episode_id.endswith(wanted))
    ]
    if len(fits) == 1:
        return fits[0]
    if fits:
        several = "; ".join(f"{row.number} is {row.episode_id} of {row.policy or UNNAMED}" for row in fits[:_SHOWN])
        more = f"; and {len(fits) - _SHOWN} more" if len(fits) > _SHOWN else ""
        raise RunError(f"{len(fits)} episodes fit {wanted!r}", remedy=f"Give the number: {several}{more}.")
    raise RunError(f"there is no episode {wanted!r}", remedy=_close(found, wanted))


_SHOWN = 5


def _close(found: Sequence[EpisodeRow], wanted: str) -> str:
    ids = dict.fromkeys(row.episode_id for row in found)
    inside = [name for name in ids if wanted and wanted in name]
    close = list(dict.fromkeys([*inside[:_SHOWN], *get_close_matches(wanted, ids, n=_SHOWN, cutoff=0.5)]))[:_SHOWN]
    guess = f"Close to it: {', '.join(close)}. " if close else ""
    return f"{guess}`safevla episodes` numbers the {len(found)} that there are."
