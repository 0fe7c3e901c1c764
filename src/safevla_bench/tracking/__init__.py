"""Numbers of a run sent to a tracker of experiments: Weights & Biases, Trackio, TensorBoard, or one of your own."""

from safevla_bench.tracking.observer import (
    ObserverGroup,
    TrackingObserver,
    describe_ruleset,
    episode_values,
    open_observers,
    score_outcome,
    summary_values,
)
from safevla_bench.tracking.trackers import TRACKERS, Tracker, open_tracker, require_trackers

__all__ = [
    "TRACKERS",
    "ObserverGroup",
    "Tracker",
    "TrackingObserver",
    "describe_ruleset",
    "episode_values",
    "open_observers",
    "open_tracker",
    "require_trackers",
    "score_outcome",
    "summary_values",
]
