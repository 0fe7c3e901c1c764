"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

run.json          what was asked and with which versions; facts of the day only under `volatile`
archive/part-*    the trajectory records, parts in plan order (a folder of safevla-recorder keeps raw/ instead)
episodes.parquet  every planned episode and its outcome
manifest.json     schema version and the sha256 of each part
scores.json, scores.parquet, report.html   written by the judge

While a run is unfinished its episodes are in `raw/` (see the module `parts`), and run.json says `"complete": false`.
"""

from safevla_bench.archive.parquet_guard import read_table
from safevla_bench.runs.episode_index import (
    BatchNotes,
    EpisodeIndex,
    KeepingPass,
    Scan,
    merge_batches,
    read_sources,
    scan,
)
from safevla_bench.runs.folder import (
    DECISION,
    EPISODES,
    FRAMES,
    GREETINGS,
    MANIFEST,
    MAX_FRAME_BYTES,
    MAX_SCORES_BYTES,
    REPORT,
    RUN,
    SCORES,
    SCORES_TABLE,
    EpisodeRow,
    Frame,
    Kind,
    Latency,
    PolicyGreeting,
    archive_digest,
    archive_parts,
    dump_json,
    encode_parquet,
    frame_stem,
    read_description,
    read_frames,
    read_greetings,
    read_latencies,
    read_picture,
    score_files,
    write_frames,
)
from safevla_bench.runs.parts import (
    EPISODES_A_PART,
    FORMS,
    JSONL,
    PARQUET,
    RawEpisode,
    changed_parts,
    count_progress,
    episode_rows,
    has_raw,
    read_raw,
    record_files,
)
from safevla_bench.runs.policy_names import NamedSource, PolicyNames, describe_names
from safevla_bench.runs.shard_merge import PlanStretch, merge_shards
from safevla_bench.runs.sources import LeftOut, RecordSource, open_source, open_sources, require_source
from safevla_bench.runs.writer import RunWriter

__all__ = [
    "DECISION",
    "EPISODES",
    "EPISODES_A_PART",
    "FORMS",
    "FRAMES",
    "GREETINGS",
    "JSONL",
    "MANIFEST",
    "MAX_FRAME_BYTES",
    "MAX_SCORES_BYTES",
    "PARQUET",
    "REPORT",
    "RUN",
    "SCORES",
    "SCORES_TABLE",
    "BatchNotes",
    "EpisodeIndex",
    "EpisodeRow",
    "Frame",
    "KeepingPass",
    "Kind",
    "Latency",
    "LeftOut",
    "NamedSource",
    "PlanStretch",
    "PolicyGreeting",
    "PolicyNames",
    "RawEpisode",
    "RecordSource",
    "RunWriter",
    "Scan",
    "archive_digest",
    "archive_parts",
    "changed_parts",
    "count_progress",
    "describe_names",
    "dump_json",
    "encode_parquet",
    "episode_rows",
    "frame_stem",
    "has_raw",
    "merge_batches",
    "merge_shards",
    "open_source",
    "open_sources",
    "read_description",
    "read_frames",
    "read_greetings",
    "read_latencies",
    "read_picture",
    "read_raw",
    "read_sources",
    "read_table",
    "record_files",
    "require_source",
    "scan",
    "score_files",
    "write_frames",
]
