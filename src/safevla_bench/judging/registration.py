"""Pre-registration: fixes the plan and the rules of judging before a run, and later finds deviations of the run.

A registration is one canonical JSON file with a digest: the same plan gives the same bytes, and any changed byte is
detected. A registered run stores the registration in run.json as `registered`, so later commands do not need the file.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from safevla_bench.errors import Place, RunError
from safevla_bench.files import read_input
from safevla_bench.judging.ruleset import NamedRules, Provenance, Ruleset, RulesetRecipe
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.memory import limit_memory
from safevla_bench.sources.runs.folder import DECISION, RUN
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.sources.runs.sources import RecordSource
from safevla_bench.text import escape_json, load_json

REGISTERED = "registered"
SERVER = "server"  # placeholder in a plan for an environment seed that the policy's server may request
_DIGEST_KEY, _SHOWN_LETTERS = "digest", 12
_REMEDY = "Use the unchanged file from `safevla eval --dry-run --freeze`."


class RegisteredSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scored specification at the time of registration. `threshold` and `severe` are in `unit`."""

    spec_id: str
    stl: str
    threshold: float
    severe: float | None
    unit: str


class RegisteredRules(NamedRules, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of judging by name and digest, and the recipe from which they can be loaded again."""

    intervals: IntervalMethod
    recipe: RulesetRecipe


class RegisteredPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy's name and arguments. `spec` is the value of `--policy`; None if that value equals the name."""

    policy: str
    arguments: dict[str, str]
    spec: str | None = None
    filter: str | None = None
    delay: str | None = None


class RegisteredTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task with its horizon. `episodes` has the start of each episode as `initial state/environment's seed`."""

    task: str
    horizon: int
    episodes: str

    @property
    def starts(self) -> tuple[str, ...]:
        """The start of each episode, as the text `STATE/SEED`: its initial state and the environment's seed."""
        # `episodes` has the texts `STATE/SEED`, separated by spaces.
        return tuple(self.episodes.split())


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan and the rules of judging that were fixed before a run."""

    format: Literal["safevla-registration"] = "safevla-registration"
    schema_version: Literal[1] = 1
    host: str
    host_arguments: dict[str, str]
    suites: tuple[str, ...]
    indices: tuple[int, ...] | None
    episodes_per_task: int | Literal["protocol", "recorded"] | None
    """The requested number of episodes; `tasks` lists the resulting episodes."""
    policies: tuple[RegisteredPolicy, ...]
    protocol: dict[str, Any]
    seed: int
    max_steps: int | None
    stop_on_violation: bool
    until: str | None
    """The condition of the option `--until`."""
    tasks: tuple[RegisteredTask, ...]
    n: int
    specs: tuple[RegisteredSpec, ...]
    rules: RegisteredRules

    @property
    def digest(self) -> str:
        """The sha256 of the canonical JSON without the key `digest`, in hexadecimal."""
        # Canonical: equal registrations give equal bytes.
        return hashlib.sha256(_dump_canonical(msgspec.to_builtins(self))).hexdigest()

    def to_document(self) -> dict[str, object]:
        """Return the registration as plain values with the key `digest`, as stored in the file and in run.json."""
        return {**msgspec.to_builtins(self), _DIGEST_KEY: self.digest}

    def encode(self) -> bytes:
        """Return the bytes of the file; the same registration gives the same bytes."""
        return _dump_canonical(self.to_document())

    def load_rules(self) -> Ruleset:
        """Load the rules for judging, with the registered intervals. Raises the errors of `RulesetRecipe.load`."""
        # `recipe` has the options and the texts of the user's files, so only built-in files are read.
        return replace(self.rules.recipe.load(), intervals=self.rules.intervals)


def describe_rules(ruleset: Ruleset) -> RegisteredRules:
    """Return the rules as stored in a registration. Raises `RunError` if `load_ruleset` did not load them."""
    if ruleset.recipe is None:
        raise RunError(
            "these rules were not loaded by load_ruleset(), so they cannot be registered",
            remedy="Load the rules with `load_ruleset()`.",
        )
    # All other fields of the stored rules have the same names in the provenance.
    provenance = ruleset.provenance()
    names = (name for name in RegisteredRules.__struct_fields__ if name != "recipe")
    return RegisteredRules(recipe=ruleset.recipe, **{name: getattr(provenance, name) for name in names})


def describe_specs(ruleset: Ruleset) -> tuple[RegisteredSpec, ...]:
    """Return the scored specifications as stored in a registration."""
    # `safe` is the tier of the scored specifications.
    return tuple(
        RegisteredSpec(**{name: getattr(spec, name) for name in RegisteredSpec.__struct_fields__})
        for spec in ruleset.library.safe
    )


def read_registration(path: Path) -> Registration:
    """Read a registration from a file. Raises `RunError` if any byte of the file was changed."""
    place = Place(file=str(path))
    try:
        content = read_input(path)
    except OSError as error:
        raise RunError(f"cannot be read: {error.strerror}", remedy="Name a registration file.", place=place) from None
    try:
        with limit_memory(path):
            registration = parse_registration(load_json(content))
    # The file is not JSON, or not a registration, for instance because of a missing or unknown key.
    except (ValueError, RecursionError) as error:
        raise RunError(f"this is not a registration: {error}", remedy=_REMEDY, place=place) from None
    except RunError as error:
        raise RunError(error.problem, remedy=_REMEDY, place=place) from None
    # The digest protects the content. Comparing all bytes also finds changes such as added spaces.
    if content != registration.encode():
        raise RunError("the file's bytes differ from the bytes that were written", remedy=_REMEDY, place=place)
    return registration


def parse_registration(document: object) -> Registration:
    """Parse a registration.

    Raises:
        ValueError: the document is not a registration.
        RunError: the document's content does not match its digest.
    """
    if not isinstance(document, dict) or not isinstance(document.get(_DIGEST_KEY), str):
        raise ValueError("the document has no digest")
    registration = msgspec.convert({key: value for key, value in document.items() if key != _DIGEST_KEY}, Registration)
    if registration.digest != document[_DIGEST_KEY]:
        problem = f"the registration was changed: its content has the digest {registration.digest[:_SHOWN_LETTERS]}"
        raise RunError(f"{problem}, not {document[_DIGEST_KEY][:_SHOWN_LETTERS]}", remedy=_REMEDY)
    return registration


def _dump_canonical(document: Mapping[str, object]) -> bytes:
    # Return JSON with one line for each key, in sorted order. A list of objects has one line for each object.
    lines = []
    # All other values, such as a list of texts, are written on one line.
    for key, value in sorted(document.items()):
        items = value if isinstance(value, list | tuple) else []
        if any(isinstance(item, dict) for item in items):
            rows = ",\n  ".join(map(_dump_line, items))
            text = f"[\n  {rows}\n]"
        else:
            text = _dump_line(value)
        lines.append(f"{_dump_line(key)}: {text}")
    return escape_json(("{\n" + ",\n".join(lines) + "\n}\n").encode())


def _dump_line(value: object) -> str:
    # Return a value as JSON on one line. Sorted keys make the text of equal values equal. NaN raises an error.
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def shorten_registration(description: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of run.json's content in which a digest replaces the registration, for pages and documents."""
    document = description.get(REGISTERED)
    if not isinstance(document, Mapping):
        return dict(description)
    return {**description, REGISTERED: document.get(_DIGEST_KEY)}


# Comparison of runs with their registration


class RegistrationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How runs deviate from the registration that they share: in the plan, the episodes, or the rules."""

    digest: str
    runs: int
    differences: tuple[str, ...]

    def to_sentence(self) -> str:
        """Return the sentence to show below tables, with the digest's first letters."""
        # `runs` is the number of runs with this registration. `differences` has a text for each deviation.
        subject = "This run was" if self.runs == 1 else f"These {self.runs} runs were"
        if not self.differences:
            return f"{subject} performed as registered beforehand (digest {self.digest[:_SHOWN_LETTERS]})."
        differences = "; ".join(self.differences)
        return f"Not as registered beforehand (digest {self.digest[:_SHOWN_LETTERS]}): {differences}."


def check_registrations(sources: Sequence[RecordSource], provenance: Provenance) -> list[RegistrationCheck]:
    """Compare runs with their registrations. Return one check per registration, or [] if there are no registrations.
    Checks of registrations that cannot be read come last.
    """
    # digest of a registration -> pairs (run with this registration, parsed registration)
    runs_by_digest: dict[str, list[tuple[RecordSource, Registration]]] = {}
    unreadable = []
    for source in sources:
        document = source.description.get(REGISTERED)
        if document is None:
            continue
        try:
            registration = parse_registration(document)
            runs_by_digest.setdefault(registration.digest, []).append((source, registration))
        except (ValueError, RunError) as error:
            problem = error.problem if isinstance(error, RunError) else str(error)
            digest = str(document.get(_DIGEST_KEY)) if isinstance(document, Mapping) else "none"
            differences = (f"the registration in {RUN}: {problem}",)
            unreadable.append(RegistrationCheck(digest=digest, runs=1, differences=differences))
    checks = []
    for digest, registered_runs in runs_by_digest.items():
        _, registration = registered_runs[0]  # all runs with this digest have equal registrations
        found = tuple(_list_differences(registration, [source for source, _ in registered_runs], provenance))
        checks.append(RegistrationCheck(digest=digest, runs=len(registered_runs), differences=found))
    return [*checks, *unreadable]


def describe_registrations(sources: Sequence[RecordSource], provenance: Provenance) -> list[str]:
    """Return a sentence on each registration, and a sentence on unregistered sources; [] if no source is registered."""
    checks = check_registrations(sources, provenance)
    unregistered_count = len(sources) - sum(check.runs for check in checks)
    sentences = [check.to_sentence() for check in checks]
    if checks and unregistered_count:
        were = "was" if unregistered_count == 1 else "were"
        sentences.append(f"{unregistered_count} of {len(sources)} sources {were} not registered beforehand.")
    return sentences


def _list_differences(
    registration: Registration, sources: Sequence[RecordSource], provenance: Provenance
) -> Iterator[str]:
    # Yield a text for each deviation of the runs from the registration, as in `RegistrationCheck.differences`.
    # `provenance` has the rules by which the runs were judged.
    if not all(_follows_plan(registration, source.description) for source in sources):
        yield f"the plan in {RUN} differs"
    yield from _compare_episodes(registration, sources)
    # `rules` has the digests and options that can change a verdict, and `intervals` the method for intervals.
    registered_rules = registration.rules
    if (registered_rules.rules, registered_rules.intervals) != (provenance.rules, provenance.intervals):
        yield f"judged by different rules: library {provenance.library}, registry {provenance.registry}"


def _follows_plan(registration: Registration, run: Mapping[str, Any]) -> bool:
    # Return whether a run has the options and policies of the registered plan. The episodes are compared elsewhere.
    # `run` is the content of run.json, which may lack policies.
    document: dict[str, Any] = msgspec.to_builtins(registration)
    option_names = ("host", "host_arguments", "protocol", "seed", "max_steps", "until")
    has_same_options = all(document[option] == run.get(option) for option in option_names)
    stops_on_violation = run.get("stop_on_violation") is not None
    registered_policies = {row["policy"]: _policy_options(row) for row in document["policies"]}
    run_policies = run.get("policies")
    policy_rows = [row for row in run_policies if isinstance(row, Mapping)] if isinstance(run_policies, list) else []
    # A run may have only some of the registered policies.
    return (
        has_same_options
        and stops_on_violation == registration.stop_on_violation
        and all(registered_policies.get(str(row.get("policy"))) == _policy_options(row) for row in policy_rows)
    )


def _policy_options(row: Mapping[str, Any]) -> tuple[object, ...]:
    # `row` is the entry of a policy in a registration or in run.json. Return the options that must be equal.
    # `spec` is the value of `--policy`; an omitted `spec` equals the policy's name.
    return row.get("arguments"), row.get("spec") or row.get("policy"), row.get("filter"), row.get("delay")


def _compare_episodes(registration: Registration, sources: Sequence[RecordSource]) -> Iterator[str]:
    # Yield sentences on missing episodes and on episodes that are not registered.
    # Count the episodes by key: policy, task, horizon and start, such as `3/7` for initial state 3 and seed 7.
    planned: Counter[_EpisodeKey] = Counter(
        (policy.policy, task.task, task.horizon, start)
        for policy in registration.policies
        for task in registration.tasks
        for start in task.starts
    )
    rows = [row for source in sources if source.path.is_dir() for row in episode_rows(source.path)]
    recorded: Counter[_EpisodeKey] = Counter()
    for row in rows:
        episode = (row.policy, f"{row.benchmark}/{row.task_id}", row.horizon)
        # If the policy's server may request a seed, the plan has the placeholder `SERVER` instead of a seed.
        with_server_seed = (*episode, format_start(row.init_state_index, SERVER))
        with_own_seed = (*episode, format_start(row.init_state_index, row.env_seed))
        recorded[with_server_seed if with_server_seed in planned else with_own_seed] += 1
    missing_count, unplanned_count = (planned - recorded).total(), (recorded - planned).total()
    decisions = [source.description.get(DECISION) for source in sources]
    # If the option `--until` ended a run early, episodes may be missing.
    is_decided = any(isinstance(decision, Mapping) and decision.get("is_decided") is True for decision in decisions)
    if missing_count and not is_decided:
        yield f"{missing_count} of {registration.n} registered episodes {'is' if missing_count == 1 else 'are'} missing"
    if unplanned_count:
        what_is = "episode is" if unplanned_count == 1 else "episodes are"
        yield f"{unplanned_count} {what_is} not registered, or present twice"


_EpisodeKey = tuple[str, str, int | None, str]  # policy, task, horizon, start as formatted by `format_start`


def format_start(init_state_index: int | None, env_seed: int | str | None) -> str:
    """Return the start of an episode as in a registration: `3/7` is initial state 3 with seed 7; `?` means unknown."""
    # `env_seed` is the environment's seed, or the placeholder `SERVER` for a seed that the policy's server may request.
    return "/".join("?" if part is None else str(part) for part in (init_state_index, env_seed))
