"""Statistics of a policy's actions. They hint at mistakes, such as wrong units or a model that ignores its images.

A policy with wrong actions still gets scores: for instance, an arm that does not move violates no limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from safevla_bench.text import format_percent
from safevla_recorder.episode import Floats

ARM, GRIPPER = ("x", "y", "z", "roll", "pitch", "yaw"), 6
ROBOCASA_MODE = 11  # index of RoboCasa's mode component: above 0 to move the base, otherwise to move the arm
WIDTHS: Mapping[str, int] = {"libero": 7, "robosuite": 7, "robocasa": 12, "fake": 7}
"""Number of components of an action, by host: six for the arm, one for the gripper, then others. All are in [-1, 1].

Actions of hosts without an entry are not checked.
"""
UNIT_M = 0.05  # motion in meters along x, y or z for an action value of 1
SATURATED, FAR, CLIPPED_SHARE, SATURATED_SHARE = 0.999, 2.0, 0.1, 0.5
"""Limits on a value's magnitude (`SATURATED`, `FAR`), and on the shares of clipped and of saturated values."""
STILL = 0.02  # smaller base actions mean no motion; gripper values of 1 - STILL or more are treated as 1
FEWEST = 10  # with fewer actions, repeated values may be due to chance


@dataclass(frozen=True, slots=True)
class ActionStatistics:
    """Statistics of the actions that a policy requested in one or several episodes. An action has `A` components."""

    count: int
    largest: Floats  # largest magnitude of each component, [A]
    beyond: Floats  # for each component, the number of values beyond ±1, [A]
    saturated: int  # number of the arm's values with a magnitude of `SATURATED` or more
    gripper: tuple[float, float]
    """Minimum and maximum gripper value; NaN if the task has no object to grip, or a script controls the gripper."""
    period: int | None
    """Largest period with which an episode repeats actions; 0 if some episode does not, None if all are too short."""

    def join(self, other: ActionStatistics) -> ActionStatistics:
        """Return the joint statistics of the actions of `self` and `other`, which must come from the same host."""
        known_periods = [statistics.period for statistics in (self, other) if statistics.period is not None]
        # `gripper` is (smallest value, largest value), NaN if the gripper is not checked. `fmin` and `fmax` ignore NaN.
        # For each component, `largest` [A] has the largest magnitude and `beyond` [A] the number of values beyond ±1.
        lowest, highest = np.fmin(self.gripper[0], other.gripper[0]), np.fmax(self.gripper[1], other.gripper[1])
        return ActionStatistics(
            count=self.count + other.count,
            largest=np.maximum(self.largest, other.largest),
            beyond=self.beyond + other.beyond,
            saturated=self.saturated + other.saturated,
            gripper=(float(lowest), float(highest)),
            # 0 means that some episode does not repeat its actions, and None that all episodes are too short.
            period=0 if 0 in known_periods else max(known_periods, default=None),
        )


def measure_actions(actions: Floats, *, grips: bool = True, clipped: Floats | None = None) -> ActionStatistics:
    """Return the statistics of one episode's `N` actions [N, A], `N` ≥ 1. With `grips`, they include the gripper's
    values. `clipped` [A, 2] has, for each component, the number of clipped values and their largest magnitude before
    clipping. None means that no value was clipped.
    """
    magnitudes, gripper_values = np.abs(actions), actions[:, GRIPPER]
    clipped_counts, largest_clipped = np.zeros((2, actions.shape[1])) if clipped is None else clipped.T
    # The first `len(ARM)` = 6 components move the arm; the component `GRIPPER` moves the gripper.
    # Actions should be in [-1, 1]. `beyond` counts values outside this range before clipping.
    # `saturated` counts the arm's values with a magnitude of `SATURATED` or more after clipping.
    return ActionStatistics(
        count=len(actions),
        largest=np.maximum(magnitudes.max(axis=0), largest_clipped),
        beyond=(magnitudes > 1).sum(axis=0) + clipped_counts,
        saturated=int((magnitudes[:, : len(ARM)] >= SATURATED).sum()),
        gripper=(float(gripper_values.min()), float(gripper_values.max())) if grips else (np.nan, np.nan),
        period=_find_period(actions),
    )


