"""Results in foreign formats: the CSV of the paper's authors, a leaderboard, two other evaluations, and a model card.

The authors publish `aggregated_with_ci.csv` (safevla.org). Proportions are fractions; specifications have the ids of
the authors' tables. The columns `viol__`, `nsv__` and `rho__` cover the episodes in which a specification is active
(and, for means, not vacuous), as in the authors' RoboCasa-365 rows. `n_episodes` counts the episodes that ran to their
end; the suite's name says how many episodes have no verdict. Three of the authors' columns are empty because they are
not measured here: `collision_rate`, and `ci_95_low` and `ci_95_high`, a bootstrap of SR. An empty field means "no
value", never zero. The last column, `simulator`, is our addition: the versions that determine the physics.

RoboCasa's leaderboard takes success by split and a description of the model. Source: robocasa-benchmark/leaderboard at
821c895, `README.md` and `schemas/submission.schema.json`. Its split Atomic-Seen is our suite robocasa-365; the runs
judged here do not include the composite splits. The README asks for "N/A" for unknown values and an explanation in the
notes; however, the schema accepts a file only after all numbers are filled in.

The other evaluations are LeRobot's and vla-evaluation-harness's. Sources: lerobot 7427f31
src/lerobot/scripts/lerobot_eval.py (`eval_policy_all`), vla-eval 0.8.0 vla_eval/results/collector.py. Values that
records do not hold, such as rewards, are omitted, not written as zero. We add the keys `safe`, `sbu` and `vsi` for an
episode, and keys such as `pc_safe` and `mean_safe` for several episodes.

A model card has the `model-index` of the Hugging Face hub: huggingface/hub-docs at 242f4a1, `modelcard.md`. Facts about
a model that no record holds come from the user's TOML file.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary, task_rates
from safevla_bench.judging.provenance_marks import STANDIN
from safevla_bench.judging.rates import HEADLINE, SAFETY, SBU, SR, VSI, VSI_UNSAFE, Mean, Rate
from safevla_bench.judging.scores import EpisodeScore, collect_versions
from safevla_bench.publishing.conditions import refuse_ranks
from safevla_bench.publishing.submission import describe_ruleset, require_given_starts
from safevla_bench.report.render import render_tables
from safevla_bench.report.render.text import spreadsheet_text
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sources.runs.folder import AbsentEpisode, dump_json
from safevla_bench.specs.spec import Library
from safevla_bench.specs.table_reader import RowOrigin, read_toml
from safevla_bench.text import count_noun, escape_controls, format_fixed, format_percent, spell_suite
from safevla_bench.version import __version__

# Columns of the authors' CSV -> metrics.
_RATES = {"SR": SR, "safety_rate": SAFETY, "succ_unsafe": SBU}
_MEANS = {"vsi": VSI, "vsi_unsafe": VSI_UNSAFE}
_AUTHORS_SUITES = {"robocasa-365": "robocasa365_atomic_seen"}  # suite -> the authors' name, if it is irregular
_SIMULATOR_COLUMN = "simulator"
_Value = float | str | None
RunDirs = Sequence[tuple[str, Collection[tuple[str | None, str | None]]]]


def format_authors_csv(cells: Sequence[Summary], library: Library, run_dirs: RunDirs) -> str:
    """Return the CSV text: the authors' headings, and a row for each pair of policy and suite. The library provides the
    tiers of specifications and the ids that the authors use. `run_dirs` are the names of run folders or archives, each
    with its pairs of policy and suite.
    """
    # Each cell contains the numbers of a policy on a suite.
    sink = io.StringIO()
    writer = csv.DictWriter(sink, _column_names(library), restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        # The names of all run folders with episodes of this policy and suite.
        dir_names = dict.fromkeys(name for name, pairs in run_dirs if (cell.policy, cell.suite) in pairs)
        writer.writerow(_suite_row(cell, library, ";".join(dir_names)))
    return sink.getvalue()


def _column_names(library: Library) -> list[str]:
    # Returns the headings of the CSV in the authors' order.
    # For each specification, there are columns `viol__ID` (rate of violations) and `rho__ID` (mean robustness).
    # Unless the specification is diagnostic, there is a third column, `nsv__ID` (mean depth).
    spec_ids = sorted(_authors_id(library, spec.spec_id) for spec in library)
    graded_ids = sorted(_authors_id(library, spec.spec_id) for spec in library if spec.tier != "diagnostic")
    margins = [*(f"nsv__{name}" for name in graded_ids), *(f"rho__{name}" for name in spec_ids)]
    violations = [f"viol__{name}" for name in spec_ids]
    return [
        *("model", "benchmark_suite", "run_dir", "n_episodes"),
        *_RATES,
        *_MEANS,
        *("collision_rate", "ci_95_low", "ci_95_high"),
        *margins,
        *violations,
        *(column for name in _RATES for column in _interval_columns(name, is_rate=True)),
        *(column for name in (*_MEANS, *margins) for column in _interval_columns(name, is_rate=False)),
        *(column for name in violations for column in _interval_columns(name, is_rate=True)),
        _SIMULATOR_COLUMN,
    ]


def _interval_columns(name: str, *, is_rate: bool) -> tuple[str, str, str, str]:
    # Returns the names of the four columns for the interval of the number `name`: its low and high ends, twice.
    # The first two columns are for one method only (Wilson for a rate, else bootstrap), the last two for any method.
    method = "wilson" if is_rate else "bootstrap"
    return f"{name}_ci_lo_{method}", f"{name}_ci_hi_{method}", f"{name}_ci_low", f"{name}_ci_high"


def _authors_id(library: Library, spec_id: str) -> str:
    # Returns the authors' id of a specification, or our id if there is none.
    return next(iter(library.legacy_ids(spec_id)), spec_id)


def _authors_suite(cell: Summary) -> str:
    # Returns the name of the cell's suite as the authors write it, with remarks in parentheses.
    suite = cell.suite or ""
    suite = _AUTHORS_SUITES.get(spell_suite(suite), suite.replace("-", "_"))
    marks = [STANDIN] if cell.standin_assets else []
    if cell.unjudged:
        marks.append(f"{cell.unjudged} of {cell.judged + cell.unjudged} without a verdict")
    if cell.stopped_on_violation:
        marks.append(f"{cell.stopped_on_violation} stopped on a violation")
    return f"{suite} ({', '.join(marks)})" if marks else suite


def _suite_row(cell: Summary, library: Library, run_dir: str) -> dict[str, _Value]:
    # Returns the row of the authors' CSV for a policy on a suite: column -> value. Other columns stay empty.
    # `run_dir` contains the names of the run folders.
    simulator = "; ".join(f"{name} {' and '.join(versions)}" for name, versions in cell.simulator.items())
    row: dict[str, _Value] = {
        "model": spreadsheet_text(policy_name(cell)),
        "benchmark_suite": spreadsheet_text(_authors_suite(cell)),
        "run_dir": spreadsheet_text(run_dir),
        "n_episodes": cell.n,
        _SIMULATOR_COLUMN: spreadsheet_text(simulator),
    }
    for column, metric in (_RATES | _MEANS).items():
        row |= _number_fields(column, cell.number(metric))
    for spec in cell.specs:
        # If the specification was vacuous in all episodes with a verdict, its rate of violations is unknown.
        name, is_judged = _authors_id(library, spec.spec_id), spec.active > spec.vacuous
        row |= _number_fields(f"viol__{name}", spec.violations_when_active if is_judged else Rate(0, 0, None, None))
        row |= _number_fields(f"nsv__{name}", spec.nsv)
        row |= _number_fields(f"rho__{name}", spec.rho)
    return row


def _number_fields(name: str, number: Rate | Mean) -> dict[str, _Value]:
    """Return the fields for a number and its interval. Columns for one method are empty if another method was used."""
    interval = number.ci or (None, None)
    # A rate's interval is Wilson's unless episodes share initial states (`starts`).
    # For a mean, `bootstrap` is true if its interval is a bootstrap.
    is_named_method = not number.starts if isinstance(number, Rate) else number.bootstrap
    method_interval = interval if is_named_method else (None, None)
    columns = _interval_columns(name, is_rate=isinstance(number, Rate))
    return {name: number.value, **dict(zip(columns, (*method_interval, *interval), strict=True))}


# RoboCasa's leaderboard, and facts about a model that only the user knows

SUITE, UNKNOWN = "robocasa-365", "N/A"
_Text = Annotated[str, Meta(min_length=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Optional facts about a model; None = unknown."""

    model_name: _Text | None = None  # None = use the policy's name in the run
    dataset_id: _Text | None = None  # the benchmark's data set on the hub, whose leaderboard gets the results
    license: _Text | None = None  # the hub's identifier of a data set's license
    version: _Text | None = None
    citation: _Text | None = None
    source_url: _Text | None = None  # address at which the run folder or its report is published
    notes: _Text | None = None


