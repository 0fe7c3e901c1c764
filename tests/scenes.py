"""Scenes of runs that several files of tests play: a plug-in of one's own, a watched run."""

from __future__ import annotations

import os
from pathlib import Path

from safevla_bench.rollout.episode import EpisodeOutcome
from safevla_bench.rollout.plan import PlannedEpisode

WITHOUT_WRIST = {"observation/image": ("|u1", (224, 224, 3)), "observation/state": ("<f8", (8,)), "prompt": str}
"""What a stub of openpi's server takes of a policy with one camera."""


def install_plugin(folder: Path, name: str, module: str, *points: str) -> Path:
    """Put a distribution into a folder: its module `NAME_plugin`, and `group = function` for each entry point NAME."""
    (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{name}_plugin.py").write_text(module)
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (point.split(" = ") for point in points)
    text = "".join(f"[safevla_bench.{group}]\n{name} = {name}_plugin:{function}\n" for group, function in groups)
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(text)
    return folder


class Watcher:
    """An observer of a run that notes what it learns, and may stop it with Ctrl-C after so many episodes."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.total = stop_after, 0
        self.stepped_at: list[tuple[str, int]] = []
        self.ended: list[EpisodeOutcome] = []

    def started(self, episodes: list[PlannedEpisode]) -> None:
        self.total = len(episodes)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        self.stepped_at.append((planned.episode_id, steps))

    def finished(self, outcome: EpisodeOutcome) -> None:
        self.ended.append(outcome)
        if len(self.ended) == self.stop_after:
            raise KeyboardInterrupt


def anyone_in(group: int) -> bool:
    """Whether a process of that group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
