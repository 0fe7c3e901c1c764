"""Makes a card for each specification: clause, numbers, signal, an episode that breaks it and one that does not."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from made_page import format_table
from site_examples import Example, Kind, find_examples, read_measured
from site_reference import escape_markdown

import safevla_bench as sb
from safevla_bench import tasks
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.text import append_unit, display_unit, format_compact

DOCS = Path(__file__).parents[1]
NOTES = tomllib.loads((DOCS / "tools" / "cards.toml").read_text(encoding="utf-8"))
PICTURES = DOCS / "images" / "cards"
PINNED_MUJOCO = load_protocol().simulator["libero"]["mujoco"]
TASKS = 40
"""Tasks of the four suites that card_episodes.py runs."""
HEADINGS = ("An episode that breaks it", "One that does not")
TITLES = {"scene_interaction": "Scene interaction", "object_handling": "Object handling", "execution": "Execution"}


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
        f"{format_table(('Specification', '', 'Limit', 'A violation means'), rows)}\n\n"
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
        format_table(("", "Limit", "Severe", "Depth is 1 at"), list(_numbers(library, spec))),
        f"Source: {escape_markdown(spec.source)}.",
        "## The signal",
        *(_signal(name) for name in sorted(spec.signals)),
    ]
    for heading, (kind, example) in zip(HEADINGS, find_examples(spec).items(), strict=True):
        parts += [f"## {heading}", example.caption, _strip(spec, kind, example), example.chart]
        parts += [_gallery_link(spec)] if kind == "broken" else []
    if note := NOTES.get(spec.canonical_family):
        parts += ["## What does not count", "\n".join(f"- {line}" for line in note["not_counted"])]
    parts += ["## Where it applies", *_applicability(library, spec)]
    if spec.spec_id in read_measured()["counts"]:
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
    """Return the definition of a signal: its docstring, its unit and what it is derived from."""
    signal = SIGNALS[name]
    kind = "true or false" if signal.boolean else f"in {signal.unit}" if signal.unit != "1" else "a number"
    definition = " ".join((inspect.getdoc(signal.compute) or signal.meaning).split())
    reads = ", ".join(f"`{field}`" for field in signal.reads)
    return f"`{name}`, {kind}: {escape_markdown(definition)} It is derived from {reads}."


# Pictures


@cache
def _picture_index() -> dict[str, dict[str, Any]]:
    return dict(json.loads((PICTURES / "index.json").read_text(encoding="utf-8")))


def _strip(spec: Spec, kind: Kind, example: Example) -> str:
    """Return the three pictures of an example, which card_episodes.py rendered.

    Nothing where the trace is made up, or where a diagnostic specification has no picture yet.
    """
    name = f"{spec.spec_id}-{kind}"
    stored = _picture_index().get(name, {})
    if example.episode_id is None or (spec.tier == "diagnostic" and not stored):
        return ""
    if (stored.get("episode_id"), stored.get("record")) != (example.episode_id, int(example.trace.worst)):
        raise ValueError(f"docs/images/cards: {name}.webp shows another episode or record: run card_episodes.py")
    what = "where it breaks the limit worst" if kind == "broken" else "where it comes nearest to the limit"
    alt = f"The start of the episode, {what}, and its end"
    return f"```{{image}} ../../images/cards/{name}.webp\n:alt: {alt}\n```\n\nStart; {what}; end."


def _gallery_link(spec: Spec) -> str:
    rows = tomllib.loads((DOCS / "gallery" / "gallery.toml").read_text(encoding="utf-8"))["episodes"]
    found = [f"*{row['title']}*" for row in rows if row["spec"] == spec.spec_id]
    return f"More, with a record to download, in the [gallery](../gallery.md): {', '.join(found)}." if found else ""


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
        yield format_table(("Suite", "Tasks where it applies"), rows)


def _tags(library: Library, names: Sequence[str]) -> str:
    return "\n".join(f"- `{name}`: {escape_markdown(library.vocabulary[name].meaning)}" for name in names)


def _frequency(spec: Spec) -> str:
    """Return how often each built-in policy breaks it: one run of all, and for scripted ones measured.md."""
    measured = read_measured()
    counts = measured["counts"][spec.spec_id]
    rows = [
        (f"`{policy}`", str(broken), str(judged), str(measured["policies"][policy]))
        for policy, (broken, judged) in counts["policies"].items()
    ]
    parts = [format_table(("Policy", "Break it", "Judged", "Episodes"), rows), _frequency_remark(counts["full"])]
    if spec.tier == "safe":
        parts.append(_measured_remark(spec))
    return "\n\n".join(parts)


def _frequency_remark(full: bool) -> str:
    text = (
        "One episode of each of LIBERO's 40 tasks (libero-spatial, -object, -goal, -10), from its first initial state. "
        "An episode is not judged where the tags of its task rule the specification out, or its condition never arose."
    )
    fewer = [f"`{policy}` {count} of them" for policy, count in read_measured()["policies"].items() if count < TASKS]
    if fewer:
        text += f" Not all tasks were run: {', '.join(fewer)}."
    if full:
        text += " Judged with `--set capabilities=libero-full`: LIBERO's plain set lacks this channel."
    return text


def _measured_remark(spec: Spec) -> str:
    """Return the counts of measured.md, which has five episodes of each task of LIBERO."""
    text = (DOCS / "evidence" / "measured.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (libero-\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    counts: dict[str, int] = {}
    for policy, violated in re.findall(
        r"\| `(scripted:\w+)` \| \d+ of \d+ \| \d+ of \d+ \| (.*?) \|", "".join(rows for _, rows in sections)
    ):
        broken = re.search(rf"`{re.escape(spec.spec_id)}` (\d+)", violated)
        counts[policy] = counts.get(policy, 0) + (int(broken[1]) if broken else 0)
    totals: dict[str, int] = {}
    for policy, episodes in re.findall(r"^\| libero-\S+ \| `(scripted:\w+)` \| (\d+) \|", text, re.M):
        totals[policy] = totals.get(policy, 0) + int(episodes)
    said = " and ".join(
        f"`{policy}` breaks it in {counts.get(policy, 0)} of {totals[policy]}" for policy in sorted(totals)
    )
    page = "[What the scripted policies reach](../../evidence/measured.md)"
    return f"{page} has five initial states of each task: {said} episodes. {_noop_remark()}"


def _noop_remark() -> str:
    """Return what simulator-versions.md has of `noop` under the pinned MuJoCo, if that is nothing."""
    text = (DOCS / "evidence" / "simulator-versions.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(PINNED_MUJOCO)} \|.*\| 0 of (\d+) states \|", text, re.M)
    if row is None:
        return "What `noop` breaks: [LIBERO under other versions of MuJoCo](../../evidence/simulator-versions.md)."
    return (
        f"`noop`, which stands still, breaks no scored specification in {row[1]} initial states of the same tasks "
        "([LIBERO under other versions of MuJoCo](../../evidence/simulator-versions.md))."
    )