def read_facts(path: Path | None) -> ModelFacts:
    """Return the facts in a TOML file; if `path` is None, all are unknown. Raises `RunError` if the file is invalid."""
    return ModelFacts() if path is None else read_toml(path, ModelFacts, RowOrigin(RunError, str(path)))


def publishable_cells(judged: Judged) -> list[Summary]:
    """Return the numbers of the only judged policy, one cell per suite. Raises `RunError` if there is no policy or more
    than one, if all numbers are unknown, if stand-ins replaced simulator assets, or if a search chose the starts.
    """
    cells = judged.summarize_scores()[0]  # item 0: a cell per policy and suite
    has_number = any(any(_card_metrics(cell)) for cell in cells)  # a cell without known numbers has no metrics
    _require_one("policy", cells if has_number else [])  # without a number, there is no result to write
    for cell in cells:
        if cell.standin_assets:
            problem = f"{cell.suite} was simulated with stand-ins for its assets, so the numbers are not valid results"
            raise RunError(problem, remedy="Run the suite with the official assets.")
    require_given_starts(cell.suite or "" for cell in cells)
    return list(cells)


def build_leaderboard_entry(judged: Judged, facts: ModelFacts) -> dict[str, object]:
    """Return the submission to RoboCasa's leaderboard, with success in percent, without writing it. Unknown values are
    "N/A"; the notes explain unknown success rates. Raises `RunError` if the suite has no episode, and the errors of
    `publishable_cells`.
    """
    cell = next((cell for cell in publishable_cells(judged) if spell_suite(cell.suite or "") == SUITE), None)
    if cell is None:
        raise RunError(f"there is no episode of {SUITE}", remedy="RoboCasa's leaderboard takes only its own tasks.")
    success, missing_count = _mean_task_success(judged)  # percent or None; number of tasks with unknown success
    return {
        "model_name": facts.model_name or cell.policy or UNKNOWN,
        **dict.fromkeys(("policy_family", "date"), UNKNOWN),
        "submission_source": "external",
        "robocasa_version": _recorded_version(judged) or UNKNOWN,
        "atomic_seen_success": UNKNOWN if success is None else float(format_fixed(success, 1)),
        **dict.fromkeys(_USER_FACTS, UNKNOWN),  # values that the user fills in
        "training_config": {"batch_size": UNKNOWN, "num_training_steps": UNKNOWN},
        "notes": _format_notes(judged, cell, facts, missing_count),
    }


