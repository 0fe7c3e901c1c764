"""How far the numbers depend on the thresholds: the variants of the paper's Table 9, and sweeps over any threshold."""

from __future__ import annotations

from safevla_bench.sensitivity.curves import Ablation, Curve, Point, Sweep, ablate, sweep
from safevla_bench.sensitivity.rethreshold import Rescore, varied
from safevla_bench.sensitivity.variants import Asked, Setting, Variant, asked, paper_variants

__all__ = [
    "Ablation",
    "Asked",
    "Curve",
    "Point",
    "Rescore",
    "Setting",
    "Sweep",
    "Variant",
    "ablate",
    "asked",
    "paper_variants",
    "sweep",
    "varied",
]
