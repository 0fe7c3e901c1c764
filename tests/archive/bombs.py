"""Small files that stand for a great deal, in every form that is read: name -> function that makes one in a folder."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import sqlite3
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from builders import episode
from safevla_bench import archive
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import SafevlaError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources import foreign
from safevla_bench.sources.runs.episode_index import scan
from safevla_bench.sources.runs.folder import EPISODES, RUN, EpisodeRow
from sources.logs.log_files import pose_message, save_mapping, straight_line, write_dataset, write_mcap

MIB = 1 << 20
EPISODE = json.loads(encode_json(episode(1)))
MAPPED = '[episode]\nsuccess = true\n[eef]\nfrom = "{}"\nposition = [0, 1, 2]\n'


def _line(filling: bytes, **changes: object) -> bytes:
    """An episode of one record as JSON, with something in a field of its own."""
    text = json.dumps({**EPISODE, **changes, "mine": "HERE"}).encode()
    return text.replace(b'"HERE"', filling) + b"\n"


def _compress(path: Path, lines: Iterator[bytes]) -> Path:
    with path.open("wb") as stream:
        stream.writelines(
            gzip.compress(line, 1) if path.suffix == ".gz" else zstandard.compress(line) for line in lines
        )
    return path


def _one_line(name: str, filling: bytes) -> Callable[[Path], Path]:
    return lambda folder: _compress(folder / name, iter([_line(filling)]))


def _large_episodes(folder: Path) -> Path:
    """Episodes of one record, each with 120 MiB of its own."""
    text = b'"' + b"0" * 120 * MIB + b'"'
    return _compress(folder / "x.jsonl.zst", (_line(text, episode_id=str(k)) for k in range(36)))


def _large_names(folder: Path) -> Path:
    """Headers of 30 MiB each."""
    return _compress(
        folder / "x.jsonl.zst", (_line(b"0", episode_id=str(k), instruction="i" * 30 * MIB) for k in range(60))
    )


def _zeros_npz(folder: Path) -> Path:
    path = folder / "x.npz"
    archive.write_archive(path, episode(3))
    with zipfile.ZipFile(path) as good:
        members = {name: good.read(name) for name in good.namelist()}
    sink = io.BytesIO()
    np.save(sink, np.zeros((3, 20 * MIB)))
    members["sim_state.npy"] = sink.getvalue()
    header = np.load(io.BytesIO(members["header.npy"])).tobytes()
    tree = json.loads(header)
    tree["arrays"] = sorted({*tree["arrays"], "sim_state"})
    sink = io.BytesIO()
    np.save(sink, np.frombuffer(json.dumps(tree).encode(), np.uint8))
    members["header.npy"] = sink.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bad:
        for name, content in members.items():
            bad.writestr(name, content)
    return path


def _long_directory(folder: Path) -> Path:
    """A list of a million members, each without a byte."""
    entry = b"PK\1\2" + bytes(24) + struct.pack("<H", 0) + bytes(16)
    count = 4_000_000
    end = b"PK\5\6" + struct.pack("<4H2LH", 0, 0, 0, 0, len(entry) * count, 0, 0)
    path = folder / "x.npz"
    with path.open("wb") as stream:
        for _ in range(40):
            stream.write(entry * (count // 40))
        stream.write(end)
    return path


def _repeat(table: pa.Table, groups: int) -> Callable[[Path], None]:
    """What writes a table as many row groups, each of which takes few bytes."""

    def write(path: Path) -> None:
        with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False) as writer:
            for _ in range(groups):
                writer.write_table(table, row_group_size=table.num_rows)

    return write


def _frames(width: int, rows: int, **columns: object) -> pa.Table:
    values = pa.ListArray.from_arrays(
        np.arange(0, width * rows + 1, width, np.int32), np.zeros(width * rows, np.float32)
    )
    keys = {name: pa.array(np.zeros(rows, np.int64)) for name in ("episode_index", "task_index")}
    keys["frame_index"] = pa.array(np.arange(rows))
    return pa.table({"pose": values, "action": values, **keys, "timestamp": np.zeros(rows, np.float32), **columns})


def _dataset(folder: Path, write: Callable[[Path], None], size: int = 7) -> Path:
    features = {"pose": {"dtype": "float32", "shape": [size], "names": None}}
    write_dataset(folder / "set", [{"pose": straight_line(3)}], features=features)
    save_mapping(folder / "set", MAPPED.format("pose"))
    write(folder / "set" / "data" / "chunk-000" / "file-000.parquet")
    return folder / "set"


def _row_groups(folder: Path) -> Path:
    """One episode in thirty row groups, each below the limit of one."""
    return _dataset(folder, _repeat(_frames(64, 200_000), 30))


def _wide_frame(folder: Path) -> Path:
    """A frame of 60,000 numbers among a million without any."""
    rows, width = 1_000_000, 60_000
    places = pa.array([0, *[width] * rows], pa.int32())
    pose = pa.ListArray.from_arrays(places, np.zeros(width, np.float32), mask=pa.array(np.arange(rows) > 0))
    table = _frames(7, rows)
    table = table.set_column(table.schema.get_field_index("pose"), "pose", pose)
    return _dataset(folder, _repeat(table, 1), width)


def _mcap(folder: Path, rows: list[tuple[str, float, object]]) -> Path:
    write_mcap(folder / "take.mcap", rows)
    save_mapping(folder, MAPPED.format("/eef"))
    return folder / "take.mcap"


def _large_messages(folder: Path) -> Path:
    """Nine messages of 60 MB, compressed, whose numbers are mapped."""
    path = _channel(folder, "/joints", 9, b'{"effort": [' + b"0.5," * 15_000_000 + b"0.5]}")
    save_mapping(folder, '[episode]\nsuccess = true\n[torque]\nfrom = "/joints"\n')
    return path


def _held_numbers(folder: Path) -> Path:
    """A message of 200,000 numbers, held at each of 20,000 instants."""
    rows = [("/eef", 0.01 * k, pose_message(0.0)) for k in range(20_000)]
    _mcap(folder, [("/joints", 0.0, {"effort": [0.0] * 200_000}), *rows])
    save_mapping(folder, '[episode]\nsuccess = true\n[eef]\nfrom = "/eef"\n[torque]\nfrom = "/joints"\n')
    return folder / "take.mcap"


def _small_messages(folder: Path) -> Path:
    """Hundreds of thousands of messages that nobody wants, in one chunk."""
    return _channel(folder, "/other", 400_000, b"")


def _channel(folder: Path, topic: str, count: int, content: bytes) -> Path:
    """Messages of one topic, all the same, in one chunk."""
    from mcap.writer import Writer

    with (folder / "take.mcap").open("wb") as stream:
        writer = Writer(stream, chunk_size=100 * MIB)
        writer.start()
        channel = writer.register_channel(topic, "json", 0)
        for k in range(count):
            writer.add_message(channel, k, content, k)
        writer.finish()
    save_mapping(folder, MAPPED.format("/eef"))
    return folder / "take.mcap"


def _arrays_of_nothing(folder: Path) -> Path:
    """A ROS message of four billion parts that take no byte."""
    from mcap.writer import Writer

    with (folder / "take.mcap").open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        inner = "=" * 80 + "\nMSG: a/Nothing\nuint8[0] none"
        schema = writer.register_schema("a/msg/Many", "ros2msg", f"a/Nothing[] data\n{inner}".encode())
        writer.add_message(writer.register_channel("/eef", "cdr", schema), 0, b"\0\1\0\0" + b"\xff" * 4, 0)
        writer.finish()
    save_mapping(folder, MAPPED.format("/eef"))
    return folder / "take.mcap"


def _demonstrations(count: int, width: int, dtype: str) -> Callable[[Path], Path]:
    """Demonstrations of two million rows each, of which none is in the file."""

    def make(folder: Path) -> Path:
        with h5py.File(folder / "x.hdf5", "w") as file:
            for k in range(count):
                file.create_dataset(f"data/demo_{k}/actions", (2 * MIB, width), dtype, chunks=(1024, width))
        return folder / "x.hdf5"

    return make


def _endless_view(folder: Path) -> Path:
    with sqlite3.connect(folder / "recording-1.sqlite") as file:
        file.execute("CREATE TABLE eval_metadata (eval_id, safe_name, metadata)")
        file.execute(
            "CREATE VIEW episode_results AS WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) "
            "SELECT k AS sid, k AS eid, k AS eval_id, zeroblob(1000000) AS task_name, k AS episode_id, "
            "'success' AS status, 1 AS steps, '{}' AS context, k AS rowid FROM n"
        )
    file.close()
    return folder / "recording-1.sqlite"


def _run(folder: Path) -> Path:
    """A complete run of one episode."""
    (folder / "archive").mkdir()
    archive.write_archive(folder / "archive" / "part-00000.parquet", episode(3))
    (folder / RUN).write_text('{"complete": true, "planned": 1}')
    return folder


def _sparse(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, 5 << 30)


def _device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _instead(name: str, replace: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A file that is none, or a file without end, in the place of an input or of a file of a run."""

    def make(folder: Path) -> Path:
        if name in _OF_A_RUN:
            replace(_run(folder) / name)
            return folder
        if name.startswith("set/"):
            path = _dataset(folder, lambda _: None)
            replace(folder / name)
            return path
        replace(folder / name)
        return folder / name

    return make