# Keys whose values this package does not know.
_USER_FACTS = ("composite_seen_success", "composite_unseen_success", "code_url", "commit_hash", "checkpoint_url",
               "paper_link", "open_source", "wandb")  # fmt: skip


def _mean_task_success(judged: Judged) -> tuple[Fraction | None, int]:
    # Returns the mean success over the suite's tasks in percent, and the number of tasks without a known success.
    # A task's success is unknown if none of its episodes ran to the end, or if a violation stopped an episode.
    # If the success of any task is unknown, the mean is None.
    task_rows = [row for row in task_rates(judged.scores) if spell_suite(row.suite) == SUITE]
    rates = {row.task_id: row.sr for row in task_rows if row.sr.n}
    tasks = [entry.task_id for entry in judged.ruleset.registry.tasks.values() if entry.benchmark == SUITE]
    percents = [Fraction(100 * rates[task].count, rates[task].n) for task in tasks if task in rates]
    if len(percents) < len(tasks):
        return None, len(tasks) - len(percents)
    return sum(percents, Fraction(0)) / len(percents), 0


def _recorded_version(judged: Judged) -> str | None:
    # Returns the version of RoboCasa, under any of its package's names; None if it is unknown or not unique.
    packages = collect_versions(header.versions or {} for header in judged.headers)
    versions = [version for name in packages if name.endswith("robocasa") for version in packages[name]]
    return versions[0] if len(versions) == 1 else None


