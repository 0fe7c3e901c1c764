"""Judging the episodes of run folders and archives, on this machine or on a Ray cluster."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from safevla_bench import hosts
from safevla_bench.compare import policy_results
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.errors import (
    DamageError,
    Place,
    RunError,
    SafevlaError,
    UndescribedRulesError,
    UnknownTaskError,
    describe_cause,
)
from safevla_bench.files import decode_input, decode_json
from safevla_bench.judging import metrics, registration, scoring
from safevla_bench.judging.judged import Judged, JudgedSource, describe_maker
from safevla_bench.judging.ruleset import LostEpisodes, Ruleset, RulesetRecipe, load_ruleset
from safevla_bench.judging.scores import CUT_SHORT, UNCOUNTED, Scores
from safevla_bench.sources.runs.episode_index import EpisodeIndex, Scan
from safevla_bench.sources.runs.folder import RUN, SCORES, read_description, recorded_code
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import LeftOut, open_sources
from safevla_bench.specs.spec import Library
from safevla_bench.specs.table_reader import RuleFile
from safevla_bench.text import describe_lookalikes, warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import is_chosen

if TYPE_CHECKING:
    from safevla_bench.jobs.evaluation.parallel import ParallelJudge
    from safevla_bench.jobs.evaluation.survey import Survey
    from safevla_bench.judging.gates import EpisodeCosts


def judge(
    paths: Sequence[Path | str],
    ruleset: Ruleset,
    *,
    skip_invalid: bool = False,
    mixes_starts: bool = False,
    elsewhere: ParallelJudge | None = None,
    survey: Survey | None = None,
) -> Judged:
    """Judge every episode of run folders and archives. If `skip_invalid`, omit invalid and lost episodes, and count
    them. If `mixes_starts`, accept benchmark suites together with suites whose start states a search chose; the caller
    must not combine the two kinds in one rate. `elsewhere`, if given, judges Parquet archives in other processes, with
    the same results. `survey`, if given, collects the parts of the records that the report needs.

    Raises:
        CollectedError: lists every invalid or lost episode of the sources.
        SignalError: a record lacks a field that an active specification reads.
        RegistryError: a task has no entry (`UnknownTaskError`), or its entry contradicts itself.
        RunError: a path is not a source, or an episode is in two sources.
        RecordError: the mapping file for a foreign log cannot be read.
    """
    sources = [NamedSource.parse(path) if isinstance(path, str) else path for path in paths]
    try:
        # `net_changes`: how each verdict changes if net forces between bodies replace single contact forces.
        records, (scores, _, net_changes) = _score_sources(sources, ruleset, skip_invalid, elsewhere, survey)
    except UnknownTaskError as error:
        # Judge again with the task tags of all installed hosts, unless the rules already contain these tags.
        extended = ruleset.with_host_registry(read_installed_registries())
        if extended is ruleset:  # nothing new
            raise _mention_run_tags(error, sources) from None
        return judge(
            paths, extended, skip_invalid=skip_invalid, mixes_starts=mixes_starts, elsewhere=elsewhere, survey=survey
        )
    records.require_valid(skip_invalid=skip_invalid)
    if not mixes_starts:
        require_unmixed({*scores.benchmark, *(lost.benchmark for lost in records.absent)})
    # A `DamageError` reports lost episodes, which `_summarize_losses` counts.
    skipped = [str(problem) for problem in records.problems if not isinstance(problem, DamageError)]
    provenance = ruleset.provenance(skipped, _summarize_losses(records))
    judged = Judged(
        scores=replace(scores, absent=tuple(records.absent)),
        ruleset=ruleset,
        provenance=provenance,
        sources=tuple(JudgedSource.from_run(row.path, row.description, row.policy_names) for row in records.sources),
        records=records,
        net_changes=net_changes,
        paths=tuple(sources),
        makers=tuple(_describe_earlier_judgements(records, scores, ruleset)),
    )
    if elsewhere is not None and elsewhere.can_judge(records.sources):
        # If the report judges the records again, use the same processes.
        judged = replace(judged, score_records=elsewhere.score_records)
    for sentence in judged.describe_lookalikes():
        warn_once(sentence)
    return judged


def require_unmixed(suites: Collection[str]) -> None:
    """Raise `RunError` if some but not all of the suites have start states that a search chose."""
    # `suites` are the distinct names of suites. The name of a suite shows whether a search chose the start states.
    chosen = sorted(filter(is_chosen, suites))
    if chosen and len(chosen) < len(suites):
        problem = f"{chosen[0]} holds starts chosen by a search, but other sources hold starts of a benchmark"
        raise RunError(problem, remedy="Judge the two kinds of sources separately, because no rate may combine them.")


def _describe_earlier_judgements(records: EpisodeIndex, scores: Scores, ruleset: Ruleset) -> Iterator[str]:
    # For each run that other rules judged before, yield a sentence that compares the previous with the new Safety.
    for source, indices in records.by_source():
        if describe_maker(source.path, ruleset):  # skip the slow summary if there is no remark
            safety = metrics.aggregate(scores.select_episodes(np.arange(indices.start, indices.stop))).safety
            yield from describe_maker(source.path, ruleset, safety)


def _mention_run_tags(error: UnknownTaskError, paths: Sequence[Path]) -> UnknownTaskError:
    # Return the error. If a run.json contains task tags, the remedy says how to use the tags.
    if not any(_read_run_tags(path) for path in paths):
        return error
    tags = "run.json has the host's task tags: install the host, or use the stored tags with --rules as-judged"
    return UnknownTaskError(error.problem, remedy=f"{tags}; or {error.remedy}", place=error.place)


RULES = "judged_with.json"
"""File in a run folder with the rules that judged the run, for --rules as-judged. Default rules need no file."""


def format_rescore_command(run: Path) -> str:
    """Return the command that writes a run's scores again, by the rules that judged the run."""
    # A run that was judged by the default rules has no file `judged_with.json`.
    if not describes_rules(run):
        return "judge the run again in Python, by the same rules"
    command = f"safevla score {shlex.quote(str(run))}"
    return f"{command} --rules as-judged" if (run / RULES).exists() else command


