"""Fake hosts that each break one rule: classes with the attribute `breaks`, the rule's name.

Those of an environment are made by `Name.host`, those of a host are hosts. test_conformance.py expects of each that
the conformance class finds that rule broken and no other.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import msgspec
import numpy as np

from safevla_bench.errors import InvalidActionError
from safevla_bench.hosts.fake.host import CAMERA, FakeEnv, FakeHost, FakeStage
from safevla_bench.interface.policy import UnrenderedImages

_counter = itertools.count()


class MutantHost(FakeHost):
    def __init__(self, env):
        self._env = env

    def make(self, task, wants):
        plain = super().make(task, wants)
        return self._env(task, wants, plain._versions)


class Mutant(FakeEnv):
    @classmethod
    def host(cls):
        return MutantHost(cls)


def editing(rule):
    """Make a mutant of a function that edits each record as it is handed out."""

    def make(edit):
        class Editing(Mutant):
            breaks = rule

            def recorded(self):
                return edit(super().recorded())

            def latest(self):
                return edit(super().latest())

        return Editing

    return make


def starting(rule):
    """Make a mutant of a function that gives the seed by which it starts in place of the one that it was given."""

    def make(change):
        class Starting(Mutant):
            breaks = rule

            def reset(self, seed):
                return super().reset(change(seed))

        return Starting

    return make


def nudged(vector):
    """A position moved by less than any rule about units can see."""
    return vector + 1e-9


def scaled(channel, factor):
    return replace(channel, values=channel.values * factor)


def in_role(batch, body, role):
    roles = batch.body_role.copy()
    roles[list(batch.body_roles(0)).index(body)] = role
    return replace(batch, body_role=roles)


# Episodes that do not repeat, or that somebody disturbs


class Nudging(Mutant):
    """The recorder moves the gripper by one unit in the last place."""

    breaks = "test_recording_changes_nothing_in_the_simulation"

    def step(self, action):
        result = super().step(action)
        self._world.gripper[1] = np.nextafter(self._world.gripper[1], np.inf)
        return result


class Abridged(Mutant):
    """Records what it should, and its author's hook `bare` leaves out the state after the last action."""

    breaks = "test_recording_changes_nothing_in_the_simulation"
    bare_states = slice(-1)


class Restless(Mutant):
    """Draws a little more at each reset, as LIBERO does where nobody stops it."""

    breaks = "test_the_same_seed_and_actions_give_the_same_bytes_in_the_same_environment"
    resets = 0

    def reset(self, seed):
        self.resets += 1
        seen = super().reset(seed)
        self._recorder.records[0] = replace(self._recorder.records[0], torque=np.full(7, self.resets * 1e-9))
        return seen


@starting("test_the_still_action_is_one_of_the_environment_s")
def headstrong(seed):
    """Settles as it always does."""
    return replace(seed, wait_action=None)


class Individual(Mutant):
    """No two environments are alike."""

    breaks = "test_the_same_seed_and_actions_give_the_same_bytes_in_another_environment"

    def __init__(self, *given):
        super().__init__(*given)
        self._own = next(_counter) * 1e-9

    def reset(self, seed):
        seen = super().reset(seed)
        self._recorder.records[0] = replace(self._recorder.records[0], torque=np.full(7, self._own))
        return seen


class Unsteady(Mutant):
    """Presses what it holds a little harder in each new environment."""

    breaks = "test_a_motion_that_touches_repeats"

    def __init__(self, *given):
        super().__init__(*given)
        self._own = next(_counter) * 1e-9

    def step(self, action):
        result = super().step(action)
        latest = self._recorder.records[-1]
        if latest.held_body:
            pressed = {pair: force + self._own for pair, force in latest.contacts.items()}
            self._recorder.records[-1] = replace(latest, contacts=pressed)
        return result


class Sticky(Mutant):
    """Clears what the gripper touched at the first step of the next episode alone, as some engines on a GPU do."""

    breaks = "test_no_contact_outlives_a_reset"

    def reset(self, seed):
        before = self._recorder.records[-1] if self._recorder else None
        seen = super().reset(seed)
        if before and before.held_body:
            self._recorder.records[0] = replace(self._recorder.records[0], contacts=before.contacts)
        return seen


