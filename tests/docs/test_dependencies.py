"""Every pinned dependency has a licence, those of users are on the page; ours with the day of release and a reason."""

from __future__ import annotations

import re
import tomllib
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def dependencies(load_tool) -> ModuleType:
    return load_tool("dependencies")


def test_every_pin_states_a_licence_and_the_page_lists_what_users_install_and_the_copyleft_ones(dependencies):
    page, facts = (path.read_text(encoding="utf-8") for path in (dependencies.PAGE, dependencies.FACTS))
    shown, licences = dependencies.shown_dependencies(), tomllib.loads(facts)
    for pin in dependencies.read_pins():
        licence = licences[pin.key]["licence"]
        assert licence not in ("", "not stated"), f"{pin.key} states no licence: look it up"
        direct = pin.name in dependencies.direct_dependencies()
        if pin.name in shown or ("GPL" in licence and not direct):
            assert f"| {pin.name} | {pin.version} | {licence} |" in page, f"{pin.key} is not on the page"


def test_all_that_we_ask_for_is_pinned_dated_and_has_a_reason(dependencies):
    facts = tomllib.loads(dependencies.FACTS.read_text(encoding="utf-8"))
    pinned = dependencies.read_pins()
    for name in dependencies.direct_dependencies():
        pins = [pin for pin in pinned if pin.name == name]
        assert pins, f"{name} is pinned in no file of constraints/"
        assert all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", facts[pin.key]["released"]) for pin in pins)
        assert facts["why"][name] != "?", f"say in docs/tools/dependencies.toml what {name} is for"
    assert set(facts["why"]) == set(dependencies.direct_dependencies())


def test_an_update_without_anything_new_asks_nobody_and_changes_nothing(dependencies, tmp_path, monkeypatch):
    before = {name: getattr(dependencies, name).read_text(encoding="utf-8") for name in ("FACTS", "PROJECT")}
    for name, text in before.items():
        monkeypatch.setattr(dependencies, name, tmp_path / name)
        (tmp_path / name).write_text(text.replace('"numpy<=', '"numpy>='), encoding="utf-8")
    monkeypatch.setattr(dependencies, "Index", lambda: pytest.fail("the index was asked"))
    dependencies.update_facts()
    assert {name: (tmp_path / name).read_text(encoding="utf-8") for name in before} == before


def test_uv_sync_is_held_to_the_pins_of_pip(dependencies):
    project = tomllib.loads(dependencies.PROJECT.read_text(encoding="utf-8"))
    pins = project["tool"]["uv"]["constraint-dependencies"]
    assert pins == dependencies.uv_constraints()
    assert {"click==8.5.1", "numpy<=2.4.6", "mujoco==3.2.3;extra=='libero'"} <= set(pins)
