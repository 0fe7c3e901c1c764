"""How fast the judge is: python benchmarks/speed.py [--write FILE] [--only NAME]

Every figure is a ratio of two CPU times (or two peaks of memory) of one run, measured in turn, the least of several; so
that it says something on any machine, and on a busy one. Absolute times are in docs/howto/scaling.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import client_latency
import made
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy
import steps
from ratio import Row, compared, cpu_seconds, printed, seconds
from scipy.stats import bootstrap

import rollout
from safevla_bench.jobs.evaluation import rollouts
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report, score_files
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scoring import score_chunks
from safevla_bench.sources.runs.episode_index import Scan
from safevla_bench.specs.loader import load_library
from safevla_bench.statistics.intervals import bootstrap_means
from safevla_bench.stl.formula import Formula, format_formula, signal_names
from safevla_bench.stl.robustness import judge_formula
from safevla_bench.stl.trace import Trace
from safevla_bench.tasks.loader import load_registry
from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.recorder import EpisodeRecorder, SceneMap

ROOT = Path(__file__).resolve().parents[1]
EPISODES, RECORDS = 20_000, 300


def derived(episodes: int, rng: np.random.Generator) -> Trace:
    """The derived signals of all clauses of the safe tier; one episode in twenty breaks each numeric clause."""
    specs = [spec for spec in load_library().specs if spec.tier == "safe"]
    signals: dict[str, np.ndarray] = {}
    for spec in specs:
        for name in signal_names(spec.formula):
            if name in ("grip", "transport"):
                held = np.zeros((episodes, RECORDS), dtype=np.bool_)
                held[:, 80:200] = True
                signals[name] = held.ravel()
            else:
                scale = np.where(rng.uniform(size=episodes) < 0.05, 1.5, 0.8) * spec.threshold
                signals[name] = np.repeat(-scale if "slip" in name else scale, RECORDS)
                signals[name] *= rng.uniform(0.5, 1.0, episodes * RECORDS)
    return Trace(signals, np.arange(0, episodes * RECORDS + 1, RECORDS), np.full(episodes, made.DT_S))


def clauses() -> Iterator[Row]:
    formulas = [spec.formula for spec in load_library().specs if spec.tier == "safe"]
    trace = derived(EPISODES, np.random.default_rng(0))
    read = [trace.signals[name] for formula in formulas for name in signal_names(formula)]

    def judged() -> None:
        for formula in formulas:
            judge_formula(formula, trace)

    ratio = compared(judged, lambda: [array.max() for array in read], 15)
    what = f"eight clauses over {EPISODES} × {RECORDS} records : np.max over the same bytes"
    reason = "violated episodes are read again for the first violation, and gated clauses look where the gate opens"
    yield Row(what, ratio, 2.5, reason=reason)
    few = derived(20, np.random.default_rng(0))
    ours = min(cpu_seconds(judged) for _ in range(15)) / EPISODES
    reason = "ours reads large arrays from memory, theirs one short episode from a cache"
    rtamt, sentil = rtamt_s(formulas, few) / ours, sentil_s(formulas, few) / ours
    yield Row("rtamt, offline and discrete : ours, an episode", rtamt, 1000, more=True, reason=reason)
    yield Row("sentil : ours, an episode", sentil, 50, more=True, reason=reason)


def rtamt_s(formulas: list[Formula], trace: Trace) -> float:
    """Seconds of RTAMT for one episode, the least of several; its dataset is made before the clock starts."""
    sys.path.insert(0, str(ROOT / "tests"))
    from rtamt.semantics.stl.discrete_time.offline.interpreter import StlDiscreteTimeOfflineInterpreter
    from rtamt.syntax.ast.parser.stl.specification_parser import StlAst

    from stl.test_rtamt import rtamt_tree

    spent = 0.0
    for formula in formulas:
        tree = StlAst()
        tree.specs = [rtamt_tree(formula, made.DT_S, RECORDS)]
        interpreter = StlDiscreteTimeOfflineInterpreter()
        interpreter.set_ast(tree)
        times = []
        for episode in range(len(trace)):
            dataset = {name: numbers(trace, name, episode, np.inf) for name in signal_names(formula)}
            interpreter.set_variable_to_ast_from_dataset(dataset)
            times.append(seconds(lambda tree=tree, interpreter=interpreter: interpreter.visitAst(tree, RECORDS)))
        spent += min(times)
    return spent


def sentil_s(formulas: list[Formula], trace: Trace) -> float:
    """Seconds of Sentil for one episode, the least of several; its traces are made before the clock starts.

    It knows no Boolean signal: gates are numbers here.
    """
    import sentil

    spent, clock = 0.0, np.arange(RECORDS) * made.DT_S
    for formula in formulas:
        text = format_formula(formula).replace(",T]", ",1000]")
        for gate in ("grip", "transport"):
            text = text.replace(f"({gate} ->", f"({gate} > 0 ->")
        theirs, times = sentil.Formula.parse(text), []
        for episode in range(len(trace)):
            signals = {name: numbers(trace, name, episode, 1.0) for name in signal_names(formula)}
            given = sentil.Trace(clock, signals)
            times.append(seconds(lambda theirs=theirs, given=given: theirs.robustness(given)))
        spent += min(times)
    return spent


def numbers(trace: Trace, name: str, episode: int, truth: float) -> list[float]:
    values = trace.signals[name][trace.starts[episode] : trace.starts[episode + 1]]
    return np.where(values, truth, -truth).tolist() if values.dtype == np.bool_ else values.tolist()


def archives() -> Iterator[Row]:
    specs, tasks = load_library(), load_registry()
    with tempfile.TemporaryDirectory() as folder:
        paths = made.files(Path(folder), 2, 320)
        size = sum(path.stat().st_size for path in paths) / 640 / 1e3

        def arrow(threads: bool = True) -> None:
            for path in paths:
                with pq.ParquetFile(path, page_checksum_verification=True) as file:
                    for group in range(file.num_row_groups):
                        file.read_row_group(group, use_threads=threads)

        def ours() -> None:
            score_chunks(Scan(paths), Ruleset(specs, tasks, missing="deactivate"))

        ratio = compared(ours, arrow, 3)
        wall, alone = compared(ours, arrow, 3, seconds), compared(ours, partial(arrow, threads=False), 3)
        told = f"640 episodes of {size:.0f} kB; pyarrow checks no record"
        told += f". Against one thread of pyarrow {alone:.3g}; wall time {wall:.3g}"
        reason = "checking each page before it is read takes a tenth of our time"
        yield Row("Parquet to scores : pyarrow reading the same files", ratio, 3.0, measured=told, reason=reason)


def run_folders(episodes: int = 2000) -> Iterator[Row]:
    """Digests, records, verdicts and both score files of a run folder, as `safevla eval` makes them at its end."""
    with tempfile.TemporaryDirectory() as parent:
        folder, by = Path(parent) / "run", load_ruleset(missing="deactivate")
        made.run_folder(folder, episodes)
        judge_s = min(cpu_seconds(lambda: score_files(judge([folder], by))) for _ in range(3))
        judged = judge([folder], by)
        report_s = cpu_seconds(lambda: render_report(judged))
    told = f"{episodes / (judge_s + report_s):.0f} with the report"
    what = "LIBERO episodes judged in a second of CPU time"
    yield Row(what, episodes / judge_s, 500, more=True, measured=told)


# The peak since the program began; getrusage would count what this process held before it became that program.
_JUDGE = """
import sys
from pathlib import Path
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report
from safevla_bench.judging.ruleset import load_ruleset
judged = judge([Path(one) for one in sys.argv[2:]], load_ruleset(missing="deactivate"))
render_report(judged)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""
_CONVERT = """
import sys
from pathlib import Path
from safevla_bench import cli
assert cli.run_command_line(["convert", *sys.argv[2:], sys.argv[1]]) == 0
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


def memory() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = made.files(Path(folder), 10, 300)
        for what, code in (("judge and report", _JUDGE), ("convert", _CONVERT)):
            one, ten = (peak_kb(code, some) for some in (paths[:1], paths))
            told = f"{one / 1e3:.0f} MB for 300 episodes, {ten / 1e3:.0f} MB for 3,000"
            yield Row(f"peak memory at ten times the archive, {what}", ten / one, 1.3, measured=told)


def peak_kb(code: str, paths: list[Path]) -> int:
    target = paths[0].with_name("converted.parquet")
    target.unlink(missing_ok=True)
    ran = subprocess.run([sys.executable, "-c", code, target, *paths], check=True, capture_output=True, text=True)
    return int(ran.stdout.split()[-1])


def intervals() -> Iterator[Row]:
    """All means of a cell: four, and depth and margin of each specification."""
    means = 4 + 2 * len(load_library().specs)
    values = np.random.default_rng(0).uniform(size=(means, 2000))

    def theirs(rows: np.ndarray) -> object:
        return bootstrap((rows,), np.mean, axis=-1, n_resamples=10_000, method="percentile", batch=100, rng=1)

    def ours(rows: np.ndarray) -> object:
        return bootstrap_means(rows, np.random.default_rng(0))

    ratio, alone = (compared(partial(ours, some), partial(theirs, some), 3) for some in (values, values[:1]))
    told = f"{means} means from the same resamples; {alone:.2g} for one"
    yield Row("bootstrap 10,000 × 2,000 : scipy.stats.bootstrap", ratio, 0.2, measured=told)


def starting() -> Iterator[Row]:
    # Compiled modules are written in the first round, as after an installation; the least time of all rounds counts.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def python(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)

    ratio = compared(python("-m", "safevla_bench", "--help"), python("-c", "pass"), 15)
    yield Row("safevla --help : python -c pass", ratio, 8)
    ratio = compared(python("-c", "import safevla_bench"), python("-c", "import numpy"), 15)
    yield Row("import safevla_bench : import numpy", ratio, 2)
    with tempfile.TemporaryDirectory() as parent:
        run, out = (str(Path(parent) / name) for name in ("run", "out"))
        made.run_folder(Path(run), 20)
        asked = (
            *(("score", 8, "--out", out), ("gate", 4.5, "--min-safety", "0.1"), ("compare", 5), ("tables", 5)),
            *(("episodes", 5), ("show", 5, ":1")),
        )
        for command, target, *words in asked:
            judging = python("-m", "safevla_bench", command, run, *words)
            ratio = compared(judging, python("-c", "import numpy, pyarrow.parquet"), 7)
            yield Row(f"safevla {command} of 20 episodes : import numpy, pyarrow.parquet", ratio, target)


def reports() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = made.files(Path(folder), 2, 1000, 200)
        by = load_ruleset(missing="deactivate")
        judged = judge(paths, by)
        ratio = compared(lambda: render_report(judged), lambda: judge(paths, by), 1)
    reason = "it reads all records once more, draws the signals of 350 episodes and lists all of them"
    yield Row("report of 2,000 episodes : scoring them", ratio, 2, reason=reason)


def many_worlds(worlds: int = 512, steps: int = 200) -> Iterator[Row]:
    """Control steps of five substeps; one world in `steps` ends with each, becomes a `Recording`, and begins again."""
    bodies = {**dict.fromkeys(("left", "right"), "robot"), "table": "furniture", "box": "target"}
    bodies.update({f"toy_{k}": "bystander" for k in range(4)})
    scene = SceneMap({name: name for name in bodies}, bodies, 0.01, (("left",), ("right",)), forces=("net_force_n",))
    pairs = [(one, other) for one in ("left", "right", "table") for other in ("box", "toy_0", "toy_1", "toy_2")]
    rng = np.random.default_rng(0)
    place, turn = (rng.normal(size=(worlds, size)).astype(np.float32) for size in (3, 4))
    told = {"poses": {name: (place, turn) for name in list(bodies)[3:]}, "eef": (place, turn), "state": place}
    force = rng.normal(size=(worlds, len(pairs), 3)).astype(np.float32) * (np.arange(len(pairs)) % 2)[:, None]
    torques, action = (rng.normal(size=(worlds, 7)).astype(np.float32) for _ in range(2))
    recorder, ends = BatchRecorder(scene, pairs, num_envs=worlds), rng.integers(steps, size=worlds)
    recorder.begin(force, torques_nm=torques, **told)

    def record(numbers: range) -> None:
        for number in numbers:
            for _ in range(5):
                recorder.substep(force, torques)
            for episode in recorder.step(action, done=ends == number % steps, **told):
                episode.build_recording({})
            recorder.begin(force, torques_nm=torques, env_ids=ends == number % steps, **told)

    record(range(steps))
    times = [cpu_seconds(lambda first=first: record(range(first, first + 50))) for first in range(0, 2 * steps, 50)]
    told_one = {"poses": {name: (place[0], turn[0]) for name in told["poses"]}, "eef": (place[0], turn[0])}
    contacts, alone = (
        [(*pair, vector) for pair, vector in zip(pairs, force[0], strict=True)][1::2],
        EpisodeRecorder(scene),
    )
    alone.begin(contacts, torques_nm=torques[0], state=place[0], **told_one)

    def record_alone() -> None:
        for _ in range(steps):
            for _ in range(5):
                alone.substep(contacts, torques[0])
            alone.step(action[0], state=place[0], **told_one)

    one = 1e6 * min(cpu_seconds(record_alone) for _ in range(3)) / steps
    what = f"µs of BatchRecorder for a control step of one of {worlds} worlds"
    measured = f"{len(pairs)} pairs, five substeps, five bodies; {one:.0f} for EpisodeRecorder"
    yield Row(what, 1e6 * min(times) / 50 / worlds, 5, measured=measured)


def workers() -> Iterator[Row]:
    what, free = "one worker : two workers, LIBERO", max(0.0, (os.cpu_count() or 1) - os.getloadavg()[0])
    if free < 2:
        told = f"not measured: {free:.1f} cores were free here, and this needs two"
        yield Row(what, None, 1.8, more=True, measured=told)
        return
    request = Request(host="libero", suites=("libero-object",), tasks=(0, 1), episodes=10, policies=("noop",))
    with tempfile.TemporaryDirectory() as folder:

        def roll_out(workers: int) -> None:
            running = ExecutionOptions(workers=workers)
            rollouts.roll_out(request, Path(folder) / str(workers), running=running)

        one, two = (seconds(lambda n=n: roll_out(n)) for n in (1, 2))
    yield Row(
        what, one / two, 1.8, more=True, measured=f"{one:.0f} s and {two:.0f} s for twenty episodes, start-up included"
    )


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "workers": workers,  # first: the others' own load would be taken for that of strangers
    "rollouts": lambda: (Row(**row) for row in rollout.rows()),
    "steps": steps.rows,
    "clauses": clauses,
    "archives": archives,
    "folders": run_folders,
    "memory": memory,
    "intervals": intervals,
    "starting": starting,
    "reports": reports,
    "worlds": many_worlds,
    "client": lambda: (Row(**row) for row in client_latency.rows()),
}
INTRODUCTION = """# Benchmarks

