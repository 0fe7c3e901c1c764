"""Whole jobs as one call each: `roll_out`, `judge`, and `evaluate_request` = roll out, judge and report."""

from __future__ import annotations

from pathlib import Path

from safevla_bench import hosts, rollout
from safevla_bench.evaluation.freezing import freeze_request, list_deviations, registered_request
from safevla_bench.evaluation.judgement import (
    add_host_registries,
    compare_runs_in_order,
    describe_losses,
    find_recipe,
    find_rules,
    judge,
    load_policy_results,
    make_rescorer,
    unjudged_suites,
)
from safevla_bench.evaluation.outputs import (
    INTERRUPTED,
    build_board,
    build_submission,
    comparison_tables,
    measure_cell_exposures,
    render_report,
    score_files,
    scores_document,
    table_material,
    write_outputs,
)
from safevla_bench.evaluation.preparation import (
    PreparedRun,
    estimate_run,
    list_start_notes,
    prepare_run,
    read_host_registry,
    request_rules,
    select_tasks,
)
from safevla_bench.evaluation.request import (
    DEFAULT_EXECUTION,
    ENTRY_OPTIONS,
    PRESET,
    PROTOCOL,
    RECORDED,
    ExecutionOptions,
    Request,
    entry_fields,
    open_questions,
    replay_fields,
)
from safevla_bench.evaluation.results import Evaluation, JudgedEpisode, PrintableTable, evaluate, load
from safevla_bench.evaluation.rollouts import roll_out
from safevla_bench.evaluation.stopping_rule import STOPPED_EARLY, describe_decision, was_stopped_early
from safevla_bench.judged import Judged
from safevla_bench.ruleset import Ruleset

__all__ = [
    "DEFAULT_EXECUTION",
    "ENTRY_OPTIONS",
    "INTERRUPTED",
    "PRESET",
    "PROTOCOL",
    "RECORDED",
    "STOPPED_EARLY",
    "Evaluation",
    "ExecutionOptions",
    "Judged",
    "JudgedEpisode",
    "PreparedRun",
    "PrintableTable",
    "Request",
    "add_host_registries",
    "build_board",
    "build_submission",
    "compare_runs_in_order",
    "comparison_tables",
    "describe_decision",
    "describe_losses",
    "entry_fields",
    "estimate_run",
    "evaluate",
    "evaluate_request",
    "find_recipe",
    "find_rules",
    "freeze_request",
    "judge",
    "list_deviations",
    "list_start_notes",
    "load",
    "load_policy_results",
    "make_rescorer",
    "measure_cell_exposures",
    "open_questions",
    "prepare_run",
    "read_host_registry",
    "registered_request",
    "render_report",
    "replay_fields",
    "request_rules",
    "roll_out",
    "score_files",
    "scores_document",
    "table_material",
    "unjudged_suites",
    "was_stopped_early",
    "write_outputs",
]


def evaluate_request(
    request: Request,
    ruleset: Ruleset,
    out: Path,
    observer: rollout.Observer | None = None,
    running: ExecutionOptions = DEFAULT_EXECUTION,
) -> Judged:
    """Roll out, judge and report into one run folder; takes and raises what `roll_out` and `judge` do.

    A task without tags is an error before anything is rolled out.
    """
    if not ruleset.is_ablation:
        for task in select_tasks(hosts.make_host(request.host, request.host_arguments), request):
            ruleset.tags(task.benchmark, task.task_id)
    roll_out(request, out, observer, running)
    judged = judge([out], ruleset)
    write_outputs(judged, out)
    return judged
