"""The tree of coordinate frames of a recording, and conversion of poses to one frame, as in tf2.

Between two stamps, a transform is interpolated: the position linearly, the rotation along the shorter arc. A transform
is unknown before its first stamp, after its last stamp, and in a gap beyond `max_gap_s`. A static transform is valid
until the next one. `/map` and `map` are the same frame. Transforms with NaN, or from a frame to itself, are ignored.

The source in tf2 is ros2/geometry2, commit 1b005c6: tf2/src/buffer_core.cpp (setTransformImpl, walkToTopParent),
tf2/src/cache.cpp (findClosest, interpolate), tf2/include/tf2/LinearMath/Quaternion.h (slerp).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.errors import RecordError
from safevla_recorder.episode import Floats, Ints

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

_XYZW = [4, 5, 6, 3]  # indices of x, y, z, w (scipy's order) in a pose [7]


def plain_frame(name: str) -> str:
    """Return the name of a frame without a leading slash, as tf2 does."""
    # `/map` and `map` are the same frame.
    return name.removeprefix("/")


@dataclass(frozen=True)
class Edge:
    """The edge from a frame to its parent: the frame's poses in the parent frame, [n, 7] (x, y, z [m], w, x, y, z), by
    ascending time [ns]. If `static`, each pose is valid until the next one. Several `parents` are an error.
    """

    parents: tuple[str, ...]
    time_ns: Ints
    poses: Floats
    static: bool


class FrameTree:
    """The frames of a recording: each child frame has an edge to its parent."""

    def __init__(self, edges: Mapping[str, Edge], max_gap_ns: float) -> None:
        """Store the edges. Transforms that are more than `max_gap_ns` apart are not interpolated."""
        # `edges` maps each child frame to an edge. The edge has the child frame's poses in the parent frame.
        self._edges, self._max_gap_ns = edges, max_gap_ns
        self.rare_frames: dict[str, None] = {}  # frames whose transforms are mostly too far apart

    def bring(self, poses: Floats, frame: str, into: str, time_ns: Ints) -> Floats:
        """Convert known poses [n, 3 or 7] from `frame` to the frame `into`, each pose at its own time. The position is
        NaN if a transform is unknown at this time. Raises `RecordError` if the tree does not connect the frames.
        """
        # Each list of ancestors begins with the frame itself and omits the root, which has no parent.
        up_frames, down_frames = self._list_ancestors(frame), self._list_ancestors(into)
        # The path goes up from `frame` to the nearest common ancestor, and then down to `into`.
        while up_frames and down_frames and up_frames[-1] == down_frames[-1]:
            up_frames, down_frames = up_frames[:-1], down_frames[:-1]
        # The frames in which the two paths end; they differ if no transforms connect `frame` with `into`.
        top_frame = self._edges[up_frames[-1]].parents[0] if up_frames else frame
        top_into = self._edges[down_frames[-1]].parents[0] if down_frames else into
        if top_frame != top_into:
            known_frames = sorted({*self._edges, *(edge.parents[0] for edge in self._edges.values())})
            listed = ", ".join(known_frames) or "none"
            remedy = f"Known frames: {listed}. Write all topics with transforms as `topics` under [transforms]."
            raise RecordError(f"no transforms connect {frame!r} with {into!r}", remedy=remedy)
        from scipy.spatial.transform import Rotation  # slow to import

        position = poses[:, :3]
        rotation = Rotation.from_quat(poses[:, _XYZW]) if poses.shape[1] == 7 else None
        for child in up_frames:
            origin, axes = self._interpolate_frame(child, time_ns)
            position = origin + axes.apply(position)  # convert from the child to its parent
            rotation = None if rotation is None else axes * rotation
        for child in reversed(down_frames):
            origin, axes = self._interpolate_frame(child, time_ns)
            position = axes.inv().apply(position - origin)  # convert from the parent to its child
            rotation = None if rotation is None else axes.inv() * rotation
        # Quaternions are x, y, z, w in scipy, and w, x, y, z in poses.
        return position if rotation is None else np.hstack([position, rotation.as_quat()[:, [3, 0, 1, 2]]])

    def _list_ancestors(self, frame: str) -> list[str]:
        # Returns the frame and its ancestors in order, except the root, which has no edge; [] for the root itself.
        # `_edges` maps each child frame to an edge, which names the frame's parents.
        frames: list[str] = []
        while frame in self._edges:
            if frame in frames:
                remedy = "Two programs publish transforms in opposite directions; record only one of them."
                raise RecordError(f"the transforms form a cycle at {frame!r}", remedy=remedy)
            frames.append(frame)
            parents = self._edges[frame].parents
            if len(parents) > 1:
                remedy = "Two programs publish this frame. Record one of them, or name `topics` under [transforms]."
                raise RecordError(f"the frame {frame!r} has several parents: {', '.join(parents)}", remedy=remedy)
            frame = parents[0]
        return frames

    def _interpolate_frame(self, child: str, time_ns: Ints) -> tuple[Floats, Rotation]:
        # Return a frame's origin (NaN = unknown) and rotation in its parent frame at each time.
        # The frame's edge has the frame's poses in its parent frame.
        from scipy.spatial.transform import Rotation

        edge = self._edges[child]
        # A static pose is valid until the next pose. The first static pose is also valid before its time.
        if edge.static:
            poses = edge.poses[find_held(edge.time_ns, time_ns)]
            return poses[:, :3], Rotation.from_quat(poses[:, _XYZW])
        if len(edge.time_ns) < 2 or np.median(np.diff(edge.time_ns)) > self._max_gap_ns:
            self.rare_frames[child] = None  # a dict serves as an ordered set
        return interpolate_poses(edge.time_ns, edge.poses, time_ns, self._max_gap_ns)


def find_held(known_ns: Ints, time_ns: Ints) -> Ints:
    """Return for each time the index of the latest of the ascending `known_ns` up to this time; 0 before the first."""
    return np.maximum(np.searchsorted(known_ns, time_ns, side="right") - 1, 0)


def interpolate_poses(known_ns: Ints, poses: Floats, time_ns: Ints, max_gap_ns: float) -> tuple[Floats, Rotation]:
    """Return the positions (NaN = unknown) and rotations at each time, from poses [n, 7] at ascending `known_ns`."""
    # A position is known at the time of a pose, and between two poses that are at most `max_gap_ns` apart.
    # Rotations are always returned; ignore them where the position is NaN.
    from scipy.spatial.transform import Rotation, Slerp

    before = np.searchsorted(known_ns, time_ns, side="right") - 1  # index of latest pose; -1 = none
    elapsed_ns = time_ns - known_ns[np.maximum(before, 0)]
    # Time from the latest pose to the next one; 0 after the last pose.
    gap_ns = np.diff(known_ns, append=known_ns[-1])[before]
    is_between = (elapsed_ns < gap_ns) & (gap_ns <= max_gap_ns)
    is_known = (before >= 0) & ((elapsed_ns == 0) | is_between)
    # Convert each time to the index of the latest pose, plus the elapsed fraction of the gap to the next pose.
    # As floats, times in ns would be inexact after 104 days, for example if some count from 1970.
    # Clip the times, since the interpolators accept no time outside the poses. Results outside are set to unknown.
    indices = np.arange(len(known_ns))
    time = np.clip(before + np.where(is_between, elapsed_ns / np.maximum(gap_ns, 1), 0.0), 0, indices[-1])
    position = np.stack([np.interp(time, indices, column) for column in poses[:, :3].T], axis=1)
    position[~is_known] = np.nan
    # Slerp needs two keys, so the last pose is repeated.
    key_poses = poses[[*indices, -1]]
    return position, Slerp(np.arange(len(key_poses)), Rotation.from_quat(key_poses[:, _XYZW]))(time)