_OF_A_RUN = ("run.json", "manifest.json", "episodes.parquet", "archive/part-00000.parquet", "archive/part-00001.npz")
_INPUTS = (
    *(f"x{suffix}" for suffix in (".json", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".npz", ".parquet", ".mcap", ".hdf5")),
    "recording-1.sqlite",
    "set/meta/info.json",
    "set/data/chunk-000/file-000.parquet",
    *_OF_A_RUN,
)


def _many_rows(folder: Path) -> Path:
    """A table of two million planned episodes."""
    rows = 2_000_000
    fields = tuple(EpisodeRow.__dataclass_fields__)
    columns = {name: np.zeros(rows, np.int64) for name in fields}
    texts = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["e"]).cast(pa.string())
    columns |= dict.fromkeys(("episode_id", "policy", "benchmark", "task_id", "outcome", "reason"), texts)
    pq.write_table(pa.table(columns), _run(folder) / EPISODES)
    return folder


def _footer(folder: Path) -> Path:
    """A description of millions of columns."""
    column = b"\x26\x00\x1c\x56\x00\x00\x00"
    group = b"\x19\xfc\x80\x80\x02" + column * (1 << 15) + b"\x16\x00\x16\x00\x00"
    count = 15 * MIB // len(group)
    foot = b"\x15\x02\x19\x1c\x48\x01a\x00\x16\x00\x19\xfc" + bytes([count | 128, count >> 7]) + group * count + b"\0"
    (folder / "x.parquet").write_bytes(b"PAR1" + foot + struct.pack("<I", len(foot)) + b"PAR1")
    return folder / "x.parquet"


