"""The mark of numbers that rest on stand-ins: a simulator that ran with placeholders for its own objects and fixtures.

A record says so of its episode (`standin_assets`), the judge keeps that, and whoever shows a number made of such
episodes shows with it what `sentence` says. Nobody else decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from safevla_bench.scores import Scores

STANDIN = "stand-in assets"
"""The mark where there is no room for the sentence."""
Cell = tuple[str | None, str]
"""Policy and suite."""


class Summarised(Protocol):
    """The numbers of one policy and suite."""

    @property
    def policy(self) -> str | None: ...

    @property
    def suite(self) -> str | None: ...

    @property
    def standin_assets(self) -> bool: ...


class Listed(Protocol):
    """One episode; `standin_assets` is None where it left no record."""

    @property
    def policy(self) -> str | None: ...

    @property
    def benchmark(self) -> str: ...

    @property
    def standin_assets(self) -> bool | None: ...


def of_cells(cells: Iterable[Summarised]) -> tuple[str, ...]:
    """The sentence that goes with numbers made of some cells; none where nothing rests on stand-ins."""
    return sentence({(cell.policy, cell.suite or ""): cell.standin_assets for cell in cells})


def of_episodes(listed: Iterable[Listed]) -> tuple[str, ...]:
    """The same for a list of episodes."""
    there = [((one.policy, one.benchmark), one.standin_assets) for one in listed if one.standin_assets is not None]
    marked = {cell for cell, mark in there if mark}
    return sentence({cell: cell in marked for cell, _ in there})


def warning(scores: Scores) -> tuple[str, ...]:
    """The same for numbers made of all that was judged."""
    every = list(zip(scores.policy, scores.benchmark, strict=True))
    marked = {cell for cell, mark in zip(every, scores.standin, strict=False) if mark}
    return sentence({cell: cell in marked for cell in every})


def sentence(cells: Mapping[Cell, bool]) -> tuple[str, ...]:
    """The same for any policies and suites: whether each rests on stand-ins.

    >>> sentence({("a", "kitchen"): True, ("a", "table"): False})[0].split(":")[1].split(" was")[0]
    ' kitchen'
    """
    told = [_told(suite, cells) for suite in dict.fromkeys(suite for (_, suite), marked in cells.items() if marked)]
    if not told:
        return ()
    was, it = ("was", "it") if len(told) == 1 else ("were", "them")
    return (
        f"Stand-in assets: {', '.join(told)} {was} simulated with placeholders for the simulator's own objects and "
        f"fixtures. These numbers are no results on {it}.",
    )


def _told(suite: str, cells: Mapping[Cell, bool]) -> str:
    """The suite, and whose episodes of it rest on stand-ins where others' do not."""
    there = {policy: marked for (policy, other), marked in cells.items() if other == suite}
    return suite if all(there.values()) else f"{suite} ({_names(policy for policy, mark in there.items() if mark)})"


def _names(policies: Iterable[str | None]) -> str:
    return ", ".join(policy or "unnamed" for policy in policies)
