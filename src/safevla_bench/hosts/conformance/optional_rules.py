"""Rules on a host's tasks, versions, settling steps and optional abilities."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

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
    tracked_paths,
)
from safevla_bench.interface.environment import Host, HostEnv
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Coordinate, PhysicsChange, RecordedEpisode
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import select_record


class TaskRules(HostRules):
    """Rules: the host lists its tasks and versions, and the action `Task.still` lets objects come to rest."""

    def test_tasks_are_well_formed(self) -> None:
        """Fail unless the host has a name and suites. Each suite must be listed once, and have tasks. Each task needs
        names, an instruction, a unique id, an index (from 0) and a start. New host objects must list the same tasks.
        """
        host, second_host = self.host(), self.host()  # each call makes a new host
        suites = host.suites()
        require(bool(host.name) and bool(suites), "The host has no name or no suites.")
        require(len(set(suites)) == len(suites), f"A suite is listed twice: {suites}.")
        for suite in suites:
            tasks = host.tasks(suite)
            require(bool(tasks), f"{suite} has no tasks.")
            is_repeatable = tasks == host.tasks(suite) == second_host.tasks(suite)
            require(is_repeatable, f"The tasks of {suite} differ each time they are listed.")
            require([task.index for task in tasks] == list(range(len(tasks))), f"{suite}: indices must be 0, 1, 2, ...")
            require(len({task.task_id for task in tasks}) == len(tasks), f"{suite}: two tasks have the same task_id.")
            for task in tasks:
                require(all((task.benchmark, task.task_id, task.name)), f"{suite}: a task lacks a name: {task}.")
                require(bool(task.instruction.strip()), f"{suite} {task.task_id} has no instruction.")
                # `init_states` is the number of initial states; None = the seed draws them
                require(task.init_states is None or task.init_states > 0, f"{suite} {task.task_id} cannot start.")

    def test_an_unknown_suite_is_an_error_that_lists_the_suites(self) -> None:
        """Fail unless `tasks`, called with an unknown suite, raises a `HostError` that names the first suite."""
        text = require_error(lambda: self.host().tasks("no-such-suite"), HostError, "tasks() for an unknown suite")
        require(self.host().suites()[0] in text, f"The error about an unknown suite lists no suites: {text}")

    def test_versions_of_what_the_simulation_depends_on_are_listed(self, run: TrialRun) -> None:
        """Fail unless `versions()` returns at least one version, no version is empty, and the record's header has the
        same versions. The rule lists the suite's tasks first, because listing may add the version of the suite's files.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        host = self.host()
        host.tasks(run.trial.suite)
        versions = host.versions()
        failure = "The host lists no versions, which are needed to distinguish records of different simulators."
        require(bool(versions), failure)
        require(all(versions.values()), f"A version is empty: {versions}.")
        require(run.batch.headers[0].versions == versions, f"{run}: the record does not hold the host's versions.")

    def test_the_still_action_is_one_of_the_environment_s(self, run: TrialRun) -> None:
        """Fail unless `Task.still` has the length of an action and lies within the bounds. If the host is repeatable,
        two further checks follow. Settling with `wait_action` = None must give the same episode as with `Task.still`.
        Settling with the upper bounds as the action must give a different episode.
        """
        still, low, high = np.array(run.task.still), run.env.action_low, run.env.action_high
        failure = f"{run}: `Task.still` has {still.size} numbers, but an action has {low.size}."
        require(still.shape == low.shape, failure)
        is_within = bool(np.all((low <= still) & (still <= high)))
        require(is_within, f"{run}: `Task.still` lies outside the actions' bounds.")
        skip_unless_repeatable(run)
        # The three episodes below have only record 0, after two settling steps, because `run.actions[:0]` is empty.
        by_default, by_still, by_highest = (
            run_actions(run.env, replace(self.seed, wait_steps=2, wait_action=action), run.actions[:0])
            for action in (None, run.task.still, tuple(high))
        )
        failure = f"{run}: `wait_action` = None and `wait_action` = `Task.still` give different episodes"
        require_same(by_default, by_still, failure)
        require(bool(first_difference(by_default, by_highest)), f"{run}: settling does not depend on `wait_action`.")

    def test_settling_goes_on_until_objects_rest(self, run: TrialRun) -> None:
        """Fail if a tracked body moves faster than 0.1 m/s after settling with `rest_steps` = 100 and `wait_steps` = 0.
        The speed is measured over two steps with `Task.still`. If `Task.still` has the wrong length, this rule passes,
        because the rule on `Task.still` fails.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # `rest_steps` is the maximum number of settling steps, which end earlier if all objects rest.
        if len(run.task.still) != len(run.env.action_low):
            return
        still = np.array([run.task.still] * 2)  # the actions of the two steps after record 0, [2, A]
        batch = run_actions(run.env, replace(self.seed, wait_steps=0, rest_steps=_REST_STEPS), still)
        for name, path in tracked_paths(batch).items():  # `path` [3, 3]: the body's positions in three records [m]
            speed = float(np.linalg.norm(np.diff(path, axis=0), axis=1).max(initial=0)) / run.env.dt_s
            failure = f"{run}: {name} moves at {speed:.2f} m/s after settling with rest_steps={_REST_STEPS}."
            require(speed <= _AT_REST_M_PER_S, failure)


# Optional abilities of a host


_REST_STEPS, _AT_REST_M_PER_S = 100, 0.1


_COORDINATE_SIZES = {"position": (1, 3), "rotation": (1, 4)}
_NEAR_M = 0.01  # tolerance of positions: recorded poses may be one substep older than states
_SHOWN_TOLERANCE_M = 1e-4  # limit on the distance between a body's position in a picture and in the record
_MAX_LAG_STEPS = 0.6  # limit on the mean lag of a recorded path, in control steps
_PICTURE_SIZE = (48, 64)
_RENDER_EVERY = 3  # steps between two rendered images


class OptionalRules(HostRules):
    """Rules: the host's optional methods agree with its records. A host without optional methods passes."""

    def test_the_host_has_what_it_declares_and_refuses_what_it_does_not(self, run: TrialRun) -> None:
        """Fail unless `supports` agrees with the host's optional methods and privileged state. `make` must raise
        `HostError` for undeclared observations and undeclared absolute poses, and `reset` for undeclared starts.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        host, task = self.host(), run.task
        supports = host.supports
        for name, method in (("placed", "search_space"), ("pictures", "stage")):
            has_method = getattr(type(host), method) is not getattr(Host, method)  # the host overrides the method
            failure = f"{name} must be declared if and only if the host has the method {method}()."
            require(has_method == getattr(supports, name), failure)
        undeclared = {camera for wants in self.other_wants for camera in wants.cameras} - {*supports.cameras}
        require(not undeclared, f"`supports` lacks the cameras {sorted(undeclared)}.")
        unsupported_wants = [Wants(cameras=("no-such-camera",)), Wants(extra=("no-such-reading",))]
        if not supports.absolute:
            unsupported_wants.append(Wants(absolute=True))
        for wants in unsupported_wants:
            require_error(partial(host.make, task, wants), HostError, f"{run}: make() called with {wants}")
        with closing(host.make(task, Wants(privileged=True))) as env:
            has_privileged_state = env.reset(self.seed).privileged is not None
        failure = f"{run}: the host wrongly declares `privileged` as {supports.privileged}."
        require(has_privileged_state == supports.privileged, failure)
        # Every host must refuse to place a body that does not exist.
        # Every host must also refuse a recorded state with a single number.
        one_number = RecordedEpisode(episode="episode", source="recording", steps=1, state=(0.0,))
        starts = [replace(self.seed, placed=(("no-such-body.x", 0.1),))]
        two_changes = PhysicsChange(softness=2.0, friction=2.0)
        # `changed` and `changeable` are sets of names of the fields of `PhysicsChange`.
        if not two_changes.changed <= supports.changeable:
            starts.append(replace(self.seed, change=two_changes))
        # Without fixed initial states, every start is drawn at random, so `drawn` changes nothing.
        if task.init_states and not supports.drawn:
            starts.append(replace(self.seed, drawn=True))
        for start in (*starts, replace(self.seed, recorded=one_number)):
            call_text = f"{run}: reset() with the unsupported start {start}"
            require_error(partial(run.env.reset, start), HostError, call_text)

    def test_asking_for_records_midway_changes_nothing_and_the_newest_is_that_of_the_whole(self, run: TrialRun) -> None:
        """Fail if calling `recorded()` and `latest()` before each step changes any bit of the episode. Also fail if
        `latest()` differs from the same record of the whole episode in any field except success and dropped pairs.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # `latest()` returns only the newest record. Success and dropped pairs may change until the episode ends.
        env, latest_records = run.env, list[Batch]()
        skip_unless_repeatable(run)

        def read_records(_: Action) -> None:
            # Called before each step, when the newest record is the one after the previous step, or record 0.
            env.recorded()  # only tests whether the call has side effects
            latest_records.append(env.latest())

        batch = run_actions(env, self.seed, run.actions, before=read_records)
        latest_records.append(env.latest())
        require_same(run.batch, batch, f"{run}: calling recorded() and latest() before each step changes the episode")
        for step, latest in enumerate(latest_records[: int(batch.lengths[0])]):
            difference = first_difference(_comparable_record(batch, step), _comparable_record(latest, 0))
            if not difference and type(env).latest is not HostEnv.latest:  # the base class's `latest` omits the state
                states, latest_states = batch.sim_state.episode_rows(0), latest.sim_state.episode_rows(0)
                difference = first_difference(states[step : step + 1], latest_states, "sim_state")
            failure = f"{run}: {difference} differs between record {step} and the result of latest() after step {step}."
            require(not difference, failure)

    def test_leaving_out_what_the_simulator_repeats_changes_nothing(self, run: TrialRun) -> None:
        """Fail if `run_fast(False)` changes the episode. Passes if the environment has no method `run_fast`."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        if type(run.env).run_fast is HostEnv.run_fast:  # the method of the base class does nothing
            return
        skip_unless_repeatable(run)
        # By default, an environment is fast: it skips computations that the simulator would repeat with equal results.
        run.env.run_fast(False)
        full = run_actions(run.env, self.seed, run.actions)
        run.env.run_fast(True)
        require_same(run.batch, full, f"{run}: run_fast(False) changes the episode")

    def test_images_that_nobody_looks_at_are_not_there_and_the_others_are_as_without_that(self, run: TrialRun) -> None:
        """Fail if rendering only every third step changes the episode or a rendered image, or if a step that must not
        render has images. Passes if no camera is wanted or the environment has no method `render_next`.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # `wants` is the first entry of `other_wants` that requests cameras; None if there is no such entry.
        # `render_next(False)` makes the next step skip rendering. The base class's method does nothing.
        wants = next((wants for wants in self.other_wants if wants.cameras), None)
        if wants is None or type(run.env).render_next is HostEnv.render_next:
            return
        skip_unless_repeatable(run)
        with (
            closing(self.host().make(run.task, wants)) as full_env,
            closing(self.host().make(run.task, wants)) as sparse_env,
        ):
            full, sparse = full_env.reset(self.seed), sparse_env.reset(self.seed)  # observations
            for step in range(len(run.actions) + 1):
                # Step 0 means the observation from the reset, which always has images.
                for camera, image in full.images.items():
                    expected = image if step % _RENDER_EVERY == 0 else None  # None = the image must be missing
                    failure = f"{run}: the image of {camera} at step {step} is wrong if only some steps are rendered."
                    require(first_difference(expected, _read_image(sparse, camera)) is None, failure)
                if step < len(run.actions):
                    sparse_env.render_next((step + 1) % _RENDER_EVERY == 0)
                    (full, _), (sparse, _) = full_env.step(run.actions[step]), sparse_env.step(run.actions[step])
            failure = f"{run}: rendering only some steps changes the episode"
            require_same(full_env.recorded(), sparse_env.recorded(), failure)
            sparse_env.render_next(False)
            after_reset = sparse_env.reset(self.seed)
        missing = [camera for camera in full.images if _read_image(after_reset, camera) is None]
        failure = f"{run}: a reset lacks images of {missing}; render_next(False) may skip the images of one step only."
        require(not missing, failure)

    def test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies(self, run: TrialRun) -> None:
        """Fail if coordinates lie outside the state, overlap, have a wrong size, or place a tracked body more than 1 cm
        from its recorded position. Passes if the host has neither coordinates nor `states`.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # The state is the simulator's flat state, recorded as `sim_state` [N + 1, width].
        run.env.reset(self.seed)
        batch, coordinates = run.batch, run.env.coordinates()
        if not (coordinates or self.host().supports.states):
            return
        width = batch.sim_state.episode_rows(0).shape[1]
        require(bool(coordinates), f"{run}: coordinates() returns none, but the host supports `states`.")
        # The indices of the state's entries that belong to coordinates.
        entries = [part.first + offset for part in coordinates for offset in range(part.size)]
        require(len(set(entries)) == len(entries), f"{run}: two coordinates name the same entry of the state.")
        failure = f"{run}: a coordinate lies outside the state, which has the size {width}."
        require(min(entries) >= 0 and max(entries) < width, failure)
        for coordinate in coordinates:
            # `kind` is `position` or `rotation`; each kind allows only some sizes.
            name, kind, size = coordinate.name, coordinate.kind, coordinate.size
            require(size in _COORDINATE_SIZES[kind], f"{run}: the {kind} of {name} has a wrong size: {size} numbers.")
        # `paths` maps each tracked body's name to its recorded positions [N + 1, 3] in m.
        # `state_paths` maps each coordinate's name to its positions [N + 1, 3] in the recorded states.
        paths, state_paths = tracked_paths(batch), _state_paths(batch, coordinates)
        for name in state_paths.keys() & paths.keys():
            error_m = float(np.linalg.norm(state_paths[name] - paths[name], axis=1).max(initial=0))
            require(error_m < _NEAR_M, f"{run}: {name} in the state is {error_m:g} m from its recorded position.")

    def test_poses_are_those_of_the_end_of_the_control_step(self) -> None:
        """Fail if the recorded path of the body that `move_object` moves is more than 0.6 control steps late on
        average. The true path is from privileged state, or else from `sim_state`. Skipped if neither contains the path.
        """
        # The hook `move_object` moves a body. Its result is the body's name, and `run.batch` is the record.
        run, trial = self.run_hook("move_object"), self.trials[0]
        body, batch = run.result, run.batch
        paths = tracked_paths(batch)
        require(body in paths, f"{trial}: {body} was moved, but its pose is not recorded.")
        states = [observation.privileged for observation in run.observations if observation.privileged]
        failure = f"{trial}: {body} was moved, but the privileged state lacks its position."
        require(all(body in state.body_pos_m for state in states), failure)
        seen_path_m = np.array([state.body_pos_m[body] for state in states])
        # The body's true path, [records, 3]; None if neither privileged state nor a coordinate gives the path.
        path_m = seen_path_m if states else _state_paths(batch, run.coordinates).get(body)
        if path_m is None or len(path_m) != len(paths[body]):
            pytest.skip("neither coordinates() nor privileged state has the body's position")
        moved_m = float(np.linalg.norm(np.diff(path_m, axis=0), axis=1).sum())
        error_sum_m = float(np.linalg.norm(paths[body] - path_m, axis=1).sum())
        failure = f"{trial}: move_object() moved {body} by {moved_m:g} m, which is too little to check."
        require(moved_m > _NEAR_M, failure)
        # A path that is late by k steps has, on average, an error of k times the motion in one step.
        # A lag of one substep is correct: MuJoCo computes poses at a substep's start.
        problem = f"{trial}: the lag of the poses of {body} is {error_sum_m / moved_m:.1f} control steps"
        require(error_sum_m <= _MAX_LAG_STEPS * moved_m, f"{problem}; read poses after the last physics step.")

    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, run: TrialRun) -> None:
        """Fail unless pictures of the first and last record have the requested size, are equal when rendered again, and
        show bodies at their recorded positions. Passes if the host has no `stage`.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        host, batch = self.host(), run.batch
        if not host.supports.pictures:
            return
        paths, size = tracked_paths(batch), (*_PICTURE_SIZE, 3)
        shown_bodies = tuple(paths)[:1]  # one tracked body; () if the record has no tracked body
        with closing(host.stage(run.task, batch)) as stage:
            for step in (0, int(batch.lengths[0]) - 1):
                camera = stage.aim(step, shown_bodies, _PICTURE_SIZE)  # a camera that shows `shown_bodies` well
                picture, again = (stage.render(step, camera, _PICTURE_SIZE, shown_bodies) for _ in range(2))
                shape, dtype = picture.image.shape, picture.image.dtype.name
                failure = f"{run}: a picture has the type and shape {dtype} {shape}; expected uint8 {size}."
                require(dtype == "uint8" and shape == size, failure)
                # `seen` is 1 at pixels that show the first of `shown_bodies`, and 0 at all other pixels.
                fits = picture.seen.shape == _PICTURE_SIZE and set(np.unique(picture.seen)) <= {0, 1}
                failure = f"`seen` must hold 0 or 1 for each pixel of the picture; its shape is {picture.seen.shape}."
                require(fits, f"{run}: {failure}")
                is_repeatable = first_difference(picture.image, again.image) is None
                require(is_repeatable, f"{run}: rendering a record twice gives different pictures.")
                for name, path in paths.items():
                    failure = f"{run}: the picture from record {step} lacks the position of {name}."
                    require(name in picture.body_pos_m, failure)
                    error_m = float(np.linalg.norm(picture.body_pos_m[name] - path[step]))
                    failure = f"in the picture from record {step}, {name} is {error_m:g} m from its recorded position."
                    require(error_m < _SHOWN_TOLERANCE_M, f"{run}: {failure}")


def _read_image(observation: Observation, camera: str) -> NDArray[np.uint8] | None:
    # Returns a camera's image, [H, W, 3]; None if it was not rendered.
    # Reading an image that was not rendered raises `PolicyError`.
    try:
        return observation.images[camera]
    except PolicyError:
        return None


def _comparable_record(batch: Batch, step: int) -> Batch:
    # Returns the record with the index `step` of a one-episode batch, as a batch with one record.
    # Header fields whose values may change until the episode ends get fixed values.
    header = msgspec.structs.replace(batch.headers[0], success=False, dropped_pairs=None)
    return replace(select_record(batch, step), headers=(header,))


def _state_paths(batch: Batch, coordinates: Sequence[Coordinate]) -> dict[str, Floats]:
    # Maps names of coordinates to positions [N, 3] in m, read from the `N` simulator states [N, S] in `batch`.
    # Only coordinates that are positions of size 3 are used.
    states: Floats = batch.sim_state.episode_rows(0)
    first_entries = {part.name: part.first for part in coordinates if (part.kind, part.size) == ("position", 3)}
    return {name: states[:, first : first + 3] for name, first in first_entries.items()}
