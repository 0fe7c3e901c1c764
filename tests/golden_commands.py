"""The golden files: what the commands print and write over fixed archives. `make golden` rewrites them.

The printed text and the written tables are kept as they are, other files as their sha256. `make golden` also leaves all
written files in `build/golden`, so that two versions of the package can be compared. The package's version and the
digests of its rules are masked; `digests.txt` alone has the latter.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import numpy as np

from safevla_recorder import identity

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "golden"
BUILD = ROOT / "build" / "golden"
DEMO = "demo/rollouts.parquet"
GALLERY = " ".join(
    f"gallery/{name}.parquet" for name in ("hit-cabinet", "slammed-fridge", "struck-microwave", "swinging-bowl")
)
"""LIBERO, and RoboCasa on stand-ins for its assets."""

COMMANDS: Mapping[str, str] = {
    "demo": "demo --out demo",  # the archives that the others read come first
    "eval": "eval --host fake --suite fake --task 0,1 --episodes 3 --policy random --policy noop --out run",
    "lerobot": f"export {DEMO} --format lerobot --out lerobot",
    "score": f"score {DEMO} --out scored",
    "score-json": f"score {DEMO} --out scored --format json",
    "score-set": f"score {DEMO} --set non_target_max_disp_5mm=20mm --out scored-set",
    "score-paper-text": f"score {DEMO} --library paper-text --out scored-text",
    "score-gallery": f"score {GALLERY} --out scored-gallery",
    "score-log": "score log --set missing=deactivate --out scored-log",
    "score-foreign": "score foreign/recording-loopback.sqlite",
    "score-appendix-b": "score appendix_b.jsonl --out scored-b",
    "tables": f"tables {DEMO}",
    "tables-md": f"tables {DEMO} --which all --format md --out tables.md",
    "tables-csv": f"tables {DEMO} --which all --format csv --out tables/",
    "tables-tex": f"tables {DEMO} --which all --format tex --out tables.tex",
    "tables-json": f"tables {DEMO} --which all --format json --out tables.json",
    "tables-html": f"tables {DEMO} --which all --format html --out tables.html",
    "tables-gallery": f"tables {GALLERY} --which all",
    "tables-all": f"tables {DEMO} --which all",
    "compare": f"compare {DEMO}",
    "compare-full": f"compare {DEMO} --full",
    "compare-json": f"compare {DEMO} --format json",
    "compare-unpaired": f"compare {DEMO} --unpaired",
    "gate": f"gate {DEMO} --min-safety 0.5 --max-vsi 0.2",
    "gate-cells": f"gate {DEMO} --min-safety 0.9 --per cell --junit gate.xml",
    "gate-run": "gate run --min-safety 0.4",
    "gate-baseline": f"gate {DEMO} --baseline {DEMO} --min-safety -0.5",
    "select": f"select {DEMO} --subject-to 'safety >= 0.4'",
    "changes": f"compare --changes {DEMO} {DEMO}",
    "sensitivity": f"sensitivity {DEMO}",
    "sensitivity-full": f"sensitivity {DEMO} --full",
    "sensitivity-readings": f"sensitivity {DEMO} --readings",
    "sensitivity-sweep": f"sensitivity {DEMO} --sweep force=100,200,500",
    "episodes": f"episodes {DEMO}",
    "episodes-why": f"episodes {DEMO} --unsafe --why",
    "episodes-json": f"episodes {DEMO} --format json",
    "show": f"show {DEMO} :13",
    "show-run": "show run :2",
    "show-formula": f"show {DEMO} --formula 'G(eef_speed < 0.5)'",
    "figures": f"figures {DEMO} --out figures --format svg",
    "board": f"board {DEMO} --out board",
    "export-csv": f"export {DEMO} --format safevla-csv --out export.csv",
    "export-submission": f"export {DEMO} --format submission --out submission.json",
    "convert": f"convert {DEMO} demo.jsonl",
    "validate": f"validate {DEMO}",
    "verify": "verify run",
    "specs": "specs",
    "specs-explain": "specs --explain held_object_tilt_world_15deg",
    "tasks": "tasks --suite libero-10",
    "protocols": "protocols",
}
_VOLATILE = re.compile(r"\b\d+(\.\d+)? (s|min)\b|\(\d+ of \d+\)")


def mask_versions() -> dict[str, str]:
    """Replace the package's version, and the digests of rules; return the real digests by the rules' name."""
    import safevla_recorder.version

    safevla_recorder.version.__version__ = "0.0.0"
    from safevla_bench.specs.file_formats import BUILT_IN
    from safevla_bench.specs.loader import load_library
    from safevla_bench.specs.spec import Library
    from safevla_bench.tasks.entries import Registry
    from safevla_bench.tasks.loader import load_registry

    digests = {f"library {name}": load_library(name).digest for name in BUILT_IN}
    digests["registry"] = load_registry().digest
    masks = {digest: hashlib.sha256(name.encode()).hexdigest() for name, digest in digests.items()}
    of_library, of_registry = Library.digest.func, Registry.digest.fget
    Library.digest = property(lambda library: masks.get(of_library(library), "0" * 64))
    Registry.digest = property(lambda registry: masks.get(of_registry(registry), "0" * 64))
    return digests


def write_outputs(folder: Path) -> Iterator[tuple[str, str]]:
    """Run every command in `folder`, an empty one; yield its name and what is kept of it."""
    shutil.copytree(ROOT / "docs" / "gallery", folder / "gallery")
    shutil.copytree(ROOT / "tests" / "cases" / "vla_eval_recording", folder / "foreign")
    record = json.loads((ROOT / "tests" / "cases" / "appendix_b.json").read_bytes())
    (folder / "appendix_b.jsonl").write_text(json.dumps(record) + "\n")
    _write_log(folder / "log")
    with contextlib.chdir(folder), _fixed_code():
        for name, line in COMMANDS.items():
            yield name, _run_command(line)


@contextlib.contextmanager
def _fixed_code() -> Iterator[None]:
    """The same digests of code after every commit."""
    with mock.patch.object(identity, "_code_files", return_value=()):
        identity.describe_code.cache_clear()
        yield
    identity.describe_code.cache_clear()


def _write_log(folder: Path) -> None:
    """Write two episodes of a robot's log; in one, a joint's torque is beyond its limit."""
    from sources.logs.log_files import save_mapping, straight_line, write_dataset

    plate = straight_line() * [0, 0, 1, 1, 0, 0, 0]
    effort = np.linspace(4.0, 11.0, 30)[:, None] * [1, 0.5]
    frames = {"eef": straight_line(), "plate": plate, "next.success": np.arange(30) == 29}
    write_dataset(folder, [{**frames, "effort": effort}, {**frames, "effort": effort / 2}])
    save_mapping(
        folder,
        '[episode]\ntemplate = "pnp-basic"\nsuccess = "next.success"\n[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n'
        '[torque]\nfrom = "effort"\nlimits_nm = [10, 10]\n[bodies.plate]\nfrom = "plate"\nrole = "bystander"\n'
        'quaternion_order = "wxyz"\n',
    )


def _run_command(line: str) -> str:
    """Return the command, its exit code, what it prints, and the digest of each file that it made or changed."""
    from safevla_bench import cli

    before = _digest_files()
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = cli.run_command_line(shlex.split(line))
    files = [
        f"{digest}  {path}"
        for path, digest in _digest_files().items()
        if before.get(path) != digest and not _is_kept(path)
    ]
    parts = [f"$ safevla {line}", f"exit {code}", printed.getvalue(), errors.getvalue(), *files]
    return _VOLATILE.sub("…", "\n".join(part.rstrip("\n") for part in parts if part)) + "\n"


def _digest_files() -> dict[str, str]:
    """Return the first 16 digits of the sha256 of each file here, by its path; volatile facts of run.json left out."""
    paths = sorted(path for path in Path().rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(_stable_bytes(path)).hexdigest()[:16] for path in paths}


def _stable_bytes(path: Path) -> bytes:
    """Return a file's bytes; of run.json without what differs from day to day."""
    content = path.read_bytes()
    if path.name != "run.json":
        return content
    description = json.loads(content)
    description.pop("volatile", None)
    return json.dumps(description).encode()


def _is_kept(path: str) -> bool:
    return path.startswith("tables") and not path.endswith("html")


def main(folder: Path, build: Path) -> None:
    """Write the golden files into `folder`, and leave the commands' files in `build`."""
    os.environ.update(COLUMNS="120", NO_COLOR="1")
    digests = mask_versions()
    from golden_messages import write_messages
    from report.example_tables import paper_tables
    from safevla_bench.report.render.text import render_text

    write_messages(folder / "messages")
    for name in ("commands", "tables"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    (folder / "digests.txt").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    for name, text in write_outputs(build):
        (folder / "commands" / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {text.splitlines()[1]}", file=sys.stderr)
    for path in [*build.glob("tables.*"), *build.glob("tables/*")]:
        if _is_kept(str(path.relative_to(build))):
            shutil.copy(path, folder / "tables")
    paper = "\n".join(render_text(table, width=100) for table in paper_tables())
    (folder / "tables" / "paper.txt").write_text(paper, encoding="utf-8")


if __name__ == "__main__":
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    main(FOLDER, BUILD)
