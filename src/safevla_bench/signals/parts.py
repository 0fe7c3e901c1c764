"""The parts of each episode's scene, such as fixed bodies and robot links: their poses and their bodies."""

from __future__ import annotations

import numpy as np

from safevla_bench.signals.signal import RecordFields, unit_quaternions
from safevla_bench.trajectory.batch import Poses
from safevla_bench.trajectory.geometry import PoseTrack, RecordedGeometry, move_part, read_geometry
from safevla_recorder.channels import LINK_MOTION
from safevla_recorder.episode import Floats
from safevla_recorder.geometry import TRACKED


class ScenePoses:
    """The parts of the scene in one episode of n records; their poses are computed on demand."""

    def __init__(self, fields: RecordFields, episode: int, geometry: RecordedGeometry) -> None:
        batch = fields.batch
        self.geometry = geometry
        self._fields, self._episode = fields, episode
        self._records = slice(int(batch.starts[episode]), int(batch.starts[episode + 1]))
        self._tracks: dict[int, PoseTrack] = {}
        table = range(int(batch.body_starts[episode]), int(batch.body_starts[episode + 1]))
        ids = {batch.body_label(body): body for body in table}
        self.body = tuple(ids.get(part.body, -1) for part in geometry.parts)
        """For each part, the index of its body in the body table; -1 if it has none."""
        rows = batch.channel(LINK_MOTION).episode_rows(episode)
        self._motion: dict[int, Floats] = {}
        for column, (part, axis) in enumerate(geometry.components if rows.size else ()):
            self._motion.setdefault(part, np.zeros((len(rows), 6)))[:, axis] = rows[:, column]

    @property
    def parts(self) -> dict[int, int]:
        """Body -> the first of its parts, whose pose is the pose of the body."""
        return {body: part for part, body in reversed([*enumerate(self.body)]) if body >= 0}

    def is_placed(self, part: int) -> bool:
        """Return whether the poses of a part are recorded."""
        row = self.geometry.parts[part]
        if row.parent == TRACKED:
            poses = (self._fields.batch.body_pos_m, self._fields.batch.body_quat_wxyz)
            return all(self.body[part] in track.episode_poses(self._episode)[0] for track in poses)
        return (not row.motion or part in self._motion) and (row.parent < 0 or self.is_placed(row.parent))

    def place(self, part: int) -> PoseTrack:
        """Return positions [n, 3] and orientations [n, 4] of a part, one row each if it is fixed; NaN if unknown."""
        if part not in self._tracks:
            self._tracks[part] = self._place(part)
        return self._tracks[part]

    def _place(self, part: int) -> PoseTrack:
        row, count = self.geometry.parts[part], self._records.stop - self._records.start
        if row.parent == TRACKED:
            batch = self._fields.batch
            position, turn = (
                tracked_rows(self._fields, poses, self.body[part], self._episode)
                for poses in (batch.body_pos_m, batch.body_quat_wxyz)
            )
            unknown = np.full((count, 4), np.nan)
            return PoseTrack(
                unknown[:, :3] if position is None else position,
                unknown if turn is None else unit_quaternions(turn),
            )
        if row.motion and part not in self._motion:
            return PoseTrack(np.full((1, 3), np.nan), np.full((1, 4), np.nan))
        ground = PoseTrack(np.zeros((1, 3)), np.array([[1.0, 0.0, 0.0, 0.0]]))
        return move_part(row, self.place(row.parent) if row.parent >= 0 else ground, self._motion.get(part))


def tracked_rows(fields: RecordFields, poses: Poses, body: int, episode: int) -> Floats | None:
    """Return the recorded poses of a body in an episode, [n, size], NaN where lost; None if they are not recorded."""
    posed, rows = poses.episode_poses(episode)
    column = np.flatnonzero(posed == body)
    if not len(column):
        return None
    track = rows[:, column[0]].copy()
    if fields.has_lost_poses:
        at = np.arange(fields.batch.starts[episode], fields.batch.starts[episode + 1])
        track[fields.is_lost(np.full(len(at), body), at)] = np.nan
    return track


def scene_poses(fields: RecordFields, episode: int) -> ScenePoses | None:
    """Return the parts of an episode, computed once per `RecordFields`; None if its geometry is not recorded."""
    if episode not in fields.scenes:
        text = fields.batch.headers[episode].geometry
        fields.scenes[episode] = None if text is None else ScenePoses(fields, episode, read_geometry(text))
    scene: ScenePoses | None = fields.scenes[episode]
    return scene
