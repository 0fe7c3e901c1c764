"""The matrix of faults: what strikes a run, how it ends, and what then goes on. `test_faults.py` holds it to this.

The table in docs/explanation/trust.md is written again, after a change that is meant to move it, by

.venv/bin/python tests/rollout/faults.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from folders import contents
from safevla_bench.archive import jsonl
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import serve
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import EpisodeRow, read_description
from safevla_bench.sources.runs.parts import episode_rows, has_raw, read_raw
from scenes import anyone_in, install_plugin

HERE, PAGE = Path(__file__).parent, Path(__file__).parents[2] / "docs" / "explanation" / "trust.md"
BEGIN, END = "<!-- made by python tests/rollout/faults.py -->\n", "<!-- end of what is made -->\n"
WATCHDOG_S = 180
ENGINES: Mapping[str, ExecutionOptions] = {
    "one process": ExecutionOptions(),
    "`--workers 2`": ExecutionOptions(workers=2),
}
REQUEST = Request(host="fragile", suites=("fake",), tasks=(0, 1), episodes=3, policies=("random",), max_steps=12)
PLANNED = 6
NEITHER = ""
RESUME, RETRY, OTHERS = "`--resume`", "`--resume --retry-crashed`", "`--resume --workers 2`"


@dataclass(frozen=True)
class Ending:
    """How a struck run ends: its exit code, how many episodes are crashed, what completes it, and what it says."""

    code: int
    then: str = NEITHER
    says: tuple[str, ...] = ()
    crashed: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        text = f"exit {self.code}" if self.code >= 0 else signal.Signals(-self.code).name
        some = f", {self.crashed[-1]} crashed" if self.crashed[-1] and len(self.crashed) == 1 else ""
        some = ", some crashed" if len(self.crashed) > 1 else some
        return f"{text}{some}; {self.then}" if self.then == OTHERS else f"{text}{some}"


@dataclass(frozen=True)
class Fault:
    """A row: what happens, what strikes (`fragile.py` knows how), how it ends by engine, what is done from outside."""

    name: str
    strike: str
    ends: Mapping[str, Ending]
    act: Callable[[Cell], None] = lambda cell: None

    @property
    def server(self) -> bool:
        return self.strike.startswith("server")


def both(ending: Ending) -> dict[str, Ending]:
    return dict.fromkeys(ENGINES, ending)


def by_engine(alone: Ending, workers: Ending) -> dict[str, Ending]:
    return dict(zip(ENGINES, (alone, workers), strict=True))


class Cell:
    """A fault and an engine, in a folder of their own."""

    def __init__(self, fault: Fault, engine: str, place: Path) -> None:
        self.fault, self.running, self.place = fault, ENGINES[engine], place
        self.ending = fault.ends[engine]
        self.run, self.at, self.temporary = place / "run", place / "at", place / "temporary"
        for folder in (self.at, self.temporary):
            folder.mkdir()
        self.request = REQUEST
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(self.place.parent / "installed"),
            "FRAGILE": self.fault.strike,
            "FRAGILE_AT": str(self.at),
            "TMPDIR": str(self.temporary),
        }

    def start(self, *words: str, log: str = "said") -> subprocess.Popen[bytes]:
        """A command of the package, in a session of its own."""
        with (self.place / log).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "safevla_bench", *words],
                env=self.environment,
                start_new_session=True,
                stdout=output,
                stderr=output,
            )

    def words(self) -> list[str]:
        arguments = f"eval --record-only --host {self.request.host} --suite fake --task 0,1 --episodes 3".split()
        arguments += ["--max-steps", str(self.request.max_steps), "--policy", self.request.policies[0]]
        arguments += [f"--policy-arg={name}={value}" for name, value in self.request.arguments.items()]
        return [*arguments, "--workers", str(self.running.workers), "--out", str(self.run)]

    def disturbed(self) -> int:
        """Run until the fault has struck and the command has ended; its exit code."""
        self.process = self.start(*self.words())
        try:
            self.fault.act(self)
            return self.process.wait(WATCHDOG_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def struck(self) -> list[int]:
        """The processes that the fault has struck, as soon as there is one."""
        noted = self.at / "struck"
        until = time.monotonic() + WATCHDOG_S
        while not noted.exists() or not noted.read_text().endswith("\n"):
            assert self.process is not None
            assert self.process.poll() is None, "it ended before it was struck"
            assert time.monotonic() < until
            time.sleep(0.002)
        return [int(line) for line in noted.read_text().split()]

    def output(self, log: str = "said") -> str:
        return (self.place / log).read_text()

    def crashed(self) -> list[EpisodeRow]:
        return [row for row in rows(self.run) if row.outcome == "crashed"]

    def complete(self) -> bool:
        return bool(read_description(self.run).get("complete"))


def send(number: int, *, everyone: bool = False) -> Callable[[Cell], None]:
    """Strike the command itself, or all its processes, in the middle of the doomed episode."""

    def act(cell: Cell) -> None:
        cell.struck()
        assert cell.process is not None
        (os.killpg if everyone else os.kill)(cell.process.pid, number)

    return act


def impatient(cell: Cell) -> None:
    """Ctrl-C, again and again until it ends."""
    cell.struck()
    while cell.process is not None and cell.process.poll() is None:
        os.killpg(cell.process.pid, signal.SIGINT)
        time.sleep(0.002)


def intrude(cell: Cell) -> None:
    """A second command, and one that would resume, while the first is in the middle of an episode."""
    cell.struck()
    for log, words in (
        ("second", cell.words()),
        ("third", ["eval", "--record-only", "--resume", "--out", str(cell.run)]),
    ):
        assert cell.start(*words, log=log).wait(WATCHDOG_S) == 2
        assert "run is writing" in cell.output(log)
        assert "another --out" in cell.output(log)
    (cell.at / "go").touch()


_CRASHED = ("1 episode crashed, excluded from all rates", "  safevla eval --resume --out ", "--retry-crashed")
_AGAIN = ("episodes are done and kept. To continue:", "safevla eval --resume --out ")
_LOST = ("policy server", "Once the server is back:", "--resume --out ", "--retry-crashed")
_FULL = ("Finished episodes are kept. Correct the cause, then continue: ",)
CRASHED = Ending(4, RETRY, _CRASHED, (1,))
WHOLE = Ending(0)
INTERRUPTED = Ending(130, RESUME, _AGAIN)
FAULTS = (
    Fault("`reset` raises", "raise-in-reset", both(CRASHED)),
    Fault("`step` raises", "raise-in-step", both(CRASHED)),
    Fault("SIGSEGV, once", "segfault", by_engine(Ending(-11, RESUME), WHOLE)),
    Fault(
        "SIGSEGV, each time",
        "segfault-always",
        by_engine(Ending(-11, OTHERS), Ending(4, RETRY, ("the worker died in each of 2 attempts", "SIGSEGV"), (1,))),
    ),
    Fault("the kernel kills, out of memory", "kill", by_engine(Ending(-9, RESUME), WHOLE)),
    Fault("the command is killed", "wait", both(Ending(-9, RESUME)), send(signal.SIGKILL)),
    Fault("SIGTERM", "wait", both(Ending(143, RESUME, _AGAIN)), send(signal.SIGTERM, everyone=True)),
    Fault("Ctrl-C", "wait", both(INTERRUPTED), send(signal.SIGINT, everyone=True)),
    Fault("Ctrl-C, again and again", "wait", both(Ending(130, RESUME)), impatient),
    Fault("the disk fills while episodes are kept", "disk", both(Ending(2, RESUME, _FULL))),
    Fault("the disk fills while the run is completed", "disk-at-the-end", both(Ending(2, RESUME, _FULL))),
    Fault("another command writes to the same folder", "wait", both(WHOLE), intrude),
    Fault("the policy's server is killed", "server-dies", both(Ending(2, RETRY, _LOST, (0, 1, 2)))),
    Fault("the policy's server hangs, once", "server-silent", both(WHOLE)),
    Fault(
        "the policy's server hangs in an episode each time",
        "server-silent-always",
        both(Ending(4, RETRY, ("the policy server was too slow in each of 3 attempts", "gave no answer for"), (1,))),
    ),
)


def rows(run: Path) -> list[EpisodeRow]:
    """The episodes that have ended, of a run in any state."""
    return list(read_raw(run).values()) if has_raw(run) else episode_rows(run)


def frames(run: Path) -> list[tuple[str, bytes]]:
    """Each recorded episode with its bytes, of a run in any state."""
    batch = read_sources([run])[0]
    count = len(batch) if batch else 0
    return [(batch.headers[k].episode_id, jsonl.encode_member(batch, k, ".jsonl.zst")) for k in range(count)]


@contextmanager
def installed(place: Path) -> Iterator[None]:
    """The distribution of `fragile.py`, found by its entry points here and in what is started."""
    module = (HERE / "fragile.py").read_text()
    folder = install_plugin(place / "installed", "fragile", module, "hosts = host", "policies = policy")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def serve_elsewhere(port: int) -> Iterator[None]:
    """The same policy behind a server without a fault."""
    policy = serve.ServedPolicy("fragile", lambda: make_policy("fragile"), copies=4)
    server = serve.start_server(policy, "127.0.0.1", port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def fragile_server(cell: Cell) -> Iterator[int]:
    """A server in a process of its own, which the fault strikes; its port."""
    process = cell.start("serve", "--policy", "fragile", "--copies", "4", "--port", "0", log="server")
    try:
        until = time.monotonic() + WATCHDOG_S
        while "\n" not in cell.output("server"):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield int(cell.output("server").split(" (GET")[0].rpartition(":")[2])
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(WATCHDOG_S)


def examine(fault: Fault, engine: str, place: Path, undisturbed: Path) -> str:
    """Strike a run, look at what is left, complete it, and compare; the cell of the table. Raises `AssertionError`."""
    folder = Path(tempfile.mkdtemp(dir=place))
    cell = Cell(fault, engine, folder)
    if not fault.server:
        code = cell.disturbed()
        assert_nothing_lost(cell, code, undisturbed)
        go_on(cell, undisturbed)
        return str(cell.ending)
    with fragile_server(cell) as port:
        arguments = {"cameras": "agentview,none", "replan": "1", "connect_timeout_s": "2", "timeout_s": "2"}
        cell.request = replace(REQUEST, policies=(f"openpi:ws://127.0.0.1:{port}",), arguments=arguments)
        code = cell.disturbed()
    with serve_elsewhere(port):
        roll_out(cell.request, folder / "undisturbed")
        assert_nothing_lost(cell, code, folder / "undisturbed")
        go_on(cell, folder / "undisturbed")
    return str(cell.ending)


def assert_nothing_lost(cell: Cell, code: int, undisturbed: Path) -> None:
    """What is there right after the fault: nothing lost, doubled or changed, crashed ones apart, nothing running."""
    assert code == cell.ending.code, cell.output()
    assert code in (-9, -11) or "Traceback" not in cell.output(), cell.output()
    for words in cell.ending.says:
        assert words in cell.output(), cell.output()
    _assert_nothing_runs(cell)
    ended = rows(cell.run)
    assert max(Counter(row.episode_id for row in ended).values(), default=1) == 1
    assert all(row.reason for row in cell.crashed())
    assert len(cell.crashed()) in cell.ending.crashed
    archived = frames(cell.run)
    assert [name for name, _ in archived] == [row.episode_id for row in ended if row.outcome != "crashed"]
    assert set(archived) <= set(frames(undisturbed))
    scores = judge([cell.run], load_ruleset()).scores
    assert (len(scores), len(scores.absent)) == (len(archived), len(cell.crashed()))
    if cell.complete():
        assert len(ended) == PLANNED


def _assert_nothing_runs(cell: Cell) -> None:
    """No process of the command is left, and no temporary file."""
    assert cell.process is not None
    until = time.monotonic() + WATCHDOG_S
    while anyone_in(cell.process.pid):
        assert time.monotonic() < until, "a process outlives the command"
        time.sleep(0.005)
    assert not list(cell.temporary.iterdir())


def go_on(cell: Cell, undisturbed: Path) -> None:
    """Complete the run in the way that the table says, and compare every byte, hidden files too."""
    if cell.ending.then == OTHERS:
        _run_past_the_doomed(cell, undisturbed)
    elif cell.ending.then:
        retry = bool(cell.crashed()) or cell.ending.then == RETRY
        roll_out(Request.from_run(cell.run), cell.run, running=ExecutionOptions(resume=True, retry_crashed=retry))
    assert contents(cell.run) == contents(undisturbed)


def _run_past_the_doomed(cell: Cell, undisturbed: Path) -> None:
    """With workers the run comes past the episode that kills: that one is crashed. Once mended, it is run again."""
    again = cell.start("eval", "--record-only", "--resume", "--out", str(cell.run), "--workers", "2", log="again")
    assert again.wait(WATCHDOG_S) == 4, cell.output("again")
    (crashed,) = cell.crashed()
    assert "of 2 attempts" in str(crashed.reason)
    assert frames(cell.run) == [frame for frame in frames(undisturbed) if frame[0] != crashed.episode_id]
    roll_out(Request.from_run(cell.run), cell.run, running=ExecutionOptions(resume=True, retry_crashed=True))


def table(outcomes: Mapping[tuple[str, str], str]) -> str:
    """The rows of what was found, as Markdown."""
    lines = [f"| | {' | '.join(ENGINES)} |", "|---" * (1 + len(ENGINES)) + "|"]
    names = [fault.name for fault in FAULTS if any(name == fault.name for name, _ in outcomes)]
    lines += [f"| {name} | {' | '.join(outcomes.get((name, engine), '') for engine in ENGINES)} |" for name in names]
    return "\n".join(lines) + "\n"


def documented() -> str:
    """The table in the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


@contextmanager
def striking(place: Path, cells: Iterable[tuple[Fault, str]]) -> Iterator[dict[tuple[str, str], Future[str]]]:
    """What becomes of each cell, two at a time, by the fault's name and the engine."""
    with installed(place), ThreadPoolExecutor(2) as pool:
        roll_out(REQUEST, place / "undisturbed")
        yield {
            (fault.name, engine): pool.submit(examine, fault, engine, place, place / "undisturbed")
            for fault, engine in cells
        }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, striking(Path(folder), product(FAULTS, ENGINES)) as cells:
        page_table = table({cell: ended.result() for cell, ended in cells.items()})
    before, _, after = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + page_table + END + after.partition(END)[2])
    print(page_table)


if __name__ == "__main__":
    main()
