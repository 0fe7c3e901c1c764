"""Rendering of recorded episodes: the host recreates each episode, and its pictures are stored in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError, Place, RunError, SafevlaError
from safevla_bench.explain.episode import Explanation, Moment, SpecTrace, explain_episode
from safevla_bench.files import make_folder, own_path, write_atomically
from safevla_bench.hosts import list_tasks
from safevla_bench.interface.environment import Host
from safevla_bench.interface.stage import Camera, Picture, Stage, TriangleMesh
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores, verdict_word
from safevla_bench.pictures import drawing, replay3d
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs.parts import add_digests
from safevla_bench.text import escape_controls, format_fixed
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.marks import base_suite

# Kinds of frames that show a whole episode; all other kinds are stills.
_WHOLE_EPISODE: frozenset[run_folder.Kind] = frozenset({"video", "replay3d"})
# Height and width of each camera's picture in a film [pixels].
_VIDEO_SIZE = (360, 360)


@dataclass(frozen=True, slots=True)
class FrameStyle:
    """The size of stills (height and width in pixels, without border and caption), and whether to make other frames."""

    size: tuple[int, int] = (480, 640)
    video: bool = False  # whether to make a film of the whole episode
    replay3d: bool = False  # whether to make a 3-D replay, which needs no renderer


@dataclass(frozen=True)
class RecordedRun:
    """A judged run: its folder, the host that recorded it, the records, their scores and the ruleset."""

    folder: Path
    host: Host
    batch: Batch
    scores: Scores
    ruleset: Ruleset


def render_frames(
    run: RecordedRun,
    episodes: Sequence[int],
    style: FrameStyle,
    observer: Callable[[int, str], None],
    on_skip: Callable[[SafevlaError], None],
) -> list[run_folder.Frame]:
    """Render `episodes` (indices in the run's batch) into the run's folder `frames`, and return the new frames.

    New frames replace the old stills, film or replay of these episodes. If an episode cannot be shown, its old frames
    stay and `on_skip` gets the error. If no episode can be shown, the last error is raised. `observer` is called before
    each episode with the number of finished episodes and the id of the next one.

    Raises:
        HostError: the host cannot show episodes, rendering does not work here, or a record lacks a needed channel.
        RunError: a body's position in the host would differ from the record; no frame of that episode is written.
    """
    make_folder(own_path(run.folder, run_folder.FRAMES))
    frames: list[run_folder.Frame] = []
    # Simplified meshes by digest: a cache, because episodes of a run often show the same objects.
    meshes: dict[str, TriangleMesh] = {}
    failed_count = 0
    for finished_count, index in enumerate(episodes):
        observer(finished_count, run.batch.headers[index].episode_id)
        try:
            rendered = _render_episode(run, index, style, meshes, on_skip)
        except (HostError, RunError) as error:
            error.with_place(Place(episode=run.batch.headers[index].episode_id))
            failed_count += 1
            if failed_count == len(episodes):
                raise
            on_skip(error)
            continue
        frames += _store_frames(run, index, rendered)
    return frames


# A frame and the content of its file, which `_store_frames` writes.
_Rendered = tuple[run_folder.Frame, bytes]


def _store_frames(run: RecordedRun, index: int, rendered: Sequence[_Rendered]) -> list[run_folder.Frame]:
    # `rendered` has each new frame with the bytes of its file; `index` is the episode's index in the run's batch.
    # Write an episode's new files, remove the files that they replace, and update list and digests of the frames.
    # Return the new frames.
    new_frames = [frame for frame, _ in rendered]
    for frame, content in rendered:
        write_atomically(own_path(run.folder, run_folder.FRAMES, frame.file), content)
    # (policy, episode id) -> index of the episode in the run.
    index_by_key = {header.key: k for k, header in enumerate(run.batch.headers)}
    old_frames, kept_frames = run_folder.read_frames(run.folder), []
    new_kinds = {frame.kind for frame in new_frames}
    # True if any new frame is a still: all other kinds are in `_WHOLE_EPISODE`.
    has_new_stills = not new_kinds <= _WHOLE_EPISODE
    for frame in old_frames:
        episode_index = index_by_key.get((frame.policy, frame.episode_id))
        # New stills replace all old stills of the episode. A film replaces only a film, and a replay only a replay.
        is_replaced = frame.kind in new_kinds or (has_new_stills and frame.kind not in _WHOLE_EPISODE)
        # Frames of episodes that are no longer in the run are also dropped.
        if episode_index is not None and not (episode_index == index and is_replaced):
            kept_frames.append(frame)

    def sort_key(frame: run_folder.Frame) -> tuple[int, bool]:
        # Return a key that puts episodes in the run's order, and stills first (False is less than True).
        return index_by_key[frame.policy, frame.episode_id], frame.kind in _WHOLE_EPISODE

    all_frames = sorted([*kept_frames, *new_frames], key=sort_key)
    # The list is written after the new files and before old files are removed, so it never names a missing file.
    index_file = run_folder.write_frames(run.folder, all_frames)
    stale_files = {frame.file for frame in old_frames} - {frame.file for frame in all_frames}
    for file in stale_files:
        (run.folder / run_folder.FRAMES / file).unlink(missing_ok=True)
    written_files = {index_file.name: index_file.read_bytes(), **{frame.file: content for frame, content in rendered}}
    # Maps the name of each changed file to its content; None = the file was removed.
    changed_files = {**dict.fromkeys(stale_files), **written_files}
    add_digests(run.folder, {f"{run_folder.FRAMES}/{name}": content for name, content in changed_files.items()})
    return new_frames


def _render_episode(
    run: RecordedRun,
    index: int,
    style: FrameStyle,
    meshes: dict[str, TriangleMesh],
    on_skip: Callable[[SafevlaError], None],
) -> list[_Rendered]:
    # `index` is the episode's index in the run's batch; `record` is a batch with only this episode.
    # `meshes` caches simplified meshes by digest. A stage is the host's reconstruction of the episode's scene.
    # Return the episode's new frames, each with the bytes of its file.
    # If only a 3-D replay is possible, `on_skip` gets the renderer's error.
    record = select_episodes(run.batch, [index])
    explanation = explain_episode(run.scores, run.batch, run.ruleset, index)
    shots = select_shots(explanation)
    with closing(open_stage(run.folder, run.host, record)) as stage:
        renderer = _EpisodeRenderer(record, stage, style.size)
        # The last shot shows the final record, and its title has the outcome and the verdict.
        whole_episode = Shot("video", record=0, title="Whole episode", detail=shots[-1].title)
        frames: list[_Rendered] = []
        try:
            frames += [renderer.render_still(shot, k) for k, shot in enumerate(shots)]
            if style.video:
                frames.append(renderer.render_video(explanation, whole_episode))
        except HostError as error:
            if not style.replay3d:  # only a 3-D replay works without a renderer
                raise
            on_skip(error.with_place(Place(episode=record.headers[0].episode_id)))
        if style.replay3d:
            replay_shot = replace(whole_episode, kind="replay3d", title="Whole episode in 3-D")
            # A replay has no fixed camera: its frame names the camera of the first view.
            content, camera = build_replay3d(stage, record, meshes), stage.aim(record=0, bodies=(), size=style.size)
            # A replay is not a picture, so its width and height are 0.
            frames.append(renderer.make_frame(replay_shot, camera, (0, 0), "replay3d.json", content))
    return frames


@dataclass(frozen=True)
class _EpisodeRenderer:
    record: Batch
    stage: Stage
    size: tuple[int, int]

    def render_still(self, shot: Shot, number: int) -> _Rendered:
        """Return a shot's frame and JPEG file. The shot's index `number` makes file names of violations unique."""
        # `self.record` is a batch with only this episode. `shot.record` is the index of one of the episode's records.
        # `self.size` is height and width [pixels]. `self.stage` renders records of the episode.
        bodies = self._bodies_to_show(shot)
        camera = self.stage.aim(shot.record, bodies, self.size)
        picture = render_checked(self.stage, self.record, shot.record, camera, self.size, bodies)
        image = picture.image
        if shot.moved:  # also outline the bodies' positions in record 0, in white
            seen_at_start = render_checked(self.stage, self.record, 0, camera, self.size, bodies).seen
            image = drawing.outline_bodies(image, seen_at_start, drawing.OUTLINE_BEFORE)
        # The border is red for a violation, green for the final record of a success, and gray otherwise.
        border = drawing.RED if shot.kind == "violation" else drawing.GREY
        if shot.kind == "final" and self.record.headers[0].success:
            border = drawing.GREEN
        file_stem = f"violation-{number}" if shot.kind == "violation" else shot.kind
        captioned = drawing.add_caption(drawing.outline_bodies(image, picture.seen), border, shot.title, shot.detail)
        return self.make_frame(shot, camera, captioned.shape, f"{file_stem}.jpg", drawing.encode_jpeg(captioned))

    def render_video(self, explanation: Explanation, shot: Shot) -> _Rendered:
        # Return the frame and the film of the whole episode. On average, records last as long as in the episode.
        # `shot` has the kind and the caption; the pictures show all records.
        # Without bodies to show, `aim` returns the host's default camera.
        default_camera = self.stage.aim(0, (), _VIDEO_SIZE)
        # `further_cameras` is an optional attribute of stages.
        cameras = [default_camera, *(Camera(name) for name in getattr(self.stage, "further_cameras", ()))]

        def render(step: int, camera: Camera) -> drawing.Pixels:
            # Return the camera's picture of record `step`; raise `RunError` if bodies are not where they were recorded.
            return render_checked(self.stage, self.record, step, camera, _VIDEO_SIZE).image

        pictures = drawing.compose_video(explanation, cameras, render)
        first_picture = next(pictures)  # the film has the size of this picture
        last_record = int(self.record.lengths[0]) - 1
        # The mean time between records. For a single record, it would be 0, so `dt_s` is used.
        interval_s = self.record.elapsed_s(0, last_record) / max(1, last_record) or float(self.record.dt_s[0])
        # Encoders need a rational frame rate with a small denominator.
        frames_per_s = Fraction(1 / interval_s).limit_denominator(1000)
        content = drawing.encode_film(chain([first_picture], pictures), frames_per_s)
        return self.make_frame(shot, default_camera, first_picture.shape, "video.mp4", content)

    def _bodies_to_show(self, shot: Shot) -> tuple[str, ...]:
        # Return the names of the bodies to outline. For a shot with a `joint`, outline the body that the joint moves.
        # `stage.arm` has, for each joint, the name of the body that the joint moves.
        return shot.bodies if shot.joint is None else (self.stage.arm[shot.joint],)

    def make_frame(self, shot: Shot, camera: Camera, shape: tuple[int, ...], name: str, content: bytes) -> _Rendered:
        # Return the frame (facts about a file), and the file's `content`.
        # `self.record` is a batch with only this episode.
        # `shot` is a still, or the film or replay of the whole episode. `shot.record` is the index of the shown record.
        # `shape` begins with the picture's height and width [pixels]; `name` is the end of the file's name.
        header = self.record.headers[0]
        # Only a shot of a violation has a specification, and therefore a signal.
        signal_trace = shot.clause.signal_trace if shot.clause else None
        frame = run_folder.Frame(
            episode_id=header.episode_id,
            policy=header.policy,
            kind=shot.kind,
            record=shot.record,
            time_s=self.record.elapsed_s(0, shot.record),
            caption=f"{shot.title}. {shot.detail.removesuffix('.')}.",
            spec=shot.clause.spec.spec_id if shot.clause else None,
            value=shot.value,
            threshold=signal_trace.limit if signal_trace else None,
            unit=signal_trace.unit if signal_trace else None,
            bodies=self._bodies_to_show(shot),
            success=header.success,
            camera=camera.name,
            width=shape[1],
            height=shape[0],
            file=f"{run_folder.frame_stem(header.policy, header.episode_id)}-{name}",
        )
        return frame, content


# Moments of an episode to show


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture to render. The caption has the lines `title` and `detail`. `clause` is the violated specification
    (None = no violation). `value` is that of the specification's signal. `bodies` are outlined; if `moved`, so are
    their places in record 0. If the specification is about torque, `joint` is the index of a joint of the arm.
    """

    kind: run_folder.Kind
    record: int
    title: str
    detail: str
    bodies: tuple[str, ...] = ()
    joint: int | None = None
    moved: bool = False
    clause: SpecTrace | None = None
    value: float | None = None


def _describe_ending(score: EpisodeScore) -> str:
    # Return how the episode ended, such as `Succeeded`, `Failed (invalid_action)` or `Not finished (stopped)`.
    if score.outcome in ("success", "failure"):
        return "Succeeded" if score.success else "Failed"
    # The episode ended early. Its outcome is the reason, such as `invalid_action` (a failure) or `stopped` (unknown).
    # `counted` is false if success is unknown, because the episode was stopped or crashed.
    return f"{'Failed' if score.counted else 'Not finished'} ({score.outcome})"


def select_shots(explanation: Explanation) -> tuple[Shot, ...]:
    """Return shots of the first record, the worst record of each violation (deepest violation first), and the last."""
    last_record = explanation.records - 1
    task = explanation.instruction or explanation.score.task_id
    ending = _describe_ending(explanation.score)
    verdict = verdict_word(explanation.score.safe)  # `safe`, `unsafe` or `no verdict`
    if explanation.score.safe is False:
        violated_count = len(explanation.violated_clauses)
        verdict += f": {violated_count} specification{'' if violated_count == 1 else 's'} broken"
    final_detail = f"Final state, step {last_record} ({format_fixed(explanation.elapsed_s(last_record), 2)} s)"
    return (
        # The arguments of a shot: kind, record, title and detail.
        Shot("initial", 0, "Initial state", escape_controls(task)),
        *(violation_shot(clause, clause.worst) for clause in explanation.violated_clauses),
        Shot("final", last_record, f"{ending}, {escape_controls(verdict)}", final_detail),
    )


def violation_shot(clause: SpecTrace, moment: Moment) -> Shot:
    """Return the shot of a record that violates a specification, with the involved bodies outlined. If a joint's torque
    is limited, the shot has the joint's index instead of bodies. If a displacement is limited, `moved` is true.
    """
    # `contributors` are the bodies (or the joint) that determine the signal's value; None = they are not known.
    # As text, `contributors` become, for example, `hardest contact hand (gripper) and plate_1 (target)`.
    chart, contributors = clause.chart, moment.involved
    body_names = contributors.names if contributors else ()
    joint = contributors.joint if contributors else None
    moved = chart.signal == "non_target_disp_max"  # largest displacement of a bystander or fixture
    detail = f"step {moment.step} ({format_fixed(moment.time_s, 2)} s)"
    if moved:
        detail += "; white outline: start position"
    if contributors:
        # The value of a torque signal is a ratio, so the caption adds the torque. Other signals need no such addition.
        amount = f" ({contributors.amount})" if joint is not None else ""
        detail = f"{contributors}{amount}; {detail}"
    detail = escape_controls(detail)
    value_text = drawing.format_value_and_limit(chart, chart.format_value(moment.step))
    return Shot(
        kind="violation",
        record=moment.step,
        title=f"{escape_controls(clause.spec.spec_id)}: {value_text}",
        detail=detail[:1].upper() + detail[1:],  # unlike `capitalize`, this keeps the case of names
        bodies=() if joint is not None else body_names,
        joint=joint,
        moved=moved,
        clause=clause,
        value=moment.value,
    )


# An episode recreated in its host

TOLERANCE_M = 1e-4
"""Largest accepted distance of a rendered body from its recorded position [m]. Usually, the distance is 0. RoboCasa
moves the door of a toaster oven after the physics step (by 1.4e-6 m, and right after a reset by 3.8e-5 m). A pixel
covers about a millimeter.
"""


def build_replay3d(stage: Stage, record: Batch, meshes: dict[str, TriangleMesh] | None = None) -> bytes:
    """Return the 3-D replay of the only episode in `record`: the content of a file for the report's player. `meshes`
    maps digests to simplified meshes, a cache for further episodes; None = no cache. Raises `HostError` if the stage
    cannot describe its scene, and `RunError` if bodies would not be shown where they were recorded.
    """
    geometry = replay3d.simplify_geometry(stage.geometry(), {} if meshes is None else meshes)
    # The batch has one episode, so its only end (`starts[-1]`) is the number of records.
    poses = [stage.pose(step) for step in range(int(record.starts[-1]))]
    for step, pose in enumerate(poses):
        _check_positions(pose.body_pos_m, record, step)
    return replay3d.encode_replay(geometry, replay3d.read_motion(record, poses), stage.arm)


def open_stage(folder: Path, host: Host, record: Batch) -> Stage:
    """Return a stage on which the host recreates the only episode in `record`, from the run folder `folder`.

    Raises:
        HostError: the host cannot show episodes or lacks the suite or task, rendering does not work here, or the record
        lacks a needed channel.
        RunError: run.json is missing or damaged, or is not trusted and names task files.
    """
    require_pictures(host)
    header, suites = record.headers[0], run_folder.read_description(folder).get("suites")
    if not isinstance(suites, list) or not suites:  # run.json names no suite, but the record does
        suites = [header.benchmark]
    for suite in suites:
        for task in list_tasks(host, str(suite), folder / run_folder.RUN):
            # `base_suite` removes a label such as `found:edge:` from the recorded name of the suite.
            if (task.benchmark, task.task_id) == (base_suite(header.benchmark), header.task_id):
                return host.stage(task, record)
    problem = f"the host {host.name!r} has no task {header.task_id!r} in {header.benchmark!r}"
    raise HostError(problem, remedy="Render with the versions that run.json names.")


def require_pictures(host: Host) -> None:
    """Raise `HostError` unless the host can show episodes that it recorded, as its flag `pictures` says."""
    if not host.supports.pictures:
        remedy = "A host that can show episodes declares `pictures` and has a method `stage`; see docs/howto/frames.md."
        raise HostError(f"the host {host.name!r} cannot show recorded episodes", remedy=remedy)


def render_checked(
    stage: Stage, record: Batch, step: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()
) -> Picture:
    """Return the picture of record `step` of the only episode in `record`; `size` is height and width [pixels].
    `Picture.seen` marks the pixels of each body in `bodies`. Raises `RunError` if bodies would not be shown where they
    were recorded, and `KeyError` for a camera that the host lacks.
    """
    picture = stage.render(step, camera, size, bodies)
    _check_positions(picture.body_pos_m, record, step)
    return picture


def _check_positions(shown_pos_m: Mapping[str, NDArray[np.float64]], record: Batch, step: int) -> None:
    # Raise `RunError` if a body is not shown where it was recorded.
    # `shown_pos_m` maps names of bodies to their positions in the picture of record `step`.
    # `bodies` [P] are indices of the recorded bodies, and `positions_m` is [n, P, 3],
    # or empty if no position was recorded.
    bodies, positions_m = record.body_pos_m.episode_poses(0)
    for body, position_m in zip(bodies, positions_m[step] if len(bodies) else (), strict=True):
        name = record.body_label(int(body))
        # If the host does not report a body's position, the gap is 0. `not <=` also refuses a gap of NaN.
        gap_m = float(np.linalg.norm(shown_pos_m.get(name, position_m) - position_m))
        if not gap_m <= TOLERANCE_M:
            problem = f"{name!r} would not be shown where it was recorded, but {gap_m:.2g} m away"
            remedy = "Render with the versions that run.json names."
            raise RunError(problem, remedy=remedy, place=Place(step=step))
