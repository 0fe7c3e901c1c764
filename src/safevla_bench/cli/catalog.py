"""`safevla specs`, `tasks` and `protocols`: list specifications, tasks, evaluation protocols and server dialects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import click
import msgspec

from safevla_bench import errors, signals, tasks
from safevla_bench.cli import completion, echo, options, rules
from safevla_bench.cli.options import FILE, flag, option, quote_paths, repeatable
from safevla_bench.explain.places import collect_bodies, describe_places, describe_unmatched, list_places
from safevla_bench.files import write_atomically
from safevla_bench.hosts import protocols
from safevla_bench.jobs.evaluation.judgement import add_host_registries, judge, read_installed_registries
from safevla_bench.judging.provenance_marks import warn_of_left_out
from safevla_bench.policies.servers import dialects, entries
from safevla_bench.report.published import LEADERBOARD, PAPER, PublishedCell, PublishedMean, load_published
from safevla_bench.sensitivity import calibration
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.sources.runs import episode_index
from safevla_bench.specs import file_formats, loader
from safevla_bench.specs.spec import Spec, explain_spec, spec_rows
from safevla_bench.stl import formula, units
from safevla_bench.tasks import bddl, proposal, reasons
from safevla_bench.tasks import loader as tasks_loader
from safevla_bench.tasks.file_formats import paper_task_rows
from safevla_bench.text import count_noun, escape_controls, format_compact, format_fixed, format_significant


@options.command("specs")
def specs_command(
    library: str = rules.library_option("The library to list.", default="default"),
    explain: str | None = option(
        "Explain one specification: formula, tags, source, exemptions.", "ID", shell_complete=completion.SPECS
    ),
    template: bool = flag("Print a commented template for your own specifications."),
    check: Path | None = option("Check your own file on two simple traces per specification.", "FILE", type=FILE),
    runs: tuple[Path, ...] = repeatable(
        "Derive limits from the successful episodes of RUN.", "RUN", spelling="--calibrate", type=FILE
    ),
    rule_files: tuple[Path, ...] = rules.rules_option("With --calibrate: also judge by the rules in this file."),
    policy: str | None = option("With --calibrate: the policy whose successes count, if RUN has several.", "NAME"),
    quantile: float = option("With --calibrate: the share of successes that must be safe.", "SHARE", default=0.95),
    out: Path | None = options.out_option("With --calibrate: write the limits to a file for --rules.", "FILE"),
    form: str = options.PAPER_FORMAT,
    sources: tuple[Path, ...] = options.OPTIONAL_SOURCES,
) -> None:
    """List the safety specifications, explain one, or write and check specifications for your own tasks.

    Only tier `safe` is scored: the tiers `alternate` and `diagnostic` do not affect Safety, SBU or VSI. --format paper
    prints rows that --library and --rules can read.
    """
    if not runs:
        options.refuse_given(("policy", "quantile", "out", "rule_files"), "is only for --calibrate RUN.")
    if template:
        text = resources.files("safevla_bench.specs").joinpath("template.toml").read_text(encoding="utf-8")
        click.echo(text, nl=False)
        return
    if sources and check is None:
        raise click.UsageError("SOURCE is only for --check FILE, which lists the bodies in SOURCE that FILE mentions.")
    if check is not None:
        _print_trials(check, sources)
        return
    if runs:
        # `deactivate`: specifications whose fields a record lacks are left out instead of refused.
        own_rules = rules.load_rules(library, rule_files, {"missing": "deactivate"})
        ruleset = add_host_registries(own_rules, runs, as_judged=rules.is_as_judged(rule_files))
        scores = judge(list(runs), ruleset).scores
        for line in warn_of_left_out(scores):
            echo(line, err=True)
        calibrated = calibration.calibrate(scores, ruleset.library, policy=policy, quantile=quantile)
        _print_calibrations(calibrated, runs, out, form)
        return
    chosen = loader.load_library(library)
    if explain is not None and form == "paper":
        raise errors.SpecError("--explain cannot be combined with --format paper", remedy="Leave out --format paper.")
    if explain is not None:
        # Reason code -> tasks to which the specification does not apply, as `SUITE TASK`.
        exempt = tasks.exempt_tasks(tasks_loader.load_registry(read_installed_registries()), chosen, explain)
        if form != "text":
            options.print_json({**explain_spec(chosen, explain), "does_not_apply": exempt})
        else:
            _print_explanation({**explain_spec(chosen, explain), "does_not_apply": _summarize_exempt(exempt)})
    elif form in ("json", "paper"):
        options.print_json(_ROWS[form](chosen))  # `_ROWS` maps each form to the function that makes the rows
    else:
        rows = spec_rows(chosen)
        scored = sum(row["tier"] == "safe" for row in rows)
        echo(f"{scored} of {len(rows)} specifications are scored (tier safe); the others affect no score.", "")
        names = ("spec_id", "tier", "axis", "stl", "threshold", "severe", "unit")
        options.print_columns(names, [["—" if row[name] is None else str(row[name]) for name in names] for row in rows])
        echo("", f"Next: explain a specification: safevla specs --explain {rows[0]['spec_id']}")


def _print_calibrations(
    calibrations: Sequence[calibration.Calibration], runs: Sequence[Path], out: Path | None, form: str
) -> None:
    # Print the limits that were derived from `runs`. `form` is `json` or a text form.
    # If `out` is given, write the limits to this file for the option --rules.
    if form == "json":
        options.print_json(calibration.calibration_rows(calibrations))
    else:
        lines = [line for calibrated in calibrations for line in _describe_calibration(calibrated)]
        click.echo("\n".join(map(escape_controls, lines)))
    if out is not None:
        write_atomically(out, calibration.format_limits(calibrations))
        echo(f"Next: safevla score {quote_paths(*runs)} --rules {quote_paths(out)} --out results", err=True)


def _describe_calibration(result: calibration.Calibration) -> list[str]:
    # Return the lines that describe the limit derived for one specification, and an empty line.
    # Each successful episode has a smallest threshold that it satisfies; `extremes` lists these thresholds, sorted.
    # `value` is a quantile of the thresholds in `extremes`, and `interval` is a confidence interval of the quantile.
    # `violated` counts successes that exceed the threshold of the library.
    # `floor` is the smallest threshold that all episodes of the policy noop satisfy; None = unknown.
    spec, extremes, fmt = result.spec, result.extremes, format_significant
    texts = []
    for percent in calibration.SHOWN_PERCENT:
        texts.append(f"{percent} % {fmt(calibration.order_statistic(extremes, percent / 100))}")
    texts.append(f"largest {fmt(float(extremes[-1]))}")
    if result.floor is not None:
        texts.append(f"largest value under the policy noop {fmt(result.floor)}")
    interval_text = " to ".join(fmt(end) if math.isfinite(end) else "unknown" for end in result.interval)
    # `obstacle` is the reason why the limit must not be used; None if it can be used.
    return [
        f"{spec.spec_id}  [{spec.unit}]",
        f"  {count_noun(len(extremes), 'success', 'es')} of {result.policy} on {count_noun(result.tasks, 'task')}; "
        f"{result.violated} exceed the library's threshold {fmt(spec.threshold)}",
        "  " + "   ".join(texts),
        f"  quantile {result.quantile:g}: {fmt(result.value)}, 95 % interval on these tasks {interval_text}",
        f"  {result.obstacle or f'limit {fmt(result.limit)} {spec.unit}'}",
        "",
    ]


_ROWS = {"json": spec_rows, "paper": file_formats.paper_spec_rows}


@options.command("tasks")
def tasks_command(
    suite: str | None = option("Only this suite, such as `libero-goal`.", "NAME", shell_complete=completion.SUITES),
    rule_files: tuple[Path, ...] = rules.rules_option("Add the tasks of a file.", metavar="FILE"),
    propose: tuple[Path, ...] = repeatable("Propose tags for LIBERO task files.", "FILE|DIR", type=FILE),
    form: str = options.PAPER_FORMAT,
) -> None:
    """List suites, or one suite's tasks with the specifications that apply, and reasons why other ones do not apply.

    --format paper prints rows that --rules can read; a row with `patterns` describes a family of tasks.

    --propose reads your BDDL files and writes a template and tags for your tasks, as TOML for --rules. Each tag comes
    with its reason. If a tag is an assumption, it comes with a question for you. Answer these questions before you use
    the results.

    \b
    safevla tasks --propose my_tasks > my_tags.toml
    safevla eval --host libero --suite my_tasks --rules my_tags.toml \\
        --max-steps 300 --policy NAME --out runs/mine
    """  # noqa: D301  (click needs the control character)
    if propose:
        if suite or rule_files or form != "text":
            raise click.UsageError("--propose reads only task files: leave out --suite, --rules and --format.")
        _propose_tags(propose)
        return
    registry = tasks_loader.load_registry((*read_installed_registries(), *rule_files))
    if form == "paper":
        options.print_json(paper_task_rows(registry, suite))
        return
    rows = tasks.task_listings(registry, benchmark=suite)
    if form == "json":
        options.print_json(rows)
        return
    if suite is None:
        # The suggested command must repeat the option --rules of this command.
        files = [word for path in rule_files for word in ("--rules", path)]
        _print_suites(rows, f" {quote_paths(*files)}" if files else "")
        return
    counts = [len(row["active_specs"]) for row in rows]
    count_text = "none"
    if counts:
        count_text = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    echo(f"{count_noun(len(rows), 'task')}; {count_text} of the scored specifications apply to each task.")
    for row in rows:
        # A task has one template, or several components with a template each.
        kind = row.get("template") or " + ".join(row["components"])
        echo(f"{row['benchmark']} {row['task_id']} ({kind}): {row.get('instruction') or ''}")
        echo(f"  applies: {', '.join(row['active_specs']) or 'nothing'}")
        for spec, reason in row["inactive_specs"].items():
            echo(f"  not {spec}: {reasons.describe_reason(reason, registry, row['benchmark'])}")


def _print_suites(rows: Sequence[tasks.TaskListing], suffix: str) -> None:
    # Print a table of suites with the mean number of specifications that apply to a task.
    # Each row describes a task: its suite (`benchmark`) and the scored specifications that apply (`active_specs`).
    # `suffix` is appended to the suggested command; it contains the options that the command needs.
    counts_by_suite: dict[str, list[int]] = {}  # suite -> number of active specifications in each task
    for row in rows:
        counts_by_suite.setdefault(row["benchmark"], []).append(len(row["active_specs"]))
    echo(f"{len(rows)} tasks of {len(counts_by_suite)} suites have tags, which decide which specifications apply.", "")
    table_rows = [
        (name, str(len(counts)), format_fixed(sum(counts) / len(counts), 1)) for name, counts in counts_by_suite.items()
    ]
    options.print_columns(("suite", "tasks", "scored specifications per task"), table_rows)
    command = f"safevla tasks --suite {table_rows[0][0]}{suffix}"
    echo("", f"Next: list a suite's tasks, with reasons for exemptions: {command}")


def _print_trials(path: Path, sources: Sequence[Path]) -> None:
    # Print the check of each specification in a file, except those of the default library.
    # Also print a command as the next step, if any specification can be used.
    # If there are sources, also print which bodies in the sources match the body names in the formulas.
    default, has_only_limits = loader.load_library(), loader.has_only_limits(path)
    # A file with only limits extends the default library; any other file is a whole library.
    chosen = loader.extend_library(default, path) if has_only_limits else loader.load_library(path)
    default_ids = {spec.spec_id for spec in default}
    own_specs = [spec for spec in chosen if spec.spec_id not in default_ids]
    registry = tasks_loader.load_registry(read_installed_registries())
    for spec in own_specs:
        # `trial.kept` is a simple trace that satisfies the formula. The traces in `trial.broken` violate the formula.
        trial, exempt = loader.try_spec(spec), tasks.exempt_tasks(registry, chosen, spec.spec_id)
        idle = trial.idle if trial.broken else ()  # the formula's comparisons that do not affect the verdict
        severe = "" if spec.severe is None else f", severe {_format_with_unit(spec, spec.severe)}"
        lines = [
            f"{spec.spec_id}  ({spec.tier}, {spec.axis})",
            f"  formula  {formula.format_formula(units.spell_units(spec.formula, signals.signal_unit))}",
            f"  limit    threshold {_format_with_unit(spec, spec.threshold)}{severe}",
            *([f"  suites   {', '.join(spec.suites)}"] if spec.suites else []),
            *(f"  reads    {name} [{SIGNALS[name].unit}]: {SIGNALS[name].meaning}" for name in sorted(spec.signals)),
            f"  holds    {_describe_trace(spec, trial.kept)}",
            # `_describe_trace` returns a warning for None, that is, if no trace gives this verdict.
            *(f"  breaks   {_describe_trace(spec, trace)}" for trace in trial.broken or (None,)),
            *(f"  idle     no effect on the verdicts on simple traces; check this comparison: {text}" for text in idle),
            *(f"  exempt   {line}" for line in _summarize_exempt(exempt)),
        ]
        click.echo("\n".join(map(escape_controls, lines)))
    places = list_places(spec.formula for spec in own_specs)  # body names that appear in the formulas
    unmatched = set()  # body names of the formulas that match no body in the sources
    if sources:
        bodies = collect_bodies(episode_index.Scan(sources))
        for line in describe_places(places, bodies):
            echo(f"  bodies   {line}")
        unmatched = {place for place in places if any(describe_unmatched([place], bodies))}
    # A specification that mentions an unmatched body name cannot be judged in these sources.
    unusable = [spec.spec_id for spec in own_specs if unmatched & {*list_places([spec.formula])}]
    if unusable:
        problem = f"No body in the sources matches {', '.join(sorted(unmatched))}."
        echo(f"{problem} Specifications that cannot be used: {', '.join(unusable)}.")
        if len(unusable) == len(own_specs):
            return
    # A file that also contains built-in specifications is a complete library, for the option --library.
    option = "--rules" if has_only_limits or len(own_specs) == len(chosen) else "--library"
    command = f"safevla score {quote_paths(*sources) or 'RUN'} {option} {quote_paths(path)} --out results"
    echo(f"{count_noun(len(own_specs) - len(unusable), 'specification')} can be used for judging. Next: {command}")


def _describe_trace(spec: Spec, trace: loader.TrialTrace | None) -> str:
    # Return a simple trace of `loader.try_spec` and its robustness as text, or a warning if no trace was found (None).
    if trace is None:
        return "no simple trace gives this verdict: check the meaning of the formula"
    if not math.isfinite(trace.rho):
        return f"{trace.describe()}   no margin, because only Boolean signals decide the verdict"
    return f"{trace.describe()}   margin {_format_with_unit(spec, trace.rho)}"


def _format_with_unit(spec: Spec, value: float) -> str:
    # Return the value with the unit of the specification's signal. The unit "1" (no dimension) is left out.
    return f"{format_compact(value)} {spec.unit}".removesuffix(" 1")


def _summarize_exempt(exempt: Mapping[str, Sequence[str]]) -> list[str]:
    # Return a line per reason. `exempt` maps reason codes to the exempt tasks, written `SUITE TASK`.
    lines = []
    for reason, names in exempt.items():
        suites = len({name.split(" ", 1)[0] for name in names})
        counts = f"{count_noun(len(names), 'task')} of {count_noun(suites, 'suite')}"
        # The text of the reason must fit all suites, so the name of the suite is "".
        words = reasons.describe_reason(reason, tasks_loader.load_registry(), "")
        lines.append(f"{words}: {counts} (safevla tasks --suite NAME lists them)")
    return lines


def _print_explanation(explanation: Mapping[str, object]) -> None:
    # `explanation` maps names of facts to a value, a list of values, or None. Print one line per value.
    # If a name has several values, print the name only on the line of the first value.
    width = max(map(len, explanation))
    for name, value in explanation.items():
        values = value if isinstance(value, list | tuple) else [value]
        label = name
        for entry in values or [None]:  # an empty list is printed as `none`, like a missing value
            echo(f"{label:<{width}}  {'none' if entry is None else _format_value(entry)}")
            label = ""


def _propose_tags(paths: Sequence[Path]) -> None:
    # Print proposed tags for the tasks in LIBERO's task files (.bddl) as TOML; print the counts on stderr.
    from safevla_bench.hosts.libero.tasks import list_bddl_files, name_task

    file_by_task: dict[tuple[str, str], Path] = {}  # (suite, task) -> file
    for file in (file for path in paths for file in list_bddl_files(path)):
        other = file_by_task.setdefault(name_task(file), file)
        if other.resolve() != file.resolve():
            problem = f"{other} and {file} have the same suite and task in records: {'/'.join(name_task(file))}"
            raise errors.RegistryError(problem, remedy="Rename a folder, because a suite has its folder's name.")
    proposals = [proposal.propose_tags(bddl.read_bddl(file), *task) for task, file in file_by_task.items()]
    # `capabilities` names the set of signals that the host can measure.
    text = proposal.format_toml(proposals, tasks_loader.load_registry(), host="libero", capabilities="libero")
    click.echo(text, nl=False)
    question_count = sum(len(proposed.audit) for proposed in proposals)  # assumptions that the user must confirm
    counts = f"{count_noun(len(proposals), 'task')}, {count_noun(question_count, 'question')}"
    click.echo(f"{counts}. Next: answer the questions in the file, then pass the file to --rules.", err=True)


# Protocols, dialects, and entries of the paper


@options.command("protocols")
def protocols_command(
    names: tuple[str, ...] = options.argument("[A [B]]", nargs=-1, shell_complete=completion.PROTOCOLS_AND_DIALECTS),
    of_paper: bool = flag("List the paper's entries (a policy on its suites), or show entry A.", spelling="--entries"),
    form: str = options.format_option(),
) -> None:
    """List evaluation protocols and dialects, show all values of A, or show where A and B differ.

    `safevla eval --protocol A` runs episodes under protocol A. `safevla protocols A` shows each value with its source.
    `--policy-arg dialect=A` selects dialect A of a policy server: the images, states and text of its requests, and the
    meaning of its replies.

    --entries lists the policies and suites that the paper evaluates. `safevla eval --entry NAME --server URL` runs one.
    """
    if of_paper:
        _show_entries(names, form)
        return
    if len(names) > 2:
        raise click.UsageError("Name one protocol or dialect, or two to compare.")
    if not names:
        _print_names(form)
        return
    # A name that is not a dialect's must be a protocol's; `load_protocol` refuses unknown names.
    are_dialects = [name in dialects.dialect_names() for name in names]
    if any(are_dialects) and not all(are_dialects):
        raise click.UsageError("Compare two dialects or two protocols.")
    rows = _dialect_rows(names) if all(are_dialects) else _protocol_rows(names)
    if len(names) == 2:  # show only differences
        rows = [row for row in rows if row["values"][0] != row["values"][1]]
    if form == "json":
        options.print_json(rows)
        return
    width = max(map(len, names))
    for row in rows:
        echo(f"{row['field']}: {row['about']}" if row["about"] else row["field"])
        for name, value, source in zip(names, row["values"], row["sources"], strict=True):
            echo(f"  {name:<{width}}  {_format_value(value)}" + (f"  [{source}]" if source else ""))
    if not rows:
        echo("All values are the same.")


def _protocol_rows(names: Sequence[str]) -> list[dict[str, Any]]:
    # Return a row per field of a protocol, with the keys `field`, `about`, `values` and `sources`.
    # `values` and `sources` are lists with an item for each of `names`.
    rows = protocols.protocol_rows(*map(protocols.load_protocol, names))
    return [{**asdict(row), "about": protocols.describe_field(row.field)} for row in rows]


def _dialect_rows(names: Sequence[str]) -> list[dict[str, Any]]:
    # Return rows of dialects, like those of `_protocol_rows`. Fields of dialects have no descriptions or sources.
    columns = [dict(_flatten_dialect(name)) for name in names]
    # All fields of any dialect, in order. For a dialect that lacks a field, the value is None.
    fields = dict.fromkeys(field for values in columns for field in values)
    return [
        {"field": field, "about": "", "values": [values.get(field) for values in columns], "sources": [""] * len(names)}
        for field in fields
    ]


def _flatten_dialect(name: str) -> Iterator[tuple[str, object]]:
    # Yield (field, value) of a dialect. A mapping becomes several fields, named `KEY INNER_KEY`.
    file = dialects.load_dialect_file(name)
    yield from {"asked_over": file.transport, "hosts": _format_hosts(file)}.items()
    for key, value in dialects.dialect_values(dialects.load_dialect(name)).items():
        if isinstance(value, Mapping):
            yield from ((f"{key} {inner_key}", inner_value) for inner_key, inner_value in value.items())
        elif key != "name":  # the caller prints the name
            yield key, value


def _show_entries(names: tuple[str, ...], form: str) -> None:
    # Print all of the paper's entries (a policy on its suites), or only the entry that is named.
    # Raise click's error for several names.
    if len(names) > 1:
        raise click.UsageError("Name one entry to show it, or none to list all.")
    # Without a name, show all entries.
    shown = tuple(map(entries.find_entry, names)) or entries.paper_entries()
    if form == "json":
        options.print_json(shown[0] if names else shown)
    elif names:
        _print_entry(shown[0])
    else:
        rows = [
            (entry.name, entry.policy, entry.training or "—", ", ".join(entry.suites), entry.transport, entry.protocol)
            for entry in shown
        ]
        options.print_columns(("entry", "policy", "training", "suites", "asked as", "protocol"), rows)
        what = "show an entry's checkpoints, the command that starts its server, and facts that are unknown"
        echo("", f"Next: {what}: safevla protocols --entries {shown[0].name}")


def _print_entry(entry: entries.PaperEntry) -> None:
    # Print the fields of an entry (a policy on its suites), with a line per item of a list or mapping.
    # Also print the entry's published results, in percent, from the paper or from the authors' leaderboard.
    published = {
        benchmark: f"SR {row.sr} %, Safety {row.safety} %, SBU {row.sbu} %{count}"
        for row, benchmark, count in _list_published(entry)
    }
    for name, value in {**msgspec.to_builtins(entry), "published": published}.items():
        lines: Sequence[str] = [_format_value(value)]
        if isinstance(value, Mapping):
            lines = [f"{key}: {inner_value}" for key, inner_value in value.items()]
        elif isinstance(value, list | tuple):
            lines = value
        for line in lines:
            echo(f"{name:<14}  {line}")


def _list_published(entry: entries.PaperEntry) -> Iterator[tuple[PublishedCell | PublishedMean, str, str]]:
    # Yield each published result of the entry, with its suites and its number of episodes, both as text.
    # An unknown number is "". `listed` says where the results are published: `paper` or `board`.
    if entry.listed == "paper":
        for cell in load_published(PAPER).cells:
            if cell.policy == entry.policy and cell.benchmark in entry.suites:
                yield cell, cell.benchmark, f", n = {cell.n}"
    if entry.listed == "board":  # the authors' leaderboard, which shows means over suites
        for mean in load_published(LEADERBOARD).means:
            if mean.policy == entry.policy and {*mean.benchmarks} <= {*entry.suites}:
                yield mean, ", ".join(mean.benchmarks), ""


def _print_names(form: str) -> None:
    # Print all protocols and dialects, with brief descriptions.
    every_protocol = [(name, protocols.load_protocol(name).about) for name in protocols.protocol_names()]
    files = {name: dialects.load_dialect_file(name) for name in dialects.dialect_names()}
    if form == "json":
        rows = [{"kind": "protocol", "name": name, "about": about} for name, about in every_protocol]
        document = rows + [{"kind": "dialect", "name": name, "about": file.about} for name, file in files.items()]
        options.print_json(document)
        return
    every_dialect = [(name, file.transport, _format_hosts(file), file.about) for name, file in files.items()]
    echo(f"{len(every_protocol)} evaluation protocols, and {len(every_dialect)} dialects of policy servers.", "")
    options.print_columns(("protocol", "description in brief"), every_protocol)
    click.echo()
    options.print_columns(("dialect", "asked over", "hosts", "description in brief"), every_dialect)
    echo("", "If a host has no remark in brackets, the authors of the server evaluate on this host.")
    echo("", "Next: compare two dialects (a single name shows all its values): safevla protocols openpi openvla")


def _format_hosts(file: dialects.DialectFile) -> str:
    # Return the hosts of a dialect as text. `hosts` says for each host who uses the dialect on this host.
    # The remark `(ours)` after a host means that only we, not the server's authors, use the dialect on this host.
    return ", ".join(host if origin == "upstream" else f"{host} ({origin})" for host, origin in file.hosts.items())


def _format_value(value: object) -> str:
    # Return a value of a protocol, dialect or entry as text.
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        is_size = all(isinstance(entry, int) for entry in value)  # such as a picture's width and height
        return (" x " if is_size else " + ").join(map(str, value))
    return str(value)