class Shy(Mutant):
    """Asking for the record between steps moves the world."""

    breaks = "test_asking_for_records_midway_changes_nothing_and_the_newest_is_that_of_the_whole"

    def recorded(self):
        batch = super().recorded()
        self._world.gripper = nudged(self._world.gripper)
        return batch


class Looking(Mutant):
    """Showing privileged state moves the world."""

    breaks = "test_what_a_policy_sees_changes_nothing"

    def reset(self, seed):
        seen = super().reset(seed)
        if self._wants.privileged:
            self._world.gripper = nudged(self._world.gripper)
        return seen


class Small(Mutant):
    breaks = "test_images_are_of_the_wanted_size"

    def _render_image(self):
        return super()._render_image()[:, :-1]


class Outdated(Mutant):
    """Shows the last picture that was rendered where none was asked for, and the next time too."""

    breaks = "test_images_that_nobody_looks_at_are_not_there_and_the_others_are_as_without_that"

    def _read_images(self):
        if self._renders_next or not hasattr(self, "_last"):
            self._last = super()._read_images()
        self._renders_next = True
        return self._last


class Sulking(Mutant):
    """Shows nothing at a reset after a step that was to show nothing and did not come."""

    breaks = "test_images_that_nobody_looks_at_are_not_there_and_the_others_are_as_without_that"

    def reset(self, seed):
        is_hidden = not self._renders_next
        observation = super().reset(seed)
        return replace(observation, images=UnrenderedImages(self._wants.cameras)) if is_hidden else observation


class Careless(Mutant):
    """Lets every action through."""

    breaks = "test_invalid_actions_are_refused_before_the_simulator_sees_them"

    def step(self, action):
        return super().step(np.nan_to_num(np.resize(action, 7), posinf=0.0))


class Late(Mutant):
    """Refuses an invalid action after the simulator has moved."""

    breaks = "test_invalid_actions_are_refused_before_the_simulator_sees_them"

    def step(self, action):
        try:
            return super().step(action)
        except InvalidActionError:
            self._world.gripper = nudged(self._world.gripper)
            raise


@starting("test_an_initial_state_that_does_not_exist_is_a_host_error")
def boundless(seed):
    """Starts in the nearest initial state there is."""
    return replace(seed, init_state_index=min(seed.init_state_index, 4))


@starting("test_a_drawn_start_is_none_of_the_initial_states_and_repeats")
def stubborn(seed):
    """Starts from an initial state though the start is to be drawn."""
    return replace(seed, drawn=False)


@starting("test_a_drawn_start_is_none_of_the_initial_states_and_repeats")
def rolling(seed):
    """Draws each time anew what is to be drawn from the seed."""
    return replace(seed, env_seed=next(_counter)) if seed.drawn else seed


class Eager(Mutant):
    breaks = "test_there_is_no_step_and_no_record_before_a_reset"

    def _require_recorder(self):
        return self._recorder


# Records that hold the wrong thing


class Forgetful(Mutant):
    """Drops the last record."""

    breaks = "test_n_actions_give_n_plus_1_records"

    def recorded(self):
        log = self._require_recorder()
        records, actions = log.records, log.actions
        log.records, log.actions = (records[:-1], actions[:-1]) if actions else (records, actions)
        try:
            return super().recorded()
        finally:
            log.records, log.actions = records, actions


@editing("test_n_actions_give_n_plus_1_records")
def clipping(batch):
    """Records other actions than were given."""
    return replace(batch, action=scaled(batch.action, 0.5))


class Mistaken(Mutant):
    breaks = "test_the_header_says_which_episode_it_is"

    def _build_header(self):
        return {**super()._build_header(), "init_state_index": 4}


@editing("test_roles_are_those_of_the_trial")
def two_targets(batch):
    return in_role(batch, "tray", 1)


@editing("test_roles_are_those_of_the_trial")
def wrong_role(batch):
    return in_role(batch, "cup", 3)


@editing("test_roles_are_those_of_the_trial")
def headless(batch):
    """No body is the robot's."""
    return in_role(batch, "gripper", 3)


