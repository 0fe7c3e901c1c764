"""Memory has a bound for every content of a file: in each form, and in each command that reads files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive import bombs
from folders import evaluate_fake
from safevla_bench.errors import RunError
from safevla_bench.memory import SETTING
from safevla_bench.rollout.found import read_suite
from safevla_bench.rollout.plan import Shard
from safevla_bench.sensitivity.firmness import PHYSICS, PhysicsFile
from safevla_bench.sources.runs.folder import EPISODES, SCORES, SCORES_TABLE

TESTS = Path(bombs.__file__).parents[1]
RESERVED_KIB = 1 << 20
"""What pyarrow's allocator reserves in advance, which a file may fill beyond a low limit."""


def run_python(budget_gib: float, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=TESTS,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, SETTING: str(budget_gib), "OPENBLAS_NUM_THREADS": "1"},
    )


def outcomes(paths: Mapping[str, Path], budget_gib: float) -> dict[str, str]:
    """The outcome of each file, all of them read by one process, which grows by no more than the limit."""
    texts = json.dumps({name: str(path) for name, path in paths.items()})
    process = run_python(budget_gib, "-m", "archive.bombs", text=texts)
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.splitlines()[-1])
    assert found["grown_kib"] < budget_gib * (1 << 20) + RESERVED_KIB
    messages: dict[str, str] = found["outcomes"]
    assert not re.search("alloc|MemoryError", " ".join(messages.values())), messages
    return messages


def make_files(folder: Path, makers: Mapping[str, Callable[[Path], Path]]) -> dict[str, Path]:
    paths = {}
    for number, (name, make) in enumerate(makers.items()):
        (folder / str(number)).mkdir()
        paths[name] = make(folder / str(number))
    return paths


REFUSED = (
    "cannot be read|not a regular file|not have an archive's suffix|no such file|not a run folder|not a plain table|"
    "cannot be decompressed|more than|more memory|array of length 0"
)


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


@pytest.mark.parametrize("kind", ["ENDLESS", long("SPARSE"), long("QUICK")])
def test_devices_pipes_and_files_that_stand_for_more_than_is_read_are_refused(tmp_path, kind):
    for name, message in outcomes(make_files(tmp_path, getattr(bombs, kind)), 0.5).items():
        assert re.search(REFUSED, message) or message == "0 recordings", (name, message)


@pytest.mark.long
@pytest.mark.parametrize("name", bombs.SLOW)
def test_the_largest_that_is_read_takes_no_more_than_the_limit(tmp_path, name):
    assert outcomes(make_files(tmp_path, {name: bombs.SLOW[name]}), 4)[name]


# Commands


NULLS, LISTS = 60_000_000, 20_000_000
COMMANDS = (
    "score TABLE --out new",
    "episodes TABLE",
    "show TABLE 0",
    "frames TABLE",
    "sensitivity TABLE",
    "compare TABLE",
    "select TABLE",
    "gate TABLE --min-sr 0.1",
    "gate RUN --min-sr 0.1 --baseline TABLE",
    "tables TABLE",
    "figures TABLE --out new",
    "export TABLE --format submission --out new.json",
    "board TABLE --out new",
    "verify TABLE",
    "verify SCORES",
    "verify SCORES_TABLE",
    "score SCORES --out new",
    "merge SHARD --out new",
    "score LOG --out new",
    "validate ARCHIVE",
    "convert ARCHIVE new.jsonl",
    "episodes RUN --rules JSON",
    "tasks --rules JSON",
    "specs --check JSON",
    "specs --calibrate TABLE",
    "eval --registered JSON --out new",
    "eval --resume --out TABLE",
    "eval --host fake --suite fake --policy replay:ARCHIVE --out new",
)
"""Each command that reads files, with a run or file that stands for more than 0.4 GiB."""
RUN_COMMAND = (
    "import sys; from archive.bombs import peak_kib; import safevla_bench.jobs.evaluation.results;"
    "from safevla_bench.cli import run_command_line; start = peak_kib();"
    "code = run_command_line(sys.argv[1:]); print(); print(code, peak_kib() - start)"
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    run = evaluate_fake(folder / "run", policies=("random",), episodes=1, max_steps=4)
    shard = evaluate_fake(folder / "shard", policies=("random",), episodes=2, max_steps=4, shard=Shard(1, 2))
    pq.write_table(pa.table({"seed": pa.nulls(NULLS, pa.int64())}), folder / "x.parquet", compression="zstd")
    (folder / "x.json").write_bytes(b"[" + b"[]," * LISTS + b"0]")
    (folder / "scores.json").write_bytes(b'{"judged_by": {"skipped": [' + b'"ab",' * (LISTS // 2) + b'"ab"]}}')
    (folder / "x.jsonl").write_bytes(b'{"episode_id": "e", "x": [' + b"[]," * LISTS + b"0]}\n")
    (folder / "log" / "meta").mkdir(parents=True)
    (folder / "log" / "meta" / "info.json").write_bytes(b"[" + b"[]," * (LISTS // 4) + b"0]")
    paths = {"LOG": folder / "log", "RUN": run, "JSON": folder / "x.json", "ARCHIVE": folder / "x.jsonl"}
    for name, source, file, bomb in (
        ("TABLE", run, EPISODES, "x.parquet"),
        ("SHARD", shard, EPISODES, "x.parquet"),
        ("SCORES", run, SCORES, "scores.json"),
        ("SCORES_TABLE", run, SCORES_TABLE, "x.parquet"),
    ):
        paths[name] = Path(shutil.copytree(source, folder / name))
        shutil.copy(folder / bomb, paths[name] / file)
    return paths


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bomb_in_a_command_is_refused_within_the_limit(tmp_path, inputs, command):
    names = re.compile("|".join(sorted(inputs, key=len, reverse=True)))
    words = [names.sub(lambda match: str(inputs[match[0]]), word) for word in command.split()]
    words = [str(tmp_path / word) if word.startswith("new") else word for word in words]
    process = run_python(0.25, "-c", RUN_COMMAND, *words)
    output = process.stdout + process.stderr
    assert process.stdout, (process.returncode, process.stderr[-2000:])
    code, grown_kib = map(int, process.stdout.splitlines()[-1].split())
    assert "Traceback" not in output
    assert grown_kib < (1 << 18) + RESERVED_KIB
    if "SCORES" not in command or command.startswith("verify"):
        assert code in (1, 2)
        assert re.search("more than|more memory", output), output[-2000:]


def test_readers_refuse_json_that_could_fill_the_memory_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr("safevla_bench.files.read_budget", lambda: 0)
    for name in ("suite.json", PHYSICS):
        (tmp_path / name).write_text("{}")
    for read in (lambda: read_suite(tmp_path / "suite.json"), lambda: PhysicsFile.read(tmp_path)):
        with pytest.raises(RunError, match="memory than allowed"):
            read()