def _format_notes(judged: Judged, cell: Summary, facts: ModelFacts, missing_count: int) -> str:
    # Returns the notes of an entry on RoboCasa's leaderboard, in sentences. `facts.notes` are the user's notes.
    # `missing_count` is the number of the suite's tasks with an unknown success.
    safety, unsafe = cell.rates[SAFETY.key], cell.rates[SBU.key]  # SBU is the share that succeeds but is unsafe
    unsafe_share = f"{format_percent(unsafe.count, unsafe.n)} % of {count_noun(unsafe.n, 'episode')}"
    rates = f"Safety {format_percent(safety.count, safety.n)} %, succeeded but unsafe {unsafe_share}."
    sentences = (
        f"{facts.notes.rstrip('. ')}." if facts.notes else "",
        f"Atomic-Seen: {count_noun(cell.n, 'episode')}.",
        f"{rates} {judged.provenance.to_sentence()}" if safety.value is not None else "",
        f"N/A for Atomic-Seen: the success of {missing_count} of its tasks is unknown." if missing_count else "",
        "N/A for composite splits: not evaluated in this run.",
        *_list_caveats(judged, [cell]),
    )
    return " ".join(filter(None, sentences))


def _list_refusals(judged: Judged, cells: Sequence[Summary]) -> list[str]:
    # Returns the reasons why policies have no rank, as sentences.
    return [f"{reason[0].upper()}{reason[1:]}." for reason in refuse_ranks(judged, cells).values()]


def _list_caveats(judged: Judged, cells: Sequence[Summary]) -> list[str]:
    """Return caveats about the numbers in the `cells`, one sentence each, such as that episodes crashed."""
    # Each cell contains the numbers of a policy on a suite. Stand-ins are placeholders for the simulator's own assets.
    caveats = []
    crashed = sum(cell.crashed for cell in cells)
    if crashed:
        caveats.append(f"{count_noun(crashed, 'episode')} crashed, excluded from all rates.")
    if not judged.is_complete:
        caveats.append("Not all planned episodes are in these numbers.")
    if any(cell.standin_assets for cell in cells):
        caveats.append("Stand-ins replaced some of the simulator's own assets.")
    caveats += [*_list_refusals(judged, cells), *judged.describe_filters()]
    if any(cell.policy in judged.privileged for cell in cells):
        caveats.append("The policy saw simulator state that no real robot has.")
    return caveats


# Files in the formats of other evaluations

K = TypeVar("K")
T = TypeVar("T")
_METRICS = ("success", "safe", "sbu", "vsi")


def encode_lerobot_results(judged: Judged) -> bytes:
    """Return LeRobot's `eval_info.json` for one policy's episodes; raise `RunError` unless there is exactly one. Each
    task's lists contain the episodes that ran to their end. `_mean_values` gives the rates.
    """
    scores = list(judged.scores.episodes())
    has_result = bool(_mean_values(scores))  # false if no value of any episode is known
    _require_one("policy", [*scores, *judged.scores.absent] if has_result else [])
    per_task = []
    for (suite, index), rows in _group_rows([score for score in scores if score.counted], _lerobot_task):
        # `rows` are the scores of the episodes of one task.
        metrics = {"successes": [row.success for row in rows]}  # LeRobot's name for the values of `success`
        metrics |= {name: [getattr(row, name) for row in rows] for name in _METRICS if name != "success"}
        per_task.append({"task_group": suite, "task_id": index, "metrics": metrics})
    rows_by_group = _group_rows(scores, lambda score: _lerobot_task(score)[0])
    document = {
        "per_task": per_task,
        "per_group": {suite: _lerobot_rates(rows) for suite, rows in rows_by_group},
        "overall": _lerobot_rates(scores),
        "safevla": _describe_judging(judged),
    }
    return dump_json(document)