def describes_rules(run: Path) -> bool:
    """Return whether --rules as-judged can name the rules that judged the run; false for rules made in Python."""
    try:
        _read_recipe(run / RULES)
    except UndescribedRulesError:
        return False
    except SafevlaError:  # the file is damaged
        return True
    return True


HOST_REGISTRY = "host_registry"  # field of run.json: names and contents of the host's files of task tags


def find_recipe(paths: Sequence[Path]) -> RulesetRecipe | None:
    """Return the rules that last judged the run folders; for unjudged folders, the rules in their registrations. Return
    None if no folder has rules. A run that was scored without `judged_with.json` was judged by the default rules.

    Raises `RunError` if the runs were judged by different rules, or if a `judged_with.json` is damaged.
    """
    # A recipe contains the arguments of `load_ruleset`, with the contents of all rule files.
    recipe_pairs = [(path, _find_run_recipe(path)) for path in paths]
    recipes = [(path, recipe) for path, recipe in recipe_pairs if recipe is not None]
    if not recipes:
        return None
    first_path, first_recipe = recipes[0]
    for path, recipe in recipes:
        if recipe != first_recipe:
            problem = f"{first_path} was judged by {first_recipe.describe()}, but {path} by {recipe.describe()}"
            raise RunError(problem, remedy="Leave out --rules as-judged, so that the same rules judge all runs.")
    return first_recipe


def load_recipe(recipe: RulesetRecipe, paths: Sequence[Path]) -> Ruleset:
    """Load the rules that `find_recipe` returned for the run folders. Errors name the file that holds the rules."""
    try:
        return recipe.load()
    except SafevlaError as error:
        # If there is no judged_with.json, the rules come from a registration in run.json.
        rules_file = next((path / RULES for path in paths if (path / RULES).exists()), Path(RUN))
        # The error's place names the rules file first, then any file that the error already named.
        error.place = replace(error.place, file=": ".join(filter(None, [str(rules_file), error.place.file])))
        raise


def _find_run_recipe(path: Path) -> RulesetRecipe | None:
    # Return the rules that judged the run. If the run is not judged, return its registered rules, or None.
    if (path / SCORES).exists():
        return _read_recipe(path / RULES)
    if not (path / RUN).exists():
        return None
    try:
        return registration.parse_registration(read_description(path).get(registration.REGISTERED)).rules.recipe
    except (ValueError, RunError):  # the registration is missing or damaged; the module `registration` reports damage
        return None


