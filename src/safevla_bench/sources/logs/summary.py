"""Description of each channel of a log: source, time base, rate, lowest and highest values, implausible values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from safevla_bench.sources.logs.mappings import LogMapping, PoseColumns, TorqueColumns
from safevla_bench.sources.logs.records import LoggedEpisode
from safevla_bench.text import escape_controls, format_significant
from safevla_bench.trajectory.header import find_robot
from safevla_recorder.episode import Floats

# Limits for warnings: speed of a pose [m/s], ratio of a torque to its limit, length of a gap in message periods.
_FASTEST_M_S, _MOST_TORQUE, _MOST_PERIODS = 5.0, 3.0, 10
_UNITS = {"torque": " N·m", "wrench": " N, without subtracting the tare"}
_MOST_SHOWN = 8  # maximum number of value ranges, and maximum number of warnings, for each channel


def describe_channels(episodes: Iterable[LoggedEpisode], mapping: LogMapping) -> Iterator[str]:
    """Yield, for each mapped part, a line that summarizes all episodes, then a line for each warning."""
    # A part of the record, such as `eef`, is mapped to a topic or a feature.
    # Part -> lowest and highest values; part -> time bases with rates; part -> problems. Inner dicts are ordered sets.
    bounds: dict[str, tuple[Floats, Floats]] = {}
    clocks: dict[str, dict[str, None]] = {}
    problems: dict[str, dict[str, None]] = {}
    for episode in episodes:
        for name, columns in mapping.sources.items():
            # `values` [n, k] has the part's numbers at n times, and `known` [n] whether they are known.
            samples = episode.series[name]
            rows, times_s = samples.values[samples.known], episode.time_s[samples.known]
            if samples.between is not None:  # use all messages, not only the latest at each instant
                all_messages = samples.between[0][np.isfinite(samples.between[0]).all(axis=1)]
                rows = all_messages if len(all_messages) else rows
            if isinstance(columns, PoseColumns):
                rows = rows[:, :3]  # the position, without the orientation
            if not len(rows):
                continue
            # Extend the bounds of earlier episodes.
            low, high = bounds.get(name, (rows[0], rows[0]))
            bounds[name] = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
            rate_hz = samples.rate_hz or 1 / episode.dt_s
            clocks.setdefault(name, {})[f"{samples.time_base or 'the clock'}, {format_significant(rate_hz)} Hz"] = None
            issues = problems.setdefault(name, {})
            # Without a measured gap, use the longest time between known values.
            gap_s = samples.longest_gap_s or float(np.diff(times_s).max(initial=0.0))
            if gap_s * rate_hz > _MOST_PERIODS:
                issues[f"{episode.name}: no message for {format_significant(gap_s)} s"] = None
            if isinstance(columns, PoseColumns) and len(rows) > 1:
                distances_m, durations_s = np.linalg.norm(np.diff(rows, axis=0), axis=1), np.diff(times_s)
                # Skip repeated times, which have no speed; other checks refuse them.
                speed_m_s = float(np.divide(distances_m, durations_s, where=durations_s > 0, out=0 * durations_s).max())
                if speed_m_s > _FASTEST_M_S:
                    issues[f"{episode.name}: the speed reaches {format_significant(speed_m_s)} m/s"] = None
            if isinstance(columns, TorqueColumns):
                robot = find_robot(mapping.episode.embodiment or episode.embodiment or "")
                limits = np.array(columns.limits_nm or (robot.limits_nm if robot else ()))
                if len(limits) != rows.shape[1]:  # `records` reports limits that are unknown or do not fit
                    continue
                ratio = float((np.abs(rows).max(axis=0) / limits).max())
                if ratio > _MOST_TORQUE:
                    issues[f"{episode.name}: torque {format_significant(ratio)} times its limit"] = None
    for name, (low, high) in bounds.items():
        columns = mapping.sources[name]
        unit = " m" if isinstance(columns, PoseColumns) else _UNITS.get(name.partition(".")[0], "")
        bound_pairs = zip(low[:_MOST_SHOWN].tolist(), high[:_MOST_SHOWN].tolist(), strict=True)
        extremes = [f"{format_significant(least)} to {format_significant(most)}" for least, most in bound_pairs]
        times = "; ".join(list(clocks[name])[:3])  # show at most three, since episodes may differ
        yield escape_controls(f"  [{name}] {columns.source}: {times}; {', '.join(extremes)}{unit}")
        # Parts of one arm are named like `gripper.left`, so only the first word counts.
        if name.partition(".")[0] == "gripper" and (low == high).all():
            yield "    warning: the value never changes"
        yield from (escape_controls(f"    warning: {problem}") for problem in list(problems[name])[:_MOST_SHOWN])
