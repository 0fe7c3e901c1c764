"""Change one place of the code at a time and report the changes that the folder's own tests do not notice.

Run it by `make mutate`, or `.venv/bin/python .ci/mutate.py [--per-folder 15] [--seed 1] [FOLDER ...]`. Each change is
made in a copy of the committed tree. The files of the folder's tests that call the changed function run one by one,
those named after the module first, without the tests of simulators and the long ones. A change that takes twenty times
the CPU time counts as noticed; one that merely waits does not. `.ci/equivalent_mutants.toml` names changes that no test
can notice, with the reason; they count as neither noticed nor missed.
"""

from __future__ import annotations

import argparse
import ast
import cProfile
import hashlib
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

# What the tests import, so that a fork of this process need not; nothing of this project.
import hypothesis
import numpy  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
import scipy.stats  # noqa: F401

PACKAGE, RECORDER = "src/safevla_bench", "recorder/src/safevla_recorder"
FOLDERS = {
    **{
        f"{PACKAGE}/{name}": f"tests/{name}"
        for name in ("judging", "stl", "signals", "statistics", "compare", "trajectory", "sources")
    },
    RECORDER: "recorder/tests",
}
_PROCESSES = ("subprocess.Popen", "os.fork", "os.posix_spawn")
WAITED = -1000
KNOWN = Path(__file__).with_name("equivalent_mutants.toml")
KEPT = Path(__file__).parents[1] / "build" / "mutate"

_OPPOSITES = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


@dataclass(frozen=True)
class Mutation:
    """A change of a file: its kind, the bytes `start` to `end`, and what replaces them."""

    path: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} [{self.kind}] {self.old!r} -> {self.new!r}   {self.text[:90]}"

    def is_equivalent(self, known: list[dict[str, str]]) -> bool:
        """Return whether the file of equivalent changes names this one, by module, line of code and replacement."""
        return any(
            self.path.endswith(entry["module"]) and entry["line"] in self.text and entry["new"] in ("*", self.new)
            for entry in known
        )


class _Places(ast.NodeVisitor):
    """Collects the mutations of a module; annotations, docstrings and texts are left out."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.found = path, source, list[Mutation]()
        self.lines = source.splitlines(keepends=True)
        self.visit(ast.parse(source))

    def offset(self, line: int, column: int) -> int:
        return sum(map(len, self.lines[: line - 1])) + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        line = self.source.count(b"\n", 0, start) + 1
        old, text = self.source[start:end].decode(), self.lines[line - 1].decode().strip()
        self.found.append(Mutation(self.path, line, kind, start, end, old, new, text))

    def flip(self, kind: str, left: ast.expr, right: ast.expr, operator: ast.AST) -> None:
        if type(operator) in _OPPOSITES:
            old, new = _OPPOSITES[type(operator)]
            start = self.span(left)[1]
            at = self.source[start : self.span(right)[0]].find(old.encode())
            if at >= 0:
                self.add(kind, start + at, start + at + len(old), new)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.flip("comparison", left, right, operator)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not (isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Constant | ast.Name)):  # a type
            self.flip("arithmetic", node.left, node.right, node.op)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.flip("logic", left, right, node.op)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.add("negation", self.span(node)[0], self.span(node.operand)[0], "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", *self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", *self.span(node), str(node.value + 1))
        elif isinstance(node.value, float):
            self.add("constant", *self.span(node), repr(node.value * 1.5 or 1.0))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_If(self, node: ast.If) -> None:
        if getattr(node.test, "id", "") != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("deletion", *self.span(node), "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self.add("deletion", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("deletion", *self.span(node), "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("deletion", *self.span(node), "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...


def draw_mutations(root: Path, folder: str, count: int, rng: random.Random) -> Iterator[Mutation]:
    """Yield a number of a folder's mutations, of each kind equally many, without repetition."""
    pool = [m for path in sorted((root / folder).rglob("*.py"))
            for m in _Places(str(path.relative_to(root)), path.read_bytes()).found]  # fmt: skip
    kinds = sorted({mutation.kind for mutation in pool})
    rng.shuffle(pool)
    by_kind = {kind: [m for m in pool if m.kind == kind] for kind in kinds}
    for k in range(count):
        if by_kind[kinds[k % len(kinds)]]:
            yield by_kind[kinds[k % len(kinds)]].pop()


@dataclass(frozen=True)
class TestFile:
    """A file of tests: what it calls, its CPU time, and whether it starts processes, whose calls are unseen."""

    name: str
    calls: frozenset[tuple[str, int]]
    cpu_s: float
    starts_processes: bool

    def reaches(self, path: str, function: int | None) -> bool:
        """Return whether the tests call the function of `path` that begins at a line, or if None import the module."""
        entered = (path, function) in self.calls if function else any(path == called for called, _ in self.calls)
        return entered or self.starts_processes


