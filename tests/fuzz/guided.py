"""Coverage-guided fuzzing of everything that reads a stranger's bytes, with atheris.

    python -m venv /tmp/guided && /tmp/guided/bin/pip install atheris '.[openpi,gr00t]'
    /tmp/guided/bin/python tests/fuzz/guided.py --seconds 900            # all targets, one after the other
    /tmp/guided/bin/python tests/fuzz/guided.py --target stl --seconds 60
    /tmp/guided/bin/python tests/fuzz/guided.py --target stl --again FILE   # one input that was found

atheris (and with it libFuzzer) is no development dependency: it is asked for by hand. A finding is whatever is no typed
error of the package, takes over 5 s or over 2 GiB; it becomes a seed of its own in tests/fuzz/test_findings.py.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import atheris

from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.sources.runs.folder import EpisodeRow, Frame, write_frames
from safevla_bench.sources.runs.parts import changed_parts
from safevla_bench.specs.loader import library
from safevla_bench.stl.formula import format_formula
from safevla_bench.stl.parser import parse
from safevla_bench.tasks.loader import registry

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["safevla_bench", "lark", "zipfile", "tomllib"]):
    import pyarrow.parquet as pq

    from builders import episode
    from safevla_bench import archive, specs
    from safevla_bench.archive import parquet_rows
    from safevla_bench.errors import PolicyError, SafevlaError
    from safevla_bench.interface.policy import Wants
    from safevla_bench.policies.servers.codecs import GR00T, OPENPI, OPENVLA, VLA_EVAL
    from safevla_bench.policies.servers.dialects import Dialect, choose_dialect
    from safevla_bench.policies.servers.serve import parse_observation
    from safevla_bench.report.album import collect_images, collect_replays
    from safevla_bench.signals.signal import SIGNALS
    from safevla_bench.sources.runs.folder import read_description, read_latencies, write_episodes
    from safevla_bench.sources.runs.parts import write_manifest
    from sources.logs.log_files import pose_message, save_mapping, straight_line, write_dataset, write_mcap

FOLDER = Path(tempfile.mkdtemp(prefix="guided-"))
PACKAGE = Path(specs.__file__).parents[1]
KNOWN = {name: signal.boolean for name, signal in SIGNALS.items()}
DIALECTS = (
    ("openpi-libero", "openpi"),
    ("gr00t-libero", "gr00t"),
    ("vla-eval-libero", "vla-eval"),
    ("openvla-rest-libero", "openvla"),
)
CODECS = (OPENPI, GR00T, VLA_EVAL, OPENVLA)
WANTS = Wants(("a", "b"), image_size=(4, 4))


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """What reads a file of that name, as what reads its bytes."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)

    def read_content(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return read_content


def stl_text(content: bytes) -> None:
    """Whatever parses is written and read back to the same formula."""
    for known in (KNOWN, None):
        try:
            formula = parse(content.decode("utf-8", "replace"), known)
        except SafevlaError:
            continue
        assert parse(format_formula(formula), known) == formula


def one_member(content: bytes) -> None:
    """An `.npz` file of which one member holds the bytes: a zip's checksums would hide all else."""
    if len(content) < 2:
        return
    members = dict(NPZ)
    name = sorted(members)[content[0] % len(members)]
    whole = content[1:]
    members[name] = NPZ[name][:64] + whole if name == "header.npy" and content[1] % 2 else whole
    with zipfile.ZipFile(FOLDER / "member.npz", "w") as file:
        for key, value in members.items():
            file.writestr(key, value)
    archive.open_archive(FOLDER / "member.npz")


def reply(content: bytes) -> None:
    """A frame of a server, by each codec, as the reply that each dialect takes it for, and as a client's request."""
    for codec, (name, kind) in zip(CODECS, DIALECTS, strict=True):
        try:
            message = codec.unpack(content)
        except PolicyError:
            continue
        for fields in message if isinstance(message, list) else [message]:
            if isinstance(fields, dict):
                for take in (speech(name, kind).read_actions, lambda m: parse_observation(m, WANTS)):
                    with contextlib.suppress(PolicyError):
                        take(fields)


@functools.cache
def speech(name: str, kind: str) -> Dialect:
    return choose_dialect(name, kind, None, None)


NPZ: dict[str, bytes] = {}


MAPPED = '[episode]\nsuccess = true\n[eef]\nfrom = "{}"\n'


def log_file(name: str, topic: str) -> Callable[[bytes], object]:
    """What reads a log of which one file holds the bytes; a mapping lies beside it."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    log = next((folder for folder in path.parents if (folder / "meta").is_dir()), path.parent)
    save_mapping(log, MAPPED.format(topic))

    def read_content(content: bytes) -> None:
        path.write_bytes(content)
        for _ in scan([log]).problems:
            pass

    return read_content


def mcap_chunk(content: bytes) -> None:
    """An MCAP file with one chunk that holds the bytes, without checksums: these would hide all else."""
    magic = b"\x89MCAP0\r\n"
    chunk = struct.pack("<QQQII", 0, 0, len(content), 0, 0) + struct.pack("<Q", len(content)) + content
    records = ((1, bytes(8)), (6, chunk), (15, bytes(4)), (2, bytes(20)))
    body = b"".join(struct.pack("<BQ", opcode, len(record)) + record for opcode, record in records)
    MCAP(magic + body + magic)


def mcap_records() -> bytes:
    """The records in the chunk of a valid file."""
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, get_chunk_data_stream

    with write_mcap(FOLDER / "seed.mcap", MESSAGES).open("rb") as stream:
        records = StreamReader(stream, emit_chunks=True).records
        inner, size = get_chunk_data_stream(next(record for record in records if isinstance(record, Chunk)))
        return bytes(inner.read(size))


MESSAGES = [("/eef", 0.1 * k, pose_message(0.1 * k)) for k in range(4)]
RUN = FOLDER / "whole"
RUN_FILES = ("run.json", "manifest.json", "episodes.parquet", "frames/index.json", "archive/part-00000.jsonl")


def make_run() -> dict[str, bytes]:
    """A run of one episode with a picture; its files."""
    (RUN / "archive").mkdir(parents=True, exist_ok=True)
    (RUN / "frames").mkdir(exist_ok=True)
    batch = episode(3)
    archive.write_archive(RUN / RUN_FILES[-1], batch)
    header = batch.headers[0]
    numbers = dict.fromkeys(("episode", "init_state_index", "env_seed", "seed", "policy_seed", "horizon", "steps"), 0)
    named = {name: getattr(header, name) for name in ("episode_id", "benchmark", "task_id")}
    write_episodes(RUN, [EpisodeRow(policy="p", outcome="success", **named, **numbers)])
    description = {"complete": True, "planned": 1}
    (RUN / "run.json").write_text(json.dumps(description))
    write_manifest(RUN, [RUN / RUN_FILES[-1]], 1, description)
    shown = {"caption": "c", "record": 0, "time_s": 0.0, "success": True, "camera": "c", "width": 1, "height": 1}
    kinds = (("initial", "a.png"), ("replay3d", "r.json"))
    seen = [Frame(episode_id="e", policy=None, kind=kind, file=file, **shown) for kind, file in kinds]
    write_frames(RUN, seen)
    return {name: (RUN / name).read_bytes() for name in RUN_FILES}


def run_folder(content: bytes) -> None:
    """A run of which one file, by the first byte, holds the bytes."""
    name = RUN_FILES[content[0] % len(RUN_FILES)] if content else "run.json"
    for other, whole in WHOLE.items():
        (RUN / other).write_bytes(content[1:] if other == name else whole)
    for read in (scan, collect_images, collect_replays):
        with contextlib.suppress(SafevlaError):
            read([RUN])
    list(changed_parts(RUN))


def run_file(path: Path) -> None:
    read_description(path.parent)
    read_latencies(path.parent)


write_dataset(FOLDER / "set", [{"pose": straight_line(4)}])
FRAMES_FILE = "data/chunk-000/file-000.parquet"
INFO = (FOLDER / "set" / "meta" / "info.json").read_bytes()
MCAP = log_file("mcap/take.mcap", "/eef")
WHOLE = make_run()
TARGETS: Mapping[str, Callable[[bytes], object]] = {
    "stl": stl_text,
    "jsonl": in_file("x.jsonl", archive.open_archive),
    "gz": in_file("x.jsonl.gz", archive.open_archive),
    "zst": in_file("x.jsonl.zst", archive.open_archive),
    "npz": in_file("x.npz", archive.open_archive),
    "npz-member": one_member,
    "parquet": in_file("x.parquet", archive.open_archive),
    "registry-toml": in_file("x.toml", lambda path: registry([path])),
    "registry-json": in_file("x.json", lambda path: registry([path])),
    "specs-toml": in_file("y.toml", library),
    "specs-json": in_file("y.json", library),
    "codecs": reply,
    "run": in_file("run/run.json", run_file),
    "mcap": MCAP,
    "mcap-chunk": mcap_chunk,
    "lerobot": log_file(f"set/{FRAMES_FILE}", "pose"),
    "lerobot-info": log_file("set/meta/info.json", "pose"),
    "run-folder": run_folder,
}


def seeds(target: str) -> list[bytes]:
    """Small valid inputs."""
    match target:
        case "stl":
            return [spec.stl.encode() for spec in library()]
        case "registry-toml":
            return [path.read_bytes()[:1500] for path in (PACKAGE / "tasks/registry").glob("*.toml")]
        case "specs-toml":
            return [path.read_bytes()[:2500] for path in (PACKAGE / "specs/library").glob("*.toml")]
        case "registry-json" | "specs-json":
            rows = Path(__file__).parents[1] / "cases"
            return [path.read_bytes() for path in rows.glob("**/*.json*")]
        case "codecs":
            import numpy as np

            actions = {"actions": np.ones((2, 7)), "action.x": np.ones((2, 1))}
            images = {
                "observation/image": np.zeros((4, 4, 3), np.uint8),
                "observation/state": np.ones(8),
                "prompt": "x",
            }
            return [codec.pack(message) for codec in CODECS for message in (actions, [actions, {}], images)]
        case "mcap":
            return [write_mcap(FOLDER / "seed.mcap", MESSAGES).read_bytes()]
        case "mcap-chunk":
            return [mcap_records()]
        case "lerobot":
            table = pq.read_table(FOLDER / "set" / FRAMES_FILE)
            pq.write_table(table, FOLDER / "seed.parquet", compression="none")
            return [(FOLDER / "seed.parquet").read_bytes()]
        case "lerobot-info":
            return [INFO]
        case "run-folder":
            return [bytes([number]) + WHOLE[name] for number, name in enumerate(RUN_FILES)]
        case "run":
            latency = {"e": {"calls": 3, "p50_ms": 1.0, "p95_ms": 2.0}}
            return [json.dumps({"complete": True, "volatile": {"policy_latency": latency}}).encode()]
    batch = episode(3)
    suffix = {"npz-member": "npz", "gz": "jsonl.gz", "zst": "jsonl.zst"}.get(target, target)
    path = FOLDER / f"seed.{suffix}"
    archive.write_archive(path, batch)
    if target == "parquet":
        pq.write_table(parquet_rows.to_table(batch), path, compression="none")
    if target != "npz-member":
        return [path.read_bytes()]
    with zipfile.ZipFile(path) as file:
        NPZ.update({name: file.read(name) for name in file.namelist()})
    return [bytes([k]) + NPZ[name] for k, name in enumerate(sorted(NPZ))]


WORDS = ("G[0,T](", "->", "threshold", "and", "not", "U[", "1e309", "null", "NaN", "true", '{"', "[[specs]]")


def fuzz(target: str, seconds: int, again: str | None) -> None:
    corpus = FOLDER / f"corpus-{target}"
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = FOLDER / "words"
    words.write_text("".join(f"{json.dumps(word)}\n" for word in WORDS))

    def read_content(content: bytes) -> None:
        with contextlib.suppress(SafevlaError):
            TARGETS[target](content)

    limits = ["-timeout=5", "-rss_limit_mb=2048", f"-max_total_time={seconds}", "-max_len=8192", f"-dict={words}"]
    findings = Path.cwd() / "found"
    findings.mkdir(exist_ok=True)
    options = [f"-artifact_prefix={findings}/{target}-", *limits, "-print_final_stats=1", str(corpus)]
    atheris.Setup([sys.argv[0], *([again] if again else options)], read_content)
    atheris.Fuzz()


def fuzz_every_target(seconds: int) -> int:
    """Each target in a process of its own; its last lines."""
    bad = 0
    for target in TARGETS:
        command = [sys.executable, __file__, "--target", target, "--seconds", str(seconds // len(TARGETS))]
        result = subprocess.run(command, capture_output=True, text=True)
        output = result.stdout + result.stderr
        runs = re.findall(r"stat::number_of_executed_units: (\d+)", output) or ["?"]
        peak = re.findall(r"stat::peak_rss_mb: +(\d+)", output) or ["?"]
        print(f"{target:15} executions {runs[-1]:>9}  peak {peak[-1]} MiB  exit {result.returncode}")
        if result.returncode:
            bad += 1
            print("\n".join(output.splitlines()[-40:]))
        sys.stdout.flush()
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--again", metavar="FILE")
    chosen = parser.parse_args()
    if chosen.target:
        fuzz(chosen.target, chosen.seconds, chosen.again)
    else:
        sys.exit(fuzz_every_target(chosen.seconds))
