"""Tables by task: success and safety (paper Table 12), active specifications (Table 23), effect of the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter

import numpy as np

from safevla_bench.judging.metrics import Summary, TaskRates
from safevla_bench.judging.rates import SAFETY, SBU, SR, Metric
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import NO_VERDICT, Scores, SpecColumn
from safevla_bench.report.tables import columns
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.tasks import inactive_reason
from safevla_bench.tasks.entries import Registry
from safevla_bench.tasks.reasons import describe_reason
from safevla_recorder.episode import Bools

Task = tuple[str, str]  # benchmark and task id


def task_table(task_rates: Sequence[TaskRates], cells: Sequence[Summary], roster: Roster) -> Table:
    """Return the table of SR, Safety and SBU by policy, suite and task, with each suite's total below its tasks."""
    return tabulate(
        "Results by task",
        # The tasks of a cell (policy × suite), then the cell itself as the total.
        [row for cell in cells for row in (*_list_tasks(cell, task_rates), cell)],
        text_column("Policy", lambda row: _task_policy_cell(row, roster)),
        columns.SUITE,
        text_column("Task", lambda row: row.task_id if isinstance(row, TaskRates) else "all"),
        columns.COUNT,
        *(Column(metric.heading, metric.meaning, partial(_task_cell, metric)) for metric in (SR, SAFETY, SBU)),
        *columns.lost_columns(cells),
        name="tasks",
        notes=(
            columns.describe_rates(rate for row in task_rates for rate in (row.sr, row.safety, row.sbu)),
            *columns.lost_notes(cells),
        ),
        dash=columns.DASH,
    )


def _list_tasks(cell: Summary, task_rates: Iterable[TaskRates]) -> list[TaskRates]:
    # Return the rates of the tasks of one cell (policy × suite), ordered by task id.
    tasks = [task for task in task_rates if (task.policy, task.suite) == (cell.policy, cell.suite)]
    return sorted(tasks, key=lambda task: (len(task.task_id), task.task_id))  # task_9 comes before task_10


def _task_policy_cell(row: TaskRates | Summary, roster: Roster) -> Cell:
    # Return the policy's name, emphasized in a suite's total. A row is a task's rates, or a total (a summary).
    cell = roster.policy_cell(row.policy, auxiliary=roster.is_auxiliary(row))
    return cell if isinstance(row, TaskRates) else replace(cell, emphasis="total")


def _task_cell(metric: Metric, row: TaskRates | Summary) -> Cell:
    # Return the value of a metric in one task; a row that is a summary is the suite's total.
    # `unjudged` counts episodes without a verdict on safety.
    if isinstance(row, Summary):
        return columns.metric_cell(metric, row)
    # SR needs no verdict, so SR has a value if there is any episode.
    why = "no episode" if not row.n and (metric is SR or not row.unjudged) else NO_VERDICT
    return columns.rate_cell(getattr(row, metric.key), why, n=row.n)


def active_spec_table(all_tasks: Iterable[Task], ruleset: Ruleset) -> Table:
    """Return the table of how many scored specifications apply to each task according to the registry. Raises the
    errors of `Registry.task_tags`: `UnknownTaskError` and `RegistryError`.
    """
    return tabulate(
        "Specifications that apply to each task",
        # `fromkeys` drops repeated tasks. Column k shows item k of a row.
        [_task_row(task, ruleset) for task in dict.fromkeys(all_tasks)],
        *(text_column(name, itemgetter(k)) for k, name in enumerate(("Suite", "Task", "Template"))),
        Column("Active", "scored specifications that apply", itemgetter(3)),
        text_column("Inactive, and why", itemgetter(4)),
        name="active",
    )


def _task_row(task: Task, ruleset: Ruleset) -> tuple[str, str, str, int, str]:
    # Return (suite, task, template, number of active specifications, text).
    # The text lists the inactive specifications with the reasons; `none` if all are active.
    tags = ruleset.tags(*task)
    suite = ruleset.registry.find_suite(task[0])
    # Scored specification -> why it is inactive in the task; "" if it is active.
    reasons = {spec.spec_id: inactive_reason(spec, tags, suite) for spec in ruleset.library.safe}
    # Specifications that are judged only in some phases of a composite task count as inactive.
    reasons |= {name: reason for name, reason in ruleset.reasons_of_phases(*task).items() if name in reasons}
    inactive_texts = {name: describe_reason(reason, with_tags=False) for name, reason in reasons.items() if reason}
    why = "; ".join(f"{name} ({text})" for name, text in inactive_texts.items())
    return *task, template_name(ruleset.registry, task), len(reasons) - len(inactive_texts), why or "none"


def template_name(registry: Registry, task: Task) -> str:
    """Return the template of a task, or its components if the task has no template."""
    # A template is a kind of task, such as picking; a composite task has a list of simpler tasks (components) instead.
    return registry.find_entry(*task).mechanism


# The effect of the applicability registry


@dataclass(frozen=True, slots=True)
class _Effect:
    # `successes` is the number of successful episodes; the other numbers count successful episodes with a violation.
    # The violation occurs with the registry (`on`), without it (`off`), or only without it (`removed`).
    template: str
    spec_id: str
    why: str
    successes: int
    on: int
    off: int
    removed: int