def add_host_registries(ruleset: Ruleset, paths: Sequence[Path], *, as_judged: bool = False) -> Ruleset:
    """Extend the rules by the task tags that the hosts of the run folders provide, and return the result.

    The tags come from the hosts installed here or, if `as_judged`, from each run.json. Raises `RunError` if the tags in
    a run.json are damaged, `RegistryError` if tags contradict others or are for tasks of the built-in registry, and
    `PluginError` if an installed host's file of tags is missing.
    """
    # Task tags decide which specifications are active in a task.
    read_tags = _read_run_tags if as_judged else _read_installed_tags
    return ruleset.with_host_registry([file for path in paths for file in read_tags(path)])


def read_host_registry(host: str) -> tuple[RuleFile, ...]:
    """Return an installed host's files of task tags. Raises `PluginError` if a file is missing."""
    # Hosts, including plug-ins, may define tags for their tasks.
    return tuple(map(RuleFile.read, hosts.registry_files(host)))


def read_installed_registries() -> tuple[RuleFile, ...]:
    """Return all installed hosts' files of task tags. Raises the errors of `read_host_registry`."""
    return tuple(file for host in hosts.host_names() for file in read_host_registry(host))


def _read_installed_tags(path: Path) -> tuple[RuleFile, ...]:
    # Return the task tags of the run's host as installed here; () for an archive or a run without a host.
    host = read_description(path).get("host") if (path / RUN).exists() else None
    return read_host_registry(host) if isinstance(host, str) else ()


def _read_run_tags(path: Path) -> tuple[RuleFile, ...]:
    # Return the task tags that the run's host stored in run.json; () if there are none.
    if not (path / RUN).exists():
        return ()
    try:
        return msgspec.convert(read_description(path).get(HOST_REGISTRY, ()), tuple[RuleFile, ...])
    except msgspec.ValidationError as error:
        place = Place(file=str(path / RUN), field=HOST_REGISTRY)
        remedy = "Restore the file."
        raise RunError(f"the tags from the run's host are damaged: {error}", remedy=remedy, place=place) from None


def find_rules(paths: Sequence[Path], *, as_judged: bool = False) -> Ruleset:
    """Return the default rules, extended by the task tags of all installed hosts of the runs.

    If `as_judged`, return the rules and tags that judged the runs. Raises the errors of `find_recipe` and
    `add_host_registries`, and `SpecError` or `RegistryError` if the rules cannot be loaded.
    """
    recipe = find_recipe(paths) if as_judged else None
    # A recipe lists the files and options from which rules are made. Without a stored recipe, use the default rules.
    chosen = load_recipe(recipe, paths) if recipe and not recipe.is_default else load_ruleset()
    return add_host_registries(chosen, paths, as_judged=as_judged)


def _read_recipe(path: Path) -> RulesetRecipe:
    # Return the rules in a file, or the default rules if the file does not exist.
    remedy = "Omit --rules as-judged, and name the rules, for example by --library FILE."
    kind: Any = RulesetRecipe | None
    try:
        recipe: RulesetRecipe | None = decode_input(path, partial(decode_json, kind=kind))
    except FileNotFoundError:
        return RulesetRecipe()  # the default rules
    except (ValueError, RecursionError, OSError) as error:
        raise RunError(f"cannot be read: {describe_cause(error)}", remedy=remedy, place=Place(file=str(path))) from None
    if recipe is None:  # the file holds null
        problem = "the run was judged by rules made in Python, which no file describes"
        raise UndescribedRulesError(problem, remedy=remedy, place=Place(file=str(path)))
    return recipe


def _score_sources(
    paths: Sequence[Path], ruleset: Ruleset, skip_invalid: bool, elsewhere: ParallelJudge | None, survey: Survey | None
) -> tuple[EpisodeIndex, scoring.JudgedChunk]:
    # Return the index of the sources' valid episodes, and their scores.
    # `elsewhere`, if given, judges in other processes. `survey`, if given, collects data for the report.
    scan = Scan(paths)
    judge_batch: Callable[[Batch, Ruleset], scoring.JudgedChunk] = scoring.judge_chunk
    if survey is not None:  # judge by a function that also collects data for the report
        survey.restart()  # `judge` may call this function twice
        judge_batch = survey.judge_batch
    try:
        if elsewhere is not None and elsewhere.can_judge(scan.sources):
            return elsewhere.score_scan(scan, ruleset, survey)
        chunk = scoring.join_judged((judge_batch(batch, ruleset) for batch in scan), ruleset)
    except SafevlaError as error:  # invalid episodes may have caused this error, so report them first
        index = scan.index()
        index.require_valid(skip_invalid=skip_invalid)
        if isinstance(error, UnknownTaskError):  # raise an error that lists all unknown tasks
            # (suite, task) -> the first known instruction, for the error's text; None if no episode has an instruction.
            instructions: dict[tuple[str, str], str | None] = {}
            for header in index.headers:
                task = header.benchmark, header.task_id
                instructions[task] = instructions.get(task) or header.instruction
            ruleset.registry.require_entries(instructions)
        raise
    if survey is not None:
        survey.is_complete = True
    return scan.index(), chunk


