#!/usr/bin/env python3
"""Prepare a release, and upload nothing: write the version, the changelog's date and the citation; build; check.

Usage: release.py VERSION     in a clean checkout, with the section `## [VERSION] - not yet released` in CHANGELOG.md

Where that section has a part `### Results`, VERSION becomes a new results-version. Wheels are tried in environments of
their own, under every Python from 3.11 (the recorder's from 3.8) to 3.14 that is here.
"""

from __future__ import annotations

import datetime
import glob
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDER = "recorder/src/safevla_recorder"
PYTHONS = [f"3.{minor}" for minor in range(8, 15)]


def section(changelog: str, version: str) -> str:
    """The changelog's section of a version, from its heading to the next."""
    matched = re.search(rf"^## \[{re.escape(version)}\] .*?(?=^## |\Z)", changelog, re.M | re.S)
    if not matched:
        raise SystemExit(f"CHANGELOG.md has no section `## [{version}] - not yet released`")
    return matched[0]


def new_texts(read: Callable[[str], str], version: str, today: str) -> dict[str, str]:
    """File -> what it holds in the release."""
    texts = {}

    def put(name: str, pattern: str, replacement: str) -> None:
        text, count = re.subn(pattern, replacement, texts.get(name) or read(name), flags=re.M)
        if not count:
            raise SystemExit(f"{name} has nothing that matches {pattern}")
        texts[name] = text

    put(f"{RECORDER}/version.py", r'^__version__ = ".*"$', f'__version__ = "{version}"')
    put("CITATION.cff", r"^version: .*\n(?:date-released: .*\n)?", f"version: {version}\ndate-released: {today}\n")
    put("CHANGELOG.md", rf"^(## \[{re.escape(version)}\] - ).*$", rf"\g<1>{today}")
    moved = re.search(r'"results_since": \[(.*)\]', read(f"{RECORDER}/known_differences.json"))[1]
    if "### Results" in section(texts["CHANGELOG.md"], version) and f'"{version}"' not in moved:
        put(f"{RECORDER}/known_differences.json", r'("results_since": \[.*)\]', rf'\g<1>, "{version}"]')
    return texts


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command, which must succeed."""
    subprocess.run([str(word) for word in command], cwd=cwd, check=True)


def build(work: Path) -> list[Path]:
    """Build wheels and sdists into dist/, checked as an index would."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "venv", work / "tools")
    python = work / "tools" / "bin" / "python"
    run(python, "-m", "pip", "install", "-qq", "build", "twine")
    for project in ("recorder", "."):
        run(python, "-m", "build", "--outdir", "dist", project)
    files = sorted((ROOT / "dist").iterdir())
    run(python, "-m", "twine", "check", "--strict", *files)
    return files


def find_python(version: str) -> str | None:
    """The newest interpreter of that minor version, of pyenv or on the PATH."""
    found = sorted(glob.glob(str(Path.home() / f".pyenv/versions/{version}.*/bin/python")), reverse=True)
    return found[0] if found else shutil.which(f"python{version}")


def try_wheel(wheel: Path, python: str, work: Path, *commands: tuple[str, ...]) -> None:
    """Install a wheel as a user would and run commands of its environment, away from the sources."""
    print(f"-- {wheel.name} under {python}", flush=True)
    run(python, "-m", "venv", "--clear", work / "clean")
    run(work / "clean/bin/python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", wheel)
    for command in commands:
        run(work / "clean/bin" / command[0], *command[1:], cwd=work)


def check_platforms() -> None:
    """Types as macOS has them, and Windows, but for rollouts and a lock that may be missing there."""
    allowed = re.compile(r"^src/safevla_bench/rollout/|folder\.py.*(?:flock|LOCK_)|^Found ")
    for platform in ("darwin", "win32"):
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--no-warn-unreachable",
            "--platform",
            platform,
            f"--cache-dir=.mypy_cache/{platform}",
        ]
        lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
        bad = [line for line in lines if ": error:" in line and (platform == "darwin" or not allowed.search(line))]
        if bad or not lines:
            raise SystemExit("\n".join([f"{platform}:", *bad]))


def main(version: str) -> None:
    """Write, build, check; then say what is left to do."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        raise SystemExit("the checkout has changes that are not committed")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for name, text in new_texts(lambda name: (ROOT / name).read_text(encoding="utf-8"), version, today).items():
        (ROOT / name).write_text(text, encoding="utf-8")
    check_platforms()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheels = {path.name.partition("-")[0]: path for path in build(work) if path.suffix == ".whl"}
        for minor in PYTHONS:
            if not (python := find_python(minor)):
                print(f"-- Python {minor} is not here: left out")
                continue
            try_wheel(wheels["safevla_recorder"], python, work, ("python", "-c", "from safevla_recorder import record"))
            if minor not in PYTHONS[:3]:
                demo = ("safevla", "demo", "--out", f"demo-{minor}")
                try_wheel(wheels["safevla_bench"], python, work, ("safevla-bench", "--version"), demo)
    commit = f"git commit -am 'Release {version}' && git tag v{version}"
    print(f"Ready; nothing was uploaded. Next: .ci/run; {commit}; twine upload dist/*")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