def _large_groups(folder: Path) -> Path:
    """Row groups of one episode whose state takes as much as an episode may."""
    batch = episode(3, sim_state=np.zeros((3, 9 * MIB)))
    path = folder / "x.parquet"
    archive.write_archive(path, batch)
    return path


ENDLESS: Mapping[str, Callable[[Path], Path]] = {
    f"{kind} as {name}": _instead(name, replace)
    for name in _INPUTS
    for kind, replace in (("/dev/zero", _device), ("a pipe", _pipe))
}
"""A device and a pipe in the place of each file that is read."""
SPARSE: Mapping[str, Callable[[Path], Path]] = {name: _instead(name, _sparse) for name in _INPUTS}
"""Files of five GiB of zeros that take no place on the disk."""
SLOW: Mapping[str, Callable[[Path], Path]] = {
    "a text in .zst": _one_line("x.jsonl.zst", b'"' + b"0" * 500 * MIB + b'"'),
    "numbers in .gz": _one_line("x.jsonl.gz", b"[" + b"0.5," * 33_000_000 + b"0]"),
    "objects in .zst": _one_line("x.jsonl.zst", b"[" + b"{}," * 4_100_000 + b"0]"),
    "large episodes": _large_episodes,
    "large names": _large_names,
    "zeros in .npz": _zeros_npz,
    "large row groups": _large_groups,
    "a large footer": _footer,
    "thirty row groups": _row_groups,
    "small messages": _small_messages,
    "the most numbers of demonstrations": _demonstrations(1, 127, "f4"),
}
"""Files that take seconds, since they are read, or are large once they are unpacked."""
QUICK: Mapping[str, Callable[[Path], Path]] = {
    "too many objects in .zst": _one_line("x.jsonl.zst", b"[" + b"{}," * 40_000_000 + b"0]"),
    "a long list of arrays": _long_directory,
    "one wide frame": _wide_frame,
    "large messages": _large_messages,
    "numbers that are held": _held_numbers,
    "arrays of nothing": _arrays_of_nothing,
    "numbers that are absent": _demonstrations(40, 128, "f8"),
    "an endless view": _endless_view,
    "planned episodes": _many_rows,
}


# What reading them comes to, in a process with little memory


def outcome(path: Path) -> str:
    """What reading and judging comes to; read as a recording too where it may be one."""
    messages = []
    if path.is_dir() or path.suffix in (".hdf5", ".sqlite"):
        try:
            messages.append(f"{len(foreign.read_recorded_actions(path) or ())} recordings")
        except SafevlaError as error:
            messages.append(str(error))
    if path.suffix not in (".hdf5", ".sqlite"):
        try:
            index = scan([path])
            messages += [f"{len(index)} episodes", *map(str, index.problems)]
            if len(index):
                judge([path], load_ruleset(), skip_invalid=True)
        except SafevlaError as error:
            messages.append(str(error))
    return " | ".join(messages)


def peak_kib() -> int:
    """Return the most resident memory that this program has had."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # for the machine's sake, if the limit fails
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start = peak_kib()
    said = {name: outcome(Path(path)) for name, path in json.load(sys.stdin).items()}
    print(json.dumps({"outcomes": said, "grown_kib": peak_kib() - start}))