def _summarize_losses(records: EpisodeIndex) -> LostEpisodes | None:
    # Return the summary of the episodes lost in damaged files; None if no file is damaged.
    damages = [problem for problem in records.problems if isinstance(problem, DamageError)]
    if not damages:
        return None
    # Some `DamageError`s name the lost episode; others name only the damaged place in a file.
    left_out = records.left_out
    return LostEpisodes(
        episodes=left_out.lost,
        more=left_out.unknown,
        named=tuple(problem.place.episode for problem in damages if problem.place.episode is not None),
        places=tuple(str(problem) for problem in damages if problem.place.episode is None),
    )


def make_rescorer(judged: Judged) -> Callable[[Library], Scores]:
    """Return a function that judges the same records by a given library. Each call reads the records again."""

    def rescore(library: Library) -> Scores:
        # Judge the records of `judged` by `library`, and keep the list of episodes without a record.
        rules = replace(judged.ruleset, library=library)
        return replace(judged.score_records(judged.records, rules), absent=judged.scores.absent)

    return rescore


def describe_losses(judged: Judged) -> list[str]:
    """Return a phrase for each cause of missing scores, such as invalid episodes. Leave out crashes."""
    return _describe_interruptions(judged.interrupted_run_count) + judged.left_out.describe_kinds()


def describe_uncounted(judged: Judged) -> dict[str | None, list[str]]:
    """Return policy -> reasons why planned episodes are missing in all counts, even in the counts of unknown values."""
    return _describe_by_policy(judged, LeftOut.describe_uncounted)


def _describe_by_policy(judged: Judged, describe: Callable[[LeftOut], list[str]]) -> dict[str | None, list[str]]:
    # Return policy -> phrases about interrupted runs, and about episodes left out, in the policy's sources.
    # `describe` returns the phrases about episodes left out, given their counts.
    # A source in which no policy is known belongs to every policy.
    policies_by_source = [
        {*(judged.headers[k].policy for k in indices), *(absent.policy for absent in source.all_absent)}
        for source, indices in judged.records.by_source()
    ]
    phrases = {}
    for policy in set[str | None]().union(*policies_by_source):
        own = [k for k, policies in enumerate(policies_by_source) if not policies or policy in policies]
        run_count = sum(judged.sources[k].is_interrupted for k in own)
        phrases[policy] = _describe_interruptions(run_count) + describe(judged.records.count_left_out(policy, own))
    return phrases


def _describe_interruptions(run_count: int) -> list[str]:
    # Return a list of one phrase; [] if no run was interrupted.
    runs_were = "1 run was" if run_count == 1 else f"{run_count} runs were"
    return [f"{runs_were} interrupted before the last episode"] if run_count else []


def load_policy_results(
    paths: Sequence[Path],
    ruleset: Ruleset,
    *,
    policies: Sequence[str] = (),
    skip_invalid: bool = False,
    join: bool = True,
) -> list[PolicyResults]:
    """Judge each source separately. Return the results of all policies or, if `policies` is given, of these policies.

    If sources of one policy have no suite in common, such as runs on two hosts, join them unless `join` is false. If
    different policies have the same name, give them distinct names. Raises the errors of `judge`, and `RunError` for a
    policy that no source has.
    """
    results: list[PolicyResults] = []
    recorded_names: list[str] = []  # the policy's name in the records, for each of `results`
    for path, source in zip(paths, open_sources(paths), strict=True):
        judged = judge([Path(path)], ruleset, skip_invalid=skip_invalid)  # this call does not rename policies
        codes = tuple(recorded_code(source.description)) if source.description else ()
        for result in split_judged(judged, str(path), judged.sources[0].protocol):
            # In records, a policy without a name has the name None. `policy_names` maps recorded names to new names.
            recorded_name = None if result.name == policy_results.UNNAMED else result.name
            name = source.policy_names.get(recorded_name, result.name)
            recorded_names.append(result.name)
            results.append(replace(result, name=name, code=codes))
    names = dict.fromkeys(result.name for result in results)
    unknown = [name for name in policies if name not in {*names, *recorded_names}]
    if unknown:
        remedy = f"The sources have {', '.join(names) or 'none'}."
        raise RunError(f"no source has the policy {unknown[0]!r}", remedy=remedy)
    for sentence in describe_lookalikes("policies", sorted(names)):
        warn_once(sentence)
    if policies:
        # If a requested name is not a current name, select the policies with this name in the records.
        old_names = {*policies} - {*names}
        recorded = zip(results, recorded_names, strict=True)
        results = [result for result, name in recorded if result.name in policies or name in old_names]
    return policy_results.make_names_unique(policy_results.join_sources(results)) if join else results


