"""Every pinned dependency has a licence, those of users are on the page; ours with the day of release and a reason."""

from __future__ import annotations

import io
import re
import tarfile
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
        ours = pin.name in dependencies.direct_dependencies()
        if pin.name in shown or ("GPL" in licence and not ours):
            assert f"| {pin.name} | {pin.version} | {licence} |" in page, f"{pin.key} is not on the page"


def test_all_that_we_ask_for_is_pinned_dated_and_has_a_reason(dependencies):
    facts = tomllib.loads(dependencies.FACTS.read_text(encoding="utf-8"))
    pinned = dependencies.read_pins()
    for name in dependencies.direct_dependencies():
        mine = [pin for pin in pinned if pin.name == name]
        assert mine, f"{name} is pinned in no file of constraints/"
        assert all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", facts[pin.key]["released"]) for pin in mine)
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
    written = tomllib.loads(dependencies.PROJECT.read_text(encoding="utf-8"))["tool"]["uv"]["constraint-dependencies"]
    assert written == dependencies.uv_constraints()
    assert {"click==8.5.1", "numpy<=2.4.6", "mujoco==3.2.3;extra=='libero'"} <= set(written)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Some.Thing-1.2.tar.gz", True),
        ("some_thing-1.2-py3-none-any.whl", True),
        ("some_thing-1.2-1-cp311-cp311-linux_x86_64.whl", True),
        ("some-thing-1.2.zip", True),
        ("some_thing-1.2.1-py3-none-any.whl", False),
        ("some_thing_else-1.2-py3-none-any.whl", False),
        ("some-thing-1.2.dev0.tar.gz", False),
    ],
)
def test_files_of_another_version_or_package_are_not_taken(dependencies, file, expected):
    assert dependencies.is_file_of(file, dependencies.Pin("some-thing", "1.2", ("core",))) == expected


def test_both_forms_of_an_answer_say_the_same(dependencies):
    time, address = "2026-01-02T03:04:05Z", "files/a-1.tar.gz"
    html = f'<a href="{address}#sha256=00" data-upload-time="{time}">a-1.tar.gz</a><br/>'
    json = f'{{"files": [{{"filename": "a-1.tar.gz", "url": "{address}", "upload-time": "{time}"}}]}}'
    assert (
        list(dependencies.parse_html_files(html))
        == [("a-1.tar.gz", address, time)]
        == list(dependencies.parse_json_files(json))
    )


def test_the_metadata_of_a_source_archive_is_its_outermost(dependencies):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in (("a-1/src/b.egg-info/PKG-INFO", b"License: inner"), ("a-1/PKG-INFO", b"License: outer")):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    assert dependencies.read_package_info(content.getvalue()) == b"License: outer"


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ({"License-Expression": ["MIT"], "License": ["other"]}, "MIT"),
        ({"License": ["BSD"]}, "BSD"),
        ({"License": ["UNKNOWN"], "Classifier": ["License :: OSI Approved :: MIT License"]}, "MIT License"),
        ({"License": ["A long text\nof several lines"], "Classifier": ["License :: Other"]}, "Other"),
        ({"Classifier": ["Topic :: Games"]}, "Title of the text"),
    ],
)
def test_the_licence_is_what_the_package_states(dependencies, fields, licence):
    assert dependencies.stated_licence(fields.get, lambda: "Title of the text") == licence
    assert dependencies.stated_licence({}.get, lambda: "") == "not stated"
