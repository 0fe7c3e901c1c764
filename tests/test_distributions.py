"""The wheel and the sdist build from a clean checkout, and hold what belongs there and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_string
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread

import pytest

from safevla_bench import __version__

ROOT = Path(__file__).parents[1]
NAME = f"safevla_bench-{__version__}"
CODE = {".py", ".pyi", ".toml", ".json", ".lark", ".html", ".css", ".js", ".svg", ".jinja", ".tex", ".xml", ".mplstyle"}
PLAYER = "safevla_bench/report/templates/player"
LARGE = {
    "safevla_bench/jobs/demo.parquet": 1_500_000,
    "safevla_bench/jobs/doctor/scenes.npz": 100_000,
    f"{PLAYER}/three.min.js": 600_000,
}
"""The only large files of the package, with the most that they may weigh; the first two alone are not text."""
TOP = {
    "src", "recorder", "tests", "constraints", "docs", "examples", "benchmarks", ".ci", "Makefile",
    "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "pyproject.toml",
    "PKG-INFO", ".gitignore",
}  # fmt: skip
JUNK = ("runs/mine/run.json", "shared/secret.txt", "dist/old.whl", ".env", "notes.txt", ".hypothesis/examples/x",
        "src/safevla_bench/__pycache__/old.cpython-311.pyc", "src/safevla_bench/.mypy_cache/x.json",
        "tests/__pycache__/old.pyc", ".venv/bin/python")  # fmt: skip
"""What lies about on a developer's machine."""
WHEEL_MOST, SDIST_MOST, TEXT_MOST = 3_000_000, 6_000_000, 200_000


def project_files() -> list[str]:
    """What git has or would add; without git, all but what is hidden or ignored."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") and (ROOT / ".git").exists():
        match = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        return [name for name in match if name and (ROOT / name).is_file()]
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [path.as_posix() for path in paths if path.parts[0] in TOP and "__pycache__" not in path.parts]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The project's files as git would give them, with junk strewn in."""
    target = tmp_path_factory.mktemp("checkout") / "safevla-bench"
    for name in project_files():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target / name)
    for name in JUNK:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("junk")
    return target


@pytest.fixture(scope="module")
def dist(checkout, tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist alone."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(checkout)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def wheel(dist) -> zipfile.ZipFile:
    (path,) = dist.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def sdist(dist) -> tarfile.TarFile:
    (path,) = dist.glob("*.tar.gz")
    return tarfile.open(path)


def package_files(checkout: Path) -> dict[str, str]:
    """Each file of both packages: its path in the wheel -> its path in the project."""
    return {
        path.relative_to(checkout / source).as_posix(): path.relative_to(checkout).as_posix()
        for source in ("src", "recorder/src")
        for path in (checkout / source).rglob("*")
        if path.is_file() and path.relative_to(checkout).as_posix() not in JUNK
    }


METADATA = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")


def test_the_wheel_holds_both_packages_and_their_metadata_and_nothing_else(wheel, checkout):
    assert set(wheel.namelist()) == {*package_files(checkout), *(f"{NAME}.dist-info/{name}" for name in METADATA)}


def test_the_recorder_s_own_wheel_holds_it_as_the_other_does_needs_numpy_alone_and_its_sdist_builds(
    wheel, checkout, tmp_path
):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(checkout / "recorder")]
    subprocess.run(command, capture_output=True, check=True)
    alone = zipfile.ZipFile(*tmp_path.glob("*.whl"))
    info = f"safevla_recorder-{__version__}.dist-info"
    own = {name for name in package_files(checkout) if name.startswith("safevla_recorder/")}
    names = {f"{info}/{name}" for name in METADATA if name != "entry_points.txt"}
    assert set(alone.namelist()) == own | names
    assert all(alone.read(name) == wheel.read(name) for name in own)
    metadata = message_from_string(alone.read(f"{info}/METADATA").decode())
    assert (metadata["Requires-Python"], metadata.get_all("Requires-Dist")) == (">=3.8", ["numpy>=1.21"])


