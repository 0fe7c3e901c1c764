"""Evaluations in Python and notebooks: `evaluate` a policy, `load` recorded episodes, and inspect the results."""

from __future__ import annotations

import operator
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import overload

from safevla_bench.errors import PolicyError, RunError, is_integer
from safevla_bench.explain.episode import Explanation, explain_episode
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.hosts.protocols import PRESET
from safevla_bench.jobs.evaluation.judgement import find_rules, judge, read_host_registry
from safevla_bench.jobs.evaluation.outputs import render_report, table_material, write_outputs
from safevla_bench.jobs.evaluation.request import (
    DEFAULT_EXECUTION,
    ExecutionOptions,
    Request,
    RequestedPolicy,
    select_tasks,
)
from safevla_bench.jobs.evaluation.rollouts import has_nothing_to_run, roll_out
from safevla_bench.jobs.evaluation.survey import Survey
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary, cells
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import EpisodeScore, Scores
from safevla_bench.plugins import require_trust
from safevla_bench.policies import split_name
from safevla_bench.policies.coupling import Coupling
from safevla_bench.policies.python import adopt_object
from safevla_bench.report import episode_list, render, terminal
from safevla_bench.report.tables import catalog
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.table import Table
from safevla_bench.rollout.episode import Observer
from safevla_bench.rollout.plan import PROTOCOL
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.tasks.entries import Registry
from safevla_bench.text import count_noun, html_table
from safevla_bench.trajectory.batch import Batch


@dataclass(frozen=True, repr=False)
class PrintableTable:
    """A table that appears as text in a Python session and as HTML in a notebook. `table` holds the numbers."""

    table: Table

    def render(self, form: render.TableFormat = "text") -> str:
        """Return the table in the form text, md, csv, tex, json or html."""
        return render.render_tables([self.table], form)

    def __repr__(self) -> str:
        # Python sessions show this text.
        return self.render().rstrip("\n")

    def _repr_html_(self) -> str:
        # Notebooks show this HTML. A cell contains a text, a mark, and a second text below, such as an interval.
        rows = ([f"{cell.text}{cell.mark} {cell.below}".strip() for cell in row] for row in self.table.rows)
        notes = (*self.table.remarks, *self.table.notes)
        return html_table([column.full for column in self.table.columns], rows, self.table.title, notes)


@dataclass(frozen=True, repr=False)
class JudgedEpisode:
    """One judged episode: its verdict, its record, and an explanation."""

    evaluation: Evaluation
    index: int  # index of the episode in the evaluation, from 0

    @cached_property
    def score(self) -> EpisodeScore:
        """The verdict on this episode."""
        return self.evaluation.scores.episode(self.index)

    @cached_property
    def record(self) -> Batch:
        """The episode's record as a batch of one, read on first use. Raises `RunError` if the source has changed."""
        return self.evaluation.judged.records.read_episode(self.index)

    @cached_property
    def explanation(self) -> Explanation:
        """The explanation of the worst violation or, in a safe episode, of the nearest miss: time, bodies and depth."""
        judged = self.evaluation.judged
        # `place=0` selects the worst specification.
        return explain_episode(judged.scores, self.record, judged.ruleset, self.index, place=0)

    def show(self, *, plot_all: bool = False) -> None:
        """Print the explanation, as `safevla show` does. If `plot_all`, plot every specification."""
        print(terminal.format_explanation(self.explanation, plot_all=plot_all), end="")

    def __repr__(self) -> str:
        # Python sessions show an episode as its verdict.
        return repr(self.score)

    def _repr_html_(self) -> str:
        # Notebooks show an episode as its verdict.
        return self.score._repr_html_()


