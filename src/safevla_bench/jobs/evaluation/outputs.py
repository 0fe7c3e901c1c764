"""Outputs of a judgement: score files, inputs of tables, the report, comparisons, a board."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from safevla_bench.archive.parquet_rows import list_pairs, pair_values
from safevla_bench.compare.comparison import Comparison
from safevla_bench.compare.policy_results import PolicyResults
from safevla_bench.errors import RunError
from safevla_bench.explain.episode import explain_episode
from safevla_bench.files import make_folder, write_together
from safevla_bench.jobs.evaluation.judgement import RULES, describe_uncounted, judge, make_rescorer, split_judged
from safevla_bench.jobs.evaluation.stopping_rule import STOPPED_EARLY, was_stopped_early
from safevla_bench.jobs.evaluation.survey import Survey
from safevla_bench.judging import provenance_marks, registration
from safevla_bench.judging.judged import INTERRUPTED, Judged, describe_maker
from safevla_bench.judging.metrics import measure_baseline
from safevla_bench.judging.ruleset import NOT_PHASED, Ruleset
from safevla_bench.judging.scores import EpisodeScore, encode_scores
from safevla_bench.publishing.submission import recorded_versions
from safevla_bench.report import album, page, terminal
from safevla_bench.report.analysis import analyze_scores
from safevla_bench.report.tables import catalog, comparison, comparison_answer, notices, published
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.columns import policy_name
from safevla_bench.report.tables.table import UNNAMED, Table, add_notes
from safevla_bench.sensitivity.firmness import find_firmness
from safevla_bench.sources.runs import folder
from safevla_bench.sources.runs.parts import add_digests
from safevla_bench.sources.runs.sources import open_sources


def _arrow_type(annotation: msgspec.inspect.Type) -> pa.DataType:
    # Return the Arrow type of the column for a field of `EpisodeScore` with this annotation.
    match annotation:
        case msgspec.inspect.UnionType(types=types):  # the type of a field that may be None
            return next(_arrow_type(member) for member in types if not isinstance(member, msgspec.inspect.NoneType))
        case msgspec.inspect.StructType(fields=fields):
            return pa.struct([(field.name, _arrow_type(field.type)) for field in fields])
        case msgspec.inspect.DictType(value_type=value_type):
            return list_pairs(_arrow_type(value_type))
        case msgspec.inspect.VarTupleType(item_type=item_type):
            return pa.list_(_arrow_type(item_type))
    # All other fields are strings, Booleans, integers or floats.
    return _PLAIN_TYPES[type(annotation)]


_PLAIN_TYPES = {
    msgspec.inspect.StrType: pa.string(),
    msgspec.inspect.BoolType: pa.bool_(),
    msgspec.inspect.IntType: pa.int64(),
    msgspec.inspect.FloatType: pa.float64(),
}


def _is_set(row: EpisodeScore, name: str) -> bool:
    # Return whether a row has a value in an optional column. False, the usual value of a Boolean, counts as no value.
    return getattr(row, name) is not msgspec.UNSET and getattr(row, name) is not False


# The last columns of scores.parquet. A column is omitted if no row has a value in this column.
_OPTIONAL_COLUMNS = ("unknown_records", "diverged_replay", "progress", "progress_max", "phases", "subgoal_changes")


def table_material(judged: Judged, *, digests: bool = True) -> catalog.TableInputs:
    """Return the inputs of tables: scores, records, rules and remarks."""
    # `digests`: whether the remark on the rules contains the digests of the rules.
    simulators, judge_sentence = judged.describe_simulators(), judged.provenance.to_sentence(digests=digests)
    return catalog.TableInputs(
        scores=judged.scores,
        ruleset=judged.ruleset,
        roster=Roster(privileged=judged.privileged),
        records=judged.records,
        remarks=[
            *([INTERRUPTED] if judged.interrupted_run_count else []),
            *([STOPPED_EARLY] if was_stopped_early(judged) else []),
            *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in judged.left_out.describe_kinds()),
            *notices.baseline_warnings(measure_baseline(judged.scores)),
            *provenance_marks.warn_of_records(judged.scores),
            *judged.describe_policies(),
            *judged.describe_limits(),
            *simulators,
            *judged.describe_registrations(),
            *judged.makers,
            judge_sentence,
        ],
        # `facts` are the remarks that are not warnings.
        facts={*judged.describe_latencies(), *judged.describe_repeats(with_unequal=False), *simulators, judge_sentence},
    )


def scores_document(
    judged: Judged, sources: object = None, episodes: Sequence[EpisodeScore] | None = None
) -> dict[str, object]:
    """Return the content of scores.json. `sources` and `episodes`, if given, replace those of the judgement."""
    cells, total = judged.summarize_scores()
    # Results of comparing each run with its registration; empty without registered runs.
    checks = judged.check_registrations()
    return {
        "scores_version": folder.SCORES_VERSION,
        "episodes": list(judged.scores.episodes()) if episodes is None else episodes,
        "aggregate": total,
        "cells": cells,
        "absent": judged.scores.absent,
        "specs": judged.scores.specs,
        "judged_by": judged.provenance,
        "sources": [source.to_document() for source in judged.sources] if sources is None else sources,
        "recorded_with": recorded_versions(judged.headers),
        **({registration.REGISTERED: checks} if checks else {}),
    }


def write_outputs(judged: Judged, out: Path, survey: Survey | None = None) -> None:
    """Write scores.json, scores.parquet, the verdicts and report.html into the folder `out`, which is made if missing.

    `survey`: data that `judge` collected for the report, or None. Non-default rules from `load_ruleset` are
    written as judged_with.json, for --rules as-judged. Older files are replaced together, so scores and report match.
    Raises `FileError` if writing fails.
    """
    pa.default_memory_pool().release_unused()  # free the memory with which pyarrow read the records
    contents = score_files(judged)
    html = render_report(judged, page_folder=out, survey=survey)
    recipe = judged.ruleset.recipe
    if recipe is not None:  # omit the hosts' task tags, which are in run.json
        recipe = msgspec.structs.replace(recipe, host_registry=())
    make_folder(out)
    # Default rules need no judged_with.json, but an older judged_with.json must be replaced.
    # Rules without a recipe are written as null, which --rules as-judged refuses.
    keeps_rules = recipe is None or not recipe.is_default or (out / RULES).exists()
    rules_file = {RULES: folder.dump_json(recipe)} if keeps_rules else {}
    files = {**contents, folder.REPORT: html.encode(), **rules_file}
    write_together(out, files, chief=folder.SCORES)
    add_digests(out, files)


def score_files(judged: Judged, sources: object = None) -> dict[str, bytes]:
    """Return file name -> bytes for scores.parquet, scores.json and the verdicts; for `sources` see `scores_document`.
    The metadata of scores.parquet repeats the `ORIGIN` keys of scores.json. Empty `_OPTIONAL_COLUMNS` are omitted.
    """
    # The episodes are encoded below, in slices that need less memory, and then inserted into the document.
    document = scores_document(judged, sources, ())
    metadata = {name: msgspec.json.encode(document[name]) for name in folder.ORIGIN if name in document}
    # column -> Arrow field, at first for all columns:
    fields = {field.name: field for field in _arrow_type(msgspec.inspect.type_info(EpisodeScore))}
    optional_fields = {name: fields.pop(name) for name in _OPTIONAL_COLUMNS}
    schema = pa.schema([*fields.values(), *optional_fields.values()], metadata)
    empty_columns, json_parts, tables = set(optional_fields), list[bytes](), list[pa.Table]()
    for first in range(0, max(1, len(judged.scores)), _SLICE_ROWS):  # makes at least one table, which may have no rows
        indices = range(first, min(first + _SLICE_ROWS, len(judged.scores)))
        rows = [judged.scores.episode(index) for index in indices]
        empty_columns -= {name for name in empty_columns if any(_is_set(row, name) for row in rows)}
        if json_parts:
            json_parts.append(b",")
        json_parts.append(folder.encode_json(rows)[1:-1])  # strip the list's brackets
        tables.append(pa.Table.from_pylist([*map(_table_row, rows)], schema))
    table = pa.concat_tables(tables).drop_columns([*empty_columns]).combine_chunks()
    # `_NO_EPISODES` is the JSON text of the empty list of episodes, with its key.
    head, tail = folder.encode_json(document).split(_NO_EPISODES, 1)
    # Insert the rows into the document's empty list of episodes.
    # Keep the joined text only in `json_parts`, so that `json_parts.pop` below frees the text after formatting.
    json_parts = [b"".join([head, _NO_EPISODES[:-1], *json_parts, _NO_EPISODES[-1:], tail])]
    return {
        folder.SCORES_TABLE: folder.encode_parquet(table),
        folder.SCORES: msgspec.json.format(json_parts.pop(), indent=2) + b"\n",
        folder.VERDICTS: encode_scores(judged.scores),
    }


_SLICE_ROWS = 1 << 9  # number of rows that exist as Python objects at the same time
_NO_EPISODES = b'"episodes":[]'


def _table_row(row: EpisodeScore) -> dict[str, object]:
    # Return a row of scores.parquet, in which dictionaries are lists of pairs.
    values = msgspec.to_builtins(row).items()
    return {name: pair_values(value) if isinstance(value, dict) else value for name, value in values}


def render_report(
    judged: Judged,
    title: str = "Safety report",
    *,
    has_extras: bool = True,
    page_folder: Path | None = None,
    survey: Survey | None = None,
) -> str:
    """Return the report of all judged episodes as one self-contained HTML page. Takes the data for the report out of
    `survey`; if `survey` is None or incomplete, reads the records again. Without `has_extras`, the page has no rendered
    pictures and no results under varied physics. Links to films are relative to `page_folder`.
    """
    # Without paths, the page has no pictures and no replays.
    paths = judged.paths if has_extras else ()
    policy_names = [source.policy_names for source in judged.records.sources] if paths else []
    # `bodies` are the bodies in violations. For episodes that the page does not draw, `records` contains only headers.
    records, bodies = (survey or Survey()).take_records(judged)
    analysis = analyze_scores(
        judged.scores,
        judged.records.read_sparsely([]),  # headers of all episodes, without records
        judged.ruleset,
        make_rescorer(judged),
        bodies=bodies,
        privileged=judged.privileged,
        protocols=judged.protocols,
        uncounted=describe_uncounted(judged),
    )
    return page.render_page(
        judged.scores,
        records,
        judged.ruleset,
        title=title,
        provenance=judged.provenance,
        description=_page_description(judged),
        privileged=[*judged.privileged, *(name for source in judged.sources for name in source.privileged)],
        analysis=analysis,
        album=album.collect_images(paths, policy_names, page_folder=page_folder),
        replays=album.collect_replays(paths, policy_names),
        remarks=[
            *([STOPPED_EARLY] if was_stopped_early(judged) else []),
            *judged.describe_couplings(),
            *judged.describe_vacuous(),
            *judged.describe_limits(),
            *judged.describe_forces(),
            *judged.describe_activity(),
            *judged.describe_registrations(),
        ],
        # How verdicts change under varied physics; empty if no such replays were run.
        firmness=find_firmness(judged) if has_extras else {},
        summarized=judged.summarize_scores(),
    )


def render_episode_report(judged: Judged, index: int, page_folder: Path) -> str:
    """Return the HTML page of the episode at `index`, with rendered frames. `page_folder` will hold the page."""
    # The judgement of this episode alone:
    scores = replace(judged.scores.select_episodes(np.array([index])), absent=())
    judged_episode = replace(judged, scores=scores, records=judged.records.select_episodes([index]))
    key = (scores.policy[0], scores.episode_id[0])  # this key identifies the episode in `firmness`
    # How the episode's verdict changes under varied physics; None if that was not examined.
    firmness = find_firmness(judged).get(key)
    policy_names = [source.policy_names for source in judged.records.sources]
    record = judged.records.read_episode(index)
    return page.render_page(
        scores,
        record,
        judged.ruleset,
        # `place=0` explains the worst violation or, if the episode is safe, the smallest margin.
        episode=terminal.describe_verdict(explain_episode(judged.scores, record, judged.ruleset, index, place=0)),
        title=f"Episode {scores.episode_id[0]}",
        provenance=judged.provenance,
        description=_page_description(judged_episode),
        privileged=judged_episode.privileged,
        album=album.collect_images(judged.paths, policy_names, page_folder=page_folder),
        replays=album.collect_replays(judged.paths, policy_names),
        remarks=judged.describe_limits(),
        firmness={key: firmness} if firmness else {},
    )


def _page_description(judged: Judged) -> dict[str, object]:
    # Return the description of the results' origin for a report page.
    # Leave out the skipped and lost episodes, which the page shows elsewhere.
    # Privileged policies see simulator state that no robot can measure.
    policy_marks = [{"policy": name, "privileged": True} for name in judged.privileged]
    return {
        **{name: value for name, value in judged.describe_origin().items() if name not in ("skipped", "lost")},
        **({"policies": policy_marks} if policy_marks else {}),
        "recorded_with": recorded_versions(judged.headers),
    }


def comparison_tables(
    report: Comparison, entrants: Sequence[PolicyResults], paths: Sequence[Path], ruleset: Ruleset, *, full: bool = True
) -> list[Table]:
    """Return the tables of `safevla compare`: the main metrics or, if `full`, suite tables and statistical tests."""
    # (policy, suite) -> versions of the simulator's packages, for all compared policies (entrants):
    versions_by_entrant: dict[tuple[str | None, str], Mapping[str, Sequence[str]]] = {
        (entrant.name, suite): versions
        for entrant in entrants
        for suite, versions in entrant.simulator_by_suite.items()
    }
    simulators, provenance = provenance_marks.describe_simulators(versions_by_entrant), ruleset.provenance()
    registrations = registration.describe_registrations(open_sources(paths), provenance)
    # Sentences on runs that were judged by other rules before.
    makers = [sentence for path in paths for sentence in describe_maker(path, ruleset)]
    remarks = [*([simulators] if simulators else []), *registrations, *makers, provenance.to_sentence(digests=full)]
    # One table that answers which policy is better. All remarks are notes below this table.
    if not full:
        interventions = comparison.intervention_notes(report)
        return [comparison_answer.answer_table(report, [*interventions, *report.warnings, *remarks])]
    return [*comparison_answer.scope_tables(report), add_notes(comparison.difference_table(report), *remarks)]


def compare_with_paper(judged: Judged, name: str, policies: Collection[str] = ()) -> published.PublishedComparison:
    """Compare a policy's rates with the rates that the paper prints for `name`, such as `paper:pi0.5`. If the sources
    have several policies, `policies` selects one. Raises the errors of `compare_published`, and `RunError` if the
    sources and `policies` do not leave exactly one policy, or if the rules judge phase by phase.
    """
    judged.ruleset.require_whole(NOT_PHASED, "Compare without --set applicability=phased.")
    inputs = table_material(judged)
    names = list(dict.fromkeys(map(policy_name, inputs.cells)))
    # The published rates belong to one policy, so exactly one policy must remain.
    chosen = [policy for policy in names if not policies or policy in policies]
    if len(chosen) != 1:
        remedy = f"Choose one policy by --policy: {', '.join(names) or 'no policy was found'}."
        raise RunError(f"{name} can be compared with only one policy, but {len(chosen)} were found", remedy=remedy)
    # A group contains the paper's suites of one host, or a single other suite. Each auxiliary cell is a separate group.
    cell_groups = [*(cells for _, cells in inputs.suite_groups(None)), *([cell] for cell in inputs.auxiliary_cells)]
    own_cells = [[cell for cell in cells if policy_name(cell) == chosen[0]] for cells in cell_groups]
    # The last argument is a function that returns the warnings on given cells.
    warn = partial(catalog.warn_of_cells, inputs)
    return published.compare_published(own_cells, name, lambda cells: [*warn(cells), *inputs.remarks])


def build_board(
    paths: Sequence[Path],
    ruleset: Ruleset,
    *,
    reports: bool = True,
    skip_invalid: bool = False,
    audits: Sequence[Mapping[str | None, provenance_marks.AuditMark]] | None = None,
) -> dict[str, str]:
    """Return path -> content of a board's files. The board shows published results and the policies of the sources.
    `audits`: per source, policy -> audit. Raises the errors of `judge`, and `RunError` unless applicability is on.
    """
    from safevla_bench.publishing.board import OwnResults, render_site, report_path
    from safevla_bench.publishing.conditions import find_disqualified, read_conditions

    if ruleset.is_ablation:
        remedy = "Judge without --set applicability=off; `safevla tables --which applicability` shows the ablation."
        raise RunError("an ablation (applicability=off) is not a result to publish", remedy=remedy)
    reason = "boards rank only results that are judged as in the paper"
    ruleset.require_whole(reason, "Make the board without --set applicability=phased.")
    if not paths:
        return render_site()
    judged = judge(paths, ruleset, skip_invalid=skip_invalid)
    marks_by_policy: dict[str | None, tuple[provenance_marks.AuditMark, ...]] = {}
    # `strict=False`, because `audits` may be missing; the loop then does nothing.
    for source, audit_by_policy in zip(judged.sources, audits or (), strict=False):
        for name, mark in audit_by_policy.items():
            # Audits use the recorded names of policies; the board shows the new names of renamed policies.
            shown_name = None if name is None else source.policy_names.get(name, name)
            marks_by_policy[shown_name] = (*marks_by_policy.get(shown_name, ()), mark)
    results = OwnResults(
        inputs=table_material(judged),
        audits=marks_by_policy,
        has_reports=reports,
        conditions=read_conditions(judged),
        disqualified=find_disqualified(judged),
        policy_results=split_judged(judged),
        protocols=judged.protocols,
    )
    files = render_site(results)
    if reports:
        for policy in results.policies:
            judged_policy = judged.select_cells([policy])
            files[report_path(policy)] = render_report(judged_policy, f"Safety report: {policy or UNNAMED}")
    return files
