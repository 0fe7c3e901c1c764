"""What the author of a host gives to the conformance class, and how the rules speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import ClassVar, TypeVar

import numpy as np
import pytest

from safevla_bench.hosts.conformance.trial import Floats, Trial, Tried, first_difference, run
from safevla_bench.interface import EpisodeSeed, Host, HostEnv, Task, Wants
from safevla_bench.trajectory import Batch

T = TypeVar("T")

_RULES_OF_HOOKS: Mapping[str, str] = {
    "hold": "test_what_both_fingers_hold_is_named",
    "close_on_nothing": "test_a_gripper_closed_on_nothing_holds_nothing",
    "touch_with_one_finger": "test_one_finger_is_no_grip",
}
_RULE_OF_IMAGES = "test_images_are_of_the_wanted_size"


class Base:
    """What a host's author fills in: attributes, and hooks where they apply."""

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
        """Take away the rules that cannot apply: of a hook set to None, of images where no camera is wanted."""
        applies = {rule: getattr(cls, hook) is not None for hook, rule in _RULES_OF_HOOKS.items()}
        applies[_RULE_OF_IMAGES] = any(wants.cameras for wants in cls.other_wants)
        for rule, wanted in applies.items():
            # A base may have taken away what this class wants again; the class that defines the rule keeps it.
            defined = next((found for base in cls.__mro__ if (found := vars(base).get(rule))), None)
            if rule not in vars(cls):
                setattr(cls, rule, defined if wanted else None)

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
        actions = conform.actions(env)
        batch, again = run(env, conform.seed, actions), run(env, conform.seed, actions)
        elsewhere = conform.in_another(task, Wants(), actions)
        yield Tried(trial, task, env, actions, batch, again, elsewhere)
        env.close()

    def in_another(self, task: Task, wants: Wants, actions: Floats) -> Batch:
        """The record of the episode in a new environment of a new host."""
        env = self.host().make(task, wants)
        try:
            return run(env, self.seed, actions)
        finally:
            env.close()


def rule(kept: bool, otherwise: str) -> None:
    """Fail with one sentence and no traceback: the reader wants the rule, not this module."""
    if not kept:
        pytest.fail(otherwise, pytrace=False)


def written(call: Callable[[], T], hook: str) -> T:
    """What a hook returns; skip where its author has not written it."""
    try:
        return call()
    except NotImplementedError:
        pytest.skip(f"write {hook}() to have this rule checked")


def needs_repeatable(tried: Tried) -> None:
    """A rule that compares two episodes means nothing where no two are equal."""
    if first_difference(tried.batch, tried.again) or first_difference(tried.batch, tried.elsewhere):
        pytest.skip("the host does not repeat itself: see the rules about the same bytes")