@dataclass(frozen=True, repr=False)
class Evaluation(Sequence[JudgedEpisode]):
    """Judged episodes of runs and archives: a sequence of `JudgedEpisode` that can also be indexed by episode id.

    `judged` holds all results. `folder` is the run folder that `evaluate` wrote; None for loaded episodes.
    """

    judged: Judged
    folder: Path | None = None

    @property
    def scores(self) -> Scores:
        """The verdicts on all episodes, as arrays."""
        return self.judged.scores

    @cached_property
    def cells(self) -> list[Summary]:
        """A summary of each policy × suite, in order of first appearance. Includes pairs whose episodes all crashed."""
        return cells(self.scores)

    def __len__(self) -> int:
        # The number of recorded episodes; crashed episodes have no record.
        return len(self.scores)

    def __iter__(self) -> Iterator[JudgedEpisode]:
        # Yield the recorded episodes in the order of the records.
        return (JudgedEpisode(self, index) for index in range(len(self)))

    def __contains__(self, key: object) -> bool:
        # `key` is an episode of an evaluation, or an episode's id.
        if isinstance(key, JudgedEpisode):
            return key.evaluation is self
        return isinstance(key, str) and key in self.scores

    @overload
    def __getitem__(self, key: int | str) -> JudgedEpisode: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[JudgedEpisode]: ...
    def __getitem__(self, key: int | str | slice) -> JudgedEpisode | Sequence[JudgedEpisode]:
        """Return the episode that `key` selects: an index (-1 is the last), an id, or the end of an id. For a slice,
        return a tuple. Raises `IndexError` for an unknown index, and `RunError` unless a text selects just one episode.
        """
        if isinstance(key, str):
            return JudgedEpisode(self, episode_list.find_recorded(self.judged, key))
        # Indexing the range resolves negative indices, and raises `IndexError` for unknown indices.
        if isinstance(key, slice):
            return tuple(JudgedEpisode(self, index) for index in range(len(self))[key])
        return JudgedEpisode(self, range(len(self))[key])

    def table(self, name: str = "") -> PrintableTable:
        """Return the table of rates or, if `name` is given, the table of `safevla tables` with this name or number.
        Raises `RunError` if the table does not exist or would be empty.
        """
        if not name:
            summaries, total = self.judged.summarize_scores()
            return PrintableTable(headline_table(summaries, total, privileged=self.judged.privileged))
        return PrintableTable(catalog.build_tables(table_material(self.judged), (name,))[0])

    def episodes(self, *, unsafe: bool = False, success: bool | None = None) -> tuple[JudgedEpisode, ...]:
        """Return recorded episodes, worst first. `unsafe` omits safe episodes; `success` selects by success."""
        # A `success` of True selects successes, False failures, and None both.
        records = self.judged.records
        # The rows include episodes without a record, after all recorded episodes.
        rows = episode_list.list_episodes(self.scores, records.dt_s, stamps_s=records.stamps_s)
        chosen = episode_list.filter_episodes(rows, violated=unsafe, success=success)
        ordered = episode_list.sort_episodes(chosen, "vsi")
        # Row numbers begin at 1.
        return tuple(JudgedEpisode(self, row.number - 1) for row in ordered if row.number <= len(self))

    def worst(self) -> JudgedEpisode:
        """Return the episode with the worst violation or, if all are safe, the least margin; `RunError` if none."""
        ordered = self.episodes()
        if not ordered:
            raise RunError("there is no episode", remedy="`scores.absent` has the reason for each crash.")
        return ordered[0]

    def write_report(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML page and return its path. Makes the page's folder if missing."""
        page = Path(path)
        make_folder(page.parent)
        write_atomically(page, render_report(self.judged, page_folder=page.parent))
        return page

    def __repr__(self) -> str:
        # One line on the number of episodes, then one line per policy and suite.
        lost = f", {len(self.scores.absent)} without a record" if self.scores.absent else ""
        lines = [f"<Evaluation of {count_noun(len(self), 'episode')}{lost}>", *map(repr, self.cells)]
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        # Notebooks show an evaluation as its table of rates.
        return self.table()._repr_html_()


def load(
    *sources: str | Path, ruleset: Ruleset | None = None, as_judged: bool = False, skip_invalid: bool = False
) -> Evaluation:
    """Judge run folders and archives, without writing anything.

    Args:
        sources: paths, or strings `NAME=PATH` that also name the policy.
        ruleset: the rules to judge by; None = the default rules.
        as_judged: if there is no ruleset, judge by the rules that last judged the runs or are registered for them.
        skip_invalid: omit and count invalid and lost episodes instead of raising an error.

    Raises the errors of `judge`, and `RunError` if there are no sources.
    """
    if not sources:
        raise RunError("there is nothing to load", remedy='Name run folders or archives: `load("runs/mine")`.')
    # Callers may pass a list of paths or another wrong object, although the annotation forbids it.
    arguments: Sequence[object] = sources
    for source in arguments:
        if not isinstance(source, str | Path):
            problem = f"a source is of type {type(source).__name__}, not a path"
            raise RunError(problem, remedy="Pass each path as an argument: `load(*paths)`.")
    paths = [NamedSource.parse(path) if isinstance(path, str) else path for path in sources]
    return Evaluation(judge(paths, ruleset or find_rules(paths, as_judged=as_judged), skip_invalid=skip_invalid))


def evaluate(
    policy: object,
    suite: str | Sequence[str],
    *,
    host: str | None = None,
    tasks: Sequence[int] | None = None,
    episodes: int | None = 1,
    name: str | None = None,
    out: str | Path | None = None,
    ruleset: Ruleset | None = None,
    protocol: str = PRESET,
    seed: int = 0,
    max_steps: int | None = None,
    filter: str | None = None,
    delay: str | None = None,
    workers: int = 1,
    resume: bool = False,
    observer: Observer | None = None,
) -> Evaluation:
    """Roll out a policy, judge every episode and write the run folder.

    >>> run = evaluate("noop", "fake", tasks=[0], episodes=2, max_steps=5)
    >>> len(run), run.worst().score.outcome
    (2, 'timeout')

    Args:
        policy: an object with `act(observation)`, whose `close` is not called; a string as for `--policy`, including
            `NAME=SPEC`; or a mapping from names to several policies, which are compared on the same initial states.
        suite: one suite or several, or the path of a BDDL file.
        host: the simulator; None = the simulator of the suite.
        tasks: indices of tasks in each suite; None = all.
        episodes: number of episodes per task; None = the protocol's number or, without one, the benchmark's.
        name: the policy's name in every output; None = an object's class name, or the string itself.
        out: the run folder to make; None = a temporary folder, which is deleted with the returned evaluation.
        ruleset: the rules to judge by; None = the default rules.
        protocol: the protocol that says how episodes start and end.
        seed: seed of the policy's randomness, from which some protocols also derive the environment's seeds.
        max_steps: the horizon in steps; None = the protocol's horizon or, without one, the task's.
        filter: filter of actions, as for `--filter`; None = no filter.
        delay: delay of answers, as for `--delay`; None = no delay.
        workers: number of processes; must be 1 for a policy object, because it cannot be sent to other processes.
        resume: whether to continue a run that exists in `out`.
        observer: object that is notified of the start, the steps and the end of each episode.

    Raises a `SafevlaError` for what a user must change: an unknown suite, an invalid policy, an existing folder.
    """
    suites = (suite,) if isinstance(suite, str) else tuple(suite)
    rules = ruleset or load_ruleset()
    request = Request(
        host=_find_host(host, suites, rules.registry),
        suites=suites,
        tasks=None if tasks is None else _read_tasks(tasks),
        episodes=PROTOCOL if episodes is None else _read_integer("episodes", episodes),
        policies=_request_policies(_name_policies(policy, name), Coupling(filter, delay), workers),
        protocol=protocol,
        seed=_read_integer("seed", seed),
        max_steps=None if max_steps is None else _read_integer("max_steps", max_steps),
    )
    execution = ExecutionOptions(workers=_read_integer("workers", workers), resume=resume)
    return _run_request(request, rules, out, observer, execution)


def _read_tasks(tasks: object) -> tuple[int, ...]:
    # Return the indices of tasks as a tuple of `int`. Raise `RunError` for anything but integers.
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise RunError(f"tasks is {tasks!r}", remedy="Pass a list of indices, such as tasks=[0, 3].")
    return tuple(_read_integer("an index in tasks", index) for index in tasks)


def _read_integer(name: str, value: object) -> int:
    # Return a Python or NumPy integer as an `int`. Raise `RunError` for any other type.
    if not is_integer(value):
        raise RunError(f"{name} is {value!r}", remedy="Pass a whole number.")
    return operator.index(value)  # converts NumPy's integers, too


def _run_request(
    request: Request, rules: Ruleset, out: str | Path | None, observer: Observer | None, execution: ExecutionOptions
) -> Evaluation:
    # Evaluate the request in the folder `out` or, if `out` is None, in a temporary folder.
    rules = rules.with_host_registry(read_host_registry(request.host))
    request = replace(request, ruleset=rules)
    with ExitStack() as cleanup:
        if out is None:
            # The run folder must not exist yet, so make it inside the temporary folder.
            out = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="safevla-", ignore_cleanup_errors=True))
            out = Path(out, "run")
        folder = Path(out).absolute()
        evaluation = Evaluation(evaluate_request(request, rules, folder, observer, execution), folder)
        # Delete the temporary folder, if one was made, when the evaluation is garbage-collected.
        weakref.finalize(evaluation, cleanup.pop_all().close)
    return evaluation


