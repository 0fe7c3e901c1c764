"""The messages of errors that a user can cause, from the sources; `make golden` writes them to approval files.

Each message has a heading, which names its module, function and error and the parts that it has, and its wording. Tests
compare the headings alone.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from safevla_bench import errors

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src" / "safevla_bench", ROOT / "recorder" / "src" / "safevla_recorder")
FOLDER = ROOT / "tests" / "golden" / "messages"
ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def collect_messages() -> dict[str, str]:
    """Return the content of each approval file by its name, one for each folder of a package."""
    texts: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            folder = path.relative_to(package).parts[0] if path.parent != package else package.name
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts[f"{folder}.txt"] += _list_messages(tree, str(path.relative_to(package)))
    return {name: "\n".join(parts) + "\n" for name, parts in texts.items() if parts}


def read_headings(text: str) -> list[str]:
    """Return the headings of an approval file."""
    return [line for line in text.splitlines() if line.startswith("# ")]


def write_messages(folder: Path) -> None:
    """Write the approval files."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in collect_messages().items():
        (folder / name).write_text(text, encoding="utf-8")


def _list_messages(tree: ast.Module, place: str) -> Iterator[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in sorted(calls, key=lambda node: node.lineno):
        kind = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if kind not in ERRORS or not call.args:
            continue
        around = [node for node in functions if node.lineno <= call.lineno <= (node.end_lineno or 0)]
        scopes = [*sorted(around, key=lambda node: -node.lineno), tree]
        parts = {"problem": call.args[0], **{word.arg: word.value for word in call.keywords if word.arg}}
        parts = {name: parts[name] for name in ("problem", "place", "remedy") if name in parts}
        name = getattr(scopes[0], "name", "module")
        words = [_resolve(parts[part], scopes, call.lineno) for part in ("problem", "remedy") if part in parts]
        yield "\n".join([f"# {place} {name} {kind}: {', '.join(parts)}", *(f"  {text}" for text in words)])


def _resolve(value: ast.expr, scopes: list[ast.AST], line: int) -> str:
    """Return a text as it is in the source; a name is replaced by the value last assigned to it before `line`."""
    if isinstance(value, ast.Name):
        for scope in scopes:
            known = [
                node
                for node in ast.walk(scope)
                if isinstance(node, ast.Assign)
                and any(getattr(target, "id", "") == value.id for target in node.targets)
                and (node.lineno < line or isinstance(scope, ast.Module))
            ]
            if known:
                return _resolve(max(known, key=lambda node: node.lineno).value, scopes[-1:], line)
    return re.sub(r"\s+", " ", ast.unparse(value))