def measure_costs(judged: Judged, *, allow_crashed: bool) -> EpisodeCosts:
    """Read the records again, and return each episode's cumulative cost (NaN = unknown). With `allow_crashed`, ignore
    episodes without a record, because gates leave them out. Raises `RunError` if an episode's horizon is unknown,
    because the horizon bounds the cost.
    """
    from safevla_bench.judging.gates import EpisodeCosts
    from safevla_bench.training.labels import label_records

    # A horizon is the maximum number of steps of an episode.
    horizons = [header.horizon for header in judged.headers]
    if None in horizons:
        remedy = "Record episodes with a horizon, because the interval needs the largest possible cost."
        raise RunError("an episode's record names no horizon", remedy=remedy, place=Place(field="horizon"))
    # Episodes without a record may belong to tasks with longer horizons than the recorded episodes.
    absent = () if allow_crashed else judged.scores.absent
    tasks = {(header.benchmark, header.task_id) for header in judged.headers}
    tasks |= {(row.benchmark, row.task_id) for row in absent if row.horizon}
    if unbounded := [row for row in absent if (row.benchmark, row.task_id) not in tasks]:
        problem = f"no horizon is known of {unbounded[0].episode_id} ({unbounded[0].outcome})"
        remedy = "Record crashed episodes with a horizon, or leave out episodes without a record: --allow-crashed."
        raise RunError(problem, remedy=remedy)
    horizons += [row.horizon for row in absent]
    episode_costs: list[float] = []
    step_counts: list[int] = []
    for batch in judged.records.read_chunks():
        scores = judged.scores.select_episodes(np.arange(len(episode_costs), len(episode_costs) + len(batch)))
        step_counts += (batch.lengths - 1).tolist()  # an episode of n steps has n + 1 records
        costs = label_records(batch, scores, judged.ruleset).cost  # a number for each record of the batch
        # The costs begin at record 1, because no action precedes record 0.
        step_costs = (costs[first + 1 : end] for first, end in pairwise(batch.starts.tolist()))
        # After an invalid action, further steps might have had a cost, too.
        ran_to_end = ~np.isin(scores.outcome, (*UNCOUNTED, *CUT_SHORT))
        for cost, is_known in zip(step_costs, scores.is_judged & ran_to_end, strict=True):
            episode_costs.append(float(cost.sum()) if is_known else np.nan)
    # A step costs at most 1, so the largest cost is the number of steps: the horizon, or more in a user's own loop.
    largest_cost = float(max([*filter(None, horizons), *step_counts], default=1))
    return EpisodeCosts(np.array(episode_costs), largest_cost)


def split_judged(judged: Judged, source: str = "", protocol: Mapping[str, object] | None = None) -> list[PolicyResults]:
    """Split the results by policy. Include the recorded facts on the start states of each policy's episodes. Give
    suites with the same tasks one name, so that their episodes can be paired.
    """
    records = judged.records
    results = policy_results.split_by_policy(
        replace(judged.scores, absent=(*judged.scores.absent, *records.lost)),
        judged.headers,
        source,
        left_out=_describe_by_policy(judged, LeftOut.describe_kinds),
        uncounted=describe_uncounted(judged),
        protocol=protocol,
        privileged=judged.privileged,
    )
    # Mappings from an episode's key (policy, id) to recorded facts that determine the start.
    earlier_resets = {episode.header.key: episode.earlier_resets for episode in records.notes if episode.earlier_resets}
    kitchens = {episode.header.key: episode.kitchen for episode in records.notes if episode.kitchen}
    canonical_suite = judged.ruleset.registry.canonical_suite
    names = {suite: canonical_suite(suite) for result in results for suite, _ in (*result.tasks, *result.lost_tasks)}
    if any(suite != name for suite, name in names.items()):
        results = [result.rename_suites(names) for result in results]
    return [replace(result, earlier_resets=earlier_resets, kitchens=kitchens) for result in results]