def evaluate_request(
    request: Request,
    ruleset: Ruleset,
    out: Path,
    observer: Observer | None = None,
    running: ExecutionOptions = DEFAULT_EXECUTION,
) -> Judged:
    """Check the tasks' tags, roll out, judge and write the results. Raises the errors of `roll_out` and `judge`."""
    out = out.absolute()  # a policy may change the working directory
    # Check the task tags before the rollouts. If tags are missing, judging would fail only after all rollouts.
    if not has_nothing_to_run(request, out, running):
        require_trust(request.named_by, request.list_calls())
        if not ruleset.is_ablation:
            for task in select_tasks(request.make_host(), request):
                ruleset.tags(task.benchmark, task.task_id)
    roll_out(request, out, observer, running)
    # The survey collects data for the report while the records are judged.
    survey = Survey()
    judged = judge([out], ruleset, survey=survey)
    write_outputs(judged, out, survey)
    return judged


def _request_policies(named: Mapping[str, object], coupling: Coupling, workers: int) -> list[RequestedPolicy]:
    # `named` is the result of `_name_policies`. All policies get the filter and the delay of `coupling`.
    if workers != 1 and not all(isinstance(spec_or_object, str) for spec_or_object in named.values()):
        remedy = "Pass `workers=1`, or name the policy by its module: `python:my_module:MyPolicy`."
        raise RunError("a policy object cannot be sent to other processes", remedy=remedy)
    requested = []
    for name, spec_or_object in named.items():
        if isinstance(spec_or_object, str):
            # An empty `spec` means that the name also says how to make the policy.
            spec = "" if name == spec_or_object else spec_or_object
            requested.append(RequestedPolicy(name, spec, coupling=coupling))
        else:
            requested.append(RequestedPolicy(name, coupling=coupling, made=adopt_object(name, spec_or_object)))
    return requested


