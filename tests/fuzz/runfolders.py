"""Run folders with a changed file: every command that reads one ends with a code of its own and no half-made output."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import json
import shutil
import tempfile
from pathlib import Path
from random import Random

from fuzz.grammar import damage, json_text, mutate
from safevla_bench.cli import run_command_line as command_line
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.folder import SCORES, archive_parts

COMMANDS = (
    ("score", "RUN", "--out", "OUT"),
    ("verify", "RUN"),
    ("tables", "RUN", "--format", "json", "--out", "OUT.json"),
    ("episodes", "RUN"),
    ("show", "RUN", "0"),
    ("gate", "RUN", "--min-sr", "0.1"),
    ("compare", "RUN", "--bootstrap", "200"),
    ("export", "RUN", "--format", "submission", "--out", "OUT.json"),
    ("validate", "RUN"),
    ("convert", "RUN", "OUT.parquet"),
    ("eval", "--record-only", "--resume", "--out", "RUN"),
)


@functools.cache
def recorded_run() -> Path:
    """A judged run on the fake host, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    request = Request(host="fake", suites=("fake",), episodes=1, policies=("random",), max_steps=4)
    evaluate_request(request, load_ruleset(), folder / "run")
    return folder / "run"


def run(rng: Random, folder: Path) -> str:
    """Change one file, then run one command."""
    place = shutil.copytree(recorded_run(), folder / "run")
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix != ".html"]
    path = rng.choice(files)
    change(rng, path)
    command = [part.replace("RUN", str(place)).replace("OUT", str(folder / "out")) for part in rng.choice(COMMANDS)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command_line(command)
    report = f"{' '.join(command)} after {path.name}: {code}\n{out.getvalue()[-500:]}\n{err.getvalue()[-500:]}"
    assert code in range(5), report
    assert "Traceback" not in err.getvalue() + out.getvalue(), report
    remaining = sorted(path.name for path in folder.iterdir() if path.name != "run")
    assert not any("partial" in name for name in remaining), report
    if code == 2:
        assert remaining == [] or command[0] == "rollout", report
        unchecked = command[0] == "verify" and "could not be" in out.getvalue()
        assert unchecked or "error: " in err.getvalue() or "Error: " in err.getvalue(), report
    if command[0] == "verify" and code == 0:
        for name in (SCORES, *(f"archive/{part.name}" for part in archive_parts(recorded_run()))):
            assert (place / name).read_bytes() == (recorded_run() / name).read_bytes(), (
                f"verified, yet changed: {report}"
            )
    return "refused" if code else "right"


def change(rng: Random, path: Path) -> None:
    content = path.read_bytes()
    if rng.random() < 0.1:
        path.unlink()
    elif path.suffix == ".json" and rng.random() < 0.85:
        path.write_bytes(json_text(rng, mutate(rng, json.loads(content))))
    else:
        path.write_bytes(damage(rng, content))
