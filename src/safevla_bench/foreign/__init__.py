"""Recordings of other tools: actions to replay (`read_recorded_actions`), and results (`read_results`).

Nothing here is a trajectory record: there are no contacts and no forces, so nothing is judged before it is replayed.
"""

from pathlib import Path

from safevla_bench.foreign.demonstrations import RecordedActions, read_demonstrations
from safevla_bench.foreign.harness import read_recording, recording_files
from safevla_bench.foreign.results import ForeignEpisode, ForeignResults, read_results

__all__ = [
    "ForeignEpisode",
    "ForeignResults",
    "RecordedActions",
    "read_demonstrations",
    "read_recorded_actions",
    "read_results",
    "recording_files",
]


def read_recorded_actions(path: Path) -> list[RecordedActions] | None:
    """Return the episodes of a file or folder of demonstrations or of vla-evaluation-harness; None if it is neither.

    Raises:
        RecordError: it is one, and cannot be read; or a package is missing.
    """
    recordings = recording_files(path)
    if recordings:
        return [take for file in recordings for take in read_recording(file)]
    return read_demonstrations(path)
