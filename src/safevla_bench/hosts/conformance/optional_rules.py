"""Rules about what a host may offer and need not: the newest record alone, what its states hold, recorded scenes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from safevla_bench.hosts.conformance.base import Base, needs_repeatable, rule
from safevla_bench.hosts.conformance.trial import Floats, Tried, first_difference, run
from safevla_bench.interface import Action, Coordinate, Coordinated, Stage, StagingHost, Watchable
from safevla_bench.trajectory import Batch, record

_SIZES = {"position": (1, 3), "rotation": (1, 4)}
_NEAR_M = 0.01
"""A record may be of the start of its last substep, its state of the end: how far anything goes between, and more."""
_SHOWN_M = 1e-4
_PICTURE = (48, 64)


class OfferingRules(Base):
    """What is offered agrees with the record; a host that offers none of it keeps these rules too."""

    def test_the_newest_record_is_that_of_the_whole_and_asking_for_it_changes_nothing(self, tried: Tried) -> None:
        env, newest = tried.env, list[Batch]()
        if not isinstance(env, Watchable):
            return
        needs_repeatable(tried)

        def asked(_: Action) -> None:
            newest.append(env.latest())

        batch = run(env, self.seed, tried.actions, before=asked)
        found = first_difference(tried.batch, batch)
        rule(not found, f"{tried}: when latest() is called before each step, the episode differs in {found}.")
        newest.append(env.latest())
        for step, alone in enumerate(newest[: int(batch.lengths[0])]):
            states = batch.sim_state.episode(0)[step : step + 1], alone.sim_state.episode(0)
            differs = first_difference(_said(batch, step), _said(alone, 0)) or first_difference(*states, "sim_state")
            rule(not differs, f"{tried}: latest() after {step} steps is not record {step}: {differs} differs.")

    def test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies(self, tried: Tried) -> None:
        if not isinstance(tried.env, Coordinated):
            return
        tried.env.reset(self.seed)
        batch, coordinates = tried.batch, tried.env.coordinates()
        width = batch.sim_state.episode(0).shape[1]
        rule(bool(coordinates), f"{tried}: coordinates() names none.")
        taken = [place for one in coordinates for place in range(one.first, one.first + one.size)]
        rule(len(set(taken)) == len(taken), f"{tried}: two coordinates share a number of the state.")
        rule(min(taken) >= 0 and max(taken) < width, f"{tried}: a coordinate lies outside the {width} numbers.")
        for one in coordinates:
            rule(one.size in _SIZES[one.kind], f"{tried}: {one.name} has a {one.kind} of {one.size} numbers.")
        for name, off in _gaps(batch, coordinates):
            rule(off < _NEAR_M, f"{tried}: the state has {name} {off:g} m away from where the record has it.")

    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, tried: Tried) -> None:
        host, batch = self.host(), tried.batch
        if not isinstance(host, StagingHost):
            return
        stage = host.stage(tried.task, batch)
        try:
            for step in (0, int(batch.lengths[0]) - 1):
                self._shown(tried, stage, step)
        finally:
            stage.close()

    def _shown(self, tried: Tried, stage: Stage, step: int) -> None:
        batch = tried.batch
        bodies, positions = batch.body_pos_m.episode(0)
        looked_at = tuple(batch.name(int(body)) for body in bodies[:1])
        camera = stage.aim(step, looked_at, _PICTURE)
        picture, again = (stage.render(step, camera, _PICTURE, looked_at) for _ in range(2))
        fits = picture.image.dtype == np.uint8 and picture.image.shape == (*_PICTURE, 3)
        rule(fits, f"{tried}: a picture is {picture.image.dtype} {picture.image.shape}, wanted are uint8 {_PICTURE}.")
        fits = picture.seen.shape == _PICTURE and set(np.unique(picture.seen)) <= {0, 1}
        rule(fits, f"{tried}: what a picture shows of one body is {picture.seen.shape}, not 0 or 1 a pixel.")
        rule(np.array_equal(picture.image, again.image), f"{tried}: the same record gives another picture.")
        for place, body in enumerate(bodies):
            name = batch.name(int(body))
            at = picture.body_pos_m.get(name)
            rule(at is not None, f"{tried}: a picture of record {step} does not say where {name} is.")
            off = float(np.linalg.norm(at - positions[step, place]))
            rule(off < _SHOWN_M, f"{tried}: record {step} is shown with {name} {off:g} m from where it was recorded.")


def _said(batch: Batch, step: int) -> Batch:
    """What a record says by itself, but for its state; success and dropped pairs are those of the moment."""
    header = msgspec.structs.replace(batch.headers[0], success=False, dropped_pairs=None)
    return replace(record(batch, step), headers=(header,))


def _gaps(batch: Batch, coordinates: tuple[Coordinate, ...]) -> Iterator[tuple[str, float]]:
    """How far tracked bodies are, by the state, from where the record has them: the most of all records."""
    bodies, positions = batch.body_pos_m.episode(0)
    places = {batch.name(int(body)): place for place, body in enumerate(bodies)}
    states: Floats = batch.sim_state.episode(0)
    for one in coordinates:
        if one.kind == "position" and one.size == 3 and one.name in places:
            there = states[:, one.first : one.first + 3]
            yield one.name, float(np.linalg.norm(there - positions[:, places[one.name]], axis=1).max(initial=0))
