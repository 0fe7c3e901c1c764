"""Writes the tables of evidence/firmness.md from docs/tools/firmness: python docs/tools/firmness.py [NAME=RUN ...]

With --check nothing is written: the exit code is 1 where the page is out of date. NAME=RUN first keeps the replays of
a run, which `safevla sensitivity RUN --physics` made, as docs/tools/firmness/NAME.json.gz; with --resume they are put
into a RUN that was recorded again, so that the same command goes on from them.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from made_page import format_table, run_script

from safevla_bench.files import write_atomically
from safevla_bench.jobs.evaluation.judgement import find_rules, judge
from safevla_bench.judging.scores import SpecColumn
from safevla_bench.report.tables.firmness import clause_table, describe_firmness
from safevla_bench.sensitivity.firmness import (
    PHYSICS,
    ClauseFirmness,
    Comparison,
    PhysicsFile,
    measure_clauses,
)
from safevla_bench.sources.runs.folder import archive_digest, dump_json
from safevla_bench.sources.runs.parts import add_digests

PAGE = Path(__file__).parents[1] / "evidence" / "firmness.md"
KEPT = Path(__file__).parent / "firmness"
GROUPS = {"Built-in policies": ("builtin",), "Learned students": ("of-careful", "of-hasty")}
"""Heading on the page -> names of the runs below it."""
NAMES = [name for names in GROUPS.values() for name in names]
SOLVER, CONTACTS, FRICTION, START = KINDS = ("solver", "contacts", "friction", "start")
KIND_OF = {"time_step": SOLVER, "iterations": SOLVER, "softness": CONTACTS, "friction": FRICTION, "shift_m": START}
"""What a variation changes -> its kind."""
MADE = re.compile(r"(<!-- firmness: begin -->\n).*(<!-- firmness: end -->)", re.DOTALL)


class KeptReplays(msgspec.Struct, frozen=True, kw_only=True):
    """The replays of a run and what else the page says of it, so that it is made without the run."""

    recorded: int
    """Episodes of the run."""
    specs: tuple[SpecColumn, ...]
    """The scored specifications that it was judged by."""
    file: PhysicsFile


def keep_replays(name: str, run: Path) -> None:
    """Write the replays of a run into the folder that the page is made from."""
    file = PhysicsFile.read(run)
    if name not in NAMES or file is None:
        sys.exit(f"{name} is none of {', '.join(NAMES)}, or {run} holds no replays")
    scores = judge([run], find_rules([run])).scores
    kept = KeptReplays(recorded=len(scores), specs=tuple(scores.specs[k] for k in scores.scored_columns), file=file)
    KEPT.mkdir(exist_ok=True)
    kept_path(name).write_bytes(gzip.compress(msgspec.json.encode(kept), mtime=0))


def read_replays() -> dict[str, KeptReplays]:
    """Return heading -> the replays below it."""
    found = {
        heading: [path for name in names if (path := kept_path(name)).exists()] for heading, names in GROUPS.items()
    }
    return {
        heading: join_replays([decode_replays(path) for path in paths]) for heading, paths in found.items() if paths
    }


def join_replays(parts: Sequence[KeptReplays]) -> KeptReplays:
    """Return the replays of several runs as those of one."""
    first = parts[0]
    assert {str((part.specs, part.file.versions, part.file.variations)) for part in parts} == {
        str((first.specs, first.file.versions, first.file.variations))
    }, "they differ in rules, versions or variations"
    replays = tuple(replay for part in parts for replay in part.file.replays)
    file = msgspec.structs.replace(first.file, replays=replays)
    return KeptReplays(recorded=sum(part.recorded for part in parts), specs=first.specs, file=file)


def kept_path(name: str) -> Path:
    """Return the file of a run's kept replays."""
    return KEPT / f"{name}.json.gz"


def decode_replays(path: Path) -> KeptReplays:
    """Return what `keep_replays` wrote."""
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=KeptReplays)


def build_page() -> str:
    """Return the page with what the kept replays say."""
    groups = read_replays()
    sections = [f"### {heading}\n\n{describe_group(kept)}\n" for heading, kept in groups.items()]
    if groups:
        sections.append(
            f"### By variation: verdicts the same / flipped / off path before\n\n{format_variations(groups)}\n"
        )
    made = "\n".join(sections)
    return MADE.sub(lambda found: found[1] + made + found[2], PAGE.read_text(encoding="utf-8"))


