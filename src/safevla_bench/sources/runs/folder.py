"""The names of the files in a run folder, the folder's tables and JSON documents, and the index of its pictures."""

from __future__ import annotations

import hashlib
import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.archive.parquet_guard import read_table
from safevla_bench.errors import Place, RecordError, RunError, describe_cause
from safevla_bench.files import decode_json, own_path, read_input, sha256_of, write_atomically
from safevla_bench.memory import limit_memory
from safevla_bench.text import escape_json, escape_surrogates, get_logger, load_json, map_texts
from safevla_bench.trajectory.header import SCHEMA_VERSION
from safevla_recorder.episode import EpisodeRow as EpisodeRow
from safevla_recorder.folder import OWN_LOOP
from safevla_recorder.identity import UNKNOWN, is_other_code

_log = get_logger(__name__)

RUN, MANIFEST, EPISODES, ARCHIVE = "run.json", "manifest.json", "episodes.parquet", "archive"
# Format version of scores.json and scores.parquet.
# A file of version 1 does not state its version. Its reasons are texts, not codes.
SCORES_VERSION = 2
ORIGIN = ("scores_version", "judged_by", "sources", "recorded_with")
"""Keys of scores.json that describe how the scores were made. In scores.parquet, the schema's metadata has the keys."""
DECISION = "decision"  # key of run.json: result of the stopping rule, and number of episodes
BY_CHANCE = (
    "If answers vary, paired episodes also differ by chance. To see how much, compare two runs: "
    "safevla compare first=RUN again=RUN"
)
MAX_SCORES_BYTES = 1 << 28
SCORES, SCORES_TABLE, REPORT = "scores.json", "scores.parquet", "report.html"
VERDICTS = "verdicts.msgpack.gz"
"""The file with all data for summaries; `safevla score --combine` reads it."""
MAX_VERDICTS_BYTES = 1 << 30
EXPERIMENTS = "experiments"  # subfolder of a run folder for scores by rules other than the run's rules
_EXPORT_NAMES = (
    "safevla.csv submission.json episode.rrd episode.mcap model_card.md robocasa.json lerobot pairs pairs-found "
    "eval_info.json vla_eval.json eval_results.yaml tensorboard board figures sensitivity-physics.json"
)
EXPORTS = frozenset([*_EXPORT_NAMES.split(), EXPERIMENTS])
"""Files and folders, except scores and pictures, that commands write into a run folder if they read only this folder.
"""
MISSING = "missing"
_RESTORE = "Restore the file, or score the files in archive/ or raw/ directly."


class NamedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """The names that identify an episode in a table; `policy` is None if unknown."""

    episode_id: str
    benchmark: str
    task_id: str
    policy: str | None


class AbsentEpisode(NamedEpisode, frozen=True, kw_only=True):
    """A planned episode without a record. `outcome` (such as `crashed`) and `reason` say why it has no record."""

    outcome: str
    reason: str | None = None
    init_state_index: int | None = None
    seed: int | None = None
    horizon: int | None = None
    success: ClassVar[None] = None
    safe: ClassVar[None] = None
    vsi: ClassVar[None] = None
    standin_assets: ClassVar[None] = None

    @classmethod
    def from_row(cls, row: object, **values: str | None) -> AbsentEpisode:
        """Return the episode with the fields of `row` (a header, or a row of a table). `values` override fields."""
        # A field that `row` lacks is None; a value in `values` takes precedence over the row's value.
        return cls(**{name: getattr(row, name, None) for name in cls.__struct_fields__} | values)  # type: ignore[arg-type]