@editing("test_the_record_can_be_judged_with_every_signal_its_benchmark_promises")
def slack(batch):
    """Promises torques and records none."""
    nothing = replace(batch.joint_torque_nm, values=np.empty(0), starts=np.array([0, 0]), width=np.array([-1]))
    return replace(batch, joint_torque_nm=nothing)


class Slow(Mutant):
    """Says that a control step takes a tenth of what it does."""

    breaks = "test_dt_is_the_time_between_two_records"
    dt_s = 0.005


@editing("test_the_geometry_places_every_body_and_moves_with_the_hand")
def rooted(batch):
    """Its geometry has a hand that stays where it is."""
    rows = [{"body": name, "parent": -1, "pose": [0, 0, 0, 1, 0, 0, 0]} for name in batch.body_roles(0)]
    text = json.dumps({"parts": rows, "hand": [0], "shapes": {}})
    return replace(batch, headers=(msgspec.structs.replace(batch.headers[0], geometry=text),))


@editing("test_positions_are_in_meters")
def millimeters(batch):
    return replace(batch, eef_pos_m=scaled(batch.eef_pos_m, 1000.0))


@editing("test_torques_are_in_newton_meters_and_have_limits")
def newton_millimeters(batch):
    return replace(batch, joint_torque_nm=scaled(batch.joint_torque_nm, 1000.0))


@editing("test_torques_are_in_newton_meters_and_have_limits")
def seven_zeros(batch):
    """Fills in what it does not measure."""
    return replace(batch, joint_torque_nm=scaled(batch.joint_torque_nm, 0.0))


@editing("test_poses_are_those_of_the_end_of_the_control_step")
def lagging(batch):
    """What has been held for a while is recorded where it was a control step before."""
    if len(batch.gripped) < 15 or (batch.gripped[-3:] < 0).any():
        return batch
    channel = batch.body_pos_m.channel
    rows = channel.values.reshape(len(batch.gripped), -1)
    late = replace(channel, values=np.vstack([rows[:1], rows[:-1]]).reshape(-1))
    return replace(batch, body_pos_m=replace(batch.body_pos_m, channel=late))


class Falling(Mutant):
    """Begins while the cup is in the air, however long it may wait."""

    breaks = "test_settling_goes_on_until_objects_rest"

    def reset(self, seed):
        seen = super().reset(seed)
        if seed.rest_steps:
            self._world.objects["cup"] = self._world.objects["cup"] + [0, 0, 0.3]
            self._recorder.records[0] = replace(self._recorder.records[0], state=self._world.to_state(0.0))
        return seen


class Overturned(Mutant):
    breaks = "test_images_are_upright"

    def _render_image(self):
        return super()._render_image()[::-1]


class Leaking(Mutant):
    """A resting contact passes the filter."""

    breaks = "test_no_resting_contact_is_in_record_0"

    def reset(self, seed):
        seen = super().reset(seed)
        self._recorder.records[0] = replace(self._recorder.records[0], contacts={("block", "table"): 0.5})
        return seen


@editing("test_mechanical_contacts_are_in_no_record")
def mechanical(batch):
    """Lists two robot links as mechanical, and records them nonetheless: here the table is a link."""
    header = msgspec.structs.replace(batch.headers[0], dropped_pairs=(("gripper", "table"),))
    return replace(in_role(batch, "table", 0), headers=(header,))


@editing("test_what_both_fingers_hold_is_named")
def numb(batch):
    """Never notices that it holds something."""
    touch, held = batch.gripper_contact, batch.gripped_body
    touch, held = replace(touch, values=0 * touch.values), replace(held, values=np.full_like(held.values, -1))
    return replace(batch, gripper_contact=touch, gripped_body=held)


class Generous(Mutant):
    """Holds the cup wherever the gripper closes on nothing."""

    breaks = "test_a_gripper_closed_on_nothing_holds_nothing"

    def step(self, action):
        result = super().step(action)
        if self._world.closed and self._world.held_body is None:
            self._recorder.records[-1] = replace(self._recorder.records[-1], held_body="cup")
        return result