def describe_group(kept: KeptReplays) -> str:
    """Return how many episodes were replayed, Safety of each policy, the answer, and the table of clauses."""
    episodes = kept.file.episodes()
    suites = Counter(episode.recorded.suite for episode in episodes)
    versions = ", ".join(f"{name} {version}" for name, version in kept.file.versions.items())
    said = (
        f"{len(episodes)} of {kept.recorded} recorded episodes were replayed: "
        f"{', '.join(f'{count} of {suite}' for suite, count in suites.items())} ({versions})."
    )
    policies = "\n".join(f"- {line}" for line in describe_firmness(episodes))
    rows = measure_clauses(episodes, pooled=True)
    return "\n\n".join([said, policies, describe_clauses(kept, rows), format_clauses(kept, rows)])


def describe_clauses(kept: KeptReplays, rows: Sequence[ClauseFirmness]) -> str:
    """Return which specifications no replay flips, which the solver's settings flip, and which judge nothing here."""
    flips = {row.spec_id: count_kinds(kept.file, row) for row in rows}
    by_solver = sorted((name for name in flips if flips[name][SOLVER]), key=lambda name: -flips[name][SOLVER])
    parts = {
        "No replay flips": [f"`{name}`" for name in flips if not flips[name].total()],
        "Time step or solver iterations flip": [f"`{name}` ({flips[name][SOLVER]})" for name in by_solver],
        "Only contacts, friction or the start flip": [
            f"`{name}` ({kinds.total()})" for name, kinds in flips.items() if kinds.total() and not kinds[SOLVER]
        ],
        "Judge nothing here": [f"`{spec.spec_id}`" for spec in kept.specs if spec.spec_id not in flips],
    }
    return "\n".join(f"- {what}: {', '.join(names)}." for what, names in parts.items() if names)


def count_kinds(file: PhysicsFile, row: ClauseFirmness) -> Counter[str]:
    """Return the flips of a specification by the kind of variation."""
    kinds = Counter[str]()
    for name, count in row.by_variation.items():
        (field,) = file.variations[name]
        kinds[KIND_OF[field]] += count
    return kinds


def format_clauses(kept: KeptReplays, rows: Sequence[ClauseFirmness]) -> str:
    """Return the table of specifications: episodes by mark, flips of replays by kind, and the spread."""
    table = clause_table(kept.file, kept.specs, rows)
    names = [column.name for column in table.columns]
    shown = {name: [row[names.index(name)].text for row in table.rows] for name in ("Limit", "95 %")}
    heads = ("Specification", "Limit", "Firm", "Fragile", "Off path", "Flips", *map(str.capitalize, KINDS), "95 %")
    lines = []
    for k, row in enumerate(rows):
        kinds = count_kinds(kept.file, row)
        lines.append(
            (
                row.spec_id,
                shown["Limit"][k],
                *(row.firm, row.fragile, row.censored),
                kinds.total(),
                *(kinds[kind] for kind in KINDS),
                shown["95 %"][k],
            )
        )
    return format_table(heads, lines)


def format_variations(groups: Mapping[str, KeptReplays]) -> str:
    """Return the table of variations: the episodes whose verdict is the same / flips / leaves its path before."""
    counts = {heading: count_verdicts(kept.file) for heading, kept in groups.items()}
    names = dict.fromkeys(name for verdicts in counts.values() for name in verdicts)
    shown = [
        [name, *(" / ".join(str(of[name][kind]) for kind in ("same", "flips", "left")) for of in counts.values())]
        for name in names
    ]
    return format_table(["Variation", *counts], shown)


def count_verdicts(file: PhysicsFile) -> dict[str, Counter[Comparison]]:
    """Return variation -> how many episodes' verdicts are so."""
    verdicts = {name: Counter[Comparison]() for name in file.offered}
    for episode in file.episodes():
        for replay in episode.varied:
            verdicts[replay.variation][episode.verdict(replay)] += 1
    return verdicts


def resume_run(name: str, run: Path) -> None:
    """Put the kept replays into a run that was recorded again, so that `safevla sensitivity` goes on from them."""
    file = decode_replays(kept_path(name)).file
    if file.archive_sha256 != archive_digest(run):
        sys.exit(f"{run} does not hold the records that were replayed: {file.archive_sha256}")
    content = dump_json(file)
    write_atomically(run / PHYSICS, content)
    add_digests(run, {PHYSICS: content})


def main(arguments: Sequence[str]) -> int:
    """Keep the replays of the runs that are named, or put them back, and write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("runs", nargs="*", metavar="NAME=RUN")
    parser.add_argument("--resume", action="store_true", help="put the kept replays into each RUN instead")
    chosen, rest = parser.parse_known_args(arguments)
    for named in chosen.runs:
        name, _, run = named.partition("=")
        (resume_run if chosen.resume else keep_replays)(name, Path(run))
    return run_script(rest, PAGE, build_page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
