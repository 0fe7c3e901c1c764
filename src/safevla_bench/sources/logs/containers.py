"""Storage formats of recordings: MCAP files, the SQLite and MCAP parts of rosbag2, and bags of ROS 1.

Each reader yields the messages of wanted topics in file order, with one chunk in memory at a time. Files and messages
that are compressed with zstd are decompressed, even if metadata.yaml does not mention compression.

Sources: ros2/rosbag2, commit 25304dd: rosbag2_storage_sqlite3/src/rosbag2_storage_sqlite3/sqlite_storage.cpp (tables),
rosbag2_compression/src/rosbag2_compression/sequential_compression_reader.cpp; bags: wiki.ros.org/Bags/Format/2.0.
"""

from __future__ import annotations

import bz2
import io
import sqlite3
import struct
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from safevla_bench.archive.record_schema import REMEDY_LARGE, Budget
from safevla_bench.errors import RecordError
from safevla_bench.files import open_input
from safevla_bench.plugins import install_command

MAX_MESSAGE_BYTES = 1 << 20  # maximum size of a decompressed message, or of a type definition
# Maximum sizes [bytes]: of one decompressed record or chunk; of all decompressed chunks of a file.
_MAX_CHUNK_BYTES, _MAX_FILE_BYTES = 1 << 26, 1 << 36
_ZSTD = b"\x28\xb5\x2f\xfd"
_COMPRESSED = (".zstd", ".zst")


class Topic(NamedTuple):
    """A topic, the type (`kind`) and encoding of its messages, and the text and language of the type's definition."""

    topic: str
    kind: str
    encoding: str
    definition: bytes = b""
    language: str = ""
    latched: bool = False  # True if subscribers that connect late get the last message, as with /tf_static


Message = tuple[Topic, int, bytes]  # topic, log time [ns], encoded message
Messages = Iterator[Message]


class Topics:
    """The topics found so far in a file, and the names of the topics to read."""

    def __init__(self, wanted: Collection[str]) -> None:
        # `wanted` are the names of the topics to read.
        # `channels` maps the name of each topic in the file to the description of the topic.
        self.wanted, self.channels = frozenset(wanted), dict[str, Topic]()
        self.first_ns: int | None = None  # log time of the first message of any topic; None if there is no message
        self.last_ns = 0

    def note_time(self, log_ns: int) -> None:
        """Update the first and last log time with the log time of any message, even of an unwanted one."""
        # A file may hold one topic after another, so the first message in time may come last.
        self.first_ns = log_ns if self.first_ns is None else min(self.first_ns, log_ns)
        self.last_ns = max(self.last_ns, log_ns)

    def add(self, channel: Topic) -> Topic | None:
        """Register a channel. Return the channel if its messages are wanted, and None otherwise."""
        check_size(len(channel.definition), channel.kind)
        self.channels[channel.topic] = channel
        return channel if channel.topic in self.wanted else None

    def take(self, channel: Topic, log_ns: int, content: bytes) -> Message:
        """Return a message after decompression. Raises `RecordError` if it is too large."""
        # A message is (description of its topic, log time [ns], content).
        # A single message may be compressed, even if neither the file nor the chunk is.
        if content[:4] == _ZSTD:
            content = zstandard.ZstdDecompressor().decompress(content, max_output_size=MAX_MESSAGE_BYTES)
        check_size(len(content), channel.topic)
        return channel, log_ns, content

    def require_messages(self) -> int:
        """Return the log time of the first message [ns]. Raises `RecordError` if there is no message."""
        if self.first_ns is None:
            raise RecordError("the recording holds no messages", remedy="Record it again.")
        return self.first_ns

    def list_kinds(self) -> dict[str, str]:
        # Returns topic -> type and encoding of its messages, as text.
        return {topic: f"{channel.kind}, {channel.encoding}" for topic, channel in self.channels.items()}


def check_size(size: int, name: str) -> None:
    """Raise `RecordError` if the message or type definition `name` is too large."""
    if size > MAX_MESSAGE_BYTES:
        problem = f"{name!r} has more than {MAX_MESSAGE_BYTES >> 10} KiB"
        raise RecordError(problem, remedy="In the mapping, choose a topic of poses or numbers.")


def storage_suffix(path: Path) -> str | None:
    """Return the suffix (`.mcap`, `.db3` or `.bag`) of a recording, compressed or not; None for other files."""
    # Returns `.db3` for `bag.db3.zstd`; `.active` is the suffix of a bag of ROS 1 that is still being recorded.
    suffix = Path(path.stem).suffix if path.suffix in (*_COMPRESSED, ".active") else path.suffix
    return suffix if suffix in _READERS else None


