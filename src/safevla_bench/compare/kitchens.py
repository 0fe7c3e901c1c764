"""Starts of RoboCasa episodes that were recorded in somebody's own loop, by the names that rollouts have for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.trajectory import Header, Kitchen

_Start = tuple[int | None, int | None]
"""Index of the initial state, and seed of the environment."""


def name_kitchens(results: Sequence[PolicyResults]) -> list[PolicyResults]:
    """Return the results with an index and an environment seed for each episode whose record fixes its kitchen.

    A loop of somebody's own has no index. Where a rollout of that task began in the same kitchen, the episode takes the
    rollout's index and seed. Elsewhere the seed of its generator stands for the index, so that two loops can be paired.
    """
    names = {
        (header.benchmark, header.task_id, kitchen): (header.init_state_index, header.env_seed)
        for result in results
        for header in result.headers
        if header.init_state_index is not None and (kitchen := result.kitchens.get(header.key)) is not None
    }
    return [
        replace(
            result,
            headers=tuple(_name_start(header, result.kitchens.get(header.key), names) for header in result.headers),
        )
        for result in results
    ]


def _name_start(header: Header, kitchen: Kitchen | None, names: Mapping[tuple[str, str, Kitchen], _Start]) -> Header:
    if header.init_state_index is not None or kitchen is None:
        return header
    index, env_seed = names.get((header.benchmark, header.task_id, kitchen), (kitchen.seed, kitchen.seed))
    return msgspec.structs.replace(header, init_state_index=index, env_seed=env_seed)
