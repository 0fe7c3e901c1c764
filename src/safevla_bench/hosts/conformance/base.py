"""Base of the conformance rules: attributes and hooks for a host's author, test episodes, and failure messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from safevla_bench.errors import SafevlaError
from safevla_bench.interface.environment import Host, HostEnv
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.stage import Camera
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.mujoco.hook import wrap_method

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """A task to test, with facts that the host's author knows. `targets` names all bodies with the role target. None =
    at most one target, the record's `target_object`. `roles` gives the expected roles of other bodies.
    """

    suite: str
    index: int
    targets: frozenset[str] | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.suite} task {self.index}"

    def find_task(self, host: Host) -> Task:
        # Returns the host's task with this trial's suite and index. Raises `StopIteration` if there is no such task.
        return next(task for task in host.tasks(self.suite) if task.index == self.index)


@dataclass(frozen=True)
class TrialRun:
    """One episode, recorded twice in `env` (`batch`, `again`) and a third time in another environment (`elsewhere`)."""

    trial: Trial
    task: Task
    env: HostEnv
    actions: Floats
    batch: Batch
    again: Batch
    elsewhere: Batch

    def __str__(self) -> str:
        # Returns the text that identifies this run in failure messages, such as `libero-goal task 0`.
        return str(self.trial)


@dataclass(frozen=True)
class HookRun:
    """The result of a hook, and the episode since the hook's last reset: `N` actions, `N + 1` observations and the
    recorded batch. `coordinates` describe the entries of the simulator's state.
    """

    result: Any
    batch: Batch
    actions: Floats
    observations: Sequence[Observation] = ()
    coordinates: Sequence[Coordinate] = ()


def run_actions(
    env: HostEnv, seed: EpisodeSeed, actions: Floats, before: Callable[[Action], None] | None = None
) -> Batch:
    """Reset, take the `N` actions in `actions`, [N, A], and return the episode: a one-episode batch with `N + 1`
    records. The episode does not stop at success. Before each step, `before` is called with the step's action.
    """
    env.reset(seed)
    for action in actions:
        if before:
            before(action)
        env.step(action.copy())  # a copy, so that an environment which changes its argument does not change `actions`
    return env.recorded()


def first_difference(first: object, second: object, name: str = "") -> str | None:
    """Return the dotted name of a field in which two batches differ, such as `contacts.force_n`; None if all bits are
    equal. Arrays are compared by dtype, shape and bytes, so identical NaNs count as equal.
    """
    # `name` is put before each dotted name. The dictionaries map the dotted names of all values to the values.
    first_leaves, second_leaves = dict(_list_leaves(first, name)), dict(_list_leaves(second, name))
    missing = object()  # a stand-in for a missing value; equals no other value, not even None
    for path in (*first_leaves, *second_leaves):
        if first_leaves.get(path, missing) != second_leaves.get(path, missing):
            return path or "its type"  # `path` is empty if `first` is a single value without fields
    return None


def _list_leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    # Yields (dotted name, comparable value) for each value in nested structs, dataclasses, mappings and sequences.
    # `name` is the dotted name of `value` itself; "" at the top, where `strip` removes the leading dot of names.
    # An array becomes a tuple of dtype, shape and bytes. A value without fields or items is yielded unchanged.
    if isinstance(value, np.ndarray):
        yield name, (value.dtype, value.shape, value.tobytes())
        return
    children: Mapping[Any, object]  # the keys are field names, mapping keys or indices
    if isinstance(value, msgspec.Struct):
        children = msgspec.structs.asdict(value)
    elif is_dataclass(value):
        children = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, Mapping | tuple | list):
        children = value if isinstance(value, Mapping) else dict(enumerate(value))
    else:
        yield name, value
        return
    for key, child in children.items():
        yield from _list_leaves(child, f"{name}.{key}".strip("."))


T = TypeVar("T")

_HOOK_RULES: Mapping[str, Sequence[str]] = {
    "hold": (
        "test_what_both_fingers_hold_is_named",
        "test_a_motion_that_touches_repeats",
        "test_no_contact_outlives_a_reset",
    ),
    "close_on_nothing": ("test_a_gripper_closed_on_nothing_holds_nothing",),
    "touch_with_one_finger": ("test_one_finger_is_no_grip",),
    "move_object": ("test_poses_are_those_of_the_end_of_the_control_step",),
    "upright": ("test_images_are_upright",),
    "set_down": ("test_what_rests_is_carried_by_its_weight",),
    "turn_object": ("test_a_body_that_was_turned_reads_so",),
}
_IMAGE_RULES = ("test_images_are_of_the_wanted_size", "test_images_are_upright")


class HostRules:
    """Attributes for a host's author to fill in, and optional hooks."""

    factory: ClassVar[str]  # the host's factory, written `module:attribute` as in the entry point
    trials: ClassVar[Sequence[Trial]]  # the tasks to test; all hooks except `bare` use the first task
    seed: ClassVar[EpisodeSeed] = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
    steps: ClassVar[int] = 20  # number of actions in a test episode
    other_wants: ClassVar[Sequence[Wants]] = (Wants(privileged=True),)  # requests to test in addition to `Wants()`
    registries: ClassVar[Sequence[Path]] = ()  # files with the tasks' tags; empty if this package has the tags
    capabilities: ClassVar[Sequence[str]] = ()  # names of capability sets, which say what records contain
    workspace_m: ClassVar[float] = 100.0  # limit on the absolute value of each coordinate [m]
    state_begins_with_time: ClassVar[bool] = True  # whether `sim_state` begins with the time, as in MuJoCo

    def host(self) -> Host:
        """Make a host by calling `factory` without arguments; each call returns a new host."""
        host: Host = resolve_name(self.factory)()  # `factory` is a text `module:attribute`
        return host

    def actions(self, env: HostEnv) -> Floats:
        """Return actions, [steps, A], drawn uniformly within the bounds; each call returns the same actions."""
        # `A` is the number of values in an action. The generator always has the seed 0.
        return np.random.default_rng(0).uniform(env.action_low, env.action_high, (self.steps, len(env.action_low)))

    def bare(self, task: Task, seed: EpisodeSeed, actions: Floats) -> Floats:
        """Simulate the episode without the recorder. Return its `N + 1` states in the format of `sim_state` [N + 1, S]:
        the state after the seed's settling steps, then the state after each of the `N` actions. This method is a hook:
        its rule is skipped unless a subclass implements the method.
        """
        # `seed` determines the start and the number of settling steps. `actions` is [N, A]; `S` is the state's size.
        raise NotImplementedError  # the rule catches this error, and skips the test

    def hold(self, env: HostEnv, seed: EpisodeSeed) -> str:
        """Reset, act until both fingers hold a body, and return the body's recorded name. Optional hook: see `bare`."""
        # The hook calls `env.reset(seed)` and `env.step`. Rules then check the record that `env` made of these calls.
        # The recorded name is the body's name in the record, which may differ from its name in the simulator.
        raise NotImplementedError  # rules that use the hook are skipped until a subclass implements it

    def close_on_nothing(self, env: HostEnv, seed: EpisodeSeed) -> None:
        """Reset, then close the gripper in the air. Optional hook: see `bare`."""
        # A rule then checks that no record has a grip or a contact between two robot bodies.
        raise NotImplementedError

    def touch_with_one_finger(self, env: HostEnv, seed: EpisodeSeed) -> str:
        """Reset, touch a body with just one finger, and return the body's recorded name. Optional hook: see `bare`."""
        # A rule then checks that the last record has the contact, but no grip.
        raise NotImplementedError

    def move_object(self, env: HostEnv, seed: EpisodeSeed) -> str:
        """Reset, then move a tracked body by a few centimeters; return its recorded name. Optional hook: see `bare`."""
        # A rule then checks that the recorded positions do not lag. A tracked body has a recorded position.
        raise NotImplementedError

    def set_down(self, env: HostEnv, seed: EpisodeSeed) -> tuple[str, float]:
        """Reset. Then lift a body off another body, put it back, release it, and wait until it rests. Return the lifted
        body's recorded name and mass [kg]. Optional hook: see `bare`.
        """
        # A rule then compares the forces and impulses in the last record with the body's weight.
        raise NotImplementedError

    def turn_object(self, env: HostEnv, seed: EpisodeSeed) -> tuple[str, float]:
        """Reset, then act until a tracked body has turned about the vertical. Return its recorded name and the angle of
        the turn since record 0 in the simulator [degrees, counterclockwise from above]. Optional hook: see `bare`.
        """
        # A rule then compares the recorded rotation with the angle.
        raise NotImplementedError

    def upright(self, task: Task, episode: Batch, camera: str, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Return an upright image of record 0 from this camera, uint8 [H, W, 3], rendered independently of
        observations. By default, the host's `stage` renders the image. If the host has no `stage`, the rule is skipped.
        """
        # `episode` is a batch with one episode, which was recorded after a reset. `size` is (H, W) in pixels.
        # If the host has no `stage`, the call raises `NotImplementedError`, and the rule skips the test.
        host = self.host()
        with closing(host.stage(task, episode)) as stage:
            return stage.render(0, Camera(camera), size).image

    def __init_subclass__(cls) -> None:
        """Disable rules that cannot be tested, by setting them to None: the rules of each hook that is None, and the
        image rules if no entry of `other_wants` has a camera. Rules that the subclass defines are kept.
        """
        # A rule is a test method. `_HOOK_RULES` maps the name of each optional hook to the names of its rules.
        # A host's author sets a hook to None if the host cannot do what the hook is for, such as gripping.
        if not hasattr(cls, "trials"):
            return  # a class without `trials` only groups rules
        unused = [rule for hook, rules in _HOOK_RULES.items() if getattr(cls, hook) is None for rule in rules]
        if not any(wants.cameras for wants in cls.other_wants):
            unused += _IMAGE_RULES
        for rule in set(unused) - set(vars(cls)):  # `vars(cls)` has the rules that the subclass itself defines
            setattr(cls, rule, None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        # pytest calls this for each test method (rule). A rule with a parameter `run` runs once per trial (task).
        # `indirect` passes the trial to the fixture `run`; the rule gets the fixture's result.
        if "run" in metafunc.fixturenames:
            ids = [f"{trial.suite}-{trial.index}" for trial in self.trials]
            metafunc.parametrize("run", self.trials, ids=ids, indirect=True, scope="class")

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, request: pytest.FixtureRequest) -> Iterator[TrialRun]:
        # Yields a trial's recorded episodes to the rules. `request.param` is a `Trial`, which is a task to test.
        # All rules of the class share a trial's run. The run's environment is closed after the last rule.
        with cls().open_run(request.param) as run:
            yield run

    @contextmanager
    def open_run(self, trial: Trial) -> Iterator[TrialRun]:
        """Run a trial's episode twice in one environment and once in another, and yield the `TrialRun`."""
        # A `TrialRun` has the three recorded episodes, the actions [N, A], and the first of the two environments.
        # The first environment stays open until the `with` block ends. `Wants()` requests nothing optional.
        host = self.host()
        task = trial.find_task(host)
        with closing(host.make(task, Wants())) as env:
            actions = self.actions(env)
            batch, again = run_actions(env, self.seed, actions), run_actions(env, self.seed, actions)
            elsewhere = self.run_elsewhere(task, Wants(), actions)
            yield TrialRun(trial, task, env, actions, batch, again, elsewhere)

    def run_hook(self, hook: str) -> HookRun:
        """Return the cached run of a hook for the first trial; skip the test if the hook is not implemented."""
        # `hook` is the name of a method that brings about a situation: `hold`, for example, grips a body.
        # A `HookRun` has the hook's result and its episode. All rules of a class share one run of a hook (cached).
        return _run_hook(type(self), hook)  # type: ignore[arg-type]  # mypy considers a class unhashable

    def run_elsewhere(self, task: Task, wants: Wants, actions: Floats) -> Batch:
        """Run an episode from `self.seed` in a new environment of a new host, and return its batch."""
        with closing(self.host().make(task, wants)) as env:
            return run_actions(env, self.seed, actions)


@cache
def _run_hook(rules: type[HostRules], hook: str) -> HookRun:
    # Calls the method of `rules` with the name `hook` in an environment of the first trial's task.
    # Returns the hook's result and the episode since the hook's last reset: batch, actions [N, A], N + 1 observations.
    # The last part of the `HookRun` says which entries of the simulator's state are positions and rotations.
    # Skips the test if the hook is not implemented.
    host_rules = rules()
    host, calls = host_rules.host(), list[tuple[Any, Observation]]()

    def log_call(call: Callable[[Any], Any], argument: Any) -> Any:
        # Replaces `env.reset` and `env.step`; `call` is the original method, and `argument` is its only argument.
        # Logs the calls since the last reset: (seed or action, observation) for each call.
        if isinstance(argument, EpisodeSeed):  # a reset
            calls.clear()
        logged_argument = copy(argument)  # the environment or the hook may change the array of an action
        result = call(argument)  # an observation from `reset`; (observation, success) from `step`
        calls.append((logged_argument, result if isinstance(result, Observation) else result[0]))
        return result

    with closing(host.make(host_rules.trials[0].find_task(host), Wants(privileged=True))) as env:
        for method in ("step", "reset"):
            wrap_method(env, method, log_call)
        result = call_hook(lambda: getattr(host_rules, hook)(env, host_rules.seed), hook)
        (_seed, *actions), observations = zip(*calls, strict=True)  # the first call is the reset
        return HookRun(result, env.recorded(), np.array(actions), observations, env.coordinates())


def tracked_paths(batch: Batch) -> dict[str, Floats]:
    """Map the name of each tracked body to the body's positions in N records, [N, 3] in meters."""
    # Only the first episode of `batch` counts. `bodies` [P] are indices of bodies, and `positions` is [N, P, 3].
    bodies, positions = batch.body_pos_m.episode_poses(0)
    return {batch.body_label(int(body)): positions[:, column] for column, body in enumerate(bodies)}


def require(holds: bool, failure: str) -> None:
    """Fail the test if `holds` is false. The report shows the sentence `failure` without a traceback."""
    if not holds:
        pytest.fail(failure, pytrace=False)


def require_same(first: object, second: object, failure: str) -> None:
    """Fail the test if two batches differ in any bit. The report shows `failure` and the first field that differs."""
    difference = first_difference(first, second)
    require(not difference, f"{failure}; the first difference is in {difference}.")


def require_error(call: Callable[[], object], kind: type[SafevlaError], call_text: str) -> str:
    """Return the message of the error that `call` raises. Fail the test unless `call` raises an error of the
    type `kind`. `call_text` describes the call in the failure message.
    """
    try:
        call()
    except kind as error:
        return str(error)
    except Exception as error:  # an exception of any other type breaks the rule
        pytest.fail(f"{call_text} must raise {kind.__name__}, not {error!r}.", pytrace=False)
    pytest.fail(f"{call_text} must raise {kind.__name__}, but raises nothing.", pytrace=False)


def call_hook(call: Callable[[], T], hook: str) -> T:
    """Return the result of `call`. If `call` raises `NotImplementedError`, skip the test and report `hook`."""
    # `hook` names the optional method that `call` calls. The base class's hooks raise `NotImplementedError`.
    try:
        return call()
    except NotImplementedError:
        pytest.skip(f"to check this rule, implement {hook}()")


def skip_unless_repeatable(run: TrialRun) -> None:
    """Skip the test if the run's three episodes differ in any bit, because then comparing episodes is meaningless."""
    if first_difference(run.batch, run.again) or first_difference(run.batch, run.elsewhere):
        pytest.skip(
            "the same actions gave a different episode; the rules test_the_same_seed_and_actions_... report this"
        )