def _name_policies(policy: object, name: str | None) -> dict[str, object]:
    # Return a mapping from names to policies (objects or strings), from the arguments of `evaluate`.
    if isinstance(policy, Mapping):
        if name is not None:
            raise PolicyError("name= is for one policy only", remedy="Omit name=, because the mapping has the names.")
        return {str(key): value for key, value in policy.items()}
    if isinstance(policy, str):
        own_name, spec = split_name(policy)  # NAME=SPEC; the name may be None
        return {name or own_name or spec: spec}
    # An object is named after its class.
    return {name or type(policy).__name__: policy}


def _find_host(host: str | None, suites: Sequence[str], registry: Registry) -> str:
    # Return `host`, or the first suite's host if `host` is None. Raise `RunError` if there is no suite or no host.
    if not suites:
        raise RunError("no suite is named", remedy='Name one or several suites: `evaluate(policy, "libero-spatial")`.')
    if host:
        return host
    suite = suites[0]
    if suite in registry.benchmarks:
        return registry.benchmarks[suite].host
    # A suite may also be a BDDL file or a folder of BDDL files, which only LIBERO runs.
    if suite.endswith(".bddl") or Path(suite).is_dir():
        return "libero"
    raise RunError(f"the registry has no suite {suite!r}", remedy="Pass `host=`; `safevla tasks` lists known suites.")