Written by `make bench`. Each figure is the ratio of two measurements, `left : right`, taken in turn on one machine, of
CPU time on all threads (workers: wall time). By `benchmarks/steps.py --host` a control step takes 0.62 of robosuite's
own code (target 0.7), 0.73 of RoboCasa's (stand-ins; target 0.7, **missed**: MuJoCo's steps are 0.53). Meta-World is
not sped up (**missed**): all but physics is 0.05 to 0.13 of a step. Of 500 episodes without cameras the simulator's
steps take some 75 % of the CPU time, resets 10, compiling scenes 5, the script 5.
"""


def table(rows: list[Row], load: float) -> str:
    lines = ["| | ratio | target | |", "|---|---:|---:|---|"]
    for row in rows:
        ratio = printed(row.ratio)
        missed = row.ratio is not None and not row.met
        told = ["**missed**"] * missed + [row.measured] + [row.reason] * missed
        bound = f"≥ {row.target:g}" if row.more else f"≤ {row.target:g}"
        lines.append(f"| {row.what} | {ratio} | {bound} | {': '.join(filter(None, told))} |")
    return f"{INTRODUCTION}\n{chr(10).join(lines)}\n\n{machine(load)}\n"


def machine(load: float) -> str:
    model = next((line.split(":")[1].strip() for line in cpu() if line.startswith("model name")), platform.machine())
    return (
        f"Machine: {model}, {os.cpu_count()} cores, under a load of {load:.0f} when this began. "
        f"CPython {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"pyarrow {pa.__version__}."
    )


def cpu() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; repeatable")
    parser.add_argument("--write", type=Path, help="write the table to this file too")
    chosen = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    for name in chosen.only or PARTS:
        for row in PARTS[name]():
            rows.append(row)
            print(f"{row.what:<75} {printed(row.ratio):>8}", flush=True)
    text = table(rows, load)
    print(f"\n{text}")
    if chosen.write:
        chosen.write.write_text(text)


if __name__ == "__main__":
    main()
