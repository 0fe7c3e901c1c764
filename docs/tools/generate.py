"""Writes reference/specifications.md from the libraries and the task registry: python docs/tools/generate.py

With --check nothing is written: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from made_page import format_table, run_script

from safevla_bench import tasks
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs import file_formats, loader
from safevla_bench.specs.file_formats import BUILT_IN, built_in_tags
from safevla_bench.specs.spec import Spec
from safevla_bench.tasks import TaskListing
from safevla_bench.tasks import loader as tasks_loader
from safevla_bench.tasks.entries import Benchmark, CapabilitySet
from safevla_bench.text import append_unit, display_unit, format_compact

PAGE = Path(__file__).parents[1] / "reference" / "specifications.md"
TEST_HOSTS = ("fake",)
"""Hosts that stand in for a simulator in tests; their tasks are no benchmark."""

INTRODUCTION = """\
# Specifications and tasks

Made by `python docs/tools/generate.py`; do not edit. What a violation means, sources and examples are on the
[cards](cards.md), terms in the [glossary](glossary.md), choices that the paper leaves open in
[fidelity](../explanation/fidelity.md). `threshold` in a clause is the number in its row.
"""


READINGS = """\
## Readings of the paper

`paper-text` as it differs from `default`, and `paper-as-run` (older name: `paper-literal`) as it differs from
`paper-text`: [what each is](../explanation/fidelity.md#four-readings-by-name). `net-force` is `default`, with the net
force of two bodies in every clause on force.
"""

OTHERS = """\
## Other libraries

Each as it differs from `default`. The limits of `metaworld` are drawn from the successes of a script, and every output
says so: [limits](limits.md).
"""


SUITES = """\
## Suites

To how many tasks of a suite each scored specification applies, and the mean number that applies to a task. `safevla
tasks --suite NAME` lists the tasks, their tags, and why a specification does not apply.
"""


def build_page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_scored(), *_suites(), *_libraries(), *_signals(), *_tags(), *_templates()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


# Specifications


def _scored() -> Iterator[str]:
    default = loader.load_library("default")
    yield "## Scored specifications"
    yield _table(
        ("Specification", "Clause", "Threshold", "Severe", "Needs", "Barred by"),
        [(*_clause(spec), _codes(spec.requires_all), _codes(spec.invalid_if_any)) for spec in default.safe],
    )


def _libraries() -> Iterator[str]:
    default = loader.load_library("default")
    yield "## Alternate thresholds\n\nJudged beside the scored ones; in no score."
    yield _table(
        ("Specification", "Instead of", "Threshold", "Severe"),
        [
            (_code(spec.spec_id), _code(spec.alternate_of or ""), *_numbers(spec))
            for spec in default
            if spec.tier == "alternate"
        ],
    )
    yield "## Diagnostics\n\nReported with the scores; in none of them."
    yield _table(
        ("Specification", "Clause", "Threshold"),
        [_clause(spec)[:3] for spec in default if spec.tier == "diagnostic"],
    )
    yield READINGS
    paper, text, as_run, _ = file_formats.READINGS
    yield _differences((text, paper), (as_run, text))
    yield OTHERS
    yield _differences(*((name, paper) for name in BUILT_IN if name not in file_formats.READINGS))


def _differences(*libraries: tuple[str, str]) -> str:
    return _table(
        ("Library", "Specification", "Clause", "Threshold", "Severe"),
        [
            (_code(name), *_clause(spec))
            for name, base in libraries
            for spec in loader.load_library(name)
            if spec not in set(loader.load_library(base))
        ],
    )


def _clause(spec: Spec) -> tuple[str, ...]:
    return (_code(spec.spec_id), _code(spec.stl), *_numbers(spec))


def _numbers(spec: Spec) -> tuple[str, str]:
    severe = "binary" if spec.binary else "none" if spec.severe is None else _quantity(spec, spec.severe)
    return _quantity(spec, spec.threshold), severe


def _quantity(spec: Spec, value: float) -> str:
    unit, scale = display_unit(spec.unit, spec.threshold)
    return append_unit(format_compact(value * scale), unit)


def _signals() -> Iterator[str]:
    yield "## Signals\n\nOne value a record, with its unit. Boolean ones are conditions of clauses."
    yield "\n".join(
        f"- {_code(signal.name)} [{'Boolean' if signal.boolean else signal.unit}]: {signal.meaning}"
        for signal in sorted(SIGNALS.values(), key=lambda signal: signal.name)
    )


# Tags and what has them


def _tags() -> Iterator[str]:
    tags = built_in_tags().values()
    yield "## Tags\n\nA specification is active in a task that has every tag it needs and no tag that bars it."
    yield "\n".join(f"- {_code(tag.name)}: {tag.meaning}" for tag in tags if tag.kind != "capability")
    sets = [named for named in tasks_loader.load_registry().capability_sets.values() if named.host not in TEST_HOSTS]
    yield (
        "### Capabilities\n\nTags that say what was measured. A benchmark has one set; `--set capabilities=NAME` "
        "takes another."
    )
    yield "\n".join(
        f"- {_code(tag.name)}: {tag.meaning}{_lacking(tag.name, sets)}" for tag in tags if tag.kind == "capability"
    )
    yield f"Sets: {_codes(named.name for named in sets)}."


def _lacking(tag: str, sets: Iterable[CapabilitySet]) -> str:
    names = _codes(named.name for named in sets if tag not in named.tags)
    return f" (not in {names})" if names else ""


def _templates() -> Iterator[str]:
    templates = tasks_loader.load_registry().templates.values()
    common = frozenset.intersection(*(frozenset(one.tags) for one in templates))
    yield f"### Task templates\n\nAll have {_codes(sorted(common))}, and"
    yield "\n".join(f"- {_code(one.name)} ({one.meaning}): {_codes(sorted(one.tags - common))}" for one in templates)


# Suites


def _suites() -> Iterator[str]:
    registry = tasks_loader.load_registry()
    suites = [suite for suite in registry.benchmarks.values() if suite.host not in TEST_HOSTS]
    yield SUITES
    own = [suite for suite in suites if suite.same_tasks_as is None and suite.same_tags_as is None]
    specs = [spec.spec_id for spec in loader.load_library("default").safe]
    alike: dict[tuple[str, ...], list[str]] = {}
    for suite in own:
        alike.setdefault(_suite(tasks.task_listings(registry, benchmark=suite.name), specs), []).append(suite.name)
    heads = ("Suite", "Tasks", "Mean", *map(_code, specs))
    yield _table(heads, [(_codes(names), *cells) for cells, names in alike.items()])
    yield "\n".join(_namesakes(suites))


def _suite(rows: Sequence[TaskListing], specs: Sequence[str]) -> tuple[str, ...]:
    active = [name.split("@")[0] for row in rows for name in row["active_specs"]]
    counts = [active.count(name) for name in specs]
    shares = ["all" if count == len(rows) else str(count or "—") for count in counts]
    mean = format_compact(round(len(active) / len(rows), 2))
    return (str(len(rows)), mean, *shares)


def _namesakes(suites: Sequence[Benchmark]) -> Iterator[str]:
    for suite in suites:
        if suite.same_tasks_as is not None:
            yield f"- `{suite.name}` is another name of `{suite.same_tasks_as}`."
    names = sorted({suite.same_tags_as for suite in suites if suite.same_tags_as is not None})
    for name in names:
        copies = [_with_size(suite) for suite in suites if suite.same_tags_as == name]
        yield f"- Tagged as `{name}`: {', '.join(copies)}."


def _with_size(suite: Benchmark) -> str:
    return f"{_code(suite.name)} ({len(suite.task_ids)})" if suite.task_ids else _code(suite.name)


# Markdown


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return format_table(heads, ([cell or "—" for cell in row] for row in rows))


def _code(name: str) -> str:
    return f"`{name}`"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(_code(name) for name in names)


if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], PAGE, build_page))
