"""Frames of a run folder: every chosen episode set up again, its shots taken, the index kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from safevla_bench import runs
from safevla_bench.errors import HostError, Place, RunError
from safevla_bench.explain.episode import Clause, explanation
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.frames import clips
from safevla_bench.frames.annotation import BEFORE, GREEN, GREY, RED, Caption, Pixels, drawn, jpeg, outlined
from safevla_bench.frames.moments import Shot, passing, shots, violation
from safevla_bench.interface import Camera, Host, Picture, Stage, StagingHost, Task
from safevla_bench.runs import Frame
from safevla_bench.scores import Scores
from safevla_bench.specs import Library
from safevla_bench.text.numbers import fixed
from safevla_bench.text.sanitize import inert
from safevla_bench.trajectory import Batch, select

TOLERANCE_M = 1e-5
"""How far a body may lie from its recorded position. It does not at all, but where a host moves a joint by hand after
the physics, as RoboCasa the door of a toaster oven (1.4e-6 m); a pixel is about a millimetre."""
Observer = Callable[[int, str], None]
"""Told before each episode how many are done, and which is next."""


@dataclass(frozen=True, slots=True)
class Look:
    """How pictures look: sizes (height, width) without border and caption, and a clip's seconds about its violation."""

    size: tuple[int, int] = (480, 640)
    clips: bool = True
    clip_size: tuple[int, int] = (360, 480)
    clip_s: tuple[float, float] = (-1.0, 2.0)


@dataclass(frozen=True)
class Material:
    """A judged run: its folder, the host that recorded it, its records and their scores."""

    folder: Path
    host: Host
    batch: Batch
    scores: Scores
    library: Library


def make(
    run: Material, episodes: Sequence[int], look: Look, observer: Observer = lambda done, what: None
) -> list[Frame]:
    """Render episodes of a run into its folder `frames`; returns their frames. Those of other episodes stay.

    Args:
        run: the run.
        episodes: places in the batch, from 0.
        look: how pictures look.
        observer: watches.

    Raises:
        HostError: the host cannot show episodes, nothing can be rendered here, or a record lacks what it takes.
        RunError: what would be shown is not what was recorded; no picture of it is written.
    """
    make_folder(run.folder / runs.FRAMES)
    made: list[Frame] = []
    for done, index in enumerate(episodes):
        observer(done, run.batch.headers[index].episode_id)
        try:
            found = _episode(run, index, look)
        except (HostError, RunError) as error:
            error.at(Place(episode=run.batch.headers[index].episode_id))
            raise
        _keep(run, index, found)
        made += found
    return made


def _keep(run: Material, index: int, found: Sequence[Frame]) -> None:
    """Put an episode's frames into the index in the place of its former ones, and remove files that it had."""
    places = {(header.policy, header.episode_id): k for k, header in enumerate(run.batch.headers)}
    headers = run.batch.headers[index]
    former = [one for one in runs.read_frames(run.folder) if (one.policy, one.episode_id) in places]
    rest = [one for one in former if (one.policy, one.episode_id) != (headers.policy, headers.episode_id)]
    runs.write_frames(run.folder, sorted([*rest, *found], key=lambda one: places[one.policy, one.episode_id]))
    for stale in {one.file for one in former} - {one.file for one in [*rest, *found]}:
        (run.folder / runs.FRAMES / stale).unlink(missing_ok=True)


def _episode(run: Material, index: int, look: Look) -> list[Frame]:
    record = select(run.batch, [index])
    told = explanation(run.scores, run.batch, run.library, index)
    with closing(_stage(run, record)) as stage:
        show = _Show(run.folder / runs.FRAMES, record, stage, look)
        found = [show.still(shot, number) for number, shot in enumerate(shots(told))]
        if look.clips and told.violated:
            found.append(show.clip(told.violated[0]))
    return found


def _stage(run: Material, record: Batch) -> Stage:
    if not isinstance(run.host, StagingHost):
        problem = f"the host {run.host.name!r} cannot show what it recorded"
        raise HostError(problem, remedy="A host that can has a method `stage`: docs/frames.md.")
    return run.host.stage(_task(run, record), record)


def _task(run: Material, record: Batch) -> Task:
    header = record.headers[0]
    asked = runs.described(run.folder).get("suites")
    suites = [str(suite) for suite in asked] if isinstance(asked, list) and asked else [header.benchmark]
    tasks = [task for suite in suites for task in run.host.tasks(suite)]
    fits = [task for task in tasks if (task.benchmark, task.task_id) == (header.benchmark, header.task_id)]
    if not fits:
        problem = f"the host {run.host.name!r} has no task {header.task_id!r} in {header.benchmark!r}"
        raise HostError(problem, remedy="Render with the versions that run.json names.")
    return fits[0]