def applicability_table(on: Scores, off: Scores, ruleset: Ruleset) -> Table:
    """Return the table of violations in successes by template and specification, with and without the registry.

    `on` are the scores by `ruleset`, with its registry. `off` are the scores of the same episodes in the same order
    without the registry: every specification is judged if the record has its signals. The table shows tilt in the
    body's frame, but does not count it in "any scored". Raises the errors of `Registry.find_entry`.
    """
    assert on.episode_id == off.episode_id
    # A row (`effect`) counts successes that violate a specification: `on` with the registry, `off` without it.
    # `removed` is the number of successes that violate the specification only without the registry.
    # The task of each episode, [E].
    tasks = list(zip(on.benchmark, on.task_id, strict=True))
    templates = {task: template_name(ruleset.registry, task) for task in set(tasks)}
    # Task -> specification -> why it is judged only in some phases; {} for most tasks.
    phase_reasons = {task: ruleset.reasons_of_phases(*task) for task in templates}
    template_names = [templates[task] for task in tasks]
    # A mask of episodes, [E]: successful, run to the end, and with a verdict.
    counted_successes = on.success & on.is_counted & on.is_judged
    rows: list[_Effect] = []
    for template in [*dict.fromkeys(template_names), "all"]:
        # The group `all` contains the episodes of all templates.
        successes = counted_successes & np.array([template in ("all", name) for name in template_names], dtype=np.bool_)
        # Alternates (second thresholds of a specification) are left out: they are not about applicability.
        compared_columns = [k for k, spec in enumerate(on.specs) if spec.tier != "alternate"]
        effects = [
            (on.specs[k], _spec_effect(on, off, successes, template, k, phase_reasons)) for k in compared_columns
        ]
        for spec, effect in effects:
            # Rows without any violation are left out; so are diagnostics that the registry does not affect.
            if (effect.on or effect.off) and (effect.removed or _is_always_shown(spec)):
                rows.append(effect)
        # The last row of a template is about all scored specifications together, so it names none.
        # Masks of successes: all; unsafe with the registry; unsafe without it; unsafe only without it.
        masks = successes, on.unsafe & successes, off.unsafe & successes, on.safe & off.unsafe & successes
        rows.append(_Effect(template, "", "", *(int(mask.sum()) for mask in masks)))
    return tabulate(
        "What the applicability registry removes",
        rows,
        text_column("Template", lambda row: Cell(row.template, emphasis="" if row.spec_id else "total")),
        text_column("Specification", lambda row: row.spec_id or "any scored"),
        Column("Successes", value=lambda row: row.successes),
        Column("With the registry", "successes that violate the specification", lambda row: row.on),
        Column("Without", "successes that violate the specification if tasks have no tags", lambda row: row.off),
        Column("Removed", "violations where the specification does not apply", lambda row: row.removed),
        text_column("Why it does not apply", lambda row: row.why),
        name="applicability",
        notes=(
            "Only successful episodes are counted.",
            "Tilt in the body's frame is not scored and not in \"any scored\": tilt in the world's frame replaced it.",
            *([_ONLY_IN_PHASES] if any(row.on + row.removed > row.off for row in rows) else []),
        ),
    )


_ONLY_IN_PHASES = (
    "Displacement is measured from the start of a phase, so some violations occur only if phases are judged."
)


def _is_always_shown(spec: SpecColumn) -> bool:
    # Return whether the table shows the specification even if the registry removes no violation.
    # The table always shows scored specifications, and also the unscored tilt in the body's frame.
    return spec.is_scored or spec.canonical_family == "held_object_tilt_body"


def _spec_effect(
    on: Scores,
    off: Scores,
    successes: Bools,
    template: str,
    column: int,
    phase_reasons: Mapping[Task, Mapping[str, str]],
) -> _Effect:
    # Return the numbers of violations of one specification in successful episodes, with and without the registry.
    # `column` is the specification's index in both scores; `successes` is a mask of episodes, [E].
    spec_id = on.specs[column].spec_id
    violated_on, violated_off = (scores.is_violated[column] & successes for scores in (on, off))
    removed = violated_off & ~violated_on  # a mask of episodes; all masks have the shape [E]
    # The list `on.reasons` contains codes of reasons; the code at index 0 is "".
    # The array `on.reason` contains indices into this list.
    # For each removed violation: why the specification does not apply in the task, or in some of its phases.
    reasons = [
        on.reasons[on.reason[column, k]] or phase_reasons[on.benchmark[k], on.task_id[k]].get(spec_id, "")
        for k in np.flatnonzero(removed)
    ]
    # A text has a phrase for each part of a reason. Each phrase is shown once.
    texts = [describe_reason(reason, with_tags=False) for reason in dict.fromkeys(reasons)]
    why = "; ".join(dict.fromkeys(phrase for text in texts for phrase in text.split("; ")))
    return _Effect(
        template, spec_id, why, *(int(mask.sum()) for mask in (successes, violated_on, violated_off, removed))
    )
