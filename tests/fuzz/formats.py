"""Files of every format that is read, with bytes changed: each is read, or refused by an error that names a file.

The memory limit is low, so that a case that needs more than it fails. HDF5 is read by a fork of this process, which is
as limited as the child process that reads it otherwise: starting that takes fifty times as long.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pyarrow.parquet as pq
import zstandard

from builders import contacts, episode
from fuzz.grammar import damage
from fuzz.runfolders import recorded_run
from safevla_bench import archive
from safevla_bench.cli.rules import load_rules, sort_rules
from safevla_bench.errors import RecordError, SafevlaError
from safevla_bench.jobs.evaluation.judgement import find_recipe
from safevla_bench.judging.judged import ScoresFile
from safevla_bench.memory import SETTING
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.sources import foreign
from safevla_bench.sources.foreign import hdf5_child
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.trajectory.batch import concatenate_batches
from sources.logs.log_files import pose_message, save_mapping, straight_line, write_dataset, write_mcap

MAPPING = '[episode]\nsuccess = true\n[eef]\nfrom = "{}"\nquaternion_order = "wxyz"\n'
RULES = resources.files("safevla_bench.specs").joinpath("template.toml").read_text(encoding="utf-8")
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def change(rng: Random, content: bytes) -> bytes:
    """Return the content with one to four changes: bytes, numbers of 1 to 8 bytes, pieces; or as `damage` does."""
    if rng.random() < 0.2:
        return damage(rng, content)
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(changed) or 1)
        match rng.randrange(6):
            case 0:
                changed[place : place + 1] = rng.randbytes(1)
            case 1:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
                changed[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))
            case 2:
                del changed[place : place + rng.choice((1, 4, 64, 4096))]
            case 3:
                piece = changed[place : place + rng.choice((1, 8, 64, 512))]
                changed[place:place] = piece * rng.choice((1, 2, 1000))
            case 4:
                changed[place:place] = rng.randbytes(rng.choice((1, 4, 16)))
            case 5:
                other = rng.randrange(len(changed) or 1)
                size = rng.choice((1, 4, 32))
                changed[place : place + size] = changed[other : other + size]
    return bytes(changed)


def change_file(rng: Random, file: Path) -> None:
    """Change the bytes of a file or, of half of the compressed ones, those within, with right checksums."""
    content, inside = file.read_bytes(), rng.random() < 0.5
    if file.suffix == ".gz" and inside:
        content = gzip.compress(change(rng, gzip.decompress(content)))
    elif file.suffix == ".zst" and inside:
        text = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        content = zstandard.ZstdCompressor(write_checksum=True).compress(change(rng, text))
    elif file.suffix == ".npz" and inside:
        sink = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(sink, "w") as new:
            chosen = rng.choice(old.namelist())
            for name in old.namelist():
                new.writestr(name, change(rng, old.read(name)) if name == chosen else old.read(name))
        content = sink.getvalue()
    else:
        content = change(rng, content)
    file.write_bytes(content)


def read(path: Path) -> None:
    """Read a source as every command does, and raise its first problem."""
    index = scan([path])
    if index.problems:
        raise index.problems[0]


def _archive(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / f"x{suffix}"
        count = 1 if suffix == ".npz" else 3
        batches = [episode(6, episode_id=str(k), contacts=contacts((1, 0, 1, 3.0))) for k in range(count)]
        archive.write_archive(path, concatenate_batches(batches))
        return path

    return make


def _plain_parquet(folder: Path) -> Path:
    """A file whose pages have neither checksum nor compression, so that changes reach the decoder."""
    path = _archive(".parquet")(folder)
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False, store_schema=False)
    return path


def _mcap(folder: Path) -> Path:
    write_mcap(folder / "take.mcap", [("/eef", 0.1 * k, pose_message(0.01 * k)) for k in range(12)])
    save_mapping(folder, MAPPING.format("/eef"))
    return folder / "take.mcap"


def _dataset(folder: Path) -> Path:
    features = {"pose": {"dtype": "float32", "shape": [7], "names": None}}
    write_dataset(folder / "set", [{"pose": straight_line(5)}] * 2, features=features)
    save_mapping(folder / "set", MAPPING.format("pose"))
    return folder / "set"


def _hdf5(folder: Path) -> Path:
    with h5py.File(folder / "x.hdf5", "w") as file:
        for k in range(2):
            demo = file.create_group(f"data/demo_{k}")
            demo.attrs["model_file"] = "<mujoco><worldbody><body name='a' pos='1 2 3'/></worldbody></mujoco>"
            demo["actions"] = np.full((4, 7), k / 100)
            demo["states"] = np.ones((4, 5))
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": "lift it"})
    return folder / "x.hdf5"


def _read_hdf5(path: Path) -> None:
    with mock.patch.object(subprocess, "run", _fork_child):
        foreign.read_recorded_actions(path)


def _fork_child(words: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
    """Run `hdf5_child` in a fork, with as much memory in addition to what this process has, and return its output."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    descriptor, memory, seconds = map(int, words[3:])
    receiving, sending = os.pipe()
    if (process := os.fork()) == 0:
        try:
            os.dup2(sending, 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with open(1, "w", closefd=False) as sys.stdout:
                hdf5_child.main(descriptor, memory + pages * resource.getpagesize(), seconds)
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.close(sending)
    with open(receiving, "rb") as output:
        content = output.read()
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), content)