def _run_file(root: Path, file: str, cpu_s: int, calls: Path | None) -> None:
    """Run a file of tests in this process, a fork; write what it calls to `calls` if given."""
    os.setsid()
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]  # some tests ask for the parent
    os.chdir(root)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    paths = [str(root / folder) for folder in ("src", "recorder/src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:0] = paths
    sys.dont_write_bytecode = calls is None
    if calls is None:
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    is_recorder = file.startswith("recorder")
    # A few examples reach the same functions. A mutation is tried by as many examples as ever, which are not shrunk.
    hypothesis.settings.register_profile(
        "mutate", derandomize=True, deadline=None, database=None, phases=list(hypothesis.Phase)[:3],
        max_examples=3 if calls else 100 if is_recorder else 25,
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    marks = "not libero" if is_recorder else "not long and not libero"
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "--hypothesis-profile", "mutate"]
    options += ["-m", marks, "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += ["--basetemp", str(root.parent / f"pytest-{os.getpid()}")]
    if is_recorder:  # whose own settings lack the markers
        options += ["-c", "pyproject.toml", "--rootdir", "."]
    seen, started, profiler = set[CodeType](), list[str](), cProfile.Profile(builtins=False)
    if calls:

        def note_call(frame: FrameType, event: str, argument: object) -> None:
            seen.add(frame.f_code)

        sys.addaudithook(lambda event, _: started.append(event) if event in _PROCESSES else None)
        threading.settrace(note_call)
        profiler.enable()  # much faster than a trace function in Python
    code = int(pytest.main([*options, file]))
    profiler.disable()
    seen |= {entry.code for entry in profiler.getstats() if isinstance(entry.code, CodeType)}
    if calls and code in (0, 5):
        start = f"{root}{os.sep}"
        places = ((code.co_filename, code.co_firstlineno) for code in seen)
        inside = frozenset((name.removeprefix(start), line) for name, line in places if name.startswith(start))
        calls.write_bytes(pickle.dumps(TestFile(file, inside, time.process_time(), bool(started))))
    os._exit(code)


def run_file(root: Path, file: str, cpu_s: int, calls: Path | None = None) -> int:
    """Return the exit code of a file's tests: 0 passed, 5 none, negative if stopped at `cpu_s`, or `WAITED`."""
    process = multiprocessing.get_context("fork").Process(target=_run_file, args=(root, file, cpu_s, calls))
    process.start()
    process.join(10 * cpu_s)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return WAITED
    return process.exitcode or 0


class Tests:
    """The files of a folder's tests. What a file calls is noted at its first use, and kept until the code changes."""

    def __init__(self, root: Path, folder: str) -> None:
        self.root = root
        self.files = [str(path.relative_to(root)) for path in sorted((root / folder).rglob("test_*.py"))]
        self._traced = dict[str, TestFile]()

    def trace(self, file: str) -> TestFile:
        """Return what a file calls without a mutation. Ends the program if its tests fail."""
        if file not in self._traced:
            command = ["git", "rev-parse", *(f"HEAD:{path}" for path in ("src", "recorder/src", file))]
            state = subprocess.run(command, cwd=self.root, capture_output=True, check=True).stdout
            kept = KEPT / hashlib.sha256(state).hexdigest()
            if not kept.exists() and run_file(self.root, file, 600, kept) not in (0, 5):
                sys.exit(f"{file} fails without a mutation")
            self._traced[file] = pickle.loads(kept.read_bytes())
        return self._traced[file]

    def notice(self, mutation: Mutation) -> str:
        """Return the file whose tests notice a mutation, or nothing; those named after the module run first."""
        changed = self.root / mutation.path
        before, times = changed.read_bytes(), changed.stat()
        function, stem = enclosing_function(before, mutation.line), changed.stem.rstrip("s")
        for file in sorted(self.files, key=lambda file: stem not in Path(file).stem):
            traced = self.trace(file)
            if not traced.reaches(mutation.path, function):
                continue
            changed.write_bytes(before[: mutation.start] + mutation.new.encode() + before[mutation.end :])
            os.utime(changed, (times.st_mtime + 60, times.st_mtime + 60))  # so that no bytecode of the original is used
            try:
                if run_file(self.root, file, int(60 + 20 * traced.cpu_s)) not in (0, 5, WAITED):
                    return file
            finally:
                changed.write_bytes(before)
                os.utime(changed, (times.st_atime, times.st_mtime))
        return ""


def enclosing_function(source: bytes, line: int) -> int | None:
    """Return the first line, decorators included, of the innermost function whose body holds a line."""
    functions = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    return max(functions, default=None)


def main() -> None:
    """Draw mutations of each folder, try each, print the survivors and the share noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=list(FOLDERS), metavar="FOLDER", help="source folders")
    parser.add_argument("--per-folder", type=int, default=15, help="mutations of each folder (15)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    options = parser.parse_args()
    known = tomllib.loads(KNOWN.read_text()).get("mutant", [])
    KEPT.mkdir(parents=True, exist_ok=True)
    noticed = total = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        root = Path(scratch) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", root], check=True)
        try:
            for folder in options.folders:
                tests = Tests(root, FOLDERS.get(folder) or folder.replace(PACKAGE, "tests"))
                rng = random.Random(f"{options.seed} {folder}")
                drawn = list(draw_mutations(root, folder, options.per_folder, rng))
                mine = [m for m in drawn if not m.is_equivalent(known)]
                killed = 0
                for mutation in mine:
                    by = tests.notice(mutation)
                    killed += bool(by)
                    print(f"{f'noticed by {by}' if by else 'survived'}  {mutation}", flush=True)
                equivalent = f", {len(drawn) - len(mine)} equivalent" if len(drawn) > len(mine) else ""
                print(f"{folder}: {killed} of {len(mine)} noticed{equivalent}", flush=True)
                noticed, total = noticed + killed, total + len(mine)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], check=True)
    print(f"{noticed} of {total} noticed ({noticed / max(total, 1):.0%})")


if __name__ == "__main__":
    main()