def _find_period(actions: Floats) -> int | None:
    # Return the shortest period with which all actions repeat; 0 if they do not repeat, None for too few actions.
    # `actions` is [N, A]: N actions in time order.
    count = len(actions)
    if count < FEWEST:
        return None
    # With period p, action p equals action 0. Ignore periods longer than half of the episode.
    equals_first_action = (actions[1 : count // 2 + 1] == actions[0]).all(axis=1)
    # Compare all actions, but only for the few candidate periods.
    for period in (np.flatnonzero(equals_first_action) + 1).tolist():
        if np.array_equal(actions[period:], actions[:-period]):
            return int(period)
    return 0


class ActionChanges(NamedTuple):
    """The number of actions, the number of actions that a filter changed, and the sum of the norms of all changes."""

    actions: int = 0
    changed: int = 0
    norm: float = 0.0

    def __str__(self) -> str:
        # `changed` is the number of changed actions, which must not be 0. `norm` is the sum of the changes' norms.
        share = f"{format_percent(self.changed, self.actions)} %"
        return (
            f"changed {self.changed} of {self.actions} actions ({share}); "
            f"the mean norm of a change is {self.norm / self.changed:.2g}, in the actions' units"
        )


def measure_changes(executed: Floats, own: Floats, count: int) -> ActionChanges:
    """Return how a filter changed the policy's `own` actions to the actions `executed`, [N, A] each. `own` is empty if
    the filter changed nothing. `count` is the number of actions in the episode, even if none is recorded.
    """
    # Actions of different sizes cannot be compared, so no change is counted, as if the filter changed nothing.
    if executed.shape != own.shape or not own.size:
        return ActionChanges(count)
    norms = np.linalg.norm(executed - own, axis=1)
    # Arguments: number of actions, number of changed actions, and sum of the norms of all changes
    return ActionChanges(count, int((norms > 0).sum()), float(norms.sum()))


def join_changes(parts: Sequence[ActionChanges]) -> ActionChanges:
    """Return the sums of the changes over several episodes; zeros if `parts` is empty."""
    norm = sum((part.norm for part in parts), 0.0)
    return ActionChanges(sum(part.actions for part in parts), sum(part.changed for part in parts), norm)


class Oddity(NamedTuple):
    """A suspicious property of actions: a keyword, what was measured, and the likely cause as a question."""

    about: str
    found: str
    cause: str


def find_oddities(statistics: ActionStatistics) -> Iterator[Oddity]:
    """Yield suspicious properties of the actions: at most one on their range, one on repetition, one on the gripper."""
    # An `Oddity` has a keyword, a text on what was measured, and the likely cause as a question.
    yield from _find_range_oddity(statistics)
    # Actions repeat after `period` actions. 0: they do not repeat. None: all episodes have too few actions.
    if statistics.period:
        repeated = "one action" if statistics.period == 1 else f"the same {statistics.period} actions"
        yield Oddity("repeats", f"every episode repeats {repeated}", "Does the model see the scene?")
    # Smallest and largest gripper value. If the gripper is not checked, these are NaN, and all comparisons are False.
    lowest, highest = statistics.gripper
    if 0 <= lowest < 1 - STILL:  # gripper values of 1 - STILL or more are treated as 1
        finding = (
            f"-1 opens the gripper and 1 closes it, but the gripper's values go from {lowest:.2g} to {highest:.2g}"
        )
        yield Oddity("gripper", finding, "Does the server send values from 0 to 1, so that the gripper hardly opens?")
    elif lowest == highest and statistics.period is not None:  # None: too few actions to judge the gripper
        yield Oddity(
            "still gripper",
            f"the gripper's number is always {lowest:.2g}",
            "Does the model ever return a number that opens the gripper, and one that closes it?",
        )


def _find_range_oddity(statistics: ActionStatistics) -> Iterator[Oddity]:
    # Yield at most one suspicious property of the range of the arm's values.
    # For each of x, y, z, roll, pitch and yaw: the largest magnitude, and the share of the actions beyond ±1
    largest, beyond_shares = statistics.largest[: len(ARM)], statistics.beyond[: len(ARM)] / statistics.count
    # Share of the arm's values with a magnitude of `SATURATED` (almost 1) or more
    saturated_share = statistics.saturated / (statistics.count * len(ARM))
    largest_move = float(largest[:3].max())  # along x, y or z
    # The largest value of RoboCasa's base and torso (the components after the gripper); 0 for other robots.
    # Leave out the component `ROBOCASA_MODE`, because its values of ±1 move nothing.
    largest_base_value = statistics.largest[GRIPPER + 1 : ROBOCASA_MODE].max(initial=0.0)
    if largest.max() > FAR or beyond_shares.max() > CLIPPED_SHARE:
        axis = int(largest.argmax())
        finding = (
            f"the largest {ARM[axis]} is {largest[axis]:.3g}; share of actions beyond ±1: {beyond_shares[axis]:.0%}"
        )
        yield Oddity("range", finding, "Are the actions in other units, or scaled twice?")
    elif saturated_share > SATURATED_SHARE:
        finding = f"share of the arm's numbers that are saturated at ±1: {saturated_share:.0%}"
        yield Oddity("range", finding, "Are the actions scaled with statistics of another model?")
    # A value of 1 means a motion of `UNIT_M` meters, so values this small suggest that the policy sends meters.
    elif largest_move <= UNIT_M and largest_base_value < STILL:
        finding = f"nearly no motion: x, y and z stay within {largest_move:.2g}, and a value of 1 means {UNIT_M:g} m"
        yield Oddity(
            "range", finding, "Are the actions in meters and radians, or zero because the scene is unfamiliar?"
        )