@pytest.fixture
def git_server(checkout, tmp_path) -> Iterator[str]:
    """The address, on loopback, of a bare clone of the checkout."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=checkout, check=True)

    git("init", "-q")
    git("add", *project_files())
    git("commit", "-qm", "all")
    git("clone", "-q", "--bare", ".", str(tmp_path / "served" / "safevla-bench.git"))
    shutil.rmtree(checkout / ".git")
    git("-C", str(tmp_path / "served" / "safevla-bench.git"), "update-server-info")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path / "served"))) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/safevla-bench.git"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize("installer", ["pip", "uv pip"])
def test_one_line_installs_both_packages_from_a_bare_git_repository_and_the_recorder_alone_too(
    installer, git_server, tmp_path
):
    """The dependencies are left out: `.ci/run` installs them."""
    pytest.importorskip(installer.split()[0])
    sources = {"both": f"safevla-bench[libero] @ git+{git_server}",
               "alone": f"safevla-recorder @ git+{git_server}#subdirectory=recorder"}  # fmt: skip
    command = [sys.executable, "-m", *installer.split(), "install", "-q", "--no-deps", "--no-build-isolation"]
    contents = {}
    for name, source in sources.items():
        subprocess.run([*command, "--target", str(tmp_path / name), source], check=True)
        contents[name] = {path.name for path in (tmp_path / name).iterdir() if not path.name.startswith(".")}
    recorder = f"safevla_recorder-{__version__}.dist-info"
    assert contents == {"both": {"bin", "safevla_bench", "safevla_recorder", f"{NAME}.dist-info"},
                     "alone": {"safevla_recorder", recorder}}  # fmt: skip
    for command in ("safevla", "safevla-bench"):
        version = subprocess.run(
            [sys.executable, tmp_path / "both" / "bin" / command, "--version"],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "both")}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert __version__ in version.stdout


def test_every_file_of_the_package_is_of_a_kind_that_belongs_there(checkout):
    for name in package_files(checkout):
        path = PurePosixPath(name)
        assert path.suffix in CODE or name in LARGE or path.name == "py.typed", name
        assert not path.name.startswith(("test_", ".")), name
        assert path.name not in ("conftest.py", "run.json", "scores.json"), name


def test_what_the_package_reads_at_run_time_is_in_the_wheel(wheel):
    names = set(wheel.namelist())
    for suffix, least in ((".toml", 20), (".html", 3), (".css", 1), (".lark", 1)):
        assert sum(name.endswith(suffix) for name in names) >= least, suffix
    assert {"safevla_bench/py.typed", *LARGE} <= names


def test_the_sdist_holds_the_project_and_no_junk(sdist, checkout):
    names = [member.name for member in sdist.getmembers()]
    assert all(name.startswith(f"{NAME}/") for name in names)
    inside = {name.partition("/")[2] for name in names}
    assert {name.partition("/")[0] for name in inside} <= TOP
    assert inside.isdisjoint(JUNK)
    assert set(package_files(checkout).values()) <= inside
    assert {"LICENSE", "README.md", "pyproject.toml", "constraints/core.txt", "tests/conftest.py"} <= inside
    assert all(member.isfile() for member in sdist.getmembers())


def test_neither_is_larger_than_it_should_be(dist, wheel):
    (archive,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert archive.stat().st_size < WHEEL_MOST
    assert source.stat().st_size < SDIST_MOST
    for member in wheel.infolist():
        assert member.file_size < LARGE.get(member.filename, TEXT_MOST), member.filename


def test_no_file_of_the_package_names_a_developer_s_machine(wheel):
    private = re.compile(rb"(?:/home/|/root/|/Users/|/work/|/tmp/|/opt/)\w")
    for name in wheel.namelist():
        if name not in LARGE:
            match = private.search(wheel.read(name))
            assert not match, f"{name}: {match[0]!r}"


def test_the_metadata_names_the_licence_and_the_python_that_it_needs(wheel, checkout):
    metadata = message_from_string(wheel.read(f"{NAME}.dist-info/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("safevla-bench", __version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Requires-Python"] == ">=3.11"
    assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (checkout / "LICENSE").read_bytes()


def test_the_same_sources_give_the_same_bytes(checkout, dist, tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(checkout)]
    subprocess.run(command, capture_output=True, check=True)
    (first,), (second,) = dist.glob("*.whl"), tmp_path.glob("*.whl")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", ["core", "libero", "robocasa"])
def test_what_images_install_has_hashes_the_tested_versions_and_no_address(name):
    """`make hashes` writes these files."""
    text = (ROOT / f"constraints/hashed/{name}.txt").read_text()
    assert "://" not in text
    entries = [entry for entry in re.split(r"\n(?! )", text.strip()) if entry]
    assert all("--hash=sha256:" in entry for entry in entries)
    pins = dict(re.match(r"([\w.-]+)==([\w.]+)", entry).groups() for entry in entries)
    tested = dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", (ROOT / f"constraints/{name}.txt").read_text().lower()))
    tested = {package.replace("_", "-"): version for package, version in tested.items()}
    assert {package: tested[package] for package in pins if package in tested} == {
        package: version for package, version in pins.items() if package in tested
    }
    assert {"hatchling", "numpy", "pyarrow"} <= pins.keys()
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"--require-hashes -r /src/constraints/hashed/{name}.txt" in dockerfile