class Latency(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Wall-clock times [ms] of a policy's calls in one episode. The times vary between runs, so they are stored apart
    from results. If a policy returns several actions at a time, only the calls that infer actions count.
    """

    calls: int
    p50_ms: float
    p95_ms: float
    waiting_p50_ms: float | None = None  # median time outside the model, if the server reports model time


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """Number of requests that were sent to a server again (`asked`); number of answers that then differed (`other`)."""

    asked: int
    other: int

    def describe(self) -> str:
        """Return both numbers as a clause of a sentence."""
        return f"{self.other} of {self.asked} repeated requests had another answer"


class PolicyGreeting(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of a policy or server about itself, such as a checkpoint, and the episodes with the statement."""

    policy: str
    suite: str
    says: Mapping[str, object]
    episodes: list[str]


class DayFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that vary between repetitions of a run (`volatile` in run.json). Results do not depend on them."""

    policy_latency: Mapping[str, Latency] = {}  # episode -> the policy's latency in this episode, if measured
    ran_on: Mapping[str, str] = {}  # episode -> the node and process that ran it
    policies_say: Sequence[PolicyGreeting] = ()  # statements of policies about themselves, in episode order
    # Policy -> counts of repeated requests to the policy's server, after the last episode of the run.
    repeated_answers: Mapping[str, Repeats] = {}

    @property
    def statements(self) -> dict[str, Mapping[str, object]]:
        # Returns episode id -> the policy's statement about itself, such as a checkpoint.
        # Episodes without a statement are left out.
        return {episode_id: greeting.says for greeting in self.policies_say for episode_id in greeting.episodes}

    def add_to(self, description: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of `description` (the content of run.json) with the known facts added to its key `volatile`."""
        # Empty facts are unknown, so they are not added.
        facts = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        return {**description, "volatile": {**read_volatile(description), **facts}} if facts else dict(description)


_EPISODES_SCHEMA = pa.schema(
    [
        (name, pa.string() if kind in (str, str | None) else pa.int64())
        for name, kind in get_type_hints(EpisodeRow).items()
    ]
)


@contextmanager
def readable(path: Path, remedy: str) -> Iterator[None]:
    """Replace the errors that readers raise for a damaged file of a run by a `RunError` with the file's name."""
    try:
        with limit_memory(path):
            yield
    # A `RecordError` already has a remedy. `remedy` is for errors of the file system, of decoders and of Arrow.
    except RecordError as error:
        raise RunError(f"cannot be read: {error.problem}", remedy=error.remedy, place=Place(file=str(path))) from None
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise RunError(f"cannot be read: {describe_cause(error)}", remedy=remedy, place=Place(file=str(path))) from None


def archive_parts(folder: Path) -> list[Path]:
    """Return the archive files of a complete run folder, sorted by name; [] if there are none."""
    return sorted((folder / ARCHIVE).glob("part-*"))


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Digests (sha256) of a complete run's files: `parts` for the archive (`archive/NAME`), `files` for all others."""

    schema_version: int = SCHEMA_VERSION
    parts: dict[str, str]
    episodes: int
    files: dict[str, str]


def read_manifest(folder: Path) -> Manifest:
    """Return the content of manifest.json. Raises `RunError` if it is missing or damaged, or lacks a key."""
    with readable(folder / MANIFEST, "Copy the folder again from its origin, or repeat the run."):
        return decode_json(read_input(folder / MANIFEST), Manifest)


def archive_digest(path: Path) -> str | None:
    """Return the sha256 of an archive file. For a run folder, return what `sha256sum archive/part-* | sha256sum`
    prints, computed from the digests in the manifest; for an unfinished run, what `sha256sum raw/[0-9]* | sha256sum`
    prints. Return None for a missing path, and for a folder with neither a readable manifest nor raw episodes.
    """
    if path.is_file():
        return sha256_of(path)
    try:
        if (path / MANIFEST).exists() or not (path / "raw").is_dir():
            digests = read_manifest(path).parts
        else:
            digests = {f"raw/{file.name}": sha256_of(file) for file in (path / "raw").glob("[0-9]*")}
    except (RunError, FileNotFoundError):  # another process completed the run and removed its raw episodes
        return None
    # Make the lines that `sha256sum` prints for the files: digest, two spaces, name.
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_host(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Return the host in run.json and the host's arguments; (None, {}) without a host. Raises as `read_description`."""
    description = read_description(folder) if (folder / RUN).is_file() else {}
    host, arguments = description.get("host"), description.get("host_arguments")
    texts = {str(key): str(value) for key, value in arguments.items()} if isinstance(arguments, Mapping) else {}
    return (host, texts) if isinstance(host, str) else (None, {})  # ignore a host that is not a text


def read_description(folder: Path) -> dict[str, object]:
    """Return the content of run.json. Raises `RunError` if it is missing or damaged."""
    with readable(folder / RUN, _RESTORE):
        loaded = load_json(read_input(folder / RUN))
        if not isinstance(loaded, dict):
            raise ValueError("the content is not a JSON object")
    return loaded


def is_own_loop(description: Mapping[str, object]) -> bool:
    """Return whether a user's own script recorded the run with the recorder. Only this script can continue the run."""
    # `safevla eval` names its protocol in run.json; the recorder in a user's script writes `OWN_LOOP` instead.
    protocol = description.get("protocol")
    return isinstance(protocol, Mapping) and protocol.get("name") == OWN_LOOP


def policy_rows(description: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """Return the entries for policies in a run.json; [] if there are none (an archive has no run.json)."""
    rows = description.get("policies")
    listed = rows if isinstance(rows, list | tuple) else ()
    # Malformed entries are left out, because a user may have edited run.json.
    return [row for row in listed if isinstance(row, Mapping) and isinstance(row.get("policy"), str)]


def read_volatile(description: Mapping[str, object]) -> Mapping[str, object]:
    """Return the `volatile` facts of a run.json, which vary between repetitions of a run; {} if there are none."""
    volatile = description.get("volatile")
    return volatile if isinstance(volatile, Mapping) else {}


def recorded_code(description: Mapping[str, object]) -> list[str]:
    """Return the versions of the code that recorded a run's episodes, each as `safevla_recorder.identity.describe_code`
    writes it, without repetitions. Return [`unknown`] if no version was recorded, as in older runs.
    """
    codes = description.get("code")
    return [str(code) for code in codes] if isinstance(codes, list) and codes else [UNKNOWN]


def require_same_code(place: str, codes: Sequence[str], others: Sequence[str], *, is_allowed: bool) -> None:
    """Raise `RunError` at `place` if code versions in `codes` and `others` differ. If `is_allowed`, log a warning
    instead. Also log a warning if a version is unknown, since it cannot be compared.
    """
    # The message has two lines: the versions in `codes`, and the versions in `others`.
    listed = f"  {' and '.join(codes)}\n  {' and '.join(others)}"
    if any(is_other_code(code, other) for code in codes for other in others):
        problem = f"the episodes here and the other episodes were recorded by different versions of the code:\n{listed}"
        if not is_allowed:
            remedy = "Use one version of the code for a whole run. Or pass --other-code, which marks the run."
            raise RunError(problem, remedy=remedy, place=Place(file=place))
        _log.warning("%s: %s", place, problem)
    elif UNKNOWN in (*codes, *others):
        problem = "the version of the code that recorded the episodes is unknown, so versions were not compared"
        _log.warning("%s: %s:\n%s", place, problem, listed)


def write_episodes(folder: Path, rows: Sequence[EpisodeRow]) -> None:
    """Write the table of all planned episodes. An existing table is replaced."""
    # Parquet holds only valid UTF-8, so lone surrogates in texts are written as escape sequences.
    plain_rows = map_texts(msgspec.to_builtins(rows), escape_surrogates)
    table = pa.Table.from_pylist(plain_rows, schema=_EPISODES_SCHEMA)
    write_atomically(own_path(folder, EPISODES), encode_parquet(table))


def read_episodes(folder: Path) -> list[EpisodeRow]:
    """Return the rows of the planned episodes, in plan order; [] without a table. Raises `RunError` if unreadable."""
    path = folder / EPISODES
    if not path.exists():
        return []
    with readable(path, _RESTORE):
        return msgspec.convert(read_table(read_input(path)).to_pylist(), list[EpisodeRow])


def read_facts(folder: Path) -> DayFacts:
    """Return the `volatile` facts of a complete run. Raises `RunError` if run.json is missing or damaged."""
    try:
        # A fact that run.json lacks gets an empty default.
        return msgspec.convert(read_volatile(read_description(folder)), DayFacts)
    except msgspec.ValidationError as error:
        place = Place(file=str(folder / RUN), field="volatile")
        raise RunError(str(error), remedy="Restore the file.", place=place) from None


def served_latencies(folder: Path, description: Mapping[str, object]) -> dict[str, list[Latency]]:
    """Return policy -> latencies in its episodes, for policies with a server in run.json and a measured latency."""
    # Only the entry of a policy with a server has a `dialect`, the format of requests to the server.
    served_policies = [row["policy"] for row in policy_rows(description) if "dialect" in row]
    if not served_policies:
        return {}
    latencies = read_facts(folder).policy_latency.items()
    by_policy: dict[str, list[Latency]] = {}
    for policy in served_policies:
        # The id of an episode begins with the name of its policy.
        own_latencies = [latency for episode_id, latency in latencies if episode_id.startswith(f"{policy}/")]
        if own_latencies:
            by_policy[policy] = own_latencies
    return by_policy


def encode_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file whose pages have checksums."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        if len(table):  # the Hugging Face library `datasets` cannot read empty row groups
            writer.write_table(table)
    return bytes(sink.getvalue())


def dump_json(document: object) -> bytes:
    """Return a document as JSON for people: indented by two spaces, with a final newline; NaN becomes null. Raises
    `TypeError` for NumPy values and other types that msgspec does not know.
    """
    return msgspec.json.format(encode_json(document), indent=2) + b"\n"


def encode_json(document: object) -> bytes:
    """Return a document as JSON. Invisible characters and lone surrogates are written as escape sequences."""
    try:
        return escape_json(msgspec.json.encode(document))
    except UnicodeEncodeError:  # a text has a lone surrogate, which UTF-8 cannot encode
        return escape_json(msgspec.json.encode(map_texts(msgspec.to_builtins(document), escape_surrogates)))


# The pictures of a run folder, and the index of their contents


FRAMES, INDEX = "frames", "index.json"
Kind = Literal["initial", "violation", "final", "video", "replay3d"]
_SLUG_LENGTH = 60


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A picture, film or replay of one episode. `spec`, `value` and `threshold` are None if it shows no violation."""

    episode_id: str
    policy: str | None
    kind: Kind
    record: int  # index of the record in the picture; 0 if all records are shown
    time_s: float
    caption: str
    spec: str | None = None
    value: float | None = None
    threshold: float | None = None
    unit: str | None = None
    bodies: tuple[str, ...] = ()  # the bodies in contact or displaced, at which the camera should point
    success: bool
    camera: str
    width: int
    height: int
    file: str  # name of a file in the same folder as the index, without a path


MAX_FRAME_BYTES = 50_000_000
_MAX_PIXELS = 1 << 24
_PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def read_picture(folder: Path, frame: Frame, most_bytes: int = MAX_FRAME_BYTES) -> tuple[str, bytes] | None:
    """Return the format (`PNG`, `JPEG` or `WEBP`) and the bytes of a frame's picture. Return None if the file is
    missing or damaged, above `most_bytes` or 2²⁴ pixels, a link to outside the run folder, or in another format.
    """
    from PIL import Image

    form = _PICTURES.get(Path(frame.file).suffix)  # the file name's ending determines the format
    if form is None:
        return None
    try:
        content = read_input(folder / FRAMES / frame.file, most_bytes, within=folder)
        with Image.open(io.BytesIO(content), formats=[form]) as image:
            if image.width * image.height > _MAX_PIXELS:
                return None
            image.load()  # decode the pixels now, so that a damaged picture raises here
    # `read_input` raises `RecordError` for a Git LFS pointer. Pillow raises other errors for bad or huge pictures.
    except (RecordError, OSError, ValueError, SyntaxError, EOFError, struct.error, RuntimeWarning,
            Image.DecompressionBombError):  # fmt: skip
        return None
    return form, content


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int = 1
    frames: tuple[Frame, ...] = ()


def read_frames(folder: Path) -> tuple[Frame, ...]:
    """Return the frames in a run folder's index, in order; () if there is no index. Does not check whether the files
    exist. Raises `RunError` if the index cannot be read, or if a name is not `[a-z0-9][a-z0-9.-]*`.
    """
    path = folder / FRAMES / INDEX
    if not path.exists():
        return ()
    with readable(path, "Remove the folder and make the frames again: safevla frames RUN."):
        frames = decode_json(read_input(path), _Index).frames
        # Without slashes and leading dots, a file name cannot lead out of the folder.
        for frame in frames:
            if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", frame.file):
                raise ValueError(f"{frame.file!r} is not a valid file name of a frame")
    return frames


def write_frames(folder: Path, frames: Iterable[Frame]) -> Path:
    """Write or replace the index in the existing folder `frames` of a run folder; return the path of the index."""
    path = own_path(folder, FRAMES, INDEX)
    write_atomically(path, dump_json(_Index(frames=tuple(frames))))
    return path


def frame_stem(policy: str | None, episode_id: str) -> str:
    """Return the common beginning of the file names of an episode's frames: the end of the episode's id in `a-z0-9-`,
    then 8 hexadecimal digits (a digest of policy and id).
    """
    legible = re.sub(r"[^a-z0-9]+", "-", episode_id.lower())[-_SLUG_LENGTH:].strip("-")
    # `repr` distinguishes the policy None from a policy named None.
    digest = hashlib.sha256(f"{policy!r}/{episode_id}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{legible}-{digest}" if legible else digest  # if the id has no a-z or 0-9, use only the digest


# Comparison of the plan in run.json with the table of episodes


_REASON = "the episode was planned, but the table of episodes does not list it"
_MAX_NAMED = 1_000_000  # maximum number of planned episodes to list; a run.json may state any number
# Values of `episodes` in run.json which mean that each task has as many episodes as its suite defines.
_SUITE_SIZES = (None, "protocol")


class PlanStretch(msgspec.Struct, frozen=True):
    """One shard of a plan: shard `number`, counted from 1, of `count` shards. The plan has `whole` episodes, and the
    shard's first episode has the index `first` in the plan. Stored in run.json as `shard`.
    """

    number: int
    count: int
    first: int
    whole: int


class _Policy(msgspec.Struct):
    policy: str


class _Decision(msgspec.Struct):
    is_decided: bool
    episodes: int


class _Plan(msgspec.Struct):
    planned: int
    episodes: int | str | None = None
    policies: list[_Policy] = []
    tasks: list[str] = []
    shard: PlanStretch | None = None
    decision: _Decision | None = msgspec.field(name=DECISION, default=None)


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Differences between the plan of a run and the run's table of episodes."""

    missing: tuple[AbsentEpisode, ...] = ()
    unnamed: int = 0  # number of missing episodes whose names are unknown
    unplanned: int = 0


def name_episode(policy: str, task: str, episode: int) -> str:
    """Return the id of a planned episode; `task` is `SUITE/TASK`."""
    # `episode` counts from 0 in each task.
    return f"{policy}/{task}/ep_{episode:03d}"


def compare_plan(description: Mapping[str, object], rows: Sequence[EpisodeRow]) -> PlanDifference:
    """Return the differences between the plan in a complete run's run.json and its table of episodes. If run.json has
    no plan, as after a user's own script, there are no differences. Raises `RunError` if the plan is damaged.
    """
    if "planned" not in description:
        return PlanDifference()
    try:
        plan = msgspec.convert(description, _Plan)
    except msgspec.ValidationError as error:
        raise RunError(f"{RUN}: the plan is damaged: {error}", remedy="Restore the file.") from None
    if plan.decision is None or not plan.decision.is_decided:
        expected, planned = plan.planned, _list_planned(plan, rows)
    else:  # the stopping rule determined the number of episodes
        expected, planned = plan.decision.episodes, None
    # If the number of planned episodes is known, but not their names, compare only the numbers.
    # `unnamed` counts the missing episodes whose names are unknown.
    if planned is None or len(planned) != expected:
        surplus = len(rows) - expected  # rows beyond the plan; negative if episodes are missing
        return PlanDifference(unnamed=max(0, -surplus), unplanned=max(0, surplus))
    listed = {row.episode_id for row in rows}
    missing = [absent for name, absent in planned.items() if name not in listed]
    # A row of the table is unplanned if its id is not in the plan, or repeats the id of another row.
    return PlanDifference(tuple(missing), unplanned=len(rows) - len(listed & planned.keys()))


def _list_planned(plan: _Plan, rows: Sequence[EpisodeRow]) -> dict[str, AbsentEpisode] | None:
    # Returns id -> planned episode, in plan order; None if run.json does not determine the planned episodes.
    # A shard has consecutive episodes of the whole plan, so list the episodes of the whole plan first.
    # `first` is the index of the shard's first episode, and `planned` the number of the shard's episodes.
    whole_count = plan.shard.whole if plan.shard else plan.planned
    # A value in `_SUITE_SIZES` means the number that the suite defines. A plan of over a million is not listed.
    if whole_count > _MAX_NAMED or not (isinstance(plan.episodes, int) or plan.episodes in _SUITE_SIZES):
        return None
    suite_size: dict[str, int] = {}  # suite -> largest number of episodes of a task
    for row in rows:
        suite_size[row.benchmark] = max(suite_size.get(row.benchmark, 0), row.episode + 1)  # episodes count from 0
    episodes_of_task: dict[str, int] = {}  # task -> number of its episodes
    for task in plan.tasks:
        # A task is SUITE/TASK. Without a number in run.json, the table's largest episode number gives the suite's size.
        count = plan.episodes if isinstance(plan.episodes, int) else suite_size.get(task.partition("/")[0], 0)
        episodes_of_task[task] = max(0, count)
    if len(plan.policies) * sum(episodes_of_task.values()) != whole_count:  # run.json is incomplete
        return None
    episodes = (
        (policy.policy, task, number)
        for policy in plan.policies
        for task, count in episodes_of_task.items()
        for number in range(count)
    )
    first = max(0, plan.shard.first) if plan.shard else 0  # index in the whole plan
    planned = {}
    for policy, task, number in islice(episodes, first, first + max(0, plan.planned)):
        name = name_episode(policy, task, number)
        benchmark, _, task_id = task.partition("/")
        planned[name] = AbsentEpisode(
            episode_id=name, benchmark=benchmark, task_id=task_id, policy=policy, outcome=MISSING, reason=_REASON
        )
    return planned
