"""An episode set up again in its host: pictures and poses of it, each checked against the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError, Place, RunError
from safevla_bench.interface.environment import Host
from safevla_bench.interface.stage import Camera, Picture, Stage, StagingHost, TriangleMesh
from safevla_bench.interface.task import Task
from safevla_bench.pictures.frames import replay3d
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.trajectory.batch import Batch

TOLERANCE_M = 1e-4
"""Largest distance of a rendered body from its recorded position. It is 0, except where a host moves a joint after the
physics, as RoboCasa does with the door of a toaster oven (1.4e-6 m, and 3.8e-5 m right after a reset). A pixel is about
a millimetre."""


def build_replay3d(stage: Stage, record: Batch, meshes: dict[str, TriangleMesh] | None = None) -> bytes:
    """Return the replay of an episode, a batch of one, in three dimensions: the file that the report's player reads.

    `meshes`, digest -> mesh, is filled with the simplified meshes, to be given for the next episode; None = keep none.

    Raises:
        HostError: the stage cannot say what its scene looks like.
        RunError: bodies would not be shown where they were recorded.
    """
    shown = replay3d.require_geometry(stage)
    geometry = replay3d.simplify_geometry(shown.geometry(), {} if meshes is None else meshes)
    poses = [shown.pose(step) for step in range(int(record.starts[-1]))]
    for step, pose in enumerate(poses):
        _check_positions(pose.body_pos_m, record, step)
    return replay3d.encode_replay(geometry, replay3d.read_motion(record, poses), stage.arm)


def open_stage(folder: Path, host: Host, record: Batch) -> Stage:
    """Return the stage of an episode of a run folder, set up in its host; the caller closes it.

    `record` is a batch of one.

    Raises:
        HostError: the host cannot show episodes or lacks the suite or task, rendering does not work here, or the record
            lacks a needed channel.
        RunError: run.json is missing or damaged.
    """
    if not isinstance(host, StagingHost):
        problem = f"the host {host.name!r} cannot show what it recorded"
        raise HostError(problem, remedy="A host that can has a method `stage`: docs/frames.md.")
    return host.stage(_recorded_task(folder, host, record), record)


def _recorded_task(folder: Path, host: Host, record: Batch) -> Task:
    """Return the host's task of an episode, sought in the suites that run.json names, else in the episode's own suite.

    Raises `HostError` if it is not there, `RunError` if run.json is missing or damaged.
    """
    header = record.headers[0]
    suite_names = read_description(folder).get("suites")
    suites = (
        [str(suite) for suite in suite_names] if isinstance(suite_names, list) and suite_names else [header.benchmark]
    )
    tasks = [task for suite in suites for task in host.tasks(suite)]
    matches = [task for task in tasks if (task.benchmark, task.task_id) == (header.benchmark, header.task_id)]
    if not matches:
        problem = f"the host {host.name!r} has no task {header.task_id!r} in {header.benchmark!r}"
        raise HostError(problem, remedy="Render with the versions that run.json names.")
    return matches[0]


def render_checked(
    stage: Stage, record: Batch, step: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()
) -> Picture:
    """Return the picture of one record of an episode, a batch of one.

    Args:
        stage: the episode as it is set up in its host.
        record: the episode.
        step: the record.
        camera: where to look from.
        size: height and width in pixels.
        bodies: names; the picture's `seen` tells where each of them is.

    Raises:
        RunError: bodies would not be shown where they were recorded.
        KeyError: the host has no camera of that name.
    """
    picture = stage.render(step, camera, size, bodies)
    _check_positions(picture.body_pos_m, record, step)
    return picture


def _check_positions(shown_m: Mapping[str, NDArray[np.float64]], record: Batch, step: int) -> None:
    for body, position in _recorded_positions(record, step).items():
        gap = float(np.linalg.norm(shown_m.get(body, position) - position))
        if not gap <= TOLERANCE_M:
            problem = f"{body!r} would be shown {gap:.2g} m from where it was recorded"
            remedy = "Render with the versions that run.json names."
            raise RunError(problem, remedy=remedy, place=Place(step=step))


def _recorded_positions(record: Batch, step: int) -> dict[str, NDArray[np.float64]]:
    bodies, positions = record.body_pos_m.episode_poses(0)
    return {record.body_label(int(body)): positions[step, place] for place, body in enumerate(bodies)}
