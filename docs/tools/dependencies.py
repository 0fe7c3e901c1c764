"""Writes dependencies.md from pyproject.toml, constraints/ and dependencies.toml: python docs/tools/dependencies.py

--update first adds to dependencies.toml what it lacks of a pin: the licence as the installed package states it (or
the package index, where it is not installed) and, for what we ask for ourselves, the release date from the index that
pip is configured for; the index is asked for nothing else. It also writes into pyproject.toml what `uv sync` heeds.
--check writes nothing: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from html import unescape
from importlib import metadata
from pathlib import Path

from made_page import format_table, run_script
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"
PAGE, FACTS = ROOT / "docs" / "reference" / "dependencies.md", ROOT / "docs" / "tools" / "dependencies.toml"
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.M)
COPYLEFT = re.compile(r"GPL|MPL|Mozilla")
INTRODUCTION = """\
# Dependencies

Made by `python docs/tools/dependencies.py`; do not edit. Versions are those that the project is tested with, in
`constraints/`. What each is for, packages for development and all other licences are in
`docs/tools/dependencies.toml`. The report's 3-D player bundles a part of three.js 0.170.0 (MIT).
"""


@dataclass(frozen=True)
class Pin:
    """One package at one version, and the files of constraints that pin it so."""

    name: str
    version: str
    files: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.name}=={self.version}"


def normalize_name(name: str) -> str:
    """A name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins() -> list[Pin]:
    """Every pin, by name and version."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "constraints").glob("*.txt")):
        for name, version in PIN.findall(path.read_text(encoding="utf-8")):
            found.setdefault((normalize_name(name), version), []).append(path.stem)
    return [Pin(*key, tuple(files)) for key, files in sorted(found.items())]


def direct_dependencies() -> dict[str, list[str]]:
    """What we ask for ourselves: name -> `core`, the extra, `dev`, `docs`, `build`."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    groups = {"core": project["project"]["dependencies"], "build": project["build-system"]["requires"]}
    groups |= {f"`{extra}`": needs for extra, needs in project["project"]["optional-dependencies"].items()}
    groups |= {group: needs for group, needs in project["dependency-groups"].items()}
    found: dict[str, list[str]] = {}
    for group, needs in groups.items():
        for need in needs:
            found.setdefault(normalize_name(re.match(r"[A-Za-z0-9._-]+", need)[0]), []).append(group)
    del found["safevla-bench"]  # extras made of others
    return found


def shown_dependencies() -> dict[str, list[str]]:
    """Return what a user's installation asks for: name -> `core` and extras, without those of development."""
    ours = {"build", "dev", "docs"}
    groups = {name: [group for group in found if group not in ours] for name, found in direct_dependencies().items()}
    return {name: found for name, found in groups.items() if found}


def uv_constraints() -> list[str]:
    """Return what keeps `uv sync`, which resolves all extras at once, at the pins of constraints/.

    A package with several pins is bounded by the newest; an extra with an older one gets it if it names the package.
    """
    pins, direct = sorted(read_pins(), key=lambda pin: Version(pin.version)), direct_dependencies()
    newest = {pin.name: pin.version for pin in pins}
    older = [pin for pin in pins if pin.version != newest[pin.name]]
    several = {pin.name for pin in older}
    return [f"{name}{'<=' if name in several else '=='}{newest[name]}" for name in sorted(newest)] + [
        f"{pin.key};extra=='{extra}'"
        for pin in older for extra in pin.files if f"`{extra}`" in direct.get(pin.name, ())
    ]  # fmt: skip


def write_uv_constraints() -> None:
    """Put them into pyproject.toml, in place of those there."""
    listed = textwrap.fill(", ".join(map(json.dumps, uv_constraints())), 116, break_on_hyphens=False)
    start, rest = PROJECT.read_text(encoding="utf-8").split("constraint-dependencies = [\n")
    _, end = rest.split("\n]\n", 1)
    text = f"{start}constraint-dependencies = [\n{textwrap.indent(listed, '    ')},\n]\n{end}"
    PROJECT.write_text(text, encoding="utf-8")


def _place(pin: Pin, pins: list[Pin]) -> str:
    """What asks for a pin; of several versions the files of constraints that have this one."""
    several = sum(other.name == pin.name for other in pins) > 1
    return ", ".join(pin.files if several else shown_dependencies()[pin.name])


# The page


