"""Marks of stand-in assets: a simulator that ran with placeholders for its own objects and fixtures.

A record marks its episode (`standin_assets`), and scores keep the mark. Every output that shows a number made of such
episodes shows the warning of `warn_of_standins` with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from safevla_bench.scores import Scores

STANDIN = "stand-in assets"
"""The mark where there is no room for the sentence."""
Cell = tuple[str | None, str]
"""Policy and suite."""


class CellLike(Protocol):
    """The numbers of one policy and suite."""

    @property
    def policy(self) -> str | None: ...

    @property
    def suite(self) -> str | None: ...

    @property
    def standin_assets(self) -> bool: ...


class EpisodeLike(Protocol):
    """One episode; `standin_assets` is None where it left no record."""

    @property
    def policy(self) -> str | None: ...

    @property
    def benchmark(self) -> str: ...

    @property
    def standin_assets(self) -> bool | None: ...


def warn_of_cells(cells: Iterable[CellLike]) -> tuple[str, ...]:
    """Return the warning for numbers made of some cells; empty where no cell has stand-in assets."""
    return warn_of_standins({(cell.policy, cell.suite or ""): cell.standin_assets for cell in cells})


def warn_of_episodes(episodes: Iterable[EpisodeLike]) -> tuple[str, ...]:
    """Return the warning for a list of episodes."""
    marked_cells = [
        ((episode.policy, episode.benchmark), episode.standin_assets)
        for episode in episodes
        if episode.standin_assets is not None
    ]
    marked = {cell for cell, mark in marked_cells if mark}
    return warn_of_standins({cell: cell in marked for cell, _ in marked_cells})


def warn_of_scores(scores: Scores) -> tuple[str, ...]:
    """Return the warning for numbers made of all scores."""
    cells = list(zip(scores.policy, scores.benchmark, strict=True))
    marked = {cell for cell, mark in zip(cells, scores.standin, strict=False) if mark}
    return warn_of_standins({cell: cell in marked for cell in cells})


def warn_of_standins(cells: Mapping[Cell, bool]) -> tuple[str, ...]:
    """Return the warning for policies and suites, by whether each has stand-in assets.

    >>> warn_of_standins({("a", "kitchen"): True, ("a", "table"): False})[0].split(":")[1].split(" was")[0]
    ' kitchen'
    """
    suites = [
        _describe_suite(suite, cells)
        for suite in dict.fromkeys(suite for (_, suite), marked in cells.items() if marked)
    ]
    if not suites:
        return ()
    was, it = ("was", "it") if len(suites) == 1 else ("were", "them")
    return (
        f"Stand-in assets: {', '.join(suites)} {was} simulated with placeholders for the simulator's own objects and "
        f"fixtures. These numbers are no results on {it}.",
    )


def _describe_suite(suite: str, cells: Mapping[Cell, bool]) -> str:
    """Return the suite, with the policies whose episodes have stand-in assets where those of others have none."""
    marks = {policy: marked for (policy, other), marked in cells.items() if other == suite}
    return (
        suite if all(marks.values()) else f"{suite} ({_join_names(policy for policy, mark in marks.items() if mark)})"
    )


def _join_names(policies: Iterable[str | None]) -> str:
    return ", ".join(policy or "unnamed" for policy in policies)