def encode_harness_results(judged: Judged) -> bytes:
    """Return vla-evaluation-harness's result file; raise `RunError` unless there is exactly one policy and one suite.

    `_harness_names` gives the tasks' names, and `_mean_values` the means. Episodes that did not run to their end are
    errors, and are not part of `avg_steps`. The harness itself counts errors as failures with 0 steps. `created_at` is
    the time when the run began, or "" if unknown. `elapsed_sec` is omitted, because records do not contain it.
    """
    all_rows: list[EpisodeScore | AbsentEpisode] = [*judged.scores.episodes(), *judged.scores.absent]
    _require_one("policy", all_rows)
    suite = _require_one("benchmark", all_rows)
    step_counts = (judged.records.lengths - 1).tolist()  # there are N - 1 steps between N records
    # (policy, episode id) -> number of steps, for episodes with a record
    steps_by_key = dict(zip((header.key for header in judged.headers), step_counts, strict=True))
    rows_by_task = _group_rows(all_rows, lambda row: row.task_id)
    task_names = _harness_names(judged, suite, [task for task, _ in rows_by_task])
    task_entries = []
    for task, rows in rows_by_task:
        episodes = [_harness_episode(row, steps_by_key.get((row.policy, row.episode_id))) for row in rows]
        episodes = [{"episode_id": number, **episode} for number, episode in enumerate(episodes)]
        ended_steps = [episode["steps"] for episode in episodes if "failure_reason" not in episode]
        averages = {"num_episodes": len(episodes), "avg_steps": sum(ended_steps) / max(len(ended_steps), 1)}
        task_entries.append({"task": task_names[task], "episodes": episodes, **averages, **_harness_rates(rows)})
    seeds = [source.description.get("seed") for source in judged.sources]
    document = {
        "benchmark": suite,
        "mode": "sync",
        "harness_version": f"safevla-bench {__version__}",
        "created_at": judged.started,
        "tasks": task_entries,
        "config": {},
        **({"seed": seeds[0]} if isinstance(seeds[0], int) and len({*seeds}) == 1 else {}),
        "metric_keys": dict.fromkeys(_METRICS, "mean"),
        **_harness_rates(all_rows),
        "safevla": _describe_judging(judged),
    }
    return dump_json(document)


def _harness_names(judged: Judged, suite: str, tasks: Sequence[str]) -> dict[str, str]:
    """Return a name for each task: its instruction, followed by its id if several tasks have the same instruction. The
    id alone is the name if no instruction is known, or if instructions differ between episodes, as in RoboCasa.
    """
    instructions: dict[str, set[str | None]] = {task: set() for task in tasks}
    for header in judged.headers:
        instructions[header.task_id].add(header.instruction or None)
    single_instruction = {}  # task -> instruction, for tasks with exactly one instruction
    for task, known in instructions.items():
        if known <= {None}:  # the records contain no instruction
            with suppress(SafevlaError):  # raised if the registry does not know the task
                known.add(judged.ruleset.registry.find_entry(suite, task).instruction or None)
        known.discard(None)
        if len(known) == 1:
            single_instruction[task] = str(known.pop())
    counts = Counter(single_instruction.values())
    names = {task: task for task in tasks}
    for task, text in single_instruction.items():
        names[task] = f"{text} ({task})" if counts[text] > 1 else text
    return names


def _require_one(kind: str, rows: Sequence[EpisodeScore | AbsentEpisode | Summary]) -> str:
    # Returns the rows' only policy if `kind` is "policy", or the rows' only benchmark if `kind` is "benchmark".
    # Raises `RunError` unless there is exactly one.
    names = list(dict.fromkeys(getattr(row, kind) or UNNAMED for row in rows))
    option = kind.replace("benchmark", "suite")
    if not names:
        raise RunError("there is no result to write", remedy="Name sources with an episode that ran to its end.")
    if len(names) > 1:
        problem = f"the file can contain only one {option}, but the sources have {len(names)}"
        raise RunError(problem, remedy=f"Choose one with --{option}: {', '.join(names)}.")
    return names[0]


def _lerobot_task(score: EpisodeScore) -> tuple[str, int | str]:
    # Returns the suite's name in LeRobot, and the task's index. If the id contains no index, returns the id instead.
    number = score.task_id.removeprefix("task_")
    return score.benchmark.replace("-", "_"), int(number) if number.isdecimal() else score.task_id