def build_page() -> str:
    """The whole page; raises KeyError where a fact is missing."""
    direct, facts = direct_dependencies(), tomllib.loads(FACTS.read_text(encoding="utf-8"))
    mine = [pin for pin in read_pins() if pin.name in shown_dependencies()]
    others = [pin for pin in read_pins() if pin.name not in direct]
    order = ["core", *sorted({group for groups in direct.values() for group in groups} - {"core"})]
    rows = [
        (pin.name, pin.version, facts[pin.key]["licence"], _place(pin, mine))
        for pin in sorted(mine, key=lambda pin: (order.index(direct[pin.name][0]), pin.key))
    ]
    copyleft = [(pin, licence) for pin in others if COPYLEFT.search(licence := facts[pin.key]["licence"])]
    rest = [(pin.name, pin.version, licence, ", ".join(pin.files)) for pin, licence in copyleft]
    parts = [
        INTRODUCTION,
        "## What we ask for",
        format_table(("Package", "Version", "Licence", "Part of"), rows),
        "## What these bring with them",
        f"{len(others)} more packages. These are under a copyleft licence:\n",
        format_table(("Package", "Version", "Licence", "Pinned for"), rest),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


# Facts that are missing


def update_facts() -> None:
    """Add what the facts lack of a pin; what is no longer pinned goes."""
    facts = tomllib.loads(FACTS.read_text(encoding="utf-8")) if FACTS.exists() else {}
    direct = direct_dependencies()
    known = {pin.key: dict(facts.get(pin.key, {})) for pin in read_pins()}
    lacking = [
        pin for pin in read_pins()
        if "licence" not in known[pin.key] or (pin.name in direct and "released" not in known[pin.key])
    ]  # fmt: skip
    index = Index() if lacking else None
    for pin in lacking:
        if "licence" not in known[pin.key]:
            known[pin.key]["licence"] = find_licence(pin, index)
        if pin.name in direct:
            known[pin.key]["released"] = index.release_date(pin)
    whys = {name: facts.get("why", {}).get(name, "?") for name in sorted(direct)}
    FACTS.write_text(_toml(whys, known), encoding="utf-8")
    write_uv_constraints()


def find_licence(pin: Pin, index: Index) -> str:
    """The licence as the package states it: an expression, a short name, a classifier, or the title of its text."""
    try:
        found = metadata.distribution(pin.name)
    except metadata.PackageNotFoundError:
        found = None
    if found is None or found.version != pin.version:
        return stated_licence(index.read_metadata(pin).get_all, lambda: "")
    return stated_licence(found.metadata.get_all, lambda: _title(found))


def stated_licence(fields: Callable[[str], list[str] | None], title: Callable[[], str]) -> str:
    """What the fields of a package's metadata say of its licence."""
    expression, name = (((fields(key) or [""])[0]).strip() for key in ("License-Expression", "License"))
    short = name if "\n" not in name and len(name) <= 40 and name.upper() != "UNKNOWN" else ""
    classified = [one.split(" :: ")[-1] for one in fields("Classifier") or [] if one.startswith("License :: ")]
    return expression or short or ", ".join(classified) or title() or "not stated"


def _title(of: metadata.Distribution) -> str:
    texts = [path for path in of.files or [] if re.match(r"(LICEN[CS]E|COPYING)", path.name, re.I)]
    lines = [line.strip() for path in texts[:1] for line in path.read_text(encoding="utf-8").splitlines()]
    return next((line for line in lines if line), "")


class Index:
    """The package index that pip is configured for, asked with pip's own session: pip has no public way to do so."""

    def __init__(self) -> None:
        from pip._internal.commands import create_command

        command = create_command("index")
        with command.main_context():
            options, _ = command.parse_args(["versions", "pip"])
            self._session = command._build_session(options)
        self._address = options.index_url.rstrip("/")

    def release_date(self, pin: Pin) -> str:
        """The day on which the first file of a version was uploaded."""
        times = [time for _, _, time in self._files(pin) if time]
        if not times:
            raise SystemExit(f"{pin.key}: the index does not say when it was released")
        return min(times)[:10]

    def read_metadata(self, pin: Pin) -> Message:
        """The metadata that the index keeps beside a wheel, or that a source archive holds; empty where neither is."""
        files = sorted(self._files(pin), key=lambda one: not one[0].endswith(".whl"))
        for name, url, _ in files:
            if name.endswith(".whl") and (answer := self._session.get(f"{url}.metadata")).status_code == 200:
                return message_from_bytes(answer.content)
            if name.endswith(".tar.gz"):
                return message_from_bytes(read_package_info(self._session.get(url).content))
        return Message()

    def _files(self, pin: Pin) -> list[tuple[str, str, str]]:
        """Name, address and time of upload of each file of a version."""
        accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
        answer = self._session.get(f"{self._address}/{pin.name}/", headers={"Accept": accept})
        if answer.status_code != 200:
            raise SystemExit(f"{pin.name}: the index does not know it ({answer.status_code})")
        listed = parse_json_files if "json" in answer.headers["content-type"] else parse_html_files
        return [one for one in listed(answer.text) if is_file_of(one[0], pin)]


def read_package_info(archive: bytes) -> bytes:
    """PKG-INFO of a source archive, the outermost one."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = [one for one in opened.getnames() if one.endswith("/PKG-INFO")]
        member = opened.extractfile(min(found, key=lambda one: one.count("/"))) if found else None
        return member.read() if member else b""


def parse_json_files(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, address and time of upload, from an answer in JSON (PEP 691, PEP 700)."""
    for one in json.loads(text)["files"]:
        yield one["filename"], one["url"], one.get("upload-time", "")


def parse_html_files(text: str) -> Iterator[tuple[str, str, str]]:
    """The same from HTML (PEP 503), where the index adds the time as `data-upload-time`."""
    for attributes, name in re.findall(r"<a\s([^>]*)>([^<]*)</a>", text):
        found = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        yield unescape(name).strip(), unescape(found["href"]).partition("#")[0], found.get("data-upload-time", "")


def is_file_of(file: str, pin: Pin) -> bool:
    """Whether a file is a wheel or source of that version."""
    found = re.match(r"(.+?)-(\d[^-]*?)(?:-.*\.whl|\.tar\.\w+|\.zip)$", file)
    return found is not None and (normalize_name(found[1]), found[2]) == (pin.name, pin.version)


def _toml(whys: Mapping[str, str], known: Mapping[str, Mapping[str, str]]) -> str:
    lines = [
        "# Facts that dependencies.py collects, and what each of our own dependencies is for.",
        "",
        "[why]",
    ]
    lines += _lines(whys)
    for key, facts in known.items():
        lines += ["", f'["{key}"]', *_lines(facts)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]


if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], PAGE, build_page, update_facts))
