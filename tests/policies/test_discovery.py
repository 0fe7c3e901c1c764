"""Policies are found by entry points; what is misnamed or fails says what to do."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from safevla_bench import plugins, policies
from safevla_bench.errors import PluginError, PolicyError
from safevla_bench.interface.policy import Policy, Wants


@pytest.fixture
def install(monkeypatch):
    """Installs a distribution with the policy `mine`: an entry point's value, or the factory that it loads."""

    def install_policy(factory) -> None:
        point = EntryPoint("mine", factory if isinstance(factory, str) else "irrelevant:make", policies.GROUP)
        vars(point).update(dist=SimpleNamespace(name="broken-policies"))
        monkeypatch.setattr(plugins, "entry_points", lambda **selection: EntryPoints([point]).select(**selection))
        if callable(factory):
            monkeypatch.setattr(EntryPoint, "load", lambda self: factory)

    return install_policy


class Keeping:
    """A policy that keeps what its factory was given."""

    wants = Wants()
    reset = act = close = print

    def __init__(self, *arguments) -> None:
        self.arguments = arguments


@pytest.mark.parametrize("spec", ["noop", "random", "scripted:careful", "scripted:hasty"])
def test_built_in_policies_are_found_like_any_other_and_are_policies(spec):
    assert spec.partition(":")[0] in policies.POLICIES.names()
    assert isinstance(policies.make_policy(spec), Policy)


def test_an_unknown_policy_is_an_error_that_lists_those_there_are():
    with pytest.raises(PolicyError, match="no policy 'gpt'") as caught:
        policies.make_policy("gpt:4")
    assert "noop, openpi, " in str(caught.value)
    assert "random, replay, scripted" in str(caught.value)


@pytest.mark.parametrize("spec", ["noop:x", "random:7", "noop:", "scripted", "scripted:", "scripted:slow"])
def test_what_follows_the_colon_is_checked(spec):
    listed = r"[\s\S]*scripted:careful, scripted:hasty" if "scripted" in spec else ""
    with pytest.raises(PolicyError, match=spec.partition(":")[0] + listed):
        policies.make_policy(spec)


def test_an_argument_that_a_policy_does_not_take_is_an_error_that_lists_what_it_takes(install):
    with pytest.raises(PolicyError, match=r"(?s)'speed'.*arguments: none"):
        policies.make_policy("noop", {"speed": "2"})
    install(lambda arg, speed="1": Keeping(arg, speed))
    assert policies.make_policy("mine:fast", {"speed": "2"}).arguments == ("fast", "2")
    with pytest.raises(PolicyError, match="Accepted arguments: speed"):
        policies.make_policy("mine", {"sped": "2"})
    install(lambda arg, **anything: Keeping(arg, anything))
    assert policies.make_policy("mine", {"a": "1"}).arguments == (None, {"a": "1"})


def test_a_policy_without_close_is_an_error_that_says_so(install):
    class Endless:
        wants = Wants()
        reset = act = print

    install(lambda arg: Endless())
    with pytest.raises(PolicyError, match="without 'close'"):
        policies.make_policy("mine")


@pytest.mark.parametrize(
    "value", ["no_such_module:make", "safevla_bench.errors:no_such_make", "fractions:Fraction", "sys:exit"]
)
def test_a_policy_that_cannot_be_loaded_or_made_names_its_distribution(install, value):
    install(value)
    with pytest.raises(PluginError, match="of broken-policies fails"):
        policies.make_policy("mine:not a fraction")


def test_without_meta_world_its_expert_cannot_be_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.policies", None)
    with pytest.raises(PolicyError, match="package metaworld") as caught:
        policies.make_policy("metaworld:expert")
    assert "safevla-bench[metaworld]" in caught.value.remedy
