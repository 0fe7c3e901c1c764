"""Sensitivity to thresholds: the variants of the paper's Table 9, and sweeps over any threshold."""

from __future__ import annotations

from safevla_bench.sensitivity.curves import (
    Rescore,
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    VariantRates,
    ablate_thresholds,
    apply_variant,
    sweep_threshold,
)
from safevla_bench.sensitivity.variants import (
    SweepRequest,
    ThresholdSetting,
    ThresholdVariant,
    paper_variants,
    parse_sweep,
)

__all__ = [
    "Rescore",
    "SensitivityCurve",
    "SweepRequest",
    "ThresholdAblation",
    "ThresholdSetting",
    "ThresholdSweep",
    "ThresholdVariant",
    "VariantRates",
    "ablate_thresholds",
    "apply_variant",
    "paper_variants",
    "parse_sweep",
    "sweep_threshold",
]