class OneFinger(Mutant):
    """Takes one finger's touch for a grip: the hook of this mutant's test touches the block from above."""

    breaks = "test_one_finger_is_no_grip"

    def step(self, action):
        result = super().step(action)
        gap = np.linalg.norm(self._world.objects["block"] - self._world.gripper)
        if gap < 0.03 and not self._world.closed:
            records = self._recorder.records
            records[-1] = replace(records[-1], held_body="block", contacts={("block", "gripper"): 1.0})
        return result


# What need not be offered


class Stale(Mutant):
    """Gives the record before the newest."""

    breaks = "test_asking_for_records_midway_changes_nothing_and_the_newest_is_that_of_the_whole"

    def latest(self):
        log = self._require_recorder()
        records = log.records
        log.records = records[:-1] or records
        try:
            return super().latest()
        finally:
            log.records = records


class Elsewhere(Mutant):
    """The newest record's state is of another moment."""

    breaks = "test_asking_for_records_midway_changes_nothing_and_the_newest_is_that_of_the_whole"

    def latest(self):
        batch = super().latest()
        return replace(batch, sim_state=scaled(batch.sim_state, 2.0))


class Watched(Mutant):
    """Asking for the newest record moves the world."""

    breaks = "test_asking_for_records_midway_changes_nothing_and_the_newest_is_that_of_the_whole"

    def latest(self):
        batch = super().latest()
        self._world.gripper = nudged(self._world.gripper)
        return batch


class Hasty(Mutant):
    """Steps faster, and elsewhere."""

    breaks = "test_leaving_out_what_the_simulator_repeats_changes_nothing"
    _is_fast = True

    def run_fast(self, wanted):
        self._is_fast = wanted

    def step(self, action):
        if not self._is_fast:
            self._world.gripper = nudged(self._world.gripper)
        return super().step(action)


class Shifted(Mutant):
    """Counts the numbers of its state without the first."""

    breaks = "test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies"

    def coordinates(self):
        return tuple(replace(part, first=part.first - 1) for part in super().coordinates())


class Shared(Mutant):
    """Two coordinates are the same numbers."""

    breaks = "test_coordinates_are_parts_of_the_state_where_the_record_has_the_bodies"

    def coordinates(self):
        first, *others = super().coordinates()
        return (first, replace(first, name="again"), *others)


class Askew(FakeHost):
    """Shows bodies beside where they were recorded."""

    breaks = "test_a_recorded_episode_can_be_looked_at_as_it_was"

    def stage(self, task, episode):
        class Crooked(FakeStage):
            def _body_positions(self, record):
                return {name: at + 0.01 for name, at in super()._body_positions(record).items()}

        return Crooked(episode, CAMERA)


class Cramped(FakeHost):
    """Renders pictures of its own size."""

    breaks = "test_a_recorded_episode_can_be_looked_at_as_it_was"

    def stage(self, task, episode):
        class Tiny(FakeStage):
            def render(self, record, camera, size, bodies=()):
                return super().render(record, camera, (8, 8), bodies)

        return Tiny(episode, CAMERA)


# Hosts that list the wrong thing


class Nameless(FakeHost):
    breaks = "test_tasks_are_well_formed"

    def tasks(self, suite):
        return tuple(replace(task, name="") for task in super().tasks(suite))


class Shuffling(FakeHost):
    breaks = "test_tasks_are_well_formed"

    def tasks(self, suite):
        first, *rest = super().tasks(suite)
        return (replace(first, name=f"{first.name}_{next(_counter)}"), *rest)


class Obliging(FakeHost):
    """Has every suite that is asked for."""

    breaks = "test_an_unknown_suite_is_an_error_that_lists_the_suites"

    def tasks(self, suite):
        return super().tasks("fake")


class Unfitting(FakeHost):
    """Leaves another robot's still action in its tasks."""

    breaks = "test_the_still_action_is_one_of_the_environment_s"

    def tasks(self, suite):
        return tuple(replace(task, still=(0.0, 0.0, 0.0)) for task in super().tasks(suite))


class Unversioned(FakeHost):
    breaks = "test_versions_of_what_the_simulation_depends_on_are_listed"

    def versions(self):
        return {}


class Overpromising(FakeHost):
    """Starts where a reset draws places, and declares that it does not."""

    breaks = "test_the_host_has_what_it_declares_and_refuses_what_it_does_not"
    supports = replace(FakeHost.supports, drawn=False)
