"""One policy of one source, with what a comparison needs of its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from safevla_bench.scores import Absent, Scores
from safevla_bench.trajectory import Header

UNNAMED = "(unnamed)"


@dataclass(frozen=True)
class Entrant:
    """One policy's judged episodes, [n]; `lost` are those outside n: crashed, stopped, or without their record."""

    name: str
    source: str
    headers: tuple[Header, ...]
    success: NDArray[np.bool_]
    safe: NDArray[np.bool_]
    vsi: NDArray[np.float64]
    judged: NDArray[np.bool_]
    """Whether a scored specification reached a verdict; elsewhere `safe` and `vsi` say nothing."""
    lost: tuple[Absent, ...] = ()
    left_out: tuple[str, ...] = ()
    """What of the source is not among these, each as one sentence."""
    protocol: Mapping[str, object] | None = None
    privileged: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    standin_suites: tuple[str, ...] = ()
    """The suites that were simulated with stand-ins for the host's own assets."""

    def __len__(self) -> int:
        return len(self.headers)

    def values(self, metric: str) -> NDArray[np.float64]:
        """`sr`, `safety`, `sbu` or `vsi` of each episode; proportions as 0 and 1."""
        found = {"sr": self.success, "safety": self.safe, "sbu": self.success & ~self.safe, "vsi": self.vsi}[metric]
        return found.astype(np.float64)

    @property
    def silent_suites(self) -> list[str]:
        """The suites in which no specification reached a verdict: what is safe there is not known."""
        suites = dict.fromkeys(header.benchmark for header in self.headers)
        told = {header.benchmark for header, judged in zip(self.headers, self.judged, strict=True) if judged}
        return [suite for suite in suites if suite not in told]

    def select(self, index: NDArray[np.int64]) -> Entrant:
        """These episodes, in this order."""
        return replace(
            self,
            headers=tuple(self.headers[k] for k in index),
            success=self.success[index],
            safe=self.safe[index],
            vsi=self.vsi[index],
            judged=self.judged[index],
        )


def entrants(
    scores: Scores,
    headers: Sequence[Header],
    source: str = "",
    *,
    protocol: Mapping[str, object] | None = None,
    privileged: Sequence[str | None] = (),
    left_out: Sequence[str] = (),
) -> list[Entrant]:
    """The policies of one source, in order of first appearance.

    Args:
        scores: what the judge said.
        headers: of the same episodes, in the same order.
        source: where they come from, to tell two of one name apart.
        protocol: how the run folder's episodes were started and ended.
        privileged: the policies that saw state which no real robot has.
        left_out: what of the source is not among the scores, each as one sentence without its full stop.
    """
    policies = dict.fromkeys([*scores.policy, *(one.policy for one in scores.absent)])
    found = [
        _entrant(scores, headers, policy, source, protocol=protocol, privileged=policy in privileged)
        for policy in policies
    ]
    return [replace(one, left_out=tuple(left_out)) for one in found]


def _entrant(
    scores: Scores,
    headers: Sequence[Header],
    policy: str | None,
    source: str,
    *,
    protocol: Mapping[str, object] | None,
    privileged: bool,
) -> Entrant:
    mine = np.array([one == policy for one in scores.policy], dtype=np.bool_)
    index = [int(e) for e in np.flatnonzero(mine & scores.counted)]
    stopped = tuple(_stopped(headers[e]) for e in np.flatnonzero(mine & ~scores.counted).tolist())
    return Entrant(
        name=policy or UNNAMED,
        source=source,
        headers=tuple(headers[e] for e in index),
        success=scores.success[index],
        safe=scores.safe[index],
        vsi=scores.vsi[index],
        judged=scores.judged[index],
        lost=(*(one for one in scores.absent if one.policy == policy), *stopped),
        protocol=protocol,
        privileged=privileged,
        versions={name: version for e in index for name, version in (headers[e].versions or {}).items()},
        standin_suites=scores.select(np.array(index, dtype=np.int64)).standin_suites,
    )


def _stopped(header: Header) -> Absent:
    return Absent(
        episode_id=header.episode_id,
        benchmark=header.benchmark,
        task_id=header.task_id,
        policy=header.policy,
        outcome=header.result,
        init_state_index=header.init_state_index,
        seed=header.seed,
    )


def joined(found: Sequence[Entrant]) -> list[Entrant]:
    """The same, a policy's sources as one entrant where they have no suite in common: runs of one policy on two hosts.

    Sources that share a suite, or ran under different protocols, stay apart.
    """
    by_name: dict[str, list[Entrant]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    return [one for those in by_name.values() for one in ([_one(those)] if _disjoint(those) else those)]


def _disjoint(found: Sequence[Entrant]) -> bool:
    suites = [
        {header.benchmark for header in entrant.headers} | {lost.benchmark for lost in entrant.lost}
        for entrant in found
    ]
    same = all(one.protocol == found[0].protocol for one in found)
    return same and sum(map(len, suites)) == len(set().union(*suites))


def _one(found: Sequence[Entrant]) -> Entrant:
    if len(found) == 1:
        return found[0]
    versions: dict[str, dict[str, None]] = {}
    for one in found:
        for name, version in one.versions.items():
            versions.setdefault(name, {})[version] = None
    return replace(
        found[0],
        source=", ".join(one.source for one in found),
        headers=tuple(header for one in found for header in one.headers),
        success=np.concatenate([one.success for one in found]),
        safe=np.concatenate([one.safe for one in found]),
        vsi=np.concatenate([one.vsi for one in found]),
        judged=np.concatenate([one.judged for one in found]),
        lost=tuple(lost for one in found for lost in one.lost),
        privileged=any(one.privileged for one in found),
        versions={name: " and ".join(those) for name, those in versions.items()},
        standin_suites=tuple(suite for one in found for suite in one.standin_suites),
    )


def named_apart(found: Sequence[Entrant]) -> list[Entrant]:
    """The same, with names that differ: those of one policy get their source, and a number where that is one too."""
    named = _told_apart(found, [f"{one.name} ({one.source})" for one in found])
    return _told_apart(named, [f"{one.name} #{k}" for k, one in enumerate(named, 1)])


def _told_apart(found: Sequence[Entrant], longer: Sequence[str]) -> list[Entrant]:
    times = Counter(one.name for one in found)
    return [replace(one, name=name) if times[one.name] > 1 else one for one, name in zip(found, longer, strict=True)]
