"""Rules about a host before any episode (tasks, versions, missing libraries), and about what it may be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts.conformance.base import (
    Floats,
    HostRules,
    TrialRun,
    first_difference,
    require,
    require_error,
    require_same,
    run_actions,
    skip_unless_repeatable,
)
from safevla_bench.hosts.conformance.missing_dependency import run_without
from safevla_bench.interface.environment import Coordinated, FastEnv, HostEnv, SelectiveEnv, Watchable
from safevla_bench.interface.policy import Action, Observation
from safevla_bench.interface.stage import Stage, StagingHost
from safevla_bench.interface.task import Coordinate
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import select_record


class TaskRules(HostRules):
    """The host lists its tasks, and names the libraries that it lacks."""

    def test_tasks_are_well_formed(self) -> None:
        """Fail unless host, suites and tasks have names and instructions, ids are unique, and indices count from 0."""
        host = self.host()
        suites = host.suites()
        require(bool(host.name) and bool(suites), "The host has no name or no suites.")
        require(len(set(suites)) == len(suites), f"A suite is listed twice: {suites}.")
        for suite in suites:
            tasks = host.tasks(suite)
            require(bool(tasks), f"{suite} has no tasks.")
            require([task.index for task in tasks] == list(range(len(tasks))), f"{suite}: indices do not count from 0.")
            require(len({task.task_id for task in tasks}) == len(tasks), f"{suite}: two tasks have one task_id.")
            for task in tasks:
                require(all((task.benchmark, task.task_id, task.name)), f"{suite}: a task lacks a name: {task}.")
                require(bool(task.instruction.strip()), f"{suite} {task.task_id} has no instruction.")
                require(task.init_states is None or task.init_states > 0, f"{suite} {task.task_id} cannot start.")

    def test_tasks_are_the_same_each_time_they_are_listed(self) -> None:
        """Fail unless two listings by one host, and that of another instance, are equal for every suite."""
        host, other = self.host(), self.host()
        for suite in host.suites():
            again = host.tasks(suite), other.tasks(suite)
            require(again == (host.tasks(suite),) * 2, f"The tasks of {suite} differ each time they are listed.")

    def test_an_unknown_suite_is_an_error_that_lists_the_suites(self) -> None:
        """Fail unless `tasks` of an unknown suite raises `HostError` whose text has the first suite's name."""
        text = require_error(lambda: self.host().tasks("no-such-suite"), HostError, "A suite that does not exist")
        require(self.host().suites()[0] in text, f"The error about an unknown suite lists none: {text}")

    def test_versions_of_what_the_simulation_depends_on_are_listed(self, run: TrialRun) -> None:
        """Fail unless `versions()` names some, none empty, and the record's header holds the same."""
        versions = self.host().versions()
        require(bool(versions), "The host lists no versions: two records could not be told apart by their simulator.")
        require(all(versions.values()), f"A version is empty: {versions}.")
        require(run.batch.headers[0].versions == versions, f"{run}: the record does not hold the host's versions.")

    def test_the_still_action_is_one_of_the_environment_s(self, run: TrialRun) -> None:
        """Fail unless `Task.still` has the length of an action and lies within the bounds."""
        still, low, high = np.array(run.task.still), run.env.action_low, run.env.action_high
        require(still.shape == low.shape, f"{run}: `Task.still` has {still.size} numbers, an action {low.size}.")
        is_within = bool(np.all((low <= still) & (still <= high)))
        require(is_within, f"{run}: `Task.still` lies outside the actions' bounds.")

    def test_settling_is_by_the_action_that_the_seed_names(self, run: TrialRun) -> None:
        """Fail unless settling by no `wait_action` equals that by `Task.still`, and differs from the highest action's.

        Passes if `Task.still` has a wrong length, which is another rule's; skipped if the host is not repeatable.
        """
        skip_unless_repeatable(run)
        if len(run.task.still) != len(run.env.action_low):
            return  # another rule
        own, named, other = (
            run_actions(run.env, replace(self.seed, wait_steps=2, wait_action=action), run.actions[:0])
            for action in (None, run.task.still, tuple(run.env.action_high))
        )
        difference = first_difference(own, named)
        require(not difference, f"{run}: settling by `Task.still` differs from the host's own in {difference}.")
        require(bool(first_difference(own, other)), f"{run}: settling is the same, whatever `wait_action` says.")

    def test_settling_goes_on_until_objects_rest(self, run: TrialRun) -> None:
        """Fail if a tracked body moves faster than 0.1 m/s after settling with `rest_steps` of 100 and no `wait_steps`.

        Speeds are taken over two still steps. Passes if `Task.still` has a wrong length, which is another rule's.
        """
        if len(run.task.still) != len(run.env.action_low):
            return  # another rule
        still = np.array([run.task.still] * 2)
        batch = run_actions(run.env, replace(self.seed, wait_steps=0, rest_steps=_REST_STEPS), still)
        for name, path in _tracked_paths(batch).items():
            speed = float(np.linalg.norm(np.diff(path, axis=0), axis=1).max(initial=0)) / run.env.dt_s
            failure = f"{run}: {name} moves at {speed:.2f} m/s after settling with rest_steps={_REST_STEPS}."
            require(speed <= _AT_REST_M_PER_S, failure)

    def test_making_the_host_imports_no_simulator(self) -> None:
        """Fail unless the host can be made and lists its suites without any of `needs`; passes where that is empty."""
        if not self.needs:
            return
        outcome, message = run_without(self.factory, self.needs, None)
        sentence = f"The host cannot be made or list its suites without {self.needs}: {outcome}: {message}"
        require(outcome == "worked", sentence)

    def test_a_missing_library_is_a_host_error_that_says_what_to_do(self) -> None:
        """Fail unless, without each package of `needs` in turn, `make` or `reset` raises `HostError` with a remedy."""
        task = self.trials[0].find_task(self.host())
        for needed in self.needs:
            outcome, message = run_without(self.factory, [needed], task)
            sentence = f"Without {needed} it must raise a HostError, and {outcome} happened: {message}"
            require(outcome == "host_error", sentence)
            require("\n" in message, f"Without {needed} the HostError has no remedy: {message}")


