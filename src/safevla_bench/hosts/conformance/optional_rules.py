"""Rules about optional methods of a host: the newest record alone, coordinates of its states, recorded scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from safevla_bench.errors import PolicyError
from safevla_bench.hosts.conformance.base import (
    Floats,
    HostRules,
    TrialRun,
    first_difference,
    require,
    run_actions,
    skip_unless_repeatable,
)
from safevla_bench.interface import (
    Action,
    Coordinate,
    Coordinated,
    HostEnv,
    Observation,
    SelectiveEnv,
    Stage,
    StagingHost,
    Watchable,
)
from safevla_bench.trajectory import Batch, select_record

_SIZES = {"position": (1, 3), "rotation": (1, 4)}
_NEAR_M = 0.01
"""A record may be of the start of its last substep, its state of the end: how far anything goes between, and more."""
_SHOWN_M = 1e-4
_PICTURE = (48, 64)
_LOOKS = 3
"""Steps between two looks at the images."""


class OptionalRules(HostRules):
    """Optional methods agree with the record; a host that offers none keeps these rules too."""

    def test_the_newest_record_is_that_of_the_whole_and_asking_for_it_changes_nothing(self, run: TrialRun) -> None:
        env, newest = run.env, list[Batch]()
        if not isinstance(env, Watchable):
            return
        skip_unless_repeatable(run)

        def read_latest(_: Action) -> None:
            newest.append(env.latest())

        batch = run_actions(env, self.seed, run.actions, before=read_latest)
        difference = first_difference(run.batch, batch)
        require(
            not difference,
            f"{run}: when latest() is called before each step, the episode differs in {difference}.",
        )
        newest.append(env.latest())
        for step, alone in enumerate(newest[: int(batch.lengths[0])]):
            states = batch.sim_state.episode_rows(0)[step : step + 1], alone.sim_state.episode_rows(0)
            differs = first_difference(
                _comparable_record(batch, step), _comparable_record(alone, 0)
            ) or first_difference(*states, "sim_state")
            require(not differs, f"{run}: latest() after {step} steps is not record {step}: {differs} differs.")

    def test_images_that_nobody_looks_at_are_not_there_and_the_others_are_as_without_that(self, run: TrialRun) -> None:
        wants = next((wants for wants in self.other_wants if wants.cameras), None)
        if wants is None or not isinstance(run.env, SelectiveEnv):
            return
        skip_unless_repeatable(run)
        shown, selective = self.host().make(run.task, wants), self.host().make(run.task, wants)
        try:
            self._compare_images(run, shown, selective)
        finally:
            shown.close()
            selective.close()

    def _compare_images(self, run: TrialRun, shown: HostEnv, selective: HostEnv) -> None:
        assert isinstance(selective, SelectiveEnv)
        whole, partial = shown.reset(self.seed), selective.reset(self.seed)
        for step in range(len(run.actions) + 1):
            looks = step % _LOOKS == 0
            for camera, image in whole.images.items():
                if not looks:
                    require(not _is_readable(partial, camera), f"{run}: {camera} shows what was not rendered.")
                    continue
                same = np.array_equal(image, partial.images[camera])
                require(same, f"{run}: {camera} shows something else at step {step} where others were not rendered.")
            if step < len(run.actions):
                selective.render_next((step + 1) % _LOOKS == 0)
                whole, _ = shown.step(run.actions[step])
                partial, _ = selective.step(run.actions[step])
        difference = first_difference(shown.recorded(), selective.recorded())
        require(not difference, f"{run}: where images were left out, the episode differs in {difference}.")

    def test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies(self, run: TrialRun) -> None:
        if not isinstance(run.env, Coordinated):
            return
        run.env.reset(self.seed)
        batch, coordinates = run.batch, run.env.coordinates()
        width = batch.sim_state.episode_rows(0).shape[1]
        require(bool(coordinates), f"{run}: coordinates() names none.")
        numbers = [
            place for coordinate in coordinates for place in range(coordinate.first, coordinate.first + coordinate.size)
        ]
        require(len(set(numbers)) == len(numbers), f"{run}: two coordinates share a number of the state.")
        require(min(numbers) >= 0 and max(numbers) < width, f"{run}: a coordinate lies outside the {width} numbers.")
        for coordinate in coordinates:
            require(
                coordinate.size in _SIZES[coordinate.kind],
                f"{run}: {coordinate.name} has a {coordinate.kind} of {coordinate.size} numbers.",
            )
        for name, off in _position_gaps(batch, coordinates):
            require(off < _NEAR_M, f"{run}: the state has {name} {off:g} m away from where the record has it.")

    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, run: TrialRun) -> None:
        host, batch = self.host(), run.batch
        if not isinstance(host, StagingHost):
            return
        stage = host.stage(run.task, batch)
        try:
            for step in (0, int(batch.lengths[0]) - 1):
                self._check_pictures(run, stage, step)
        finally:
            stage.close()

    def _check_pictures(self, run: TrialRun, stage: Stage, step: int) -> None:
        batch = run.batch
        bodies, positions = batch.body_pos_m.episode_poses(0)
        looked_at = tuple(batch.body_label(int(body)) for body in bodies[:1])
        camera = stage.aim(step, looked_at, _PICTURE)
        picture, again = (stage.render(step, camera, _PICTURE, looked_at) for _ in range(2))
        fits = picture.image.dtype == np.uint8 and picture.image.shape == (*_PICTURE, 3)
        require(fits, f"{run}: a picture is {picture.image.dtype} {picture.image.shape}, wanted are uint8 {_PICTURE}.")
        fits = picture.seen.shape == _PICTURE and set(np.unique(picture.seen)) <= {0, 1}
        require(fits, f"{run}: what a picture shows of one body is {picture.seen.shape}, not 0 or 1 a pixel.")
        require(np.array_equal(picture.image, again.image), f"{run}: the same record gives another picture.")
        for place, body in enumerate(bodies):
            name = batch.body_label(int(body))
            at = picture.body_pos_m.get(name)
            require(at is not None, f"{run}: a picture of record {step} does not say where {name} is.")
            off = float(np.linalg.norm(at - positions[step, place]))
            require(off < _SHOWN_M, f"{run}: record {step} is shown with {name} {off:g} m from where it was recorded.")


def _is_readable(observation: Observation, camera: str) -> bool:
    try:
        observation.images[camera]
    except PolicyError:
        return False
    return True


def _comparable_record(batch: Batch, step: int) -> Batch:
    """Return a record without its state, success and dropped pairs: the latter two are those of the moment."""
    header = msgspec.structs.replace(batch.headers[0], success=False, dropped_pairs=None)
    return replace(select_record(batch, step), headers=(header,))


def _position_gaps(batch: Batch, coordinates: tuple[Coordinate, ...]) -> Iterator[tuple[str, float]]:
    """Yield each tracked body's largest distance, m, between the state and the record."""
    bodies, positions = batch.body_pos_m.episode_poses(0)
    places = {batch.body_label(int(body)): place for place, body in enumerate(bodies)}
    states: Floats = batch.sim_state.episode_rows(0)
    for coordinate in coordinates:
        if coordinate.kind == "position" and coordinate.size == 3 and coordinate.name in places:
            positions_by_state = states[:, coordinate.first : coordinate.first + 3]
            yield (
                coordinate.name,
                float(
                    np.linalg.norm(positions_by_state - positions[:, places[coordinate.name]], axis=1).max(initial=0)
                ),
            )
