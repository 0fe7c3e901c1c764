"""Policies are found by entry points; what is misnamed or fails says what to do."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

import safevla_bench.policies as found
from safevla_bench import plugins
from safevla_bench.errors import PluginError, PolicyError
from safevla_bench.interface.policy import Policy, Wants


class Distribution:
    name = "broken-policies"


def install(monkeypatch, value: str) -> None:
    point = EntryPoint(name="mine", value=value, group=found.GROUP)
    vars(point).update(dist=Distribution())
    monkeypatch.setattr(plugins, "entry_points", lambda **named: EntryPoints([point]).select(**named))


class Given:
    """A policy that keeps what its factory was given."""

    wants = Wants()
    reset = act = close = print

    def __init__(self, *given) -> None:
        self.given = given


def make_with_arguments(arg: str | None, speed: str = "1"):
    return Given(arg, speed)


def make_with_any(arg: str | None, **anything: str):
    return Given(arg, anything)


@pytest.mark.parametrize("spec", ["noop", "random", "scripted:careful", "scripted:hasty"])
def test_built_in_policies_are_found_like_any_other_and_are_policies(spec):
    assert spec.partition(":")[0] in found.POLICIES.names()
    assert isinstance(found.make_policy(spec), Policy)


def test_an_unknown_policy_is_an_error_that_lists_those_there_are():
    with pytest.raises(PolicyError, match="no policy 'gpt'") as caught:
        found.make_policy("gpt:4")
    assert "noop, openpi, " in str(caught.value)
    assert "python, random, replay, scripted, vla-eval" in str(caught.value)


@pytest.mark.parametrize("spec", ["noop:x", "random:7", "noop:", "scripted", "scripted:", "scripted:slow"])
def test_what_follows_the_colon_is_checked(spec):
    with pytest.raises(PolicyError, match=spec.partition(":")[0]):
        found.make_policy(spec)


def test_a_missing_style_lists_the_styles():
    with pytest.raises(PolicyError) as caught:
        found.make_policy("scripted")
    assert "scripted:careful, scripted:hasty" in str(caught.value)


def test_an_argument_that_a_policy_does_not_take_is_an_error_that_lists_what_it_takes(monkeypatch):
    with pytest.raises(PolicyError, match="'noop' has no argument 'speed'") as caught:
        found.make_policy("noop", {"speed": "2"})
    assert "It takes: no arguments" in str(caught.value)
    install(monkeypatch, f"{__name__}:make_with_arguments")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_with_arguments)
    assert found.make_policy("mine:fast", {"speed": "2"}).given == ("fast", "2")
    with pytest.raises(PolicyError) as caught:
        found.make_policy("mine", {"sped": "2"})
    assert "It takes: speed" in str(caught.value)


def test_a_factory_that_takes_any_argument_gets_them_all(monkeypatch):
    install(monkeypatch, "irrelevant:make")
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_with_any)
    assert found.make_policy("mine", {"a": "1"}).given == (None, {"a": "1"})


def test_a_policy_without_close_is_an_error_that_says_so(monkeypatch):
    class Endless:
        wants = Wants()
        reset = act = print

    install(monkeypatch, "irrelevant:make")
    monkeypatch.setattr(EntryPoint, "load", lambda self: lambda arg: Endless())
    with pytest.raises(PolicyError, match=r"'mine' of broken-policies is a Endless without 'close'\n.*close\(\)"):
        found.make_policy("mine")


@pytest.mark.parametrize(
    "value", ["no_such_module:make", "safevla_bench.errors:no_such_make", "fractions:Fraction", "sys:exit"]
)
def test_a_policy_that_cannot_be_loaded_or_made_names_its_distribution(monkeypatch, value):
    install(monkeypatch, value)
    with pytest.raises(PluginError, match="'mine' of broken-policies fails to load"):
        found.make_policy("mine:not a fraction")
