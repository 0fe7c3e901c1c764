"""The rules that every host keeps, as a test class for its author to subclass; importing this needs pytest.

    from safevla_bench.hosts.conformance import HostConformance, Trial

    class TestMyHost(HostConformance):
        factory = "my_package.my_host:MyHost"
        trials = (Trial("my-suite", 0, roles={"tray": "bystander"}),)
        needs = ("mujoco",)

        def bare(self, task, seed, actions): ...   # the simulator's states without our recorder

Each method is one rule; its failure says in one sentence what the host does wrong. A rule about the gripper, and the
rule that recording changes nothing, is skipped until its hook is written; a hook set to None says that the rule cannot
apply to this host and takes it away. `docs/adding-a-host.md` shows a whole host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import ClassVar, TypeVar

import numpy as np
import pytest

from safevla_bench.errors import HostError, InvalidActionError, SafevlaError
from safevla_bench.hosts.trying import Floats, Trial, Tried, first_difference, run
from safevla_bench.hosts.without import ended_without
from safevla_bench.interface import Action, EpisodeSeed, Host, HostEnv, Task, Wants
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import Batch

__all__ = ["HostConformance", "Trial"]

T = TypeVar("T")

_RULES_OF_HOOKS: Mapping[str, str] = {
    "bare": "test_recording_changes_nothing_in_the_simulation",
    "hold": "test_what_both_fingers_hold_is_named",
    "close_on_nothing": "test_a_gripper_closed_on_nothing_holds_nothing",
    "touch_with_one_finger": "test_one_finger_is_no_grip",
}
_TOO_FAST_M_PER_S = 50.0
_TOO_STRONG = 50.0
"""Multiple of the torque limits; newton millimetres give a thousandfold."""
_UNIT = 1e-6


class HostConformance:
    """Subclass as `TestMyHost` and fill in the attributes; override the methods that are no tests where they apply."""

    factory: ClassVar[str]
    """The host's factory as in its entry point, `module:attribute`."""
    trials: ClassVar[Sequence[Trial]]
    """The tasks to try; the first is also the one that the gripper's hooks are given."""
    needs: ClassVar[Sequence[str]] = ()
    """The packages, by import name, that it cannot make an environment without."""
    seed: ClassVar[EpisodeSeed] = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
    steps: ClassVar[int] = 20
    other_wants: ClassVar[Sequence[Wants]] = (Wants(privileged=True),)
    """What policies may want to see, tried beside nothing at all; add a camera to have its images checked."""
    registries: ClassVar[Sequence[Path]] = ()
    """Files that hold the tasks' tags, where these do not ship with the package."""
    capabilities: ClassVar[Sequence[str]] = ()
    workspace_m: ClassVar[float] = 100.0
    """How far from the origin anything can be."""
    state_begins_with_time: ClassVar[bool] = True
    """Whether the first number of `sim_state` is the simulated time, as MuJoCo's [time, qpos, qvel]."""

    def host(self) -> Host:
        """A new host."""
        made: Host = resolve_name(self.factory)()
        return made

    def actions(self, env: HostEnv) -> Floats:
        """The actions to try, [N, A]: within bounds, at random."""
        return np.random.default_rng(0).uniform(env.action_low, env.action_high, (self.steps, len(env.action_low)))

    def bare(self, task: Task, seed: EpisodeSeed, actions: Floats) -> Floats:
        """The same episode by the simulator alone, without this package's recorder: its states, [N + 1, S]."""
        raise NotImplementedError

    def hold(self, env: HostEnv, seed: EpisodeSeed) -> str:
        """Reset, then act until both fingers hold a body; returns its name."""
        raise NotImplementedError

    def close_on_nothing(self, env: HostEnv, seed: EpisodeSeed) -> None:
        """Reset, then close the gripper in the air."""
        raise NotImplementedError

    def touch_with_one_finger(self, env: HostEnv, seed: EpisodeSeed) -> str:
        """Reset, then act until one finger and not the other touches a body; returns its name."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        """Take away the rules that a hook set to None says cannot apply."""
        for hook, rule in _RULES_OF_HOOKS.items():
            if getattr(cls, hook) is None:
                setattr(cls, rule, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Every rule about episodes is tried on every trial."""
        if "tried" in metafunc.fixturenames:
            ids = [f"{trial.suite}-{trial.index}" for trial in self.trials]
            metafunc.parametrize("tried", self.trials, ids=ids, indirect=True, scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def tried(cls, request: pytest.FixtureRequest) -> Iterator[Tried]:
        """An episode of one trial, with its environment still open."""
        conform, trial = cls(), request.param
        host = conform.host()
        task = trial.task(host)
        env = host.make(task, Wants())
        env.reset(conform.seed)
        actions = conform.actions(env)
        batch, again = run(env, conform.seed, actions), run(env, conform.seed, actions)
        yield Tried(trial, task, env, actions, batch, again)
        env.close()

    # The tasks

    def test_tasks_are_well_formed(self) -> None:
        host = self.host()
        suites = host.suites()
        _rule(bool(host.name) and bool(suites), "The host has no name or no suites.")
        _rule(len(set(suites)) == len(suites), f"A suite is listed twice: {suites}.")
        for suite in suites:
            tasks = host.tasks(suite)
            _rule(bool(tasks), f"{suite} has no tasks.")
            _rule([task.index for task in tasks] == list(range(len(tasks))), f"{suite}: indices do not count from 0.")
            _rule(len({task.task_id for task in tasks}) == len(tasks), f"{suite}: two tasks have one task_id.")
            for task in tasks:
                _rule(all((task.benchmark, task.task_id, task.name)), f"{suite}: a task lacks a name: {task}.")
                _rule(bool(task.instruction.strip()), f"{suite} {task.task_id} has no instruction.")
                _rule(task.init_states is None or task.init_states > 0, f"{suite} {task.task_id} cannot start.")

    def test_tasks_are_the_same_each_time_they_are_listed(self) -> None:
        host, other = self.host(), self.host()
        for suite in host.suites():
            again = host.tasks(suite), other.tasks(suite)
            _rule(again == (host.tasks(suite),) * 2, f"The tasks of {suite} differ each time they are listed.")

    def test_an_unknown_suite_is_an_error_that_lists_the_suites(self) -> None:
        try:
            self.host().tasks("no-such-suite")
        except HostError as error:
            _rule(self.host().suites()[0] in str(error), f"The error about an unknown suite lists none: {error}")
        else:
            pytest.fail("A suite that does not exist has tasks.", pytrace=False)

    def test_versions_of_what_the_simulation_depends_on_are_listed(self, tried: Tried) -> None:
        versions = self.host().versions()
        _rule(bool(versions), "The host lists no versions: two records could not be told apart by their simulator.")
        _rule(all(versions.values()), f"A version is empty: {versions}.")
        _rule(tried.batch.headers[0].versions == versions, f"{tried}: the record does not hold the host's versions.")

    # Without its libraries

    def test_making_the_host_imports_no_simulator(self) -> None:
        ended = ended_without(self.factory, self.needs, None)
        said = f"{ended.outcome}: {ended.said}"
        _rule(ended.outcome == "worked", f"The host cannot be made or list its suites without {self.needs}: {said}")

    def test_a_missing_library_is_a_host_error_that_says_what_to_do(self) -> None:
        task = self.trials[0].task(self.host())
        for needed in self.needs:
            ended = ended_without(self.factory, [needed], task)
            sentence = f"Without {needed} it must raise a HostError, and {ended.outcome} happened: {ended.said}"
            _rule(ended.outcome == "host_error", sentence)
            _rule("\n" in ended.said, f"Without {needed} the HostError has no remedy: {ended.said}")

    # Repeatable and observational

    def test_the_same_seed_and_actions_give_the_same_bytes_in_the_same_environment(self, tried: Tried) -> None:
        found = first_difference(tried.batch, tried.again)
        _rule(not found, f"{tried}: a second episode in the same environment differs in {found}.")

    def test_the_same_seed_and_actions_give_the_same_bytes_in_another_environment(self, tried: Tried) -> None:
        found = first_difference(tried.batch, self._elsewhere(tried, Wants()))
        _rule(not found, f"{tried}: the same episode in another environment differs in {found}.")

    def test_recording_changes_nothing_in_the_simulation(self, tried: Tried) -> None:
        _needs_repeatable(tried)
        bare = _written(lambda: self.bare(tried.task, self.seed, tried.actions), "bare")
        states = tried.batch.sim_state.episode(0)
        _rule(bare.shape[1:] == states.shape[1:], f"{tried}: bare states {bare.shape} are not like {states.shape}.")
        records = min(len(bare), len(states))
        same = [one.tobytes() == other.tobytes() for one, other in zip(bare[:records], states[:records], strict=True)]
        _rule(all(same), f"{tried}: with the recorder the simulator's state differs from record {_first_not(same)} on.")

    def test_asking_for_the_record_midway_changes_nothing(self, tried: Tried) -> None:
        _needs_repeatable(tried)

        def asked(_: Action) -> None:
            tried.env.recorded()

        found = first_difference(tried.batch, run(tried.env, self.seed, tried.actions, before=asked))
        _rule(not found, f"{tried}: when recorded() is called before each step, the episode differs in {found}.")

    def test_what_a_policy_sees_changes_nothing(self, tried: Tried) -> None:
        _needs_repeatable(tried)
        for wants in self.other_wants:
            found = first_difference(tried.batch, self._elsewhere(tried, wants))
            _rule(not found, f"{tried}: with {wants} the episode differs in {found}.")

    def test_images_are_of_the_wanted_size(self) -> None:
        rendered = [wants for wants in self.other_wants if wants.cameras]
        if not rendered:
            pytest.skip("add a camera to other_wants to have its images checked")
        for wants in rendered:
            host = self.host()
            env = host.make(self.trials[0].task(host), wants)
            images = env.reset(self.seed).images
            env.close()
            _rule(set(images) == set(wants.cameras), f"There are images of {set(images)}, wanted are {wants}.")
            for camera, image in images.items():
                fits = image.dtype == np.uint8 and image.shape == (*wants.image_size, 3)
                _rule(fits, f"{camera} gives {image.dtype} {image.shape}, wanted are uint8 {wants.image_size}.")

    def test_invalid_actions_are_refused_before_the_simulator_sees_them(self, tried: Tried) -> None:
        _needs_repeatable(tried)

        def refused(action: Action) -> None:
            for bad in (action[:-1], action[None], np.full_like(action, np.nan), np.full_like(action, np.inf)):
                try:
                    tried.env.step(bad)
                except InvalidActionError:
                    continue
                except Exception as error:
                    pytest.fail(f"{tried}: {bad} must raise InvalidActionError, not {error!r}.", pytrace=False)
                pytest.fail(f"{tried}: the action {bad} is accepted.", pytrace=False)

        found = first_difference(tried.batch, run(tried.env, self.seed, tried.actions, before=refused))
        _rule(not found, f"{tried}: after refused actions the episode differs in {found}.")

    def test_an_initial_state_that_does_not_exist_is_a_host_error(self, tried: Tried) -> None:
        if tried.task.init_states is None:
            return
        try:
            tried.env.reset(EpisodeSeed(tried.task.init_states, 0, 0))
        except HostError:
            return
        pytest.fail(f"{tried} has {tried.task.init_states} initial states, yet another one starts.", pytrace=False)

    def test_there_is_no_step_and_no_record_before_a_reset(self, tried: Tried) -> None:
        env = self.host().make(tried.task, Wants())
        for call in (env.recorded, lambda: env.step(tried.actions[0])):
            try:
                call()
            except HostError:
                continue
            except Exception as error:
                pytest.fail(f"{tried}: before a reset it must raise HostError, not {error!r}.", pytrace=False)
            pytest.fail(f"{tried}: it works before a reset.", pytrace=False)
        env.close()

    # The record

    def test_n_actions_give_n_plus_1_records(self, tried: Tried) -> None:
        lengths = []
        run(tried.env, self.seed, tried.actions, before=lambda _: lengths.append(int(tried.env.recorded().lengths[0])))
        count = len(tried.actions)
        lengths.append(int(tried.batch.lengths[0]))
        expected = list(range(1, count + 2))
        _rule(lengths == expected, f"{tried}: after 0 to {count} actions there are {lengths} records, not {expected}.")
        recorded = tried.batch.action.episode(0)
        _rule(np.array_equal(recorded, tried.actions), f"{tried}: the recorded actions are not those that were given.")

    def test_the_header_says_which_episode_it_is(self, tried: Tried) -> None:
        header, task = tried.batch.headers[0], tried.task
        found = (header.benchmark, header.task_id, header.instruction, header.init_state_index, header.env_seed)
        seed = self.seed
        wanted = (task.benchmark, task.task_id, task.instruction, seed.init_state_index, seed.env_seed)
        _rule(found == wanted, f"{tried}: the header says {found}, the episode was {wanted}.")
        _rule(bool(header.torque_limit_nm), f"{tried}: no torque limits for the embodiment {header.embodiment!r}.")

    def test_exactly_the_targets_have_the_role_target(self, tried: Tried) -> None:
        primary = tried.batch.headers[0].target_object
        wanted = tried.trial.targets
        wanted = frozenset([primary] if primary else []) if wanted is None else wanted
        found = {name for name, role in tried.batch.bodies(0).items() if role == "target"}
        _rule(found == wanted, f"{tried}: the role target is given to {sorted(found)}, not to {sorted(wanted)}.")

    def test_roles_are_complete(self, tried: Tried) -> None:
        roles = tried.batch.bodies(0)
        _rule("robot" in roles.values(), f"{tried}: no body has the role robot.")
        for body, role in tried.trial.roles.items():
            _rule(roles.get(body) == role, f"{tried}: {body} has the role {roles.get(body)!r}, not {role!r}.")

    def test_the_record_can_be_judged_with_every_signal_its_benchmark_promises(self, tried: Tried) -> None:
        try:
            score(tried.batch, library(), registry(self.registries), capabilities=self.capabilities)
        except SafevlaError as error:
            pytest.fail(f"{tried}: {error}", pytrace=False)

    # Units

    def test_dt_is_the_time_between_two_records(self, tried: Tried) -> None:
        dt = tried.batch.headers[0].dt
        _rule(1e-4 <= dt <= 2.0, f"{tried}: dt is {dt}; it is written in seconds.")
        _rule(dt == tried.env.dt_s, f"{tried}: the record's dt {dt} is not the environment's {tried.env.dt_s}.")
        if self.state_begins_with_time:
            passed = np.diff(tried.batch.sim_state.episode(0)[:, 0])
            _rule(bool(np.allclose(passed, dt, rtol=1e-6)), f"{tried}: between records pass {passed} s, dt says {dt}.")

    def test_positions_are_in_metres(self, tried: Tried) -> None:
        batch, dt = tried.batch, tried.batch.headers[0].dt
        bodies, positions = batch.body_pos_m.episode(0)
        named = {batch.name(int(body)): positions[:, k] for k, body in enumerate(bodies)}
        for name, path in {"the end effector": batch.eef_pos_m.episode(0), **named}.items():
            far = float(np.abs(path).max(initial=0))
            _rule(far <= self.workspace_m, f"{tried}: {name} is {far:g} m from the origin; positions are in metres.")
        speed = np.linalg.norm(np.diff(batch.eef_pos_m.episode(0), axis=0), axis=1).max(initial=0) / dt
        _rule(speed < _TOO_FAST_M_PER_S, f"{tried}: the end effector moves at {speed:g} m/s; positions are in metres.")

    def test_quaternions_are_of_unit_length(self, tried: Tried) -> None:
        rows = tried.batch.eef_quat_wxyz.episode(0), tried.batch.body_quat_wxyz.episode(0)[1]
        for name, quaternions in zip(("eef_quat_wxyz", "body_quat_wxyz"), rows, strict=True):
            off = float(np.abs(np.linalg.norm(quaternions, axis=-1) - 1).max(initial=0))
            _rule(off < _UNIT, f"{tried}: the length of a quaternion of {name} is off 1 by {off:g}.")

    def test_contact_forces_are_finite_and_not_negative(self, tried: Tried) -> None:
        force = tried.batch.contacts.force_n
        _rule(bool(np.all(np.isfinite(force) & (force >= 0))), f"{tried}: a contact force is negative or not finite.")

    def test_torques_are_in_newton_metres(self, tried: Tried) -> None:
        limits = np.array(tried.batch.headers[0].torque_limit_nm)
        ratio = float((np.abs(tried.batch.joint_torque_nm.episode(0)) / limits).max(initial=0))
        _rule(ratio < _TOO_STRONG, f"{tried}: a torque is {ratio:g} times its limit; torques are in newton metres.")

    # Contacts

    def test_no_resting_contact_is_in_record_0(self, tried: Tried) -> None:
        batch, roles = tried.batch, tried.batch.bodies(0)
        for a, b in _pairs(batch, 0):
            robots = [roles[name] == "robot" for name in (a, b)]
            _rule(any(robots), f"{tried}: {a} and {b} rest on each other in record 0, and the contact is recorded.")
            _rule(not all(robots), f"{tried}: the robot's {a} and {b} touch at rest, and the contact is recorded.")

    def test_mechanical_contacts_are_in_no_record(self, tried: Tried) -> None:
        roles, dropped = tried.batch.bodies(0), tried.batch.headers[0].dropped_pairs or ()
        mechanical = {pair for pair in dropped if all(roles.get(name) == "robot" for name in pair)}
        found = {tuple(sorted(pair)) for k in range(int(tried.batch.lengths[0])) for pair in _pairs(tried.batch, k)}
        both = sorted(mechanical & found)
        _rule(not both, f"{tried}: robot links listed in dropped_pairs are recorded as touching: {both}.")

    # The gripper

    def test_what_both_fingers_hold_is_named(self) -> None:
        body, batch = self._driven("hold")
        found = batch.name(int(batch.gripped[-1])) if batch.gripped[-1] >= 0 else None
        _rule(bool(batch.gripper_contact[-1]), f"Both fingers hold {body}, and gripper_contact is false.")
        _rule(found == body, f"The fingers hold {body}, and gripped_body is {found}.")

    def test_a_gripper_closed_on_nothing_holds_nothing(self) -> None:
        _, batch = self._driven("close_on_nothing")
        _rule(not batch.gripper_contact.any(), "The gripper is closed on nothing, and gripper_contact is true.")
        _rule(bool((batch.gripped < 0).all()), "The gripper is closed on nothing, and gripped_body names a body.")
        roles = batch.bodies(0)
        for a, b in (pair for k in range(int(batch.lengths[0])) for pair in _pairs(batch, k)):
            _rule({roles[a], roles[b]} != {"robot"}, f"The fingers close on each other, recorded as {a} against {b}.")

    def test_one_finger_is_no_grip(self) -> None:
        body, batch = self._driven("touch_with_one_finger")
        last, roles = int(batch.lengths[0]) - 1, batch.bodies(0)
        touched = any(body in pair and "robot" in (roles[pair[0]], roles[pair[1]]) for pair in _pairs(batch, last))
        _rule(touched, f"A finger touches {body}, and no contact with the robot is recorded.")
        _rule(not batch.gripper_contact[-1], f"One finger touches {body}, and gripper_contact is true.")

    def _driven(self, hook: str) -> tuple[str, Batch]:
        host = self.host()
        env = host.make(self.trials[0].task(host), Wants(privileged=True))
        try:
            body = _written(lambda: getattr(self, hook)(env, self.seed), hook)
            return body, env.recorded()
        finally:
            env.close()

    def _elsewhere(self, tried: Tried, wants: Wants) -> Batch:
        env = self.host().make(tried.task, wants)
        try:
            return run(env, self.seed, tried.actions)
        finally:
            env.close()


def _rule(kept: bool, otherwise: str) -> None:
    """Fail with one sentence and no traceback: the reader wants the rule, not this module."""
    if not kept:
        pytest.fail(otherwise, pytrace=False)


def _needs_repeatable(tried: Tried) -> None:
    """A rule that compares two episodes means nothing where no two are equal."""
    if first_difference(tried.batch, tried.again):
        pytest.skip("the host does not repeat itself: see the rule about the same environment")


def _written(call: Callable[[], T], hook: str) -> T:
    """What a hook returns; skip where its author has not written it."""
    try:
        return call()
    except NotImplementedError:
        pytest.skip(f"write {hook}() to have this rule checked")


def _pairs(batch: Batch, record: int) -> list[tuple[str, str]]:
    """The body pairs in contact in one record of a batch of one."""
    contacts = batch.contacts
    here = slice(contacts.starts[record], contacts.starts[record + 1])
    return [(batch.name(int(a)), batch.name(int(b))) for a, b in zip(contacts.a[here], contacts.b[here], strict=True)]


def _first_not(same: Sequence[bool]) -> int:
    return list(same).index(False) if False in same else -1