def read_messages(path: Path, topics: Topics) -> Messages:
    """Yield the wanted messages of a file of a recording, in file order. Raises `RecordError` if the file is of another
    kind, too large, or compressed in an unsupported way. Raises one of `damage_errors()` if the file is damaged.
    """
    # `topics` has the names of the wanted topics. It collects all topics of the file and the times of messages.
    # A message is (description of its topic, log time [ns], content).
    with ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(open_input(path))
        head = stream.read(len(_ZSTD))
        stream.seek(0)
        for start, problem, remedy in _NO_RECORDINGS:
            if head.startswith(start):
                raise RecordError(problem, remedy=remedy)
        if head == _ZSTD:
            stream = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            if storage_suffix(path) == ".db3":  # SQLite cannot read a stream
                path = Path(stack.enter_context(tempfile.TemporaryDirectory()), path.stem)
                budget = Budget(_MAX_FILE_BYTES, "bytes, decompressed")
                with path.open("wb") as decompressed:
                    while block := stream.read(1 << 20):
                        budget.spend(len(block))
                        decompressed.write(block)
        yield from _READERS[str(storage_suffix(path))](path, stream, topics)


# First bytes of a file that is not a recording, but often has the name of one -> (problem, remedy).
_NO_RECORDINGS = (
    (b"\x1f\x8b", "the file is compressed with gzip", "Decompress it: gunzip."),
    (b"<", "the file is a web page or XML, not a recording", "Download the file itself; a login may be necessary."),
)


