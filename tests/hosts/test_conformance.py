"""The fake host keeps every rule of a host; fakes that break one rule fail that one and no other."""

from __future__ import annotations

from inspect import signature

import pytest

from hosts import mutants
from hosts.fake_conformance import FakeConformance
from safevla_bench.hosts.conformance import HostConformance

RULES = {name for name in dir(HostConformance) if name.startswith("test_")}
MUTANTS = {name: mutant for name, mutant in vars(mutants).items() if hasattr(mutant, "breaks")}


class TestFakeHost(FakeConformance):
    touch_with_one_finger = None  # the gripper is a point


def conformance_of(name: str) -> type[FakeConformance]:
    """The test class that the author of that mutant would write."""
    mutant = MUTANTS[name]
    attributes = {
        "factory": f"hosts.mutants:{name}.host" if hasattr(mutant, "host") else f"hosts.mutants:{name}",
        "trials": FakeConformance.trials[:1],
        "needs": getattr(mutant, "needs", ()),
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
    assert {mutant.breaks for mutant in MUTANTS.values()} == RULES


SHAPE = "not (21, 15): one after settling, and one after each action."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Nudging", "with the recorder the simulator's state differs from record 2 on."),
        ("two_targets", "the role target is given to ['block', 'tray'], not to ['block']."),
        ("Unstated", f"bare() returns states of shape (0, 15), {SHAPE}"),
        ("Abridged", f"bare() returns states of shape (20, 15), {SHAPE}"),
    ],
)
def test_a_failure_reads_as_one_sentence_about_the_host(name, sentence):
    (error,) = broken_rules(name).values()
    assert error.msg == f"fake task 0: {sentence}"
