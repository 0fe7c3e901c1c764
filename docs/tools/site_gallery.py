"""The gallery of unsafe successes: each stored record is judged when the site is built."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from html import escape
from pathlib import Path

from site_charts import draw_signal
from site_reference import escape_markdown

import safevla_bench as sb
from safevla_bench.explain.trace import trace_formula
from safevla_bench.signals.signal import RecordFields
from safevla_bench.text import append_unit, display_unit, format_compact
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import standin_benchmarks

FOLDER = Path(__file__).parents[1] / "gallery"
PICTURES = Path(__file__).parents[1] / "images" / "gallery"
INTRODUCTION = """\
Each of these episodes is a success by the simulator's own rule. Each broke a limit. All were recorded here, with the
pinned versions, by `docs/tools/record_gallery.py`. Their numbers are computed when this page is built. Pictures show
how the episode began, where the limit was broken worst, and how it ended."""
STANDIN = """\
**Stand-in assets.** This kitchen was simulated with placeholders for RoboCasa's own objects and fixtures. The episode
shows what the judge finds. It is no result on RoboCasa-365, and there is no picture of it."""
STANDIN_REPLAY = """\
On the same stand-ins a replay gives every recorded state, bit for bit. They are not part of this package. On RoboCasa's
own assets the actions lead elsewhere, and the report of the replay says so."""


def read_rows() -> list[Mapping[str, str]]:
    """Return the rows of gallery.toml."""
    return list(tomllib.loads((FOLDER / "gallery.toml").read_text(encoding="utf-8"))["episodes"])


def build_gallery() -> str:
    """Return the page."""
    parts = ["# Unsafe successes", INTRODUCTION]
    hosts = {"libero": "## On LIBERO", "robocasa": "## On RoboCasa, with stand-in assets"}
    for host, heading in hosts.items():
        parts.append(heading)
        parts += [_entry(row) for row in read_rows() if row.get("host", "libero") == host]
    return "\n\n".join(parts) + "\n"


def _entry(row: Mapping[str, str]) -> str:
    batch = sb.open_archive(FOLDER / f"{row['name']}.parquet")
    header = batch.headers[0]
    parts = [
        f"### {row['title']}",
        f"*{escape_markdown((header.instruction or '').rstrip('.'))}*. Policy `{header.policy}`. {row['text']}",
        _picture(row, batch),
        f"{_numbers(row, batch)} [The card](cards/{row['spec']}.md) explains the limit.",
        f"Its record: {{download}}`{row['name']}.parquet <../gallery/{row['name']}.parquet>`. Explain it, or play its "
        "actions again:",
        f"```sh\nsafevla show {row['name']}.parquet :1\n"
        f"safevla eval --policy replay:{row['name']}.parquet --out runs/replayed\n```",
        STANDIN_REPLAY if standin_benchmarks(batch) else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _picture(row: Mapping[str, str], batch: Batch) -> str:
    """Return three pictures; of an episode on stand-in assets, the plot of the signal."""
    if not standin_benchmarks(batch):
        alt = f"Three pictures: the start, {escape(row['title'].lower())}, the end"
        return f"```{{image}} ../images/gallery/{row['name']}.webp\n:alt: {alt}\n```"
    if (PICTURES / f"{row['name']}.webp").exists():
        raise ValueError(f"docs/images/gallery: {row['name']} was simulated on stand-in assets, and has a picture")
    trace = trace_formula(sb.load_library()[row["spec"]].formula, RecordFields(batch))
    return f"{STANDIN}\n\n{draw_signal(trace, float(batch.dt_s[0]), escape(row['title']))}"


def _numbers(row: Mapping[str, str], batch: Batch) -> str:
    verdict, spec = sb.score(batch, sb.load_ruleset()).episode(0), sb.load_library()[row["spec"]]
    if not verdict.sbu or row["spec"] not in verdict.violated_specs:
        raise ValueError(f"docs/gallery: {row['name']} is no success that breaks {row['spec']}")
    unit, scale = display_unit(spec.unit, spec.threshold)
    extreme = verdict.extreme[row["spec"]]
    reached, limit = (
        append_unit(format_compact(float(f"{value * scale:.3g}")), unit) for value in (extreme, spec.threshold)
    )
    return f"`{spec.spec_id}`: {reached}, limit {limit}, depth {verdict.depth[row['spec']]:.3f}."
