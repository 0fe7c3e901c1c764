"""Makes a card for each specification: clause, numbers, signal, an episode that breaks it and one that does not.

Episodes are those of the archive that ships. Where none of them breaks a specification under the default rules, more
is assumed to be measured, then tags are left aside, and last a trace is made up; the card says which.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np
from site_charts import draw_signal
from site_reference import escape_markdown, table

import safevla_bench as sb
from safevla_bench import demo, tasks
from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.protocols import load_protocol
from safevla_bench.signals import SIGNALS, RecordFields
from safevla_bench.specs import Library, Spec
from safevla_bench.text.numbers import append_unit, display_unit, format_compact
from safevla_bench.trajectory import Batch, select_episodes

DOCS = Path(__file__).parent
NOTES = tomllib.loads((DOCS / "cards.toml").read_text(encoding="utf-8"))
CASES = tomllib.loads((DOCS.parent / "tests" / "specs" / "cases" / "default.toml").read_text(encoding="utf-8"))
RULES: Sequence[tuple[Mapping[str, object], str]] = (
    ({}, ""),
    (
        {"capabilities": ("libero-full",)},
        "Judged with `--capabilities libero-full`: LIBERO's plain set lacks this channel.",
    ),
    (
        {"applicability": "off"},
        "The judge does not count this episode: the tags of its task rule the specification out. It is shown because "
        "no recorded episode breaks the specification where it applies.",
    ),
)
"""How the archive is judged until some episode breaks the specification, and what is said of it."""
PINNED_MUJOCO = load_protocol().simulator["libero"]["mujoco"]
TITLES = {"scene_interaction": "Scene interaction", "object_handling": "Object handling", "execution": "Execution"}


@dataclass(frozen=True)
class Example:
    """One episode under one specification, drawn."""

    caption: str
    chart: str


def build_cards() -> dict[str, str]:
    """Return page -> its Markdown: the index and a card for each scored or diagnostic specification."""
    library = sb.load_library()
    cards = [spec for spec in library if spec.tier != "alternate"]
    tree = "\n".join(f"cards/{spec.spec_id}" for spec in cards)
    rows = [
        (f"[`{spec.spec_id}`](cards/{spec.spec_id}.md)", "scored" if spec.tier == "safe" else "diagnostic",
         _limit(spec), escape_markdown(spec.rationale))
        for spec in cards
    ]  # fmt: skip
    index = (
        "# A card for each specification\n\nScored specifications decide Safe, Safety, SBU and VSI. Diagnostics are "
        "reported beside them and are in no score. Each card has a recorded episode that breaks the specification, "
        "where there is one, and one that does not.\n\n"
        f"{table(('Specification', '', 'Limit', 'A violation means'), rows)}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return {"cards": index, **{f"cards/{spec.spec_id}": build_card(library, spec) for spec in cards}}


def build_card(library: Library, spec: Spec) -> str:
    """Return one card."""
    tier = "Scored" if spec.tier == "safe" else "Diagnostic: reported, in no score"
    parts = [
        f"# {spec.spec_id}",
        f"{escape_markdown(spec.rationale)} {tier}; axis *{TITLES[spec.axis].lower()}*.",
        f"```text\n{spec.stl}\n```",
        table(("", "Limit", "Severe", "Depth is 1 at"), list(_numbers(library, spec))),
        f"Source: {escape_markdown(spec.source)}.",
        "## The signal",
        *(_signal(name) for name in sorted(spec.signals)),
    ]
    broken, kept = find_examples(spec)
    parts += ["## An episode that breaks it", broken.caption, broken.chart]
    parts += [_pictures(spec), "## One that does not", kept.caption, kept.chart]
    notes = NOTES.get(spec.canonical_family)
    if notes:
        parts += ["## What does not count", "\n".join(f"- {line}" for line in notes["not_counted"])]
    parts += ["## Where it applies", *_applicability(library, spec)]
    parts += ["## How often built-in policies break it", _frequency(spec)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _numbers(library: Library, spec: Spec) -> Iterator[tuple[str, ...]]:
    for row in (spec, *(other for other in library if other.alternate_of == spec.spec_id)):
        severe = "binary" if row.binary else "—" if row.severe is None else _quantity(row, row.severe)
        full = (
            "any violation" if row.binary else "—" if row.severe is None else _quantity(row, row.threshold + row.severe)
        )
        name = "scored" if row.tier == "safe" else "diagnostic" if row is spec else f"alternate `{row.spec_id}`"
        yield name, _limit(row), severe, full


def _limit(spec: Spec) -> str:
    return _quantity(spec, spec.threshold)


def _quantity(spec: Spec, value: float) -> str:
    unit, scale = display_unit(spec.unit, spec.threshold)
    return append_unit(format_compact(value * scale), unit)


def _signal(name: str) -> str:
    signal = SIGNALS[name]
    kind = "true or false" if signal.boolean else f"in {signal.unit}" if signal.unit != "1" else "a number"
    reads = ", ".join(f"`{field}`" for field in signal.reads)
    return f"`{name}`, {kind}: {escape_markdown(signal.meaning)} It is derived from {reads}."


# Examples


@cache
def _archive() -> Batch:
    with resources.as_file(resources.files(demo) / demo.ARCHIVE) as path:
        return sb.open_archive(path)


@cache
def _scores(rule: int) -> sb.Scores:
    options = dict(RULES[rule][0])
    return sb.score(_archive(), sb.load_ruleset(missing="deactivate", **options))


def find_examples(spec: Spec) -> tuple[Example, Example]:
    """Return a recorded episode that breaks a specification, successes first, and one that keeps it."""
    for rule, (_, remark) in enumerate(RULES):
        column = next(k for k, row in enumerate(_scores(rule).specs) if row.spec_id == spec.spec_id)
        scores = _scores(rule)
        violated = np.flatnonzero(scores.is_violated[column])
        if not len(violated):
            continue
        broken = min(violated, key=lambda k: (not scores.success[k], scores.rho[column, k]))
        judged = np.flatnonzero(np.isfinite(scores.rho[column]) & ~scores.is_violated[column])
        same = [
            k
            for k in judged
            if scores.task_id[k] == scores.task_id[broken] and scores.benchmark[k] == scores.benchmark[broken]
        ]
        kept = min(same or judged.tolist(), key=lambda k: (not scores.success[k], scores.rho[column, k]), default=None)
        first = _example(spec, int(broken), remark)
        return first, _example(spec, int(kept), "") if kept is not None else _made_up(spec, "satisfied")
    return _made_up(spec, "violated"), _recorded_kept(spec)


def _recorded_kept(spec: Spec) -> Example:
    for rule in range(len(RULES)):
        scores = _scores(rule)
        column = next(k for k, row in enumerate(scores.specs) if row.spec_id == spec.spec_id)
        judged = np.flatnonzero(np.isfinite(scores.rho[column]))
        if len(judged):
            return _example(
                spec, int(min(judged, key=lambda k: scores.rho[column, k])), RULES[rule][1] if rule == 1 else ""
            )
    return _made_up(spec, "satisfied")


def _example(spec: Spec, episode: int, remark: str) -> Example:
    record = select_episodes(_archive(), [episode])
    header = record.headers[0]
    trace = trace_formula(spec.formula, RecordFields(record))
    outcome = "It succeeded." if header.success else "It did not succeed."
    caption = f"`{header.episode_id}`: {escape_markdown(header.instruction or '')}. {outcome} {remark}".rstrip()
    return Example(caption, draw_signal(trace, float(record.dt_s[0]), escape(f"{spec.spec_id} in {header.episode_id}")))


def _made_up(spec: Spec, kind: str) -> Example:
    case = CASES[spec.spec_id][kind]
    name, values = next((key, row) for key, row in case.items() if key != "rho" and not isinstance(row[0], bool))
    limit = -spec.threshold if "> -" in spec.stl else spec.threshold
    failing = np.array(values) >= limit if limit > 0 else np.array(values) <= limit
    if kind == "satisfied":
        failing[:] = False
    trace = SignalTrace(
        name, spec.unit, np.array(values), limit, limit > 0, None, failing, int(np.argmax(np.abs(values)))
    )
    caption = "No recorded episode of the archive breaks it. This is a made-up trace of a few records, from the tests."
    return Example(
        caption if kind == "violated" else "A made-up trace, from the tests.", draw_signal(trace, 0.05, spec.spec_id)
    )


def _pictures(spec: Spec) -> str:
    rows = tomllib.loads((DOCS / "gallery" / "gallery.toml").read_text(encoding="utf-8"))["episodes"]
    row = next((row for row in rows if row["spec"] == spec.spec_id), None)
    if row is None:
        return ""
    text = f"Another episode that breaks it, from the [gallery](../gallery.md): {row['text']}"
    return f"```{{image}} ../../images/gallery/{row['name']}.jpg\n:alt: {row['title']}\n```\n\n{text}"


# Where and how often


def _applicability(library: Library, spec: Spec) -> Iterator[str]:
    yield (
        "It applies to a task that has all of these tags:\n\n" + _tags(library, spec.requires_all)
        if spec.requires_all
        else ("It needs no tag: it applies to every task.")
    )
    if spec.invalid_if_any:
        yield "Any of these rules it out:\n\n" + _tags(library, spec.invalid_if_any)
    registry = sb.load_registry()
    rows = []
    for benchmark in registry.benchmarks.values():
        if benchmark.host == "fake" or benchmark.same_tasks_as or benchmark.same_tags_as:
            continue
        listings = tasks.task_listings(registry, library, benchmark=benchmark.name)
        active = sum(spec.spec_id in row["active_specs"] for row in listings)
        if spec.tier == "safe" and listings:
            rows.append((f"`{benchmark.name}`", f"{active} of {len(listings)}"))
    if rows:
        yield table(("Suite", "Tasks where it applies"), rows)


def _tags(library: Library, names: Sequence[str]) -> str:
    return "\n".join(f"- `{name}`: {escape_markdown(library.vocabulary[name].meaning)}" for name in names)


def _frequency(spec: Spec) -> str:
    """Return how often each scripted policy breaks it, counted from the table of measured.md."""
    if spec.tier != "safe":
        return "Not counted: [What the scripted policies reach](../../measured.md) counts scored specifications."
    text = (DOCS / "measured.md").read_text(encoding="utf-8")
    counts: dict[str, int] = {}
    for policy, violated in re.findall(r"\| `(scripted:\w+)` \| \d+ of \d+ \| \d+ of \d+ \| (.*?) \|", text):
        broken = re.search(rf"`{spec.spec_id}` (\d+)", violated)
        counts[policy] = counts.get(policy, 0) + (int(broken[1]) if broken else 0)
    totals: dict[str, int] = {}
    for policy, episodes in re.findall(r"^\| libero-\S+ \| `(scripted:\w+)` \| (\d+) \|", text, re.M):
        totals[policy] = totals.get(policy, 0) + int(episodes)
    rows = [(f"`{policy}`", f"{counts[policy]} of {totals[policy]}") for policy in sorted(totals)]
    page = "[What the scripted policies reach](../../measured.md)"
    said = f"{page}: four suites of LIBERO, {sum(totals.values())} episodes."
    return f"{table(('Policy', 'Episodes that break it'), rows)}\n\n{said} {_noop_remark()}"


def _noop_remark() -> str:
    """Return what simulator-versions.md has of `noop` under the pinned MuJoCo, if that is nothing."""
    text = (DOCS / "simulator-versions.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(PINNED_MUJOCO)} \|.*\| 0 of (\d+) states \|", text, re.M)
    if row is None:
        return "What `noop` breaks: [LIBERO under other versions of MuJoCo](../../simulator-versions.md)."
    return (
        f"`noop`, which stands still, breaks no scored specification in {row[1]} initial states of the same tasks "
        "([LIBERO under other versions of MuJoCo](../../simulator-versions.md))."
    )


# The gallery


def build_gallery() -> str:
    """Return the gallery: each stored record judged now, with its pictures and what one can do with it."""
    parts = [
        "# Unsafe successes",
        "Each of these episodes is a success by LIBERO's own rule. Each broke a limit. All were recorded here, with "
        "the pinned versions, by `docs/gallery/record.py`. Their numbers are computed when this page is built. "
        "Pictures: how it began, where the limit was broken worst, how it ended.",
    ]
    for row in tomllib.loads((DOCS / "gallery" / "gallery.toml").read_text(encoding="utf-8"))["episodes"]:
        parts.append(_gallery_entry(row))
    return "\n\n".join(parts) + "\n"


def _gallery_entry(row: Mapping[str, str]) -> str:
    batch = sb.open_archive(DOCS / "gallery" / f"{row['name']}.parquet")
    verdict, spec = sb.score(batch, sb.load_ruleset()).episode(0), sb.load_library()[row["spec"]]
    if not verdict.sbu or row["spec"] not in verdict.violated_specs:
        raise ValueError(f"docs/gallery: {row['name']} is no success that breaks {row['spec']}")
    header, extreme = batch.headers[0], verdict.extreme[row["spec"]]
    reached, depth = _quantity(spec, float(f"{extreme:.3g}")), verdict.depth[row["spec"]]
    numbers = f"`{spec.spec_id}`: {reached}, limit {_limit(spec)}, depth {depth:.3f}."
    alt = f"Three pictures: the start, {escape(row['title'].lower())}, the end"
    play = (
        f"safevla show {row['name']}.parquet 1\nsafevla eval --policy replay:{row['name']}.parquet --out runs/replayed"
    )
    return (
        f"## {row['title']}\n\n*{escape_markdown(header.instruction or '')}*, `{header.policy}`. {row['text']}\n\n"
        f"```{{image}} ../images/gallery/{row['name']}.jpg\n:alt: {alt}\n```\n\n"
        f"{numbers} [The card](cards/{row['spec']}.md) explains the limit.\n\n"
        f"Its record: {{download}}`{row['name']}.parquet <../gallery/{row['name']}.parquet>`. Explain it, or play its "
        f"actions again:\n\n```sh\n{play}\n```"
    )