@dataclass(frozen=True)
class _Show:
    """Takes pictures of one episode and writes their files."""

    folder: Path
    record: Batch
    stage: Stage
    look: Look

    def still(self, shot: Shot, number: int) -> Frame:
        bodies = self._bodies(shot)
        camera = self.stage.aim(shot.record, bodies, self.look.size)
        image = self._outlined(shot, camera, bodies)
        border = RED if shot.kind == "violation" else GREY
        if shot.kind == "final" and self.record.headers[0].success:
            border = GREEN
        sheet = drawn(image, border, Caption(shot.title, shot.detail))
        name = f"violation-{number}" if shot.kind == "violation" else shot.kind
        return self._write(shot, shot.kind, bodies, camera, sheet.shape, f"{name}.jpg", jpeg(sheet))

    def _outlined(self, shot: Shot, camera: Camera, bodies: tuple[str, ...]) -> Pixels:
        """The picture with the bodies outlined, and where they stood before where that is what matters."""
        picture = self._picture(shot.record, camera, self.look.size, bodies)
        image = picture.image
        if shot.moved:
            before = self._picture(0, camera, self.look.size, bodies).seen
            image = outlined(image, before, BEFORE)
        return outlined(image, picture.seen)

    def clip(self, clause: Clause) -> Frame:
        """A film of how a specification comes to be broken, at the speed of the simulation, from one camera."""
        first = clause.first
        assert first is not None
        shot = violation(clause, first)
        bodies = self._bodies(shot)
        camera = self.stage.aim(first.step, bodies, self.look.clip_size)
        pictures = list(self._film(clause, first.step, camera))
        content = clips.film(pictures, Fraction(1 / clause.exhibit.dt_s).limit_denominator(1000))
        return self._write(shot, "clip", bodies, camera, pictures[0].shape, f"clip.{clips.SUFFIX}", content)

    def _film(self, clause: Clause, first: int, camera: Camera) -> Iterator[Pixels]:
        line, dt_s = clause.exhibit.line, clause.exhibit.dt_s
        begin, end = (first + round(seconds / dt_s) for seconds in self.look.clip_s)
        for k in range(max(0, begin), min(len(line.values) - 1, end) + 1):
            detail = f"{fixed(k * dt_s, 2)} s: {passing(line, k)}"
            picture = self._picture(k, camera, self.look.clip_size, ())
            title = inert(clause.exhibit.spec.spec_id)
            yield drawn(picture.image, RED if line.failing[k] else GREY, Caption(title, detail))

    def _bodies(self, shot: Shot) -> tuple[str, ...]:
        return shot.bodies if shot.joint is None else (self.stage.arm[shot.joint],)

    def _picture(self, record: int, camera: Camera, size: tuple[int, int], bodies: tuple[str, ...]) -> Picture:
        """A picture of what was recorded, or a `RunError`."""
        picture = self.stage.render(record, camera, size, bodies)
        for body, at in _recorded(self.record, record).items():
            gap = float(np.linalg.norm(picture.body_pos_m.get(body, at) - at))
            if not gap <= TOLERANCE_M:
                problem = f"{body!r} would be shown {gap:.2g} m from where it was recorded"
                remedy = "Render with the versions that run.json names."
                raise RunError(problem, remedy=remedy, place=Place(step=record))
        return picture

    def _write(
        self,
        shot: Shot,
        kind: runs.Kind,
        bodies: tuple[str, ...],
        camera: Camera,
        shape: tuple[int, ...],
        name: str,
        content: bytes,
    ) -> Frame:
        header, line = self.record.headers[0], shot.clause.exhibit.line if shot.clause else None
        file = f"{runs.frame_stem(header.policy, header.episode_id)}-{name}"
        write_atomically(self.folder / file, content)
        return Frame(
            episode_id=header.episode_id,
            policy=header.policy,
            kind=kind,
            record=shot.record,
            time_s=shot.record * header.dt,
            caption=f"{shot.title}. {shot.detail.removesuffix('.')}.",
            spec=shot.clause.exhibit.spec.spec_id if shot.clause else None,
            value=shot.value,
            threshold=line.limit if line else None,
            unit=line.unit if line else None,
            bodies=bodies,
            success=header.success,
            camera=camera.name,
            width=shape[1],
            height=shape[0],
            file=file,
        )


def _recorded(record: Batch, step: int) -> dict[str, NDArray[np.float64]]:
    bodies, positions = record.body_pos_m.episode(0)
    return {record.name(int(body)): positions[step, place] for place, body in enumerate(bodies)}