def damage_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that readers raise for a damaged file. Raises `RecordError` if a reader is missing."""
    # The types are imported here, since the readers of logs are an optional dependency.
    try:
        from mcap.exceptions import McapError
        from rosbags.serde import SerdeError
        from rosbags.typesys import TypesysError
    except ImportError:
        raise RecordError("the libraries for logs are missing", remedy=install_command("mcap")) from None
    other_errors = (zstandard.ZstdError, sqlite3.Error, struct.error, EOFError, AttributeError, ArithmeticError)
    return McapError, TypesysError, SerdeError, *other_errors


def _decompress(compression: str, content: bytes, size: int) -> bytes:
    """Return the decompressed content of a chunk. Raises an error if it does not have `size` bytes or is too large."""
    # `size` is the decompressed size that the chunk's header states; `compression` is the name of the method.
    max_bytes = min(size, _MAX_CHUNK_BYTES) + 1  # read one byte more than the limit, to detect larger content
    if compression == "zstd":
        # The zstd frame may state a larger size than the chunk's header.
        stated_size = zstandard.get_frame_parameters(content).content_size
        size = size if stated_size == zstandard.CONTENTSIZE_UNKNOWN else max(size, stated_size)
        if size <= _MAX_CHUNK_BYTES:
            content = zstandard.ZstdDecompressor().decompress(content, max_output_size=max_bytes)
    elif compression == "lz4":
        import lz4.frame

        content = lz4.frame.LZ4FrameDecompressor().decompress(content, max_length=max_bytes)
    elif compression == "bz2":
        content = bz2.BZ2Decompressor().decompress(content, max_bytes)
    elif compression not in ("", "none"):
        raise RecordError(f"chunks are compressed with {compression!r}", remedy="Supported are zstd, lz4 and bz2.")
    if max(size, len(content)) > _MAX_CHUNK_BYTES:
        problem = f"a chunk decompresses to more than {_MAX_CHUNK_BYTES >> 20} MiB"
        raise RecordError(problem, remedy=REMEDY_LARGE)
    if len(content) != size:
        raise ValueError(f"a chunk has {len(content)} bytes, but its declared size is {size}")
    return content


# MCAP


_MCAP_RECORD, _MCAP_MESSAGE = struct.Struct("<BQ"), struct.Struct("<HIQQ")


def _read_mcap(path: Path, stream: IO[bytes], topics: Topics) -> Messages:
    """Yield the messages of an MCAP file. Checksums are verified, so that no damaged bit becomes a measurement."""
    # Chunks are decompressed here, not by the library, so that their size is limited.
    from mcap import records
    from mcap.opcode import Opcode
    from mcap.stream_reader import ReadDataStream, StreamReader

    budget = Budget(_MAX_FILE_BYTES, "bytes in all chunks together")
    # Id in the file -> type definition; and id in the file -> topic (None = not wanted).
    schemas: dict[int, Any] = {}
    channels: dict[int, Topic | None] = {}

    def register(record: Any) -> None:
        # Remembers a type definition, or adds a topic to `topics`; ignores other records.
        if isinstance(record, records.Schema):
            check_size(len(record.data), record.name)
            schemas[record.id] = record
        elif isinstance(record, records.Channel):
            schema = schemas.get(record.schema_id)
            kind, definition, language = (schema.name, schema.data, schema.encoding) if schema else ("no type", b"", "")
            latched = _is_latched(record.metadata.get("offered_qos_profiles", ""))
            channel = Topic(record.topic, kind, record.message_encoding, definition, language, latched)
            channels[record.id] = topics.add(channel)

    class ChunkReader(StreamReader):  # type: ignore[misc]  # mcap's class is untyped
        def _read_record(self, opcode: int, length: int) -> Any:  # if a record is not read, the caller skips its bytes
            # Message indexes are skipped, because they are slow to parse.
            return None if opcode == Opcode.MESSAGE_INDEX else super()._read_record(opcode, length)

    reader = ChunkReader(stream, emit_chunks=True, validate_crcs=True, record_size_limit=_MAX_CHUNK_BYTES)
    for record in reader.records:
        if isinstance(record, records.Message):
            topics.note_time(record.log_time)
            if (channel := channels[record.channel_id]) is not None:
                yield topics.take(channel, record.log_time, record.data)
        elif isinstance(record, records.Chunk):
            budget.spend(record.uncompressed_size)
            chunk = _decompress(record.compression, record.data, record.uncompressed_size)
            if record.uncompressed_crc and zlib.crc32(chunk) != record.uncompressed_crc:
                raise ValueError("the checksum of a chunk is wrong")
            position = 0
            # A chunk is a sequence of records: opcode (1 byte), length (8 bytes), content.
            while position < len(chunk):
                opcode, length = _MCAP_RECORD.unpack_from(chunk, position)
                start, position = position + _MCAP_RECORD.size, position + _MCAP_RECORD.size + length
                if position > len(chunk):
                    raise EOFError("a chunk ends inside a record")
                if opcode == Opcode.MESSAGE:
                    channel_id, _, log_ns, _ = _MCAP_MESSAGE.unpack_from(chunk, start)
                    topics.note_time(log_ns)
                    if (channel := channels[channel_id]) is not None:
                        yield topics.take(channel, log_ns, chunk[start + _MCAP_MESSAGE.size : position])
                elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                    record_class = records.Schema if opcode == Opcode.SCHEMA else records.Channel
                    register(record_class.read(ReadDataStream(io.BytesIO(chunk[start:position]))))
        else:
            register(record)


def _is_latched(profiles: object) -> bool:
    # Returns whether a topic's QoS `profiles` (YAML) let subscribers that connect late get the last message.
    # Bags before version 9 write durability as a number; 1 is `transient_local`.
    return any(durability in str(profiles) for durability in ("transient_local", "durability: 1"))


# SQLite


def _read_sqlite(path: Path, stream: IO[bytes], topics: Topics) -> Messages:
    """Yield the messages of an SQLite file in the order of recording, which is the order of ids, not of times."""
    # A killed recorder leaves its last messages in a WAL file, which SQLite ignores in an immutable database.
    has_wal = Path(f"{path}-wal").exists()
    uri = f"{path.resolve().as_uri()}?mode=ro" + ("" if has_wal else "&immutable=1")
    with closing(sqlite3.connect(uri, uri=True)) as database:
        # The file may be hostile, so the database schema must not call unsafe functions.
        database.execute("PRAGMA trusted_schema = OFF")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables >= {"topics", "messages"}:
            remedy = "Name a bag of ROS 2. If this is a results file of another tool, leave out --out."
            raise RecordError("this database is not a bag of ROS 2: it has no topics and messages", remedy=remedy)
        # Refuse computed columns, since a computed column could generate any amount of data.
        if database.execute("SELECT 1 FROM sqlite_master AS t, pragma_table_xinfo(t.name) WHERE hidden").fetchone():
            raise RecordError("the database has computed columns", remedy="Copy topics and messages into plain tables.")
        definitions: dict[str, tuple[str, str]] = {}  # type -> language and text of its definition
        if "message_definitions" in tables:
            rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
            definitions = {kind: (language, definition) for kind, language, definition in rows}
        present_columns = {row[1] for row in database.execute("PRAGMA table_info(topics)")}
        # Columns that older versions of the format lack: name -> SQL expression of the default value.
        optional_columns = {"serialization_format": "'cdr'", "offered_qos_profiles": "''"}
        columns = [name if name in present_columns else default for name, default in optional_columns.items()]
        query = f"SELECT id, name, type, {', '.join(columns)} FROM topics"
        channels = {}
        for topic_id, topic, kind, encoding, profiles in database.execute(query):
            language, definition = definitions.get(kind, ("", ""))
            channel = Topic(topic, kind, encoding, definition.encode(), language, _is_latched(profiles))
            channels[topic_id] = topics.add(channel)
        # The lowest and highest times are None if there are no messages.
        for bound_ns in database.execute("SELECT min(timestamp), max(timestamp) FROM messages").fetchone():
            if bound_ns is not None:
                topics.note_time(bound_ns)
        wanted = {topic_id: channel for topic_id, channel in channels.items() if channel is not None}
        placeholders = ",".join("?" * len(wanted))
        # If a message is too large, the query replaces its bytes by zeros.
        # The number of bytes exceeds the limit by one, so that `take` refuses the message.
        data = f"CASE WHEN length(data) <= {MAX_MESSAGE_BYTES} THEN data ELSE zeroblob({MAX_MESSAGE_BYTES + 1}) END"
        query = f"SELECT topic_id, timestamp, {data} FROM messages WHERE topic_id IN ({placeholders}) ORDER BY id"
        for topic_id, log_ns, content in database.execute(query, [*wanted]):
            yield topics.take(wanted[topic_id], log_ns, content)


# Bags of ROS 1


_CHUNK, _CONNECTION, _MESSAGE = b"\x05", b"\x07", b"\x02"


def _read_bag(path: Path, stream: IO[bytes], topics: Topics) -> Messages:
    """Yield the messages of a bag in the order of the file, not by time, so that no index is needed."""
    if stream.readline(64) != b"#ROSBAG V2.0\n":
        remedy = "`rosbag fix` and `rosbag reindex` repair bags, and bring older versions to 2.0."
        raise RecordError("this is not a bag of ROS 1, version 2.0", remedy=remedy)
    budget, channels = Budget(_MAX_FILE_BYTES, "bytes in all chunks together"), dict[bytes, Topic | None]()

    def read_record(fields: dict[bytes, bytes], content: bytes) -> Messages:
        # For a message record, yields the message if it is wanted. For a connection record, adds the topic to `topics`.
        if fields[b"op"] == _MESSAGE:
            seconds, nanoseconds = struct.unpack("<II", fields[b"time"])
            log_ns = seconds * 10**9 + nanoseconds
            topics.note_time(log_ns)
            if (channel := channels[fields[b"conn"]]) is not None:
                yield topics.take(channel, log_ns, content)
        elif fields[b"op"] == _CONNECTION and fields[b"conn"] not in channels:
            connection = _parse_bag_fields(content)
            name, message_type = fields[b"topic"].decode(), connection[b"type"].decode().replace("/", "/msg/")
            definition, latched = connection[b"message_definition"], connection.get(b"latching") == b"1"
            # `fields[b"conn"]` is the connection's id. The language `ros1msg` means definitions of ROS 1.
            channels[fields[b"conn"]] = topics.add(Topic(name, message_type, "ros1", definition, "ros1msg", latched))

    for fields, content in _read_bag_records(stream):
        if fields[b"op"] == _CHUNK:
            # A chunk is a compressed sequence of records.
            (size,) = struct.unpack("<I", fields[b"size"])
            budget.spend(size)
            chunk = _decompress(fields[b"compression"].decode(), content, size)
            for record in _read_bag_records(io.BytesIO(chunk)):
                yield from read_record(*record)
        else:
            yield from read_record(fields, content)


def _read_bag_records(stream: IO[bytes]) -> Iterator[tuple[dict[bytes, bytes], bytes]]:
    # Yields (header fields, data) of each record.
    # In the file, the length of the header (4 bytes) precedes the header; the length of the data precedes the data.
    while first_length := stream.read(4):
        parts = []
        for part_index in range(2):
            (length,) = struct.unpack("<I", first_length if part_index == 0 else stream.read(4))
            if length > _MAX_CHUNK_BYTES:
                raise RecordError(f"a record has more than {_MAX_CHUNK_BYTES >> 20} MiB", remedy=REMEDY_LARGE)
            parts.append(stream.read(length))
            if len(parts[-1]) < length:
                raise EOFError("the file ends inside a record")
        yield _parse_bag_fields(parts[0]), parts[1]


def _parse_bag_fields(content: bytes) -> dict[bytes, bytes]:
    # Returns name -> value of the fields of a record's header.
    # Each field consists of its length in 4 bytes, followed by `name=value`.
    fields, position = dict[bytes, bytes](), 0
    while position < len(content):
        (length,) = struct.unpack_from("<I", content, position)
        name, _, value = content[position + 4 : position + 4 + length].partition(b"=")
        fields[name], position = value, position + 4 + length
    return fields


_READERS: Mapping[str, Callable[[Path, IO[bytes], Topics], Messages]] = {
    ".mcap": _read_mcap,
    ".db3": _read_sqlite,
    ".bag": _read_bag,
}