# What a host may be able to do


_REST_STEPS, _AT_REST_M_PER_S = 100, 0.1


_SIZES = {"position": (1, 3), "rotation": (1, 4)}
_NEAR_M = 0.01
"""A record may be of the start of its last substep, its state of the end: how far anything goes between, and more."""
_SHOWN_M = 1e-4
_LATE = 0.6
_PICTURE = (48, 64)
_LOOKS = 3


class OptionalRules(HostRules):
    """Optional methods agree with the record; a host that offers none keeps these rules too."""

    def test_the_newest_record_is_that_of_the_whole_and_asking_for_it_changes_nothing(self, run: TrialRun) -> None:
        """Fail unless `latest()`, asked before each step and at the end, gives each record and changes no episode.

        Success and dropped pairs are not compared. Passes for an environment without `latest`.
        """
        env, newest = run.env, list[Batch]()
        if not isinstance(env, Watchable):
            return
        skip_unless_repeatable(run)

        def read_latest(_: Action) -> None:
            newest.append(env.latest())

        batch = run_actions(env, self.seed, run.actions, before=read_latest)
        require_same(run.batch, batch, f"{run}: when latest() is called before each step, the episode")
        newest.append(env.latest())
        for step, alone in enumerate(newest[: int(batch.lengths[0])]):
            states = batch.sim_state.episode_rows(0)[step : step + 1], alone.sim_state.episode_rows(0)
            records = _comparable_record(batch, step), _comparable_record(alone, 0)
            differs = first_difference(*records) or first_difference(*states, "sim_state")
            require(not differs, f"{run}: latest() after {step} steps is not record {step}: {differs} differs.")

    def test_leaving_out_what_the_simulator_repeats_changes_nothing(self, run: TrialRun) -> None:
        """Fail where the episode differs in any bit from one after `run_fast(False)`.

        Passes for an environment without `run_fast`.
        """
        if not isinstance(run.env, FastEnv):
            return
        skip_unless_repeatable(run)
        run.env.run_fast(False)
        full = run_actions(run.env, self.seed, run.actions)
        run.env.run_fast(True)
        require_same(run.batch, full, f"{run}: where the simulator's own code runs alone, the episode")

    def test_images_that_nobody_looks_at_are_not_there_and_the_others_are_as_without_that(self, run: TrialRun) -> None:
        """Fail unless images rendered at every third step only equal those of an environment that renders at each step.

        Passes if no camera is wanted or the environment has no `render_next`; see `_compare_images`.
        """
        wants = next((wants for wants in self.other_wants if wants.cameras), None)
        if wants is None or not isinstance(run.env, SelectiveEnv):
            return
        skip_unless_repeatable(run)
        with closing(self.host().make(run.task, wants)) as shown, closing(self.host().make(run.task, wants)) as other:
            self._compare_images(run, shown, other)

    def _compare_images(self, run: TrialRun, shown: HostEnv, selective: HostEnv) -> None:
        assert isinstance(selective, SelectiveEnv)
        full, partial = shown.reset(self.seed), selective.reset(self.seed)
        for step in range(len(run.actions) + 1):
            looks = step % _LOOKS == 0
            for camera, image in full.images.items():
                if not looks:
                    require(not _is_readable(partial, camera), f"{run}: {camera} shows what was not rendered.")
                    continue
                same = np.array_equal(image, partial.images[camera])
                require(same, f"{run}: {camera} shows something else at step {step} where others were not rendered.")
            if step < len(run.actions):
                selective.render_next((step + 1) % _LOOKS == 0)
                full, _ = shown.step(run.actions[step])
                partial, _ = selective.step(run.actions[step])
        require_same(shown.recorded(), selective.recorded(), f"{run}: where images were left out, the episode")
        selective.render_next(False)
        begun = selective.reset(self.seed)
        unseen = [camera for camera in full.images if not _is_readable(begun, camera)]
        require(not unseen, f"{run}: a reset shows no {unseen}: render_next(False) is about a step that never came.")

    def test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies(self, run: TrialRun) -> None:
        """Fail unless coordinates lie in the state without overlap, are as long as their kind, and fit the record.

        A tracked body may be 1 cm from its recorded place. Passes for an environment without `coordinates`.
        """
        if not isinstance(run.env, Coordinated):
            return
        run.env.reset(self.seed)
        batch, coordinates = run.batch, run.env.coordinates()
        width = batch.sim_state.episode_rows(0).shape[1]
        require(bool(coordinates), f"{run}: coordinates() names none.")
        numbers = [each.first + place for each in coordinates for place in range(each.size)]
        require(len(set(numbers)) == len(numbers), f"{run}: two coordinates share a number of the state.")
        require(min(numbers) >= 0 and max(numbers) < width, f"{run}: a coordinate lies outside the {width} numbers.")
        for coordinate in coordinates:
            name, kind, size = coordinate.name, coordinate.kind, coordinate.size
            require(size in _SIZES[kind], f"{run}: {name} has a {kind} of {size} numbers.")
        paths, by_state = _tracked_paths(batch), _state_paths(batch, coordinates)
        for name in by_state.keys() & paths.keys():
            off = float(np.linalg.norm(by_state[name] - paths[name], axis=1).max(initial=0))
            require(off < _NEAR_M, f"{run}: the state has {name} {off:g} m away from where the record has it.")

    def test_poses_are_those_of_the_end_of_the_control_step(self) -> None:
        """Fail if the moved body's recorded path lags its true path by more than 0.6 of a control step on average.

        The true path is that of privileged state, else of the states; the rule is skipped if neither has the body.
        """
        run, trial = self.run_hook("move_object"), self.trials[0]
        body, batch = run.result, run.batch
        paths = _tracked_paths(batch)
        require(body in paths, f"{trial}: {body} was moved, and its pose is not recorded.")
        places = [seen.privileged.body_pos_m[body] for seen in run.observations if seen.privileged]
        expected = np.array(places) if places else _state_paths(batch, run.coordinates).get(body)
        if expected is None or len(expected) != len(paths[body]):
            pytest.skip("neither coordinates() nor privileged state tells where the body is")
        moved = float(np.linalg.norm(np.diff(expected, axis=0), axis=1).sum())
        off = float(np.linalg.norm(paths[body] - expected, axis=1).sum())
        require(moved > _NEAR_M, f"{trial}: move_object() moved {body} by {moved:g} m: too little to tell.")
        # One substep behind is right: MuJoCo computes poses at its start. One control step behind comes to 1.
        late = f"{trial}: the poses of {body} are {off / moved:.1f} control steps off; read them right after the last"
        require(off <= _LATE * moved, f"{late} physics step.")

    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, run: TrialRun) -> None:
        """Check the pictures of the first and last record; passes for a host without `stage`. See `_check_pictures`."""
        host, batch = self.host(), run.batch
        if not isinstance(host, StagingHost):
            return
        with closing(host.stage(run.task, batch)) as stage:
            for step in (0, int(batch.lengths[0]) - 1):
                self._check_pictures(run, stage, step)

    def _check_pictures(self, run: TrialRun, stage: Stage, step: int) -> None:
        paths = _tracked_paths(run.batch)
        looked_at = tuple(paths)[:1]
        camera = stage.aim(step, looked_at, _PICTURE)
        picture, again = (stage.render(step, camera, _PICTURE, looked_at) for _ in range(2))
        fits = picture.image.dtype == np.uint8 and picture.image.shape == (*_PICTURE, 3)
        require(fits, f"{run}: a picture is {picture.image.dtype} {picture.image.shape}, wanted are uint8 {_PICTURE}.")
        fits = picture.seen.shape == _PICTURE and set(np.unique(picture.seen)) <= {0, 1}
        require(fits, f"{run}: what a picture shows of one body is {picture.seen.shape}, not 0 or 1 a pixel.")
        require(np.array_equal(picture.image, again.image), f"{run}: the same record gives another picture.")
        for name, path in paths.items():
            at = picture.body_pos_m.get(name)
            require(at is not None, f"{run}: a picture of record {step} does not say where {name} is.")
            off = float(np.linalg.norm(at - path[step]))
            require(off < _SHOWN_M, f"{run}: record {step} is shown with {name} {off:g} m from where it was recorded.")


def _is_readable(observation: Observation, camera: str) -> bool:
    try:
        observation.images[camera]
    except PolicyError:
        return False
    return True


def _comparable_record(batch: Batch, step: int) -> Batch:
    header = msgspec.structs.replace(batch.headers[0], success=False, dropped_pairs=None)
    return replace(select_record(batch, step), headers=(header,))


def _tracked_paths(batch: Batch) -> dict[str, Floats]:
    """Return the recorded positions of each tracked body, [n, 3], m, by name."""
    bodies, positions = batch.body_pos_m.episode_poses(0)
    return {batch.body_label(int(body)): positions[:, place] for place, body in enumerate(bodies)}


def _state_paths(batch: Batch, coordinates: Sequence[Coordinate]) -> dict[str, Floats]:
    """Return the positions that the states have, [n, 3], m, by the names of their coordinates."""
    states: Floats = batch.sim_state.episode_rows(0)
    places = {each.name: each.first for each in coordinates if (each.kind, each.size) == ("position", 3)}
    return {name: states[:, first : first + 3] for name, first in places.items()}
