"""A submission to RoboCasa's leaderboard: success by split, and what the model is.

Source: robocasa-benchmark/leaderboard at 821c895, `README.md` and `schemas/submission.schema.json`. Its split
Atomic-Seen is our suite robocasa-365. The composite splits are evaluated elsewhere and come from the facts about the
model. Its README asks to write "N/A" for what is not known and to explain that in the notes; its schema takes such a
file only once every number is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from safevla_bench.errors import RunError
from safevla_bench.judged import Judged
from safevla_bench.metrics import Summary, task_rates
from safevla_bench.report.model_card import ModelFacts, publishable_cells
from safevla_bench.runs import dump_json
from safevla_bench.text.numbers import format_fixed, format_percent

SUITE, UNKNOWN = "robocasa-365", "N/A"
_PACKAGE = "robocasa"
_TEXTS = ("policy_family", "date", "code_url", "commit_hash", "checkpoint_url", "paper_link", "open_source", "wandb")
_SPLITS = ("composite_seen_success", "composite_unseen_success")


def build_leaderboard_entry(judged: Judged, facts: ModelFacts) -> dict[str, object]:
    """Return the submission; what is not known is "N/A", and the notes say why. Nothing is written.

    Raises:
        RunError: there is not exactly one policy, no episode of the suite, or a simulator ran with stand-in assets.
    """
    cell = next((cell for cell in publishable_cells(judged) if cell.suite == SUITE), None)
    if cell is None:
        raise RunError(f"there is no episode of {SUITE}", remedy="RoboCasa's leaderboard takes its own tasks alone.")
    success, missing = _task_success(judged, cell)
    training = {"batch_size": facts.batch_size, "num_training_steps": facts.num_training_steps}
    return {
        "model_name": facts.model_name or cell.policy or UNKNOWN,
        **{name: getattr(facts, name) or UNKNOWN for name in ("policy_family", "date")},
        "submission_source": facts.submission_source,
        "robocasa_version": _recorded_version(judged)[1] or UNKNOWN,
        "atomic_seen_success": UNKNOWN if success is None else float(format_fixed(success, 1)),
        **{name: _or_unknown(getattr(facts, name)) for name in _SPLITS},
        **{name: getattr(facts, name) or UNKNOWN for name in _TEXTS if name not in ("policy_family", "date")},
        "training_config": {name: _or_unknown(value) for name, value in training.items()},
        "notes": _format_notes(judged, cell, facts, missing),
    }


def encode_leaderboard_entry(entry: dict[str, object]) -> bytes:
    """Return a submission as JSON."""
    return dump_json(entry)


def unknown_fields(entry: dict[str, object]) -> list[str]:
    """Return the fields whose value is "N/A", those within `training_config` too."""
    training = entry["training_config"]
    assert isinstance(training, dict)
    return [name for name, value in {**entry, **training}.items() if value == UNKNOWN]


def _or_unknown(value: float | int | None) -> float | int | str:
    return UNKNOWN if value is None else value


def _task_success(judged: Judged, cell: Summary) -> tuple[Fraction | None, list[str]]:
    """Return the mean success of the suite's tasks in percent, and the tasks without an episode.

    The mean is None where any task has no episode; else every task weighs the same.
    """
    rates = {rate.task_id: rate.sr for rate in task_rates(judged.scores) if rate.suite == SUITE}
    wanted = [entry.task_id for entry in judged.ruleset.registry.tasks.values() if entry.benchmark == SUITE]
    missing = [task for task in wanted if task not in rates or not rates[task].n]
    if missing or not cell.n:
        return None, missing
    shares = [Fraction(100 * rates[task].count, rates[task].n) for task in wanted]
    return sum(shares, Fraction(0)) / len(shares), []


def _recorded_version(judged: Judged) -> tuple[str, str]:
    """Return the package that ran RoboCasa and its version; both empty where records name none, or several."""
    versions = {
        (package, version)
        for header in judged.headers
        for package, version in (header.versions or {}).items()
        if package.endswith(_PACKAGE)
    }
    return versions.pop() if len(versions) == 1 else ("", "")


def _format_notes(judged: Judged, cell: Summary, facts: ModelFacts, missing: Sequence[str]) -> str:
    """Return the notes: the user's, episodes and safety, and why fields are "N/A" or numbers incomplete."""
    safety, unsafe = cell.rates["safety"], cell.rates["sbu"]
    sentences = [facts.notes] if facts.notes else []
    sentences.append(f"Atomic-Seen: {cell.n} episodes.")
    if safety.value is not None:
        sentences.append(
            f"Safety {format_percent(safety.count, safety.n)} %, successes that were unsafe "
            f"{format_percent(unsafe.count, unsafe.n)} % of {unsafe.n} episodes. {judged.provenance.to_sentence()}"
        )
    package, _ = _recorded_version(judged)
    if package not in ("", _PACKAGE):
        sentences.append(f"robocasa_version is that of the package {package}.")
    if cell.crashed:
        sentences.append(f"{cell.crashed} episodes crashed and are in no rate.")
    if not judged.is_complete:
        sentences.append("Not all planned episodes are in these numbers.")
    if missing:
        sentences.append(f"N/A for Atomic-Seen: {len(missing)} of its tasks have no episode.")
    if any(getattr(facts, name) is None for name in _SPLITS):
        sentences.append("N/A for composite splits: not evaluated in this run.")
    if cell.policy in judged.privileged:
        sentences.append("The policy saw simulator state that no real robot has.")
    return " ".join(sentences)
