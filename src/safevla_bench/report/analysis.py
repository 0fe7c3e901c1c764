"""What a report says beyond the four numbers, computed once: comparison, sensitivity, exposure, phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safevla_bench import exposure, sensitivity
from safevla_bench.compare import Comparison, compare, entrants
from safevla_bench.errors import RunError, SpecError
from safevla_bench.exposure.phases import holding, phases
from safevla_bench.scores import ACTIVE, Scores
from safevla_bench.sensitivity import Ablation, Asked, Rescore, Sweep
from safevla_bench.signals import Reading
from safevla_bench.specs import Library
from safevla_bench.tasks import Registry
from safevla_bench.trajectory import Batch

MOST_COMPARED = 5
"""With more policies than this the pairs are too many to read: `safevla compare` has them all."""
_STEPS = 12
"""Steps of a sweep on either side of the registered threshold, from a quarter of it to four times."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What was computed; None or empty where there is nothing to say, and `uncompared`, `unpaired` say why.

    `phase` is that of each record, an array for each episode of the scores.
    """

    comparison: Comparison | None = None
    uncompared: str = ""
    unpaired: str = ""
    ablation: Ablation | None = None
    sweeps: tuple[Sweep, ...] = ()
    exposures: tuple[exposure.CellExposure, ...] = ()
    force_threshold_n: float | None = None
    phase: Sequence[NDArray[np.int8]] | None = None


def analyse(
    scores: Scores,
    batch: Batch,
    library: Library,
    registry: Registry,
    rescore: Rescore | None = None,
    *,
    privileged: Sequence[str | None] = (),
    protocols: Sequence[Mapping[str, object]] = (),
    chunks: Iterable[Batch] | None = None,
) -> Analysis:
    """All of it.

    Args:
        scores: the verdicts.
        batch: their records, in the same order.
        library: the specifications.
        registry: the tags of tasks.
        rescore: judges the same records with another library.
        privileged: the policies that saw state which no real robot has.
        protocols: of the sources that state one; where they differ, episodes are not paired.
        chunks: the records some at a time, where those in `batch` are not whole.
    """
    if not scores.counted.any():
        return Analysis()
    phase: list[NDArray[np.int8]] = []

    def phased() -> Iterator[Batch]:
        for some in [batch] if chunks is None else chunks:
            phase.extend(np.split(phases(Reading(some), holding(some, registry)), some.starts[1:-1]))
            yield some

    spent = exposure.exposure_of(phased(), scores, library, registry)
    compared, uncompared, unpaired = _compared(scores, batch, privileged, protocols)
    return Analysis(
        comparison=compared,
        uncompared=uncompared,
        unpaired=unpaired,
        ablation=_ablated(scores, library, rescore),
        sweeps=tuple(_swept(scores, library, rescore)),
        exposures=tuple(exposure.summarize_exposure(spent, scores)),
        force_threshold_n=spent.force_threshold_n,
        phase=phase,
    )


def _compared(
    scores: Scores, batch: Batch, privileged: Sequence[str | None], protocols: Sequence[Mapping[str, object]]
) -> tuple[Comparison | None, str, str]:
    """The comparison, why there is none, and why its episodes are not paired."""
    found = [one for one in entrants(scores, batch.headers, privileged=privileged) if len(one)]
    if len(found) < 2:
        return None, "", ""
    if len(found) > MOST_COMPARED:
        return None, f"There are {len(found)} policies here: safevla compare tells each pair apart.", ""
    try:
        if any(one != protocols[0] for one in protocols):
            raise RunError("the sources were run under different protocols")
        return compare(found), "", ""
    except RunError as error:
        return compare(found, paired=False), "", error.problem


def _ablated(scores: Scores, library: Library, rescore: Rescore | None) -> Ablation | None:
    try:
        return sensitivity.ablate(scores, library, rescore)
    except SpecError:  # a library in other units than the paper's variants
        return None


def _swept(scores: Scores, library: Library, rescore: Rescore | None) -> list[Sweep]:
    """Every graded specification that reached a verdict; those whose formula states its number are left out.

    The page draws Safety alone, so that VSI goes without intervals.
    """
    found = []
    for k in scores.scored:
        spec = scores.specs[k]
        if spec.binary or not (scores.state[k] == ACTIVE).any():
            continue
        grid = tuple(spec.threshold * 2 ** (step / (_STEPS / 2)) for step in range(-_STEPS, _STEPS + 1))
        try:
            asked = Asked(spec.spec_id, (spec.spec_id,), grid)
            found.append(sensitivity.sweep(scores, library, asked, rescore, resamples=0))
        except SpecError:
            continue
    return found