def _rules(folder: Path) -> Path:
    (folder / "rules.toml").write_text(RULES)
    return folder / "rules.toml"


def _load_rules(path: Path) -> None:
    sort_rules([path])
    load_rules("default", [path], {"thresholds": [], "capabilities": []})


def _read_run(path: Path) -> None:
    read(path)
    run_folder.read_manifest(path)
    ScoresFile.read(path)
    run_folder.read_facts(path)
    find_recipe([path])


def _copy_run(folder: Path) -> Path:
    return Path(shutil.copytree(recorded_run(), folder / "run"))


def _message(folder: Path) -> Path:
    (folder / "x.msgpack").write_bytes(OPENPI.pack({"actions": np.ones((10, 7)), "server_timing": {"infer_ms": 3.0}}))
    return folder / "x.msgpack"


FORMATS: Mapping[str, tuple[Callable[[Path], Path], str, Callable[[Path], object]]] = {
    "parquet": (_archive(".parquet"), "", read),
    "parquet-plain": (_plain_parquet, "", read),
    "npz": (_archive(".npz"), "", read),
    "jsonl": (_archive(".jsonl"), "", read),
    "jsonl.gz": (_archive(".jsonl.gz"), "", read),
    "jsonl.zst": (_archive(".jsonl.zst"), "", read),
    "mcap": (_mcap, "", read),
    "hdf5": (_hdf5, "", _read_hdf5),
    "lerobot": (_dataset, "**/*.*", read),
    "toml": (_rules, "", _load_rules),
    "json": (_copy_run, "*.json", _read_run),
    "table": (_copy_run, "*.parquet", _read_run),
    "msgpack": (_message, "", lambda path: OPENPI.unpack(path.read_bytes())),
}
"""Format -> function that makes a good one in a folder, pattern of the files in it to change, and the reader."""


@functools.cache
def _good_files(name: str) -> tuple[str, Mapping[str, bytes]]:
    """Return the path of a good source of a format in its folder, and the content of each file there."""
    with tempfile.TemporaryDirectory() as folder:
        path = FORMATS[name][0](Path(folder))
        files = {str(file.relative_to(folder)): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()}
        return str(path.relative_to(folder)), files


def run_format(name: str, rng: Random, folder: Path) -> str:
    """Change a file of a format and read it; raise for any error but ours."""
    _, pattern, reader = FORMATS[name]
    os.environ[SETTING] = "0.25"
    good, contents = _good_files(name)
    for place, content in contents.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)
    path = folder / good
    files = sorted(file for file in path.glob(pattern) if file.is_file()) if pattern else [path]
    file = rng.choice(files)
    change_file(rng, file)
    try:
        reader(path)
    except RecordError as error:
        assert "needs more memory" not in str(error) or name != "msgpack"
        return "beyond-the-limit" if "needs more memory than" in str(error) else "refused"
    except SafevlaError:
        return "refused"
    return "read"


KINDS = {name: functools.partial(run_format, name) for name in FORMATS}
