"""Change one place of the code at a time and report the changes that the folder's own tests do not notice.

Run it by `make mutate`, or `.venv/bin/python .ci/mutate.py [--per-folder 15] [--seed 1] [FOLDER ...]`. Each change is
made in a copy of the committed tree. The tests named after the changed module run first, then all of the folder's,
without those of simulators and the long ones. `.ci/equivalent_mutants.toml` names changes that no test can notice,
with the reason; they count as neither noticed nor missed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE, RECORDER = "src/safevla_bench", "recorder/src/safevla_recorder"
FOLDERS = {
    **{
        f"{PACKAGE}/{name}": f"tests/{name}"
        for name in ("judging", "stl", "signals", "statistics", "compare", "trajectory", "sources")
    },
    RECORDER: "recorder/tests",
}
KNOWN = Path(__file__).with_name("equivalent_mutants.toml")

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


def notices(root: Path, tests: list[str], seconds: int) -> bool:
    """Return whether these tests fail, or need longer than `seconds`."""
    marks = "not libero" if tests[0].startswith("recorder") else "not long and not libero"
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    command = [sys.executable, "-m", "pytest", *options, "-m", marks, *tests]
    if tests[0].startswith("recorder"):  # whose own settings lack the markers
        command += ["-c", "pyproject.toml", "--rootdir", "."]
    paths = os.pathsep.join(str(root / folder) for folder in ("src", "recorder/src"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)  # 5: no tests


def try_mutation(root: Path, mutation: Mutation, tests: str, seconds: int) -> bool:
    """Return whether the tests of the module, or else of its folder, notice the mutation."""
    file = root / mutation.path
    before = file.read_bytes()
    file.write_bytes(before[: mutation.start] + mutation.new.encode() + before[mutation.end :])
    try:
        stem = file.stem.rstrip("s")
        near = [str(test.relative_to(root)) for test in (root / tests).rglob("test_*.py") if stem in test.stem]
        return (bool(near) and notices(root, near, seconds)) or notices(root, [tests], seconds)
    finally:
        file.write_bytes(before)


def main() -> None:
    """Draw mutations of each folder, try each, print the survivors and the share noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=list(FOLDERS), metavar="FOLDER", help="source folders")
    parser.add_argument("--per-folder", type=int, default=15, help="mutations of each folder (15)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    parser.add_argument("--seconds", type=int, default=600, help="limit of one run of tests (600)")
    options = parser.parse_args()
    known = tomllib.loads(KNOWN.read_text()).get("mutant", [])
    noticed = total = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        root = Path(scratch) / "tree"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", root], check=True)
        try:
            for folder in options.folders:
                tests = FOLDERS.get(folder) or folder.replace(PACKAGE, "tests")
                if notices(root, [tests], options.seconds):
                    sys.exit(f"{tests} fails, or needs more than {options.seconds} s, without a mutation")
                drawn = draw_mutations(root, folder, options.per_folder, random.Random(f"{options.seed} {folder}"))
                mine = [m for m in drawn if not m.is_equivalent(known)]
                killed = 0
                for mutation in mine:
                    if try_mutation(root, mutation, tests, options.seconds):
                        killed += 1
                    else:
                        print(f"survived  {mutation}", flush=True)
                print(f"{folder}: {killed} of {len(mine)} noticed", flush=True)
                noticed, total = noticed + killed, total + len(mine)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", root], check=True)
    print(f"{noticed} of {total} noticed ({noticed / max(total, 1):.0%})")


if __name__ == "__main__":
    main()
