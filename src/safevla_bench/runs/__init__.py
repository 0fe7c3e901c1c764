"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

run.json          what was asked and with which versions; facts of the day only under `volatile`
archive/part-*    the trajectory records, parts in plan order
episodes.parquet  every planned episode and its outcome
manifest.json     schema version and the sha256 of each part
scores.json, scores.parquet, report.html   written by the judge

While a run is unfinished its episodes are in `.partial/` (see `journal`), and run.json says `"complete": false`.
"""

from safevla_bench.runs.episode_index import LeftOut, Noted, Records, chunked
from safevla_bench.runs.folder import (
    EPISODES,
    GREETINGS,
    MANIFEST,
    REPORT,
    RUN,
    SCORES,
    SCORES_TABLE,
    EpisodeRow,
    Latency,
    Said,
    archive_digest,
    archive_parts,
    described,
    dump,
    episode_rows,
    latencies,
    parquet,
    read_table,
    said,
    score_files,
)
from safevla_bench.runs.frame_index import FRAMES, Frame, Kind, frame_stem, read_frames, write_frames
from safevla_bench.runs.growing import GrowingRun
from safevla_bench.runs.journal import Entry, finished, progress
from safevla_bench.runs.manifest import changed
from safevla_bench.runs.parts import EPISODES_A_PART, FORMS, JSONL
from safevla_bench.runs.shard_merge import Stretch, merge
from safevla_bench.runs.sources import Source, Stream, open_source, open_sources
from safevla_bench.runs.writer import RunWriter

__all__ = [
    "EPISODES",
    "EPISODES_A_PART",
    "FORMS",
    "FRAMES",
    "GREETINGS",
    "JSONL",
    "MANIFEST",
    "REPORT",
    "RUN",
    "SCORES",
    "SCORES_TABLE",
    "Entry",
    "EpisodeRow",
    "Frame",
    "GrowingRun",
    "Kind",
    "Latency",
    "LeftOut",
    "Noted",
    "Records",
    "RunWriter",
    "Said",
    "Source",
    "Stream",
    "Stretch",
    "archive_digest",
    "archive_parts",
    "changed",
    "chunked",
    "described",
    "dump",
    "episode_rows",
    "finished",
    "frame_stem",
    "latencies",
    "merge",
    "open_source",
    "open_sources",
    "parquet",
    "progress",
    "read_frames",
    "read_table",
    "said",
    "score_files",
    "write_frames",
]
