"""The parts of each episode's scene, such as fixtures and robot links, each with its pose and its body."""

from __future__ import annotations

from functools import cached_property

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
        # `geometry` has the parts of the scene (links, fixtures) and their shapes. `episode` is an index in the batch.
        batch = fields.batch
        self.geometry = geometry
        self._fields, self._episode = fields, episode
        self._tracks: dict[int, PoseTrack] = {}  # part -> poses of the part, if they were computed already
        bodies = range(int(batch.body_starts[episode]), int(batch.body_starts[episode + 1]))
        body_by_label = {batch.body_label(body): body for body in bodies}
        self.body = tuple(body_by_label.get(part.body, -1) for part in geometry.parts)
        """For each part, the index of its body in the body table; -1 if it has no body."""
        motion_rows = batch.channel(LINK_MOTION).episode_rows(episode)
        # Part -> motion relative to the part's parent in each record, [n, 6]: rotation vector and translation.
        # Each column of `motion_rows` has one of these six components of one part.
        # `components` lists the part and the component of each column.
        self._motion_of_part: dict[int, Floats] = {}
        components = geometry.components if motion_rows.size else ()  # without rows, the motion is not recorded
        for column, (part, axis) in enumerate(components):
            motion = self._motion_of_part.setdefault(part, np.zeros((len(motion_rows), 6)))
            motion[:, axis] = motion_rows[:, column]

    @cached_property
    def part_of_body(self) -> dict[int, int]:
        """Maps each body to the first of its parts. The pose of this part is the pose of the body."""
        # `self.body` has the index of each part's body; -1 for a part without a body.
        # Because the order is reversed, the first part of a body overwrites the body's other parts.
        return {body: part for part, body in reversed([*enumerate(self.body)]) if body >= 0}

    def is_placed(self, part: int) -> bool:
        """Return whether the poses of a part are recorded."""
        # A part may follow a tracked body (whose poses are recorded).
        # Otherwise, it may move relative to another part or to the world.
        # `_motion_of_part` has the parts whose motion relative to their parents is recorded.
        part_row = self.geometry.parts[part]
        if part_row.parent == TRACKED:
            poses = (self._fields.batch.body_pos_m, self._fields.batch.body_quat_wxyz)
            return all(self.body[part] in track.episode_poses(self._episode)[0] for track in poses)
        # The part can move relative to its parent, but this motion is not recorded.
        if part_row.motion and part not in self._motion_of_part:
            return False
        return part_row.parent < 0 or self.is_placed(part_row.parent)  # a negative parent is the world

    def place(self, part: int) -> PoseTrack:
        """Return positions [n, 3] and orientations [n, 4] of a part, one row each if it is fixed; NaN if unknown."""
        # `part` is the index of a part. Tracks that were computed before are kept in `_tracks`.
        if part not in self._tracks:
            self._tracks[part] = self._compute_track(part)
        return self._tracks[part]

    def _compute_track(self, part: int) -> PoseTrack:
        # The parent of a part is a tracked body, another part, or the world.
        # `_motion_of_part` has the recorded motion of each part relative to its parent, [n, 6].
        # A track has positions [n, 3] and unit quaternions wxyz [n, 4] in the world, one row each if the part is fixed.
        part_row, batch = self.geometry.parts[part], self._fields.batch
        if part_row.parent == TRACKED:
            position, quaternion = (
                tracked_rows(self._fields, poses, self.body[part], self._episode)
                for poses in (batch.body_pos_m, batch.body_quat_wxyz)
            )
            record_count = batch.lengths[self._episode]
            return PoseTrack(
                np.full((record_count, 3), np.nan) if position is None else position,
                np.full((record_count, 4), np.nan) if quaternion is None else unit_quaternions(quaternion),
            )
        if part_row.motion and part not in self._motion_of_part:  # the part moves, but its motion is not recorded
            return PoseTrack(np.full((1, 3), np.nan), np.full((1, 4), np.nan))
        world_origin = PoseTrack(np.zeros((1, 3)), np.array([[1.0, 0.0, 0.0, 0.0]]))
        return move_part(
            part_row,
            self.place(part_row.parent) if part_row.parent >= 0 else world_origin,
            self._motion_of_part.get(part),
        )


def tracked_rows(fields: RecordFields, poses: Poses, body: int, episode: int) -> Floats | None:
    """Return the recorded poses of a body in an episode, [n, size], NaN where unknown; None if not recorded."""
    # `poses` are positions (size 3), quaternions (4) or values (1) of bodies; `body` is an index in the body table.
    # Poses that are marked as unknown become NaN.
    bodies, values = poses.episode_poses(episode)
    column = np.flatnonzero(bodies == body)
    if not len(column):
        return None
    track = values[:, column[0]].copy()
    if fields.has_lost_poses:
        track[fields.is_lost_in(episode, body)] = np.nan
    return track


def scene_poses(fields: RecordFields, episode: int) -> ScenePoses | None:
    """Return the parts of an episode, computed once per `RecordFields`; None if its geometry is not recorded."""
    # The result gives the parts (links, fixtures) of the episode's scene with their poses.
    if episode not in fields.scenes:
        text = fields.batch.headers[episode].geometry
        fields.scenes[episode] = None if text is None else ScenePoses(fields, episode, read_geometry(text))
    scene: ScenePoses | None = fields.scenes[episode]
    return scene
