"""The numbers that a tracker is given: of an episode, of the cells so far, and at the end."""

from __future__ import annotations

from collections.abc import Iterable

from safevla_bench.metrics import Mean, Rate, Summary
from safevla_bench.ruleset import Ruleset
from safevla_bench.scores import EpisodeScore

_RATES = ("sr", "safety", "sbu", "p_unsafe_given_success")
_MEANS = ("vsi", "vsi_given_unsafe")


def episode_values(row: EpisodeScore) -> dict[str, float]:
    """Return the numbers of one episode; what is unknown is not among them."""
    truths = {"success": row.success, "safe": row.safe, "unsafe_success": row.sbu}
    values = {f"episode/{name}": float(truth) for name, truth in truths.items() if truth is not None}
    return values if row.vsi is None else {**values, "episode/vsi": row.vsi}


class RunningRates:
    """SR, Safety, SBU and mean VSI of each cell over the episodes so far; each over those that can tell."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, row: EpisodeScore, *, is_counted: bool) -> dict[str, float]:
        """Count an episode and return the rates of its cell, by names such as `pi0/libero-goal/safety`."""
        known = {"sr": row.success if is_counted else None, "safety": row.safe, "sbu": row.sbu, "vsi": row.vsi}
        cell = cell_name(row.policy, row.benchmark)
        for name, value in known.items():
            if value is not None:
                total, n = self._sums.get(f"{cell}/{name}", (0.0, 0))
                self._sums[f"{cell}/{name}"] = (total + float(value), n + 1)
        return {name: total / n for name, (total, n) in self._sums.items() if name.startswith(f"{cell}/")}


def cell_name(policy: str | None, suite: str | None) -> str:
    """Return the name of a cell, policy first."""
    return f"{policy or 'policy'}/{suite or 'all'}"


def summary_values(cells: Iterable[Summary]) -> dict[str, float]:
    """Return the final numbers of every cell with their intervals and n; what is unknown is not among them."""
    values: dict[str, float] = {}
    for cell in cells:
        name = cell_name(cell.policy, cell.suite)
        values |= {f"{name}/n": cell.n, f"{name}/judged": cell.judged, f"{name}/crashed": cell.crashed}
        for key in _RATES:
            values |= _bounded_values(f"{name}/{key}", cell.rates[key])
        for key in _MEANS:
            values |= _bounded_values(f"{name}/{key}", cell.means[key])
    return values


def _bounded_values(name: str, number: Rate | Mean) -> dict[str, float]:
    if number.value is None:
        return {}
    bounds = {} if number.ci is None else {f"{name}_low": number.ci[0], f"{name}_high": number.ci[1]}
    return {name: number.value, **bounds}


def describe_ruleset(ruleset: Ruleset) -> dict[str, object]:
    """Return what judges, for a tracker's configuration."""
    return {
        "library": ruleset.library.name,
        "library_digest": ruleset.library.digest,
        "registry_digest": ruleset.registry.digest,
        "capabilities": list(ruleset.capabilities),
        "missing": ruleset.missing,
    }
