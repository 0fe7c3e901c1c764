"""What combining the scores of many judged episodes costs: python benchmarks/combining.py [--episodes N] [--folders K]

The demo's verdicts are repeated under new ids in K judged folders, and combined in another process, whose CPU time
and peak of memory are printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import score_files
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import encode_scores
from safevla_bench.sources.runs.folder import SCORES_TABLE, VERDICTS

COMBINE = "import sys; from safevla_bench.cli import main; main(['score', '--combine', *sys.argv[1:]])"


def make_folders(folder: Path, episodes: int, count: int) -> list[Path]:
    """Write judged folders that together have this many episodes."""
    archive = folder / demo.ARCHIVE
    archive.write_bytes(demo.archive_bytes())
    judged = judge([archive], load_ruleset())
    table = pq.read_table(pa.BufferReader(score_files(judged)[SCORES_TABLE]))
    places = np.arange(episodes // count) % len(judged.scores)
    made = []
    for number in range(count):
        names = [f"{judged.scores.episode_id[k]}/{number}-{n}" for n, k in enumerate(places.tolist())]
        made.append(folder / f"part-{number}")
        made[-1].mkdir()
        scores = replace(judged.scores.select_episodes(places), episode_id=tuple(names))
        (made[-1] / VERDICTS).write_bytes(encode_scores(scores))
        rows = table.take(pa.array(places))
        rows = rows.set_column(rows.schema.get_field_index("episode_id"), "episode_id", pa.array(names))
        pq.write_table(rows, made[-1] / SCORES_TABLE, compression="zstd")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=1_000_000, help="in all folders (default a million)")
    parser.add_argument("--folders", type=int, default=10, help="judged folders (default 10)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = make_folders(Path(folder), chosen.episodes, chosen.folders)
        size = sum(path.stat().st_size for part in made for path in part.iterdir())
        command = [sys.executable, "-c", COMBINE, *map(str, made), "--out", f"{folder}/all"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
    print(
        f"{chosen.episodes:,} episodes in {chosen.folders} folders of {size / 1e6:.0f} MB: status {status}, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU, peak {used.ru_maxrss / 1e6:.2f} GB",
        flush=True,
    )


if __name__ == "__main__":
    main()
