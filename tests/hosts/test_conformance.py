"""The fake host keeps every rule of a host; fakes that break one rule fail that one and no other."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import numpy as np
import pytest

from builders import BOWL, DRAWER, contacts, episode
from hosts import mutants
from hosts.fake_conformance import FakeConformance
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import HookRun

RULES = {name for name in dir(HostConformance) if name.startswith("test_")}
OF_PHYSICS = {"test_what_rests_is_carried_by_its_weight", "test_a_body_that_was_turned_reads_so"}
"""Rules that a host without gravity and turns cannot break: see below."""
MUTANTS = {name: mutant for name, mutant in vars(mutants).items() if hasattr(mutant, "breaks")}


class TestFakeHost(FakeConformance):
    touch_with_one_finger = None  # the gripper is a point
    test_what_rests_is_carried_by_its_weight = None  # there is no gravity
    test_a_body_that_was_turned_reads_so = None  # nothing turns


def conformance_of(name: str) -> type[FakeConformance]:
    """The test class that the author of that mutant would write."""
    mutant = MUTANTS[name]
    attributes = {
        "factory": f"hosts.mutants:{name}.host" if hasattr(mutant, "host") else f"hosts.mutants:{name}",
        "trials": FakeConformance.trials[:1],
        "touch_with_one_finger": FakeConformance.over_the_block if name == "OneFinger" else None,
    }
    if hasattr(mutant, "bare_states"):
        attributes["bare"] = lambda self, *args: FakeConformance.bare(self, *args)[mutant.bare_states]
    return type(f"Test{name}", (FakeConformance,), attributes)


def broken_rules(name: str) -> dict[str, BaseException]:
    """What each rule that fails for a mutant raises; every rule is tried, as pytest would."""
    conformance = conformance_of(name)()
    errors = {}
    with conformance.open_run(conformance.trials[0]) as run:
        for rule in sorted(RULES):
            test = getattr(conformance, rule)
            try:
                if test is not None:
                    test(*[run] * len(signature(test).parameters))
            except pytest.skip.Exception:
                continue
            except BaseException as error:
                errors[rule] = error
    return errors


@pytest.mark.parametrize("name", MUTANTS)
def test_a_host_that_breaks_one_rule_fails_that_one_alone_and_without_a_traceback(name):
    errors = broken_rules(name)
    assert set(errors) == {MUTANTS[name].breaks}, errors
    assert all(isinstance(error, pytest.fail.Exception) and not error.pytrace for error in errors.values())


def test_every_rule_is_broken_by_some_mutant():
    assert {mutant.breaks for mutant in MUTANTS.values()} == RULES - OF_PHYSICS


SHAPE = "expected (21, 15), one state after settling and one after each action."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nudging", "recording changes the simulator's state, first at record 2."),
        ("two_targets", "the bodies with the role target are ['block', 'tray']; expected only ['block']."),
        ("Abridged", f"bare() returns states of shape (20, 15); {SHAPE}"),
    ],
)
def test_a_failure_reads_as_one_sentence_about_the_host(name, sentence):
    (error,) = broken_rules(name).values()
    assert error.msg == f"fake task 0: {sentence}"


CUBE_KG, TURN_DEG = 0.5, 40.0


class Physical(FakeConformance):
    """An author whose hooks end in a given record."""

    batch = None

    def run_hook(self, hook):
        return HookRun(("bowl", CUBE_KG if hook == "set_down" else TURN_DEG), self.batch, None)


def at_rest(factor=1.0, impulse=1.0, net_impulse=1.0):
    """A bowl that rests on a drawer by one contact at four points, their forces times a factor."""
    weight_n = CUBE_KG * 9.81
    touches = replace(contacts((11, BOWL, DRAWER, factor * weight_n / 4)), net_force_n=np.array([factor * weight_n]))
    impulses = {"impulse_ns": np.array([impulse]), "net_impulse_ns": np.array([net_impulse])}
    touches = replace(touches, **{name: value * weight_n * 0.05 for name, value in impulses.items()})
    return episode(contacts=touches, forces=("force_n", "net_force_n"), dt=0.05)


def turned(order=(0, 1, 2, 3), degrees=TURN_DEG):
    """A bowl, tilted, that turns about the vertical; its quaternions in some order of their numbers."""
    half = np.radians(np.linspace(0, degrees, 12)) / 2
    about = np.stack([np.cos(half), 0 * half, 0 * half, np.sin(half)], axis=1)
    tilted = np.array([product(turn, (np.cos(0.3), np.sin(0.3), 0.0, 0.0)) for turn in about])
    return episode(quat_bodies=(BOWL,), body_quat_wxyz=tilted[:, None, list(order)])


def product(a, b):
    (w1, *v1), (w2, *v2) = a, b
    return [w1 * w2 - np.dot(v1, v2), *(w1 * np.array(v2) + w2 * np.array(v1) + np.cross(v1, v2))]


@pytest.mark.parametrize(
    ("rule", "batch", "failure"),
    [
        ("test_what_rests_is_carried_by_its_weight", at_rest(), None),
        ("test_what_rests_is_carried_by_its_weight", at_rest(factor=0.01), "net force on it is 0.04905 N"),
        ("test_what_rests_is_carried_by_its_weight", at_rest(impulse=25), "is 25 times its weight"),
        ("test_what_rests_is_carried_by_its_weight", at_rest(net_impulse=1.2), "is 1.2 times its weight"),
        ("test_what_rests_is_carried_by_its_weight", episode(), "no contact under it"),
        ("test_a_body_that_was_turned_reads_so", turned(), None),
        ("test_a_body_that_was_turned_reads_so", turned(order=(1, 2, 3, 0)), "Quaternions must be w, x, y, z"),
        ("test_a_body_that_was_turned_reads_so", turned(degrees=-TURN_DEG), "error of 80.0°"),
    ],
    ids=["weight", "centinewtons", "25 substeps", "net impulse", "nothing", "turn", "x, y, z, w", "clockwise"],
)
def test_the_rules_of_physics_see_wrong_units_and_quaternions(rule, batch, failure):
    author = type("Author", (Physical,), {"batch": batch})()
    if failure is None:
        getattr(author, rule)()
        return
    with pytest.raises(pytest.fail.Exception, match=failure):
        getattr(author, rule)()


def test_a_rest_whose_net_forces_and_impulses_are_unknown_is_skipped_with_the_reason():
    author = type("Author", (Physical,), {"batch": episode(contacts=contacts((11, BOWL, DRAWER, 1.0)))})()
    unknown = {name: np.array([np.nan]) for name in ("net_force_n", "impulse_ns", "net_impulse_ns")}
    author.batch = replace(author.batch, contacts=replace(author.batch.contacts, **unknown))
    with pytest.raises(pytest.skip.Exception, match="neither net forces nor impulses"):
        author.test_what_rests_is_carried_by_its_weight()
    net_impulse = np.array([CUBE_KG * 9.81 * author.batch.headers[0].dt])
    author.batch = replace(author.batch, contacts=replace(author.batch.contacts, net_impulse_ns=net_impulse))
    author.test_what_rests_is_carried_by_its_weight()


def test_a_moved_body_that_the_privileged_state_lacks_is_named(monkeypatch):
    author = FakeConformance()
    run = author.run_hook("move_object")
    for observation in run.observations:
        if observation.privileged:
            observation.privileged.body_pos_m.pop(run.result)
    monkeypatch.setattr(FakeConformance, "run_hook", lambda *_: run)
    with pytest.raises(pytest.fail.Exception, match="the privileged state lacks its position"):
        author.test_poses_are_those_of_the_end_of_the_control_step()