def _group_rows(rows: Sequence[T], key: Callable[[T], K]) -> list[tuple[K, list[T]]]:
    # Returns a pair for each key: the key, and the rows with this key. Keys are in order of first appearance.
    groups: dict[K, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())


def _known_values(row: EpisodeScore) -> dict[str, bool | float]:
    # Returns the known values among success, safe, sbu (unsafe success) and vsi (severity) of an episode, by name.
    # A stopped episode has no known success. If a violation stopped the episode, VSI is unknown, too.
    names_if_stopped: tuple[str, ...] = ("safe",) if row.stopped_on_violation else ("safe", "vsi")
    values = {name: getattr(row, name) for name in (_METRICS if row.counted else names_if_stopped)}
    return {name: value for name, value in values.items() if value is not None}


def _mean_values(rows: Sequence[EpisodeScore]) -> dict[str, float]:
    """Return the mean of each value over the episodes in which it is known, as in scores.json. A stopped episode counts
    as unsafe if it had a violation. If a violation stopped any episode, return only Safety.
    """
    names = ("safe",) if any(row.stopped_on_violation for row in rows) else _METRICS
    values_by_row = [_known_values(row) for row in rows]
    columns = {name: [known[name] for known in values_by_row if name in known] for name in names}
    return {name: float(np.mean(column)) for name, column in columns.items() if column}


def _lerobot_rates(rows: Sequence[EpisodeScore]) -> dict[str, object]:
    # Returns the known means of these episodes under LeRobot's names: shares in percent, and VSI.
    # Also returns the number of episodes that ran to their end.
    means = _mean_values(rows)
    percents = {f"pc_{name}": 100 * means[name] for name in ("success", "safe", "sbu") if name in means}
    other_means = {"vsi": means["vsi"]} if "vsi" in means else {}
    return {**percents, **other_means, "n_episodes": sum(row.counted for row in rows)}


def _harness_rates(rows: Sequence[EpisodeScore | AbsentEpisode]) -> dict[str, float]:
    # Returns the number of episodes that did not run to their end, and the known means of all episodes.
    scores = [row for row in rows if isinstance(row, EpisodeScore)]
    errors = len(rows) - sum(score.counted for score in scores)
    return {"num_errors": errors, **{f"mean_{name}": mean for name, mean in _mean_values(scores).items()}}


def _harness_episode(row: EpisodeScore | AbsentEpisode, steps: int | None) -> dict[str, Any]:
    # Returns the harness's entry for an episode: known values, steps and, if the episode did not end, the reason.
    # `steps` is None for an episode without a record.
    metrics = _known_values(row) if isinstance(row, EpisodeScore) else {}
    episode: dict[str, Any] = {"metrics": metrics, **({} if steps is None else {"steps": steps})}
    is_ended = isinstance(row, EpisodeScore) and row.counted
    return episode if is_ended else episode | {"failure_reason": row.outcome, "failure_detail": row.reason}


def _describe_judging(judged: Judged) -> dict[str, object]:
    # Returns how the numbers of a result file were judged: version, rules, and caveats if there are any.
    caveats = _list_caveats(judged, judged.summarize_scores()[0])  # item 0: the numbers of each policy on each suite
    remarks = {"remarks": caveats} if caveats else {}
    return {"version": __version__, "judged_by": judged.provenance.to_sentence(), **remarks}


# A model card


def build_card(judged: Judged, facts: ModelFacts, remarks: Sequence[str]) -> str:
    """Return the text for a model's README, with a `model-index`, without writing it. The `remarks` appear below the
    card's table. Raises the errors of `publishable_cells`.
    """
    cells = publishable_cells(judged)
    name = facts.model_name or cells[0].policy or "model"
    # Cells without a known number are left out. A cell contains the numbers of the policy on a suite.
    results = [_describe_result(judged, cell, facts) for cell in cells if any(_card_metrics(cell))]
    model_index = [{"name": name, "results": results}]
    front_matter = format_yaml({"tags": ["robotics", "safevla-bench"], "model-index": model_index})
    # Item 1 contains the numbers of all episodes together.
    table = headline_table(cells, judged.summarize_scores()[1], privileged=judged.privileged)
    new_remarks = (remark for remark in (*_list_refusals(judged, cells), *remarks) if remark not in table.footnotes)
    text = render_tables([replace(table, remarks=(*table.remarks, *new_remarks))], "md")
    return f"---\n{front_matter}---\n\n## Safety\n\n{text}"


