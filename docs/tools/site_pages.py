"""A Sphinx extension: what the site holds that is made at its build, from code and from the archive that ships.

The demo's report goes to build/docs-static, which conf.py names; links to pages outside docs/ are pointed into
the site. Cells of tutorials run in IPython, with a `%%sh` of our own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

import site_cards
import site_gallery
import site_reference
from docutils import nodes
from sphinx.application import Sphinx

DOCS, ROOT = Path(__file__).parents[1], Path(__file__).parents[2]
STATIC = ROOT / "build" / "docs-static"
OUTSIDE = {
    "CONTRIBUTING.md": "howto/contributing.md",
    "CHANGELOG.md": "reference/changelog.md",
    "README.md": "index.md",
}
"""Pages that lie in the repository's root -> the page of the site that shows them."""
MOVED = {
    "howto": "adding-a-host another-engine board clusters comparing contributing figures filters firmness frames "
    "handling install learned maniskill metaworld monitor own-records own-specifications person python real-robots "
    "recording replay report robocasa robosuite running scaling searching servers tasks training verify",
    "reference": "changelog citing dependencies glossary hosts limits log-formats policy-contract protocols "
    "specifications tables which-command",
    "explanation": "architecture faq fidelity trust",
    "evidence": "benchmarks forces measured reconstruction simulator-versions statistics",
}
"""Folder -> the pages in it that had an address without a folder up to version 0.1."""
REDIRECT = """<!doctype html><meta charset="utf-8"><title>This page has moved</title>
<script>location.replace("{target}" + location.search + location.hash)</script>
<meta http-equiv="refresh" content="1; url={target}"><link rel="canonical" href="{target}">
<p><a href="{target}">This page has moved.</a>
"""
SHELL = "%%sh\n"
"""First line of a cell that is run by the shell; readers see the commands alone."""
WRITE_FILE = "%%writefile "
"""What precedes a file's name in the first line of a cell that writes it; readers see the name as a comment."""
STARTUP = """\
import subprocess
from IPython.core.magic import register_cell_magic

@register_cell_magic
def sh(line, cell):
    'Run a cell by bash and print its output in one piece; IPython prints it in pieces, which come out as lines.'
    ended = subprocess.run(["bash", "-euo", "pipefail", "-c", cell], stdout=-1, stderr=-2, text=True)
    print(ended.stdout, end="")
    get_ipython().user_ns["printed"] = ended.stdout  # for cells that hold the text to it
    if ended.returncode:
        raise RuntimeError(f"exit code {ended.returncode}")
"""
QUIET = "c.Application.log_level = 40\n"


@cache
def source_digest() -> str:
    """Return a digest of both packages: what is made from them is made again when it changes."""
    digest = hashlib.sha256()
    for folder in ("src", "recorder/src"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def write_demo_report(_: Sphinx) -> None:
    """Write the report that `safevla demo` writes, unless it is there."""
    from safevla_bench.cli import run_command_line

    report, stamp = STATIC / "demo" / "report.html", STATIC.with_name("docs-demo.digest")
    if report.exists() and stamp.exists() and stamp.read_text() == source_digest():
        return
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            code = run_command_line(["demo", "--out", folder])
        if code:
            raise RuntimeError(f"safevla demo ended with exit code {code}")
        report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(folder, "report.html"), report)
    stamp.write_text(source_digest())


def write_reference(_: Sphinx) -> None:
    """Write the pages that are made from code, where they have changed, and remove those that no code has any more."""
    made = {**site_reference.build_pages(), **site_cards.build_cards(), "gallery": site_gallery.build_gallery()}
    pages = {DOCS / "reference" / f"{name}.md": text for name, text in made.items()}
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in set((DOCS / "reference").glob("*/**/*.md")) - set(pages):
        path.unlink()


def redirect_links(_: Sphinx, page: str, source: list[str]) -> None:
    """Point links to pages in the repository's root at the pages of the site that include them."""
    up = "../" * page.count("/")
    for name, target in OUTSIDE.items():
        source[0] = source[0].replace(f"]({up}../{name}", f"]({up}{target}")


def keep_old_addresses(app: Sphinx, error: Exception | None) -> None:
    """Write a page at each address that the site had before pages were sorted into folders: it leads to the new one."""
    for folder, names in {} if error else MOVED.items():
        for name in names.split():
            Path(app.outdir, f"{name}.html").write_text(
                REDIRECT.format(target=f"{folder}/{name}.html"), encoding="utf-8"
            )


def write_ipython_profile(folder: Path) -> None:
    """Write the profile of the IPython that runs cells: our `%%sh`, and no warnings of its own."""
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "shell.py").write_text(STARTUP)
    (startup.parent / "ipython_kernel_config.py").write_text(QUIET)


def mend_docstring(_: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Let a letter follow code, as in `JudgedEpisode`s, which reStructuredText has no other way to say."""
    lines[:] = [re.sub(r"(?<![`\w])`([^`]+)`(?=\w)", r"`\1`\\ ", line) for line in lines]


def show_cells(_: Sphinx, document: nodes.document) -> None:
    """Show a cell as what it is: shell commands, or a file with its name."""
    for block in document.findall(nodes.literal_block):
        text = block.astext()
        if text.startswith(SHELL):
            text, block["language"] = text.removeprefix(SHELL), "sh"
        elif text.startswith(WRITE_FILE):
            text = f"# {text.removeprefix(WRITE_FILE)}"
        else:
            continue
        block.rawsource, block.children = text, [nodes.Text(text)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the steps."""
    app.connect("builder-inited", write_demo_report)
    app.connect("builder-inited", write_reference)
    app.connect("source-read", redirect_links)
    app.connect("autodoc-process-docstring", mend_docstring)
    app.connect("doctree-read", show_cells)
    app.connect("build-finished", keep_old_addresses)
    return {"parallel_read_safe": True}
