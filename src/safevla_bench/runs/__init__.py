"""The run folder: everything that repeats a run, its records, its planned episodes, and what the judge said.

run.json          what was asked and with which versions; facts of the day only under `volatile`
archive/part-*    the trajectory records, parts in plan order
episodes.parquet  every planned episode and its outcome
manifest.json     schema version and the sha256 of each part
scores.json, scores.parquet, report.html   written by the judge

While a run is unfinished its episodes are in `.partial/` (see `journal`), and run.json says `"complete": false`.
"""

from safevla_bench.runs.folder import (
    EPISODES,
    MANIFEST,
    REPORT,
    RUN,
    SCORES,
    SCORES_TABLE,
    EpisodeRow,
    Latency,
    archive_parts,
    described,
    dump,
    episode_rows,
    latencies,
    parquet,
    read_table,
    score_files,
)
from safevla_bench.runs.frames import FRAMES, Frame, Kind, frame_stem, read_frames, write_frames
from safevla_bench.runs.growing import GrowingRun
from safevla_bench.runs.journal import Entry, finished, progress
from safevla_bench.runs.manifest import changed
from safevla_bench.runs.merging import Stretch, merge
from safevla_bench.runs.parts import EPISODES_A_PART, FORMS, JSONL
from safevla_bench.runs.records import LeftOut, Noted, Records, chunked
from safevla_bench.runs.source import Source, Stream, open_source, open_sources
from safevla_bench.runs.writing import RunWriter

__all__ = [
    "EPISODES",
    "EPISODES_A_PART",
    "FORMS",
    "FRAMES",
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
    "Source",
    "Stream",
    "Stretch",
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
    "score_files",
    "write_frames",
]