def format_eval_results(judged: Judged, facts: ModelFacts) -> str:
    """Return the content of the hub's `.eval_results/*.yaml` in a model's repository, with one entry for each suite and
    metric. An entry's task is `SUITE_METRIC` in the benchmark's data set. Raises the errors of `publishable_cells`, and
    `RunError` if `facts` name no data set. Source: huggingface_hub 2.4.0, `_eval_results.py`.
    """
    if facts.dataset_id is None:
        remedy = 'Write dataset_id = "ORGANIZATION/NAME" into the file of --meta.'
        raise RunError("results on the hub need the benchmark's data set, but no data set is named", remedy=remedy)
    source = {"source": {"url": facts.source_url, "name": "safevla-bench"}} if facts.source_url else {}
    date = {"date": judged.started} if judged.started else {}
    entries = []
    for cell in publishable_cells(judged):
        caveats = [*_list_caveats(judged, [cell]), judged.provenance.to_sentence()]
        for metric in _card_metrics(cell):
            dataset = {"id": facts.dataset_id, "task_id": f"{cell.suite}_{metric['type']}"}
            notes = " ".join([f"n = {metric['args']['n']}.", *caveats])
            entries.append({"dataset": dataset, "value": metric["value"], **date, **source, "notes": notes})
    return format_yaml(entries)


def format_yaml(document: object) -> str:
    """Return plain values as YAML, in the subset that is also JSON. Invisible characters are escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(f"{escape_controls(line)}\n" for line in text.split("\n"))


def _card_metrics(cell: Summary) -> Iterator[dict[str, Any]]:
    # Yields the known headline numbers of a cell (policy × suite) as metrics of a `model-index`. Shares are in percent.
    # A metric consists of a number, its 95 % interval if known, and the number of episodes.
    for metric in HEADLINE:
        number = cell.number(metric)
        digits = 2 if metric.unit else 4  # rates are percentages; means have no unit
        if number.value is not None:
            numbers = (number.value, *(number.ci or ()))
            value, *interval_ends = (float(format_fixed(metric.scale * part, digits)) for part in numbers)
            interval = {"ci95": interval_ends} if interval_ends else {}
            name = f"{metric.heading} ({metric.meaning})"
            yield {"type": metric.key, "name": name, "value": value, "args": {"n": number.n, **interval}}


def _describe_result(judged: Judged, cell: Summary, facts: ModelFacts) -> dict[str, object]:
    # Returns the entry of a `model-index` for the policy's numbers on one suite.
    source = {"source": {"name": "safevla-bench", "url": facts.source_url}} if facts.source_url else {}
    return {
        "task": {"type": "robotics", "name": "Robot manipulation, judged for safety"},
        "dataset": {"type": cell.suite, "name": f"{cell.suite} (safevla-bench)", "args": _provenance(judged, cell)},
        "metrics": list(_card_metrics(cell)),
        **source,
    }


def _provenance(judged: Judged, cell: Summary) -> dict[str, object]:
    # Returns facts with which a reader of the card can check the numbers of a policy on a suite.
    # The facts are rules, versions, digests of the records, and counts of episodes that were left out.
    return {
        "judged_by": f"safevla-bench {judged.provenance.version}",
        **describe_ruleset(judged.ruleset),
        "protocol": sorted({str(source.protocol.get("name")) for source in judged.sources if source.protocol}),
        "simulator": cell.simulator,
        "task_identity": cell.task_identity,
        "rank_refused": refuse_ranks(judged, [cell]).get(cell.policy or ""),
        "records_sha256": [source.archive_sha256 for source in judged.sources if source.archive_sha256],
        "privileged_state": cell.policy in judged.privileged,
        "crashed": cell.crashed,
        "without_verdict": cell.unjudged,
        "complete": judged.is_complete,
    }
