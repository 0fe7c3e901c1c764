"""Notices next to the numbers: exclusions with reasons, limits that `noop` violates, and outcomes of gates."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from xml.etree import ElementTree

import msgspec

from safevla_bench.compare.policy_results import list_first
from safevla_bench.errors import find_exception
from safevla_bench.judging.gates import GateOutcome, GateReport
from safevla_bench.judging.metrics import NOOP, Baseline, Summary
from safevla_bench.judging.rates import METRICS
from safevla_bench.judging.ruleset import LostEpisodes
from safevla_bench.judging.scores import NO_VERDICT
from safevla_bench.report.tables.columns import COUNT
from safevla_bench.report.tables.table import UNNAMED, Cell, Column, Table, tabulate, text_column
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import (
    NO_VALUE,
    count_noun,
    escape_controls,
    escape_json,
    format_compact,
    format_fixed,
    format_interval,
)
from safevla_bench.version import __version__

_NO_LOSS = LostEpisodes()
# A row of the table: what was not scored, where, why, and in how many episodes (None = unknown).
_Exclusion = tuple[str, str, str, int | None]


def exclusion_table(
    cells: Sequence[Summary],
    absent: Sequence[AbsentEpisode] = (),
    skipped: Sequence[str] = (),
    damage: LostEpisodes = _NO_LOSS,
    describe: Callable[[str, str], str] = lambda reason, suite: describe_reason(reason),
) -> Table:
    """Return the table of what was not scored, with reasons: crashed, stopped, unjudged, damaged and invalid episodes,
    and inactive or vacuous specifications. `absent` are episodes without a record; `skipped` lists the problem of each
    invalid episode. `describe(reason, suite)` returns the text for the reason code of an inactive specification.
    """
    # A row is (what, where, why, number of episodes); column k shows item k. By default, `describe` ignores the suite.
    rows = [*_lost_rows(cells, absent), *_damage_rows(damage, skipped), *_spec_rows(cells, describe)]
    return tabulate(
        "What was not scored, and why",
        rows,
        *(text_column(name, itemgetter(k)) for k, name in enumerate(("What", "Where", "Why"))),
        # None = the number is unknown.
        Column("Episodes", value=lambda row: NO_VALUE if row[3] is None else row[3]),
        notes=() if rows else ("Every specification was judged in every episode.",),
    )


def _lost_rows(cells: Sequence[Summary], absent: Sequence[AbsentEpisode]) -> list[_Exclusion]:
    # Return a row with the number of crashed, stopped or unjudged episodes for each (kind, place, reason).
    # A place is a policy and a suite.
    counts: Counter[tuple[str, str, str]] = Counter()  # a key is (kind, place, reason)
    # `absent` lists some of the crashed and stopped episodes, with reasons; `cells` only count all of them.
    # So the second loop adds only the crashed and stopped episodes that are not in `absent`.
    explained_counts: Counter[tuple[str, str]] = Counter()
    for episode in absent:
        what, where = f"{episode.outcome} episodes", f"{episode.policy or UNNAMED}, {episode.benchmark or NO_VALUE}"
        reason = (episode.reason or "").strip() or "no reason recorded"
        counts[what, where, find_exception(reason)[0]] += 1  # the exception's line, without the traceback
        explained_counts[what, where] += 1
    for cell in cells:
        where = f"{cell.policy or UNNAMED}, {cell.suite or NO_VALUE}"
        why_stopped = "no reason recorded"
        if cell.stopped_on_violation:
            why_stopped = "a violation stopped these episodes; their success is unknown"
        losses = (
            ("crashed episodes", cell.crashed, "no reason recorded"),
            ("stopped episodes", cell.stopped, why_stopped),
        )
        for what, count, why in losses:
            unexplained_count = count - explained_counts[what, where]
            if unexplained_count > 0:
                counts[what, where, f"not counted in n; {why}"] += unexplained_count
        for why, count in cell.no_verdict.items():
            counts[f"{NO_VERDICT} on safety", where, describe_reason(why)] += count
    return [(*key, count) for key, count in counts.items()]


# Maximum number of invalid or damaged episodes that a row names. For further episodes, the row gives only their number.
_MOST_NAMED = 20


def _damage_rows(damage: LostEpisodes, skipped: Sequence[str]) -> Iterator[_Exclusion]:
    # Yield a row on episodes lost in damaged files, and a row on invalid episodes with the problems `skipped`.
    # The number of lost episodes is unknown (None) if further episodes may be lost (`damage.more`).
    if str(damage):  # the text is empty if nothing is damaged
        named_places = list_first([*damage.named, *damage.places], _MOST_NAMED)
        # `split` and `join` turn line breaks into spaces.
        yield str(damage), "in damaged files", " ".join(named_places.split()), None if damage.more else damage.episodes
    if skipped:
        why = " ".join(list_first(skipped, _MOST_NAMED).split())
        yield "invalid episodes", "left out on request", why, len(skipped)


def _spec_rows(cells: Sequence[Summary], describe: Callable[[str, str], str]) -> list[_Exclusion]:
    # Return a row for each scored specification, suite and reason why it was not judged, with the number of episodes.
    # `describe(code, suite)` returns the text for a reason code.
    counts: Counter[tuple[str, str, str]] = Counter()  # a key is (specification, suite, reason)
    why_vacuous = "the specification applies, but its condition never arose (nothing was held, lifted or tracked)"
    for cell in cells:
        suite = cell.suite or NO_VALUE
        for spec in cell.specs:
            if spec.tier != "safe":  # diagnostics and alternates are not scored
                continue
            for reason, count in spec.inactive.items():
                counts[spec.spec_id, suite, f"inactive: {describe(reason, cell.suite or '')}"] += count
            if spec.vacuous:
                counts[spec.spec_id, suite, f"vacuous: {why_vacuous}"] += spec.vacuous
    return [(*key, count) for key, count in counts.items()]


# Limits that the policy noop violates


def baseline_warnings(baseline: Baseline) -> tuple[str, ...]:
    """Return a warning if the policy `noop` violated limits, and another warning if it succeeded; () for neither."""
    # `floors` and `successes` contain a text per task, such as `SUITE TASK: SPEC in 2 of 3` and `SUITE TASK: 1 of 3`.
    warnings = []
    if baseline.floors:
        warnings.append(
            f"{NOOP}, which does nothing, broke limits in {baseline.unsafe} of {count_noun(baseline.n, 'episode')} "
            f"({list_first(baseline.floors)}): the scene itself exceeds a limit in these episodes, which may count as "
            "a violation of every policy."
        )
    if baseline.successes:
        warnings.append(
            f"{NOOP}, which does nothing, succeeded ({list_first(baseline.successes)}): the goal holds from the "
            "start or is reached without action, so these episodes are successes of any policy."
        )
    return tuple(warnings)


# Gates


def gate_table(checked: GateReport, remarks: Sequence[str] = ()) -> Table:
    """Return the table with a row per outcome of a gate, in the order of `checked`; `remarks` follow the notes."""
    # A gate is a limit on a metric; an outcome is the verdict on a gate for one policy and suite.
    # `each_confidence` is the confidence of each interval; None = point estimates decide, and there are no intervals.
    level = "" if checked.each_confidence is None else f"{format_compact(round(100 * checked.each_confidence, 2))} %"
    return tabulate(
        "Gates",
        checked.outcomes,
        text_column("Policy", _name_policy),
        text_column("Suite", lambda row: row.suite or "all"),
        text_column("Gate", _gate_name),
        COUNT,
        Column(level or "Value", value=lambda row: Cell.estimate(row.value, row.ci, 3), group="Value" if level else ""),
        text_column("Verdict", lambda row: Cell(row.verdict, emphasis="" if row.verdict == "passed" else "bad")),
        text_column("Why", lambda row: row.reason),
        notes=(*checked.notes, *remarks),
        remarks=checked.warnings,
    )


# Maximum number of outcomes that a sentence describes. For further outcomes, the sentence gives only their number.
_MOST_DECIDING = 3


def describe_gates(checked: GateReport) -> str:
    """Return the verdict as a sentence that names the outcomes with this verdict, or says that all gates hold."""
    # A gate is a limit on a metric; an outcome is the verdict on a gate for one policy and suite.
    # The verdict of the whole check is the worst verdict; only outcomes with this verdict are named.
    deciding = [outcome for outcome in checked.outcomes if outcome.verdict == checked.verdict]
    if checked.verdict == "passed" and len(deciding) > 1:
        return f"Passed: all {len(deciding)} gates hold."
    texts = [_outcome_text(outcome, checked.each_confidence) for outcome in deciding[:_MOST_DECIDING]]
    if len(deciding) > _MOST_DECIDING:
        texts.append(f"and {len(deciding) - _MOST_DECIDING} more")
    return f"{checked.verdict.capitalize()}: {'; '.join(texts)}."


def _outcome_text(outcome: GateOutcome, confidence: float | None) -> str:
    # Return for example `safety >= 0.9 of A on X: 0.850 (95 %: 0.800–0.890)`. `confidence` is for one interval.
    where = " on ".join(filter(None, (_name_policy(outcome, "all policies"), outcome.suite)))
    if outcome.gate is None:  # the outcome is about missing episodes, not about a metric
        return f"{outcome.reason} ({where})"
    value = NO_VALUE if outcome.value is None else format_fixed(outcome.value, 3)
    level = f"{100 * confidence:.4g} %: " if confidence else ""
    ends = f" ({level}{format_interval(outcome.ci[0], outcome.ci[1], digits=3)})" if outcome.ci else ""
    text = f"{_gate_name(outcome)} of {where}: {value}{ends}"
    if outcome.unknown:
        text += f", {count_noun(outcome.unknown, 'episode')} without a value"
    # `tipping` is the number of unknown values that may be bad while the gate still passes.
    if outcome.tipping is not None and outcome.verdict == "undecided":
        text += f"; the gate passes if at most {outcome.tipping} of these episodes count against it"
    return text


def _name_policy(outcome: GateOutcome, all_policies: str = "all") -> str:
    # Return the policy's name; `all_policies` if the outcome is about all policies.
    # `n` and `unknown` count the outcome's episodes with and without a known value.
    # If a gate's outcome counts episodes, but names no policy, it is about a policy without a name.
    is_unnamed = outcome.gate is not None and bool(outcome.n or outcome.unknown)
    return outcome.policy or (UNNAMED if is_unnamed else all_policies)


def _gate_name(outcome: GateOutcome) -> str:
    # Return the gate (limit on a metric) as text, such as `safety >= 0.9`.
    # Without a gate, the outcome is about missing episodes.
    return "every planned episode scored" if outcome.gate is None else outcome.gate.name


def format_junit(checked: GateReport, judged_by: str = "") -> bytes:
    """Return JUnit XML with a test case per outcome: a failed gate is a failure, an undecided gate an error.

    The XML contains no times, so the same report gives the same bytes.
    """
    verdicts = [outcome.verdict for outcome in checked.outcomes]
    # Both XML elements have the same attributes, because there is only one suite.
    name_and_totals = {
        "name": "safevla gate",
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count("failed")),
        "errors": str(verdicts.count("undecided")),
        "skipped": "0",
    }
    root = ElementTree.Element("testsuites", name_and_totals)
    suite = ElementTree.SubElement(root, "testsuite", name_and_totals)
    properties = ElementTree.SubElement(suite, "properties")
    facts = [("judged_by", judged_by), *(("warning", line) for line in checked.warnings)]
    facts += [("note", note) for note in checked.notes]
    # Empty facts are left out. Control characters are escaped, because XML forbids them.
    for name, value in facts:
        if value:
            ElementTree.SubElement(properties, "property", {"name": name, "value": escape_controls(value)})
    for outcome in checked.outcomes:
        where = escape_controls(f"{_name_policy(outcome)} / {outcome.suite or 'all'}")
        name = escape_controls(_gate_name(outcome))
        test_case = ElementTree.SubElement(suite, "testcase", {"classname": where, "name": name})
        if outcome.verdict != "passed":
            kind = "failure" if outcome.verdict == "failed" else "error"
            message = escape_controls(_outcome_message(outcome))
            ElementTree.SubElement(test_case, kind, {"type": outcome.verdict, "message": message}).text = message
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


_PolicySuites = Collection[tuple[str | None, str]]


def format_sarif(checked: GateReport, judged_by: str = "", files: Sequence[tuple[str, _PolicySuites]] = ()) -> bytes:
    """Return SARIF 2.1.0 with a result for each failed (`error`) or undecided (`open`) outcome. Passed outcomes have no
    result, because GitHub's code scanning shows every result as a problem. `files` lists each judged file: the path
    relative to the working folder, and the pairs (policy, suite). A result lists its files.
    """
    # Verdict -> kind and level of a SARIF result.
    kind_and_level = {"failed": ("fail", "error"), "undecided": ("open", "none")}
    # A result is about whole files, but a SARIF location has a region.
    file_start = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    results = []
    for outcome in checked.outcomes:
        if outcome.verdict == "passed":
            continue
        scope = f"{_name_policy(outcome)} / {outcome.suite or 'all'}"
        logical_location: dict[str, object] = {"logicalLocations": [{"fullyQualifiedName": scope}]}
        # The files with episodes of the outcome's policy and suite, or all files if there are none.
        outcome_files = [file for file, cells in files if any(_is_about(outcome, *cell) for cell in cells)]
        locations: list[dict[str, object]] = [
            {"physicalLocation": {"artifactLocation": {"uri": file}, "region": file_start}, **logical_location}
            for file in outcome_files or [file for file, _ in files]
        ]
        kind, level = kind_and_level[outcome.verdict]
        # Equal fingerprints let code scanning recognize the same problem in a later run.
        digest = hashlib.sha256(f"{_gate_name(outcome)}\0{scope}".encode("utf-8", "surrogatepass")).hexdigest()
        results.append(
            {
                "ruleId": _gate_name(outcome),
                "kind": kind,
                "level": level,
                "message": {"text": _escape_sarif(_outcome_message(outcome))},
                "locations": locations or [logical_location],
                "partialFingerprints": {"primaryLocationLineHash": f"{digest[:16]}:1"},
            }
        )
    # Each gate is a SARIF rule. One outcome per gate is enough, because all outcomes of a gate give the same rule.
    outcome_by_gate = {_gate_name(outcome): outcome for outcome in checked.outcomes}
    rules = [
        {"id": name, **_describe_rule(name, outcome, checked.confidence)} for name, outcome in outcome_by_gate.items()
    ]
    driver = {"name": "safevla gate", "version": __version__, "rules": rules}
    passed = [f"{_gate_name(row)}: {_name_policy(row)}" for row in checked.outcomes if row.verdict == "passed"]
    facts = {"judged_by": judged_by, "warnings": [*checked.warnings], "notes": [*checked.notes], "passed": passed}
    run = {"tool": {"driver": driver}, "results": results, "properties": facts}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    document = msgspec.json.encode({"$schema": schema, "version": "2.1.0", "runs": [run]})
    return escape_json(msgspec.json.format(document, indent=2))


def _escape_sarif(text: str) -> str:
    # Return the text of a message with a backslash before each backslash and square bracket.
    # Without backslashes, these characters could form a link (SARIF 2.1.0, section 3.11.6).
    return re.sub(r"[\\\[\]]", r"\\\g<0>", text)


def _is_about(outcome: GateOutcome, policy: str | None, suite: str) -> bool:
    # Return whether the outcome is about episodes of this policy and suite, which are in a judged file.
    # An outcome without a gate is about the planned episodes of all policies and suites.
    return outcome.gate is None or (outcome.policy == policy and outcome.suite in (None, suite))


_RULE = (
    "The gate passes if the whole confidence interval satisfies the limit, fails if no part of it does, and is "
    "otherwise undecided until there are more episodes."
)
_POINT_RULE = (
    "The gate passes if the point estimate satisfies the limit, and fails if it does not. It is undecided if unknown "
    "values could change this."
)


def _describe_rule(name: str, outcome: GateOutcome, confidence: float | None) -> dict[str, object]:
    # Return the texts of a SARIF rule, by the names of their JSON fields; `name` is the gate's name.
    # `confidence` is None if point estimates decide.
    # Some gates are not in `METRICS`: the gate on `cost`, and the check for missing episodes.
    metric = METRICS.get(outcome.gate.metric) if outcome.gate else None
    rule = _POINT_RULE if confidence is None else _RULE
    text = _escape_sarif(f"{metric.heading}: {metric.meaning}. {rule}" if metric else rule)
    return {"shortDescription": {"text": f"{name}."}, "fullDescription": {"text": text}, "help": {"text": text}}


def _outcome_message(outcome: GateOutcome) -> str:
    # Return the metric's value with n and its interval (`ci`), then the reason for the verdict.
    # Return only the reason if there is no value.
    if outcome.value is None:
        return outcome.reason
    interval = "" if outcome.ci is None else f", interval {format_interval(*outcome.ci, digits=3)}"
    value = format_fixed(outcome.value, 3)
    return f"{value} over {count_noun(outcome.n, 'episode')}{interval}: {outcome.reason}"
