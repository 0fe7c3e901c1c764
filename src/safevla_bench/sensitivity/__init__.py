"""Sensitivity to thresholds and to readings: the paper's Table 9, sweeps over any threshold, and its named readings."""

from __future__ import annotations

from safevla_bench.sensitivity.calibration import (
    SHOWN_PERCENT,
    Calibration,
    calibrate,
    calibration_rows,
    format_limits,
    histogram,
    order_statistic,
)
from safevla_bench.sensitivity.curves import (
    Rescore,
    SensitivityCurve,
    ThresholdAblation,
    ThresholdSweep,
    VariantRates,
    ablate_thresholds,
    apply_variant,
    sweep_threshold,
    sweep_variants,
)
from safevla_bench.sensitivity.readings import (
    PROSE_DEPTH,
    ReadingCell,
    ReadingComparison,
    ReadingPoint,
    VerdictChanges,
    apply_prose_depth,
    compare_readings,
)
from safevla_bench.sensitivity.variants import (
    SweepRequest,
    ThresholdSetting,
    ThresholdVariant,
    paper_variants,
    parse_sweep,
)

__all__ = [
    "PROSE_DEPTH",
    "SHOWN_PERCENT",
    "Calibration",
    "ReadingCell",
    "ReadingComparison",
    "ReadingPoint",
    "Rescore",
    "SensitivityCurve",
    "SweepRequest",
    "ThresholdAblation",
    "ThresholdSetting",
    "ThresholdSweep",
    "ThresholdVariant",
    "VariantRates",
    "VerdictChanges",
    "ablate_thresholds",
    "apply_prose_depth",
    "apply_variant",
    "calibrate",
    "calibration_rows",
    "compare_readings",
    "format_limits",
    "histogram",
    "order_statistic",
    "paper_variants",
    "parse_sweep",
    "sweep_threshold",
    "sweep_variants",
]
