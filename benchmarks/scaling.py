"""What judging costs an episode, and that a million can be judged: python benchmarks/scaling.py [--episodes N]

Derived signals of N episodes are made, judged and forgotten a chunk at a time; the peak of memory and the seconds are
printed every tenth of the way. Before, archives of both forms are written, read, judged and reported.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import made
import numpy as np
from speed import RECORDS, derived

from safevla_bench import archive
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.episode_index import Scan
from safevla_bench.specs.loader import load_library
from safevla_bench.stl.robustness import judge_formula

CHUNK = 10_000


def clauses(episodes: int) -> None:
    """Eight clauses over derived signals, a chunk of episodes at a time."""
    formulas = [spec.formula for spec in load_library().specs if spec.tier == "safe"]
    generator, judging, violated = np.random.default_rng(0), 0.0, 0
    for done in range(CHUNK, episodes + 1, CHUNK):
        trace = derived(CHUNK, generator)
        start = time.perf_counter()
        violated += sum(int((judge_formula(formula, trace).rho < 0).sum()) for formula in formulas)
        judging += time.perf_counter() - start
        if done % (episodes // 10) == 0:
            print(
                f"{done:>10,} episodes of {RECORDS} records: {judging:7.1f} s judging, {1e6 * judging / done:5.1f} µs "
                f"an episode, {violated} violations, peak {peak_mb():.0f} MB",
                flush=True,
            )


def forms(episodes: int) -> None:
    """Writing, reading and judging archives, and reporting, in milliseconds an episode."""
    many = made.batch(episodes)
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".jsonl.zst", ".parquet"):
            path = Path(folder) / f"all{suffix}"
            clock = [time.perf_counter()]
            archive.write_archive(path, many)
            clock.append(time.perf_counter())
            assert sum(map(len, Scan([path]))) == episodes
            clock.append(time.perf_counter())
            judged = judge([path], load_ruleset(missing="deactivate"))
            clock.append(time.perf_counter())
            render_report(judged)
            clock.append(time.perf_counter())
            names = ("write", "read", "read and judge", "report")
            told = ", ".join(f"{n} {1e3 * s / episodes:.2f} ms" for n, s in zip(names, np.diff(clock), strict=True))
            print(f"{suffix:<11} {path.stat().st_size / episodes / 1e3:6.0f} kB an episode: {told}", flush=True)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=1_000_000, help="of derived signals (default a million)")
    parser.add_argument("--archived", type=int, default=96, help="episodes in the archives (default 96)")
    chosen = parser.parse_args()
    forms(chosen.archived)
    clauses(chosen.episodes)


if __name__ == "__main__":
    main()
