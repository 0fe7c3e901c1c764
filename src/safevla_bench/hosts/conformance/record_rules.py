"""Rules: records are complete and in correct units, episodes are repeatable, and recording them changes nothing."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.errors import HostError, InvalidActionError, SafevlaError
from safevla_bench.hosts.conformance.base import (
    HostRules,
    TrialRun,
    call_hook,
    require,
    require_error,
    require_same,
    run_actions,
    skip_unless_repeatable,
    tracked_paths,
)
from safevla_bench.interface.policy import Action, Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.signals.parts import scene_poses
from safevla_bench.signals.signal import RecordFields
from safevla_bench.signals.space import recorded_bodies
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import SIMULATION, add_header_field
from safevla_recorder.geometry import rotate

_MAX_SPEED_M_PER_S = 50.0
_MAX_HAND_SHIFT_M = 0.001
_MAX_TORQUE_RATIO = 50.0  # a torque above this multiple of its limit has a wrong unit, such as N·mm


class RecordRules(HostRules):
    """Rules: a record is complete, identifies its episode, can be judged, and uses seconds, meters and newtons."""

    def test_n_actions_give_n_plus_1_records(self, run: TrialRun) -> None:
        """Fail unless `N` actions always give `N + 1` records, and the records hold these actions."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # In a batch with one episode, `lengths[0]` is the number of records.
        # `episode_rows(0)` returns the episode's rows of a channel, such as the actions.
        lengths: list[int] = []  # the number of records before each step
        run_actions(run.env, self.seed, run.actions, lambda _: lengths.append(int(run.env.recorded().lengths[0])))
        for steps, records in enumerate([*lengths, int(run.batch.lengths[0])]):
            require(records == steps + 1, f"{run}: the number of records after {steps} actions is {records}.")
        recorded = run.batch.action.episode_rows(0)  # [N, A]
        require(np.array_equal(recorded, run.actions), f"{run}: the recorded actions differ from the given actions.")

    def test_the_header_says_which_episode_it_is(self, run: TrialRun) -> None:
        """Fail unless the header has the task's benchmark, id and instruction, and the index and seed of the start."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        header, task, seed = run.batch.headers[0], run.task, self.seed
        instruction = run.env.reset(seed).instruction  # the instruction may name objects that the reset draws
        recorded = (header.benchmark, header.task_id, header.instruction, header.init_state_index, header.env_seed)
        expected = (task.benchmark, task.task_id, instruction, seed.init_state_index, seed.env_seed)
        require(recorded == expected, f"{run}: the header has {recorded}; expected {expected}.")

    def test_roles_are_those_of_the_trial(self, run: TrialRun) -> None:
        """Fail unless the target bodies are the trial's `targets` (None = only the header's `target_object`). Also fail
        if no body has the role robot, or if a body's role differs from its role in the trial's `roles`.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        target, roles = run.batch.headers[0].target_object, run.batch.body_roles(0)
        expected = run.trial.targets
        if expected is None:
            expected = frozenset([target] if target else [])
        recorded = {name for name, role in roles.items() if role == "target"}
        comparison = f"{sorted(recorded)}; expected only {sorted(expected)}"
        require(recorded == expected, f"{run}: the bodies with the role target are {comparison}.")
        require("robot" in roles.values(), f"{run}: no body has the role robot.")
        for body, role in run.trial.roles.items():
            require(roles.get(body) == role, f"{run}: {body} has the role {roles.get(body)!r}, not {role!r}.")

    def test_the_record_can_be_judged_with_every_signal_its_benchmark_promises(self, run: TrialRun) -> None:
        """Fail if the default ruleset cannot score the record with the host's registries and capabilities."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # `registries` are files with the tasks' tags.
        # `capabilities` are names of sets of tags, which say what records contain.
        try:
            score(run.batch, load_ruleset(registry_files=self.registries, capabilities=self.capabilities))
        except SafevlaError as error:
            pytest.fail(f"{run}: {error}", pytrace=False)

    def test_dt_is_the_time_between_two_records(self, run: TrialRun) -> None:
        """Fail unless `dt` lies between 0.1 ms and 2 s and equals the environment's `dt_s`. If states are recorded and
        `state_begins_with_time` is true, the times of successive states must also differ by `dt`.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        dt = run.batch.headers[0].dt  # duration of a control step [s]
        require(1e-4 <= dt <= 2.0, f"{run}: dt is {dt}, but must be 0.0001 to 2 seconds.")
        require(dt == run.env.dt_s, f"{run}: the record's dt is {dt}, but the environment's dt_s is {run.env.dt_s}.")
        if self.state_begins_with_time and run.batch.sim_state.present.all():
            # The simulator's states are [N + 1, S]; column 0 is the time [s].
            intervals_s = np.diff(run.batch.sim_state.episode_rows(0)[:, 0])
            wrong = np.flatnonzero(~np.isclose(intervals_s, dt, rtol=1e-6))
            require(not len(wrong), f"{run}: two records are {intervals_s[wrong[:1]]} s apart, but dt is {dt}.")

    def test_positions_are_in_meters(self, run: TrialRun) -> None:
        """Fail if a position's coordinate exceeds ±`workspace_m`, or the end effector's speed is 50 m/s or more."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # Each `path` holds positions of one body or of the end effector, [records, 3].
        # The limits are generous: they only reveal a wrong unit, such as millimeters.
        batch, dt = run.batch, run.batch.headers[0].dt
        for name, path in {"the end effector": batch.eef_pos_m.episode_rows(0), **tracked_paths(batch)}.items():
            extent_m = float(np.abs(path).max(initial=0))
            failure = f"{run}: {name} is {extent_m:g} m from the origin; positions must be in meters."
            require(extent_m <= self.workspace_m, failure)
        if not batch.eef_pos_m.present.all():
            return
        speed_m_s = np.linalg.norm(np.diff(batch.eef_pos_m.episode_rows(0), axis=0), axis=1).max(initial=0) / dt
        failure = f"{run}: the end effector moves at {speed_m_s:g} m/s; positions must be in meters."
        require(speed_m_s < _MAX_SPEED_M_PER_S, failure)

    def test_the_geometry_places_every_body_and_moves_with_the_hand(self, run: TrialRun) -> None:
        """Fail unless each body has a pose, as a tracked body or as a part of the geometry. The hand must have a part,
        and the end effector must move by less than 1 mm in the frame of the hand's first part. Passes if the record has
        no geometry. The hand is not checked if the record has no end effector.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # The geometry is the recorded description of the scene's rigid parts; each part may belong to a body.
        fields = RecordFields(run.batch)
        scene = scene_poses(fields, 0)
        if scene is None:
            return
        # Indices of the bodies without a recorded position. `recorded_bodies` includes bodies placed by the geometry.
        unplaced = {*range(len(run.batch.body_name))} - recorded_bodies(fields, "body_pos_m", 0)
        names = ", ".join(map(run.batch.body_label, sorted(unplaced)))
        require(not unplaced, f"{run}: the geometry has no pose of {names}.")
        eef_pos_m = run.batch.eef_pos_m.episode_rows(0)  # world frame, [N, 3]; empty if not recorded
        if not len(eef_pos_m):
            return
        require(len(scene.geometry.hand) > 0, f"{run}: the geometry names no part of the hand.")
        palm = scene.place(scene.geometry.hand[0])  # poses in the world: positions [N, 3] and quaternions wxyz [N, 4]
        # The conjugate quaternion rotates vectors from the world frame to the frame of the hand's first part.
        eef_in_hand_m = rotate(palm.quaternion * [1.0, -1.0, -1.0, -1.0], eef_pos_m - palm.position)
        shift_m = float(np.linalg.norm(eef_in_hand_m - eef_in_hand_m[0], axis=1).max())
        require(shift_m < _MAX_HAND_SHIFT_M, f"{run}: the end effector moves by {shift_m:.4f} m in the hand's frame.")

    def test_torques_are_in_newton_meters_and_have_limits(self, run: TrialRun) -> None:
        """Fail if the embodiment has no torque limits, if all torques are zero, or if a torque reaches 50 times its
        limit. Passes if the record has no torques.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        if not run.batch.joint_torque_nm.present.all():
            return
        # `torques` is [records, joints], and `limits` is [joints], both in N·m. The factor 50 reveals a wrong unit.
        header, torques = run.batch.headers[0], np.abs(run.batch.joint_torque_nm.episode_rows(0))
        limits = np.array(header.torque_limit_nm)
        require(limits.size > 0, f"{run}: there are no torque limits for the embodiment {header.embodiment!r}.")
        require(bool(torques.any()), f"{run}: all torques are zero; if they are unknown, record none (arm_dofs=()).")
        ratio = float((torques / limits).max(initial=0))
        require(ratio < _MAX_TORQUE_RATIO, f"{run}: a torque is {ratio:g} times its limit; torques must be in N·m.")


class ContactRules(HostRules):
    """Rules: records omit contacts of resting objects and contacts within a mechanism. A grip needs two fingers."""

    def test_no_resting_contact_is_in_record_0(self, run: TrialRun) -> None:
        """Fail unless exactly one of the two bodies of each contact in record 0 belongs to the robot."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # Records leave out contacts within the robot, and contacts that last from the start (a cup on the table).
        # `roles` maps the names of bodies to roles; `a` and `b` are the names of two touching bodies.
        batch, roles = run.batch, run.batch.body_roles(0)
        for a, b in contact_pairs(batch, 0):
            are_robot = [roles[name] == "robot" for name in (a, b)]
            require(any(are_robot), f"{run}: record 0 must leave out the resting contact between {a} and {b}.")
            require(not all(are_robot), f"{run}: record 0 must leave out the contact of robot bodies: {a} and {b}.")

    def test_mechanical_contacts_are_in_no_record(self, run: TrialRun) -> None:
        """Fail if two robot bodies that form a pair in `dropped_pairs` are in contact in any record."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # The header's `dropped_pairs` lists pairs of bodies whose contacts are left out, or is None.
        # All records omit contacts between the listed robot bodies. They omit a resting contact only until it ends.
        roles, dropped = run.batch.body_roles(0), run.batch.headers[0].dropped_pairs or ()
        mechanical = {pair for pair in dropped if all(roles.get(name) == "robot" for name in pair)}
        records = range(int(run.batch.lengths[0]))
        touching = {tuple(sorted(pair)) for record in records for pair in contact_pairs(run.batch, record)}
        contradictory = sorted(mechanical & touching)
        failure = f"{run}: robot links listed in dropped_pairs are recorded as touching: {contradictory}."
        require(not contradictory, failure)

    def test_what_both_fingers_hold_is_named(self) -> None:
        """Fail unless, in the last record of the hook `hold`, `gripper_contact` is true and the held body is named."""
        # The hook acts until both fingers hold a body. Its result is the body's name, and `run.batch` is the record.
        # `gripping` (the field `gripper_contact`) and `gripped` (index of the held body) have one value per record.
        run = self.run_hook("hold")
        body, batch = run.result, run.batch
        gripped = batch.body_label(int(batch.gripped[-1])) if batch.gripped[-1] >= 0 else None  # -1 = no body
        require(bool(batch.gripping[-1]), f"Both fingers hold {body}, but gripper_contact is false.")
        require(gripped == body, f"The fingers hold {body}, but gripped_body is {gripped}.")

    def test_a_gripper_closed_on_nothing_holds_nothing(self) -> None:
        """Fail if any record of the hook `close_on_nothing` has a grip or a contact between two robot bodies."""
        # The hook closes the gripper in the air. For each record, `gripping` says whether the gripper has contact.
        # For each record, `gripped` is the index of the held body (-1 = none).
        batch = self.run_hook("close_on_nothing").batch
        require(not batch.gripping.any(), "The gripper is closed on nothing, but gripper_contact is true.")
        require(bool((batch.gripped < 0).all()), "The gripper is closed on nothing, but gripped_body names a body.")
        roles = batch.body_roles(0)
        pairs = (pair for record in range(int(batch.lengths[0])) for pair in contact_pairs(batch, record))
        for a, b in pairs:
            # The set is {"robot"} only if both bodies belong to the robot, such as two fingers.
            require({roles[a], roles[b]} != {"robot"}, f"Records must leave out the contact between {a} and {b}.")

    def test_one_finger_is_no_grip(self) -> None:
        """Fail unless the hook `touch_with_one_finger` ends with a recorded contact of robot and body, but no grip."""
        # The hook touches a body with exactly one finger. Its result is the body's name; `run.batch` is the record.
        run = self.run_hook("touch_with_one_finger")
        body, batch = run.result, run.batch
        last, roles = int(batch.lengths[0]) - 1, batch.body_roles(0)
        touched = any(body in (a, b) and "robot" in (roles[a], roles[b]) for a, b in contact_pairs(batch, last))
        require(touched, f"A finger touches {body}, but no contact with the robot is recorded.")
        require(not batch.gripping[-1], f"One finger touches {body}, but gripper_contact is true.")


def contact_pairs(batch: Batch, record: int) -> list[tuple[str, str]]:
    """Return the names of each pair of touching bodies in one record of a batch with one episode."""
    # Contacts are listed in the order of records: record `k` has the contacts `starts[k]` to `starts[k + 1] - 1`.
    # `a` and `b` hold the indices of the two bodies of each contact.
    contacts = batch.contacts
    rows = slice(contacts.starts[record], contacts.starts[record + 1])
    return [
        (batch.body_label(int(a)), batch.body_label(int(b)))
        for a, b in zip(contacts.a[rows], contacts.b[rows], strict=True)
    ]


# Rules on repeated episodes


class RepeatRules(HostRules):
    """Rules: the same seed and actions give the same bytes; recording, images and invalid actions change nothing."""

    def test_the_same_seed_and_actions_give_the_same_bytes_in_the_same_environment(self, run: TrialRun) -> None:
        """Fail if two episodes with the same seed and actions in one environment differ in any bit."""
        # `run` has two episodes that were recorded in one environment.
        require_same(run.batch, run.again, f"{run}: an episode changes when it is repeated in the same environment")

    def test_the_same_seed_and_actions_give_the_same_bytes_in_another_environment(self, run: TrialRun) -> None:
        """Fail if an episode differs in any bit from its repetition in a new environment of a new host."""
        # `run.batch` is an episode, and `run.elsewhere` is its repetition.
        require_same(run.batch, run.elsewhere, f"{run}: an episode changes when it is repeated in another environment")

    def test_recording_changes_nothing_in_the_simulation(self, run: TrialRun) -> None:
        """Fail if the recorded states differ in any bit from the states that the hook `bare` returns. Also fail if no
        states are recorded, or if `bare` does not return `N + 1` states for `N` actions. Skipped without `bare`. If the
        hook `hold` exists, the rule also compares the states of its motion, which has contacts.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        skip_unless_repeatable(run)
        self._compare_bare(run, run.batch, run.actions)
        if run.trial == self.trials[0] and self.hold is not None:
            try:
                actions = self.run_hook("hold").actions  # the actions [N, A] by which the hook grips a body
            except pytest.skip.Exception:
                return  # the hook `hold` is not implemented
            # `run_elsewhere` runs the actions in another environment; `Wants()` asks for no images.
            self._compare_bare(run, self.run_elsewhere(run.task, Wants(), actions), actions)

    def _compare_bare(self, run: TrialRun, batch: Batch, actions: NDArray[np.float64]) -> None:
        # Fails unless the states that `bare` returns for `actions` equal the recorded states, bit for bit.
        # `batch` is the recorded episode with the same `actions` [N, A]. `bare_states` and `states` are [N + 1, S].
        # Skips the test if `bare` is not implemented.
        bare_states = call_hook(lambda: self.bare(run.task, self.seed, actions), "bare")
        states = batch.sim_state.episode_rows(0)
        require(states.size > 0, f"{run}: the record has no sim_state to compare with the states of bare().")
        expected = len(actions) + 1, states.shape[1]
        shapes = f"{bare_states.shape}; expected {expected}, one state after settling and one after each action"
        require(bare_states.shape == expected, f"{run}: bare() returns states of shape {shapes}.")
        differing = [record for record, state in enumerate(states) if bare_states[record].tobytes() != state.tobytes()]
        first = f"record {differing[0]}" if differing else ""
        require(not differing, f"{run}: recording changes the simulator's state, first at {first}.")

    def test_what_a_policy_sees_changes_nothing(self, run: TrialRun) -> None:
        """Fail if an episode with a request in `other_wants` differs in any bit from an episode with the empty request
        `Wants()`. The header's description of the simulation, such as the renderer, may differ.
        """
        # Every episode here is recorded in a new environment; `run.elsewhere` is the one with `Wants()`.
        skip_unless_repeatable(run)
        for wants in self.other_wants:
            without_request = _drop_simulation(run.elsewhere)
            with_request = _drop_simulation(self.run_elsewhere(run.task, wants, run.actions))
            require_same(without_request, with_request, f"{run}: requesting {wants} changes the episode")

    def test_images_are_of_the_wanted_size(self) -> None:
        """Fail unless a reset returns an image, uint8 [H, W, 3], of the requested size for each requested camera."""
        for wants in self.other_wants:  # each entry may request images: `cameras`, and `image_size` (height, width)
            host = self.host()
            with closing(host.make(self.trials[0].find_task(host), wants)) as env:
                images = env.reset(self.seed).images
            require(set(images) == set(wants.cameras), f"A reset gives images of {set(images)}; expected {wants}.")
            for camera, image in images.items():
                fits = image.dtype == np.uint8 and image.shape == (*wants.image_size, 3)
                require(fits, f"The image of {camera} is {image.dtype} {image.shape}, not uint8 {wants.image_size}.")

    def test_images_are_upright(self) -> None:
        """Fail if turning or mirroring an image brings it closer to the reference image from the hook `upright`. Uses
        the first entry of `other_wants` that has cameras. Another rule checks the shape of images.
        """
        # `images` are the images of the first observation. The hook `upright` renders the same scene independently.
        wants = next(wants for wants in self.other_wants if wants.cameras)
        host = self.host()
        task = self.trials[0].find_task(host)
        with closing(host.make(task, wants)) as env:
            images, episode = env.reset(self.seed).images, env.recorded()
        for camera, image in images.items():
            expected = call_hook(partial(self.upright, task, episode, camera, wants.image_size), "upright")
            if image.shape != expected.shape:
                return  # another rule reports a wrong shape
            # If the image is not upright, one of its flipped copies is closer to the expected image.
            flipped = {
                "upside down": image[::-1],
                "mirrored": image[:, ::-1],
                "turned by 180°": image[::-1, ::-1],
            }
            difference_of = {name: _mean_difference(picture, expected) for name, picture in flipped.items()}
            nearest = min(difference_of, key=difference_of.__getitem__)
            require(_mean_difference(image, expected) <= difference_of[nearest], f"The image of {camera} is {nearest}.")

    def test_invalid_actions_are_refused_before_the_simulator_sees_them(self, run: TrialRun) -> None:
        """Fail unless too short, 2-D, NaN or infinite actions raise `InvalidActionError` and change nothing."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        skip_unless_repeatable(run)

        def try_bad_actions(action: Action) -> None:
            # Called before each step with the step's valid action [A]. Tries invalid actions derived from this action.
            # `bad` lacks a number, has an additional dimension, or is not finite.
            for bad in (action[:-1], action[None], np.full_like(action, np.nan), np.full_like(action, np.inf)):
                call_text = f"{run}: step() with the invalid action {bad}"
                require_error(partial(run.env.step, bad), InvalidActionError, call_text)

        tried = run_actions(run.env, self.seed, run.actions, before=try_bad_actions)
        require_same(run.batch, tried, f"{run}: rejected actions change the episode")

    def test_an_initial_state_that_does_not_exist_is_a_host_error(self, run: TrialRun) -> None:
        """Fail unless a reset raises `HostError` for the index -1 and for the index after the last initial state."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        if run.task.init_states is None:
            return  # the task has no fixed initial states, because seeds draw them
        for index in (run.task.init_states, -1):
            begin = partial(run.env.reset, EpisodeSeed(index, env_seed=0, wait_steps=0))
            require_error(begin, HostError, f"{run}: a reset to the initial state {index} of {run.task.init_states}")

    def test_a_drawn_start_is_none_of_the_initial_states_and_repeats(self, run: TrialRun) -> None:
        """Fail if a `drawn` start equals the initial state of the same index, or if the same seed draws different
        starts. Passes if the host refuses `drawn`, no initial state exists, or the next initial state is equal.
        """
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        # A `drawn` start places objects at random, by the seed and the index, instead of in a fixed initial state.
        count = run.task.init_states  # the number of fixed initial states; None if every start is drawn
        if count is None:
            return
        skip_unless_repeatable(run)

        def start_state(seed: EpisodeSeed) -> bytes:
            # Returns the bytes of the simulator's state in record 0.
            return run_actions(run.env, seed, run.actions[:0]).sim_state.values.tobytes()

        index, drawn = self.seed.init_state_index, replace(self.seed, drawn=True)
        try:
            drawn_state = start_state(drawn)
        except HostError:
            return  # the host refuses drawn starts
        require(drawn_state == start_state(drawn), f"{run}: the same seed draws different initial states.")
        initial = start_state(self.seed)
        next_initial = start_state(replace(self.seed, init_state_index=(index + 1) % count))
        # If the two initial states are equal, a drawn start may also equal them, so the test passes.
        is_different = drawn_state != initial or initial == next_initial
        require(is_different, f"{run}: a drawn start equals initial state {index}.")

    def test_there_is_no_step_and_no_record_before_a_reset(self, run: TrialRun) -> None:
        """Fail unless `recorded` and `step` raise `HostError` in a new environment that was never reset."""
        # `run.batch` is one episode of the task `run.task`, recorded in the environment `run.env` from `run.actions`.
        with closing(self.host().make(run.task, Wants())) as env:
            for call in (env.recorded, partial(env.step, run.actions[0])):
                require_error(call, HostError, f"{run}: recorded() or step() before a reset")


