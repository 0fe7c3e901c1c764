"""Every page that code, a page or a form names is there, under that path."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "recorder", "tests", "benchmarks", "docs", "examples", "constraints", ".github", ".ci")
ENDINGS = {".cff", ".ini", ".ipynb", ".md", ".py", ".sh", ".toml", ".txt", ".yml"}
NAMED = re.compile(r"(?<![\w./])docs/[\w./-]+\.(?:md|ipynb|png|webp|py|toml)\b")
LINK = re.compile(r"\]\(([^)\s#:]+\.(?:md|ipynb|html|png|webp|svg|py|toml))[#)]")
THEIRS = (
    "docs/DEPLOYMENT.md",
    "docs/benchmarking/multitask_learning.md",
    "docs/event_tracking.md",
    "docs/inference_server.md",
    "docs/reproductions/",
)
"""Pages and folders of other projects, which a source names with the project."""


def list_texts() -> list[Path]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    found = [
        path
        for path in (*files, *ROOT.iterdir())
        if path.is_file() and (path.suffix in ENDINGS or path.name in ("Makefile", "Dockerfile"))
    ]
    return [path for path in found if not {"node_modules", "__pycache__"} & {*path.parts}]


def is_there(path: Path) -> bool:
    """Return whether a page exists, or is one that the site's build makes, which git ignores."""
    made = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    name = path.relative_to(ROOT).as_posix()
    return path.exists() or any(
        name.startswith(line.strip("/")) or f"/{name}" == line for line in made if "/docs/" in line
    )


def test_every_path_below_docs_that_a_file_names_exists():
    texts = list_texts()
    named = {(path, name) for path in texts for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 100
    lost = {f"{path.relative_to(ROOT)}: {name}" for path, name in named if not is_there(ROOT / name)}
    assert {line for line in lost if not line.partition(": ")[2].startswith(THEIRS)} == set()


def test_every_page_that_a_page_links_to_exists():
    """A link in llms.txt is to the built page; its source has another ending."""
    lost = set()
    for path in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "docs" / "llms.txt"]:
        for link in LINK.findall(path.read_text(encoding="utf-8")):
            target = Path(os.path.normpath(path.parent / link))
            sources = [target.with_suffix(end) for end in (".md", ".ipynb")] if target.suffix == ".html" else [target]
            if not any(map(is_there, sources)):
                lost.add(f"{path.relative_to(ROOT)}: {link}")
    assert lost == set()