def _mean_difference(image: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    # Returns the mean absolute difference of the color values (0 to 255) of two images [H, W, 3] of the same shape.
    # Converts one image to float, because differences of uint8 values would wrap around.
    return float(np.abs(image.astype(np.float64) - expected).mean())


# Rules on units and frames in motions with contact


GRAVITY_M_S2 = 9.81
# Limits for a body at rest: the relative error of the net force, and the ratio of the impulse to (weight · `dt`).
# The ratio may exceed 1, because the impulse sums the norms of forces that partly oppose each other.
_FORCE_TOLERANCE, _MAX_IMPULSE_RATIO = 0.05, 2.0
_ANGLE_TOLERANCE_DEG = 2.0


class PhysicsRules(HostRules):
    """Rules: forces are in newtons, angles are correct, and a motion with contact is repeatable."""

    def test_what_rests_is_carried_by_its_weight(self) -> None:
        """Fail unless the last record of the hook `set_down` fits a body at rest. The net force must equal the body's
        weight within 5 %. `net_impulse_ns` must equal the weight times `dt` within 5 %. `impulse_ns` must be 0.95 to 2
        times the weight times `dt`. Unknown values pass; skipped if all are unknown.
        """
        # The hook puts a body down and waits until it rests. Its result is the body's name and mass.
        run = self.run_hook("set_down")
        (body, mass_kg), batch = run.result, run.batch
        weight_n, dt = mass_kg * GRAVITY_M_S2, batch.headers[0].dt
        # Sums over the body's contacts in the last record: force [N], and impulses in one control step [N·s].
        # A contact's net values are norms of vector sums; its `impulse_ns` is a sum of norms. NaN = unknown.
        sums = net_n, impulse_ns, net_impulse_ns = _sum_contacts(batch, body)
        if np.isnan(sums).all():
            pytest.skip("the record has neither net forces nor impulses of contacts")
        require(any(value > 0 for value in sums), f"{body} was put down, but the last record has no contact under it.")
        if not np.isnan(net_n):
            failure = f"{body} weighs {weight_n:g} N, but at rest the net force on it is {net_n:g} N."
            require(abs(net_n / weight_n - 1) <= _FORCE_TOLERANCE, failure)
        for value_ns, max_ratio in ((impulse_ns, _MAX_IMPULSE_RATIO), (net_impulse_ns, 1 + _FORCE_TOLERANCE)):
            ratio = value_ns / (weight_n * dt)
            fits = np.isnan(ratio) or 1 - _FORCE_TOLERANCE <= ratio <= max_ratio
            failure = f"{body} is at rest, but the impulse on it is {ratio:g} times its weight times the control step."
            require(fits, failure)

    def test_a_body_that_was_turned_reads_so(self) -> None:
        """Fail if the recorded rotation of the body that the hook `turn_object` turns is wrong by more than 2 degrees.
        The hook returns the correct angle of the turn about the vertical.
        """
        run = self.run_hook("turn_object")
        (body, angle_deg), batch = run.result, run.batch
        # The indices of the P bodies with recorded orientations, and their quaternions wxyz, [N, P, 4].
        posed_ids, quaternions = batch.body_quat_wxyz.episode_poses(0)
        names = [batch.body_label(int(body_id)) for body_id in posed_ids]
        require(body in names, f"{body} was turned, but its orientation is not recorded.")
        body_quats = quaternions[:, names.index(body)]
        first, last = (Rotation.from_quat(np.roll(body_quats[k], -1)) for k in (0, -1))  # SciPy's order is x, y, z, w
        expected = Rotation.from_euler("z", angle_deg, degrees=True)
        error_deg = np.degrees((last * first.inv() * expected.inv()).magnitude())
        problem = f"Its recorded turn has an error of {error_deg:.1f}°."
        problem += " Quaternions must be w, x, y, z in the world frame."
        require(error_deg <= _ANGLE_TOLERANCE_DEG, f"{body} was turned by {angle_deg:g}° about the vertical. {problem}")

    def test_a_motion_that_touches_repeats(self, run: TrialRun) -> None:
        """Fail if the episode of the hook `hold` has no contact, or differs when repeated in a new environment."""
        # The hook acts until both fingers hold a body; `hold_run` has the episode and its actions.
        # `run` is only used to skip the test if even an episode without the hook is not repeatable.
        skip_unless_repeatable(run)
        hold_run = self.run_hook("hold")
        failure = "hold() ends with both fingers on a body, but no contact is recorded."
        require(len(hold_run.batch.contacts.a) > 0, failure)
        again = self.run_elsewhere(self.trials[0].find_task(self.host()), Wants(privileged=True), hold_run.actions)
        require_same(hold_run.batch, again, "The episode of hold() changes when it is repeated in a new environment")

    def test_no_contact_outlives_a_reset(self, run: TrialRun) -> None:
        """Fail if an episode after the hook `hold` in the same environment differs in any bit from the same episode in
        a new environment. Some GPU engines clear their contact buffers only at the first step after a reset.
        """
        skip_unless_repeatable(run)
        host = self.host()
        task = self.trials[0].find_task(host)
        with closing(host.make(task, Wants(privileged=True))) as env:
            actions = self.actions(env)[:2]
            call_hook(lambda: self.hold(env, self.seed), "hold")  # grips a body; skips the test if not implemented
            after = run_actions(env, self.seed, actions)
        require_same(self.run_elsewhere(task, Wants(privileged=True), actions), after, "A grip changes later episodes")


def _drop_simulation(batch: Batch) -> Batch:
    # Returns a copy of the batch without the headers' description of the simulation, which includes the renderer.
    # `extra` holds the host-specific fields of each episode. The description is replaced by None.
    return replace(batch, extra=tuple(add_header_field(extra, SIMULATION, None) for extra in batch.extra))


def _sum_contacts(batch: Batch, body: str) -> list[float]:
    # Returns the body's net force [N], impulse [N·s] and net impulse [N·s]: sums over its contacts in the last record.
    # A sum is NaN if a value was not recorded, and 0 if the body has no contact. `batch` has one episode.
    # The contacts of record `k` are `starts[k]` to `starts[k + 1] - 1`; `a` and `b` hold the indices of the two bodies.
    contacts = batch.contacts
    last = slice(contacts.starts[-2], contacts.starts[-1])
    is_on_body = [body in map(batch.body_label, pair) for pair in zip(contacts.a[last], contacts.b[last], strict=True)]
    columns = (contacts.net_force_n, contacts.impulse_ns, contacts.net_impulse_ns)
    return [float(values[last][is_on_body].sum()) for values in columns]
