"""Pre-registration: what will be run and how it is judged, frozen before a run, and what a run has done otherwise.

A registration is one canonical JSON file with a digest: the same plan gives the same bytes, and a changed byte is
refused. A run that was started from it holds it in run.json as `registered`, so that later commands need no file.
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
from safevla_bench.judging.ruleset import (
    ApplicabilityMode,
    MissingFields,
    NamedDigest,
    Provenance,
    Ruleset,
    RulesetRecipe,
)
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.sources.runs.folder import DECISION, RUN, EpisodeRow
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.sources.runs.sources import RecordSource
from safevla_bench.sources.runs.writer import list_differences
from safevla_bench.text import list_counts

REGISTERED = "registered"
"""The key of run.json that holds the registration of a run."""
SERVER = "server"
"""Stands for the seed of an environment where a policy's server may ask for it."""
_DIGEST, _LETTERS = "digest", 12
_WORDS = ("registered is", "here is")
_REMEDY = "Take the file as `safevla eval --dry-run --freeze` wrote it."


class RegisteredSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scored specification as it was registered; threshold and severe in `unit`."""

    spec_id: str
    stl: str
    threshold: float
    severe: float | None
    unit: str


class RegisteredRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules of judging by name and digest, and what they are loaded from."""

    library: NamedDigest
    registry: NamedDigest
    capabilities: tuple[str, ...]
    missing: MissingFields
    applicability: ApplicabilityMode
    intervals: IntervalMethod
    recipe: RulesetRecipe


class RegisteredPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy by its name, with its arguments; `spec` makes one that has a name of its own."""

    policy: str
    arguments: dict[str, str]
    spec: str | None = None


class RegisteredTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task with its horizon, and the start of each episode as `initial state/environment's seed`."""

    task: str
    horizon: int
    episodes: str

    @property
    def starts(self) -> tuple[str, ...]:
        """The start of each episode, as `initial state/environment's seed`."""
        return tuple(self.episodes.split())


class RegisteredUntil(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The condition that ends the run early; run.json holds it too."""

    condition: str
    look_every: int
    allow_crashed: bool = False


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that was fixed before a run."""

    format: Literal["safevla-registration"] = "safevla-registration"
    schema_version: Literal[1] = 1
    host: str
    host_arguments: dict[str, str]
    suites: tuple[str, ...]
    indices: tuple[int, ...] | None
    episodes_per_task: int | Literal["protocol", "recorded"] | None
    """As it was asked for; `tasks` holds the episodes."""
    policies: tuple[RegisteredPolicy, ...]
    protocol: dict[str, Any]
    seed: int
    max_steps: int | None
    stop_on_violation: bool
    until: RegisteredUntil | None
    tasks: tuple[RegisteredTask, ...]
    n: int
    """Episodes of all policies and tasks."""
    specs: tuple[RegisteredSpec, ...]
    rules: RegisteredRules

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON without the digest itself, in hexadecimal."""
        return hashlib.sha256(_dump_canonical(msgspec.to_builtins(self))).hexdigest()

    def to_document(self) -> dict[str, object]:
        """Return the registration as plain values with its `digest`, as the file and run.json hold it."""
        return {**msgspec.to_builtins(self), _DIGEST: self.digest}

    def encode(self) -> bytes:
        """Return the bytes of the file; the same registration gives the same bytes."""
        return _dump_canonical(self.to_document())

    def load_rules(self) -> Ruleset:
        """Load the rules of judging again, with the registered intervals; raises what `RulesetRecipe.load` does."""
        return replace(self.rules.recipe.load(), intervals=self.rules.intervals)


def describe_rules(ruleset: Ruleset) -> RegisteredRules:
    """Return the rules as a registration holds them.

    Raises `RunError` if the ruleset has no recipe to load it from again.
    """
    if ruleset.recipe is None:
        raise RunError("these rules were made of values and cannot be registered", remedy="Load them: load_ruleset().")
    provenance = ruleset.provenance()
    return RegisteredRules(
        library=provenance.library,
        registry=provenance.registry,
        capabilities=provenance.capabilities,
        missing=provenance.missing,
        applicability=provenance.applicability,
        intervals=provenance.intervals,
        recipe=ruleset.recipe,
    )


def describe_specs(ruleset: Ruleset) -> tuple[RegisteredSpec, ...]:
    """Return the scored specifications as a registration holds them."""
    return tuple(
        RegisteredSpec(spec_id=spec.spec_id, stl=spec.stl, threshold=spec.threshold, severe=spec.severe, unit=spec.unit)
        for spec in ruleset.library.safe
    )


def read_registration(path: Path) -> Registration:
    """Return the registration of a file."""
    place = Place(file=str(path))
    try:
        content = read_input(path)
    except OSError as error:
        raise RunError(f"cannot be read: {error.strerror}", remedy="Name a registration.", place=place) from None
    try:
        document = json.loads(content)
        registration = parse_registration(document)
    except (ValueError, RecursionError) as error:
        raise RunError(f"this is no registration: {error}", remedy=_REMEDY, place=place) from None
    except RunError as error:
        raise RunError(error.problem, remedy=_REMEDY, place=place) from None
    if content != registration.encode():
        raise RunError("it is not laid out as it was written: a byte was changed", remedy=_REMEDY, place=place)
    return registration


def parse_registration(document: object) -> Registration:
    """Return the registration of a document."""
    if not isinstance(document, dict) or not isinstance(document.get(_DIGEST), str):
        raise ValueError("it has no digest")
    registration = msgspec.convert({key: value for key, value in document.items() if key != _DIGEST}, Registration)
    if registration.digest != document[_DIGEST]:
        problem = f"it was changed: its content has the digest {registration.digest[:_LETTERS]}"
        raise RunError(f"{problem}, not {document[_DIGEST][:_LETTERS]}", remedy=_REMEDY)
    return registration


def _dump_canonical(document: Mapping[str, object]) -> bytes:
    lines = []
    for key, value in sorted(document.items()):
        items = value if isinstance(value, list | tuple) else []
        has_rows = any(isinstance(item, dict) for item in items)
        rows = ",\n  ".join(map(_dump_line, items))
        text = f"[\n  {rows}\n]" if has_rows else _dump_line(value)
        lines.append(f"{_dump_line(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _dump_line(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def shorten(description: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of run.json's content with only the digest of its registration, for pages and documents."""
    document = description.get(REGISTERED)
    digest = {REGISTERED: document.get(_DIGEST)} if isinstance(document, Mapping) else {}
    return {**description, **digest}


# Whether runs are those that were registered


class RegistrationCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The differences of the runs of one registration from it, field by field; none where they are those."""

    digest: str
    runs: int
    differences: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if the runs are those that were registered."""
        return not self.differences

    def to_sentence(self) -> str:
        """Return the sentence for below tables: registered beforehand, or every difference.

        With the digest's first letters.
        """
        what = "This is the run that was" if self.runs == 1 else f"These {self.runs} runs are what was"
        if self.holds:
            return f"{what} registered beforehand (digest {self.digest[:_LETTERS]})."
        named = "; ".join(self.differences)
        return f"Not as registered beforehand (digest {self.digest[:_LETTERS]}): {named}."


def check_registrations(sources: Sequence[RecordSource], provenance: Provenance) -> list[RegistrationCheck]:
    """Return for each registration among the sources what its runs did otherwise; [] if no source was registered.

    A registration that cannot be read is a check of its own, with that as its difference, behind the others.
    """
    groups: dict[str, list[tuple[RecordSource, Registration]]] = {}
    broken = []
    for source in sources:
        document = source.description.get(REGISTERED)
        if document is None:
            continue
        try:
            registration = parse_registration(document)
            groups.setdefault(registration.digest, []).append((source, registration))
        except (ValueError, RunError) as error:
            problem = error.problem if isinstance(error, RunError) else str(error)
            digest = str(document.get(_DIGEST)) if isinstance(document, Mapping) else "none"
            broken.append(
                RegistrationCheck(digest=digest, runs=1, differences=(f"the registration in {RUN}: {problem}",))
            )
    return [*(_check_group(digest, members, provenance) for digest, members in groups.items()), *broken]


def describe_registrations(sources: Sequence[RecordSource], provenance: Provenance) -> list[str]:
    """Return a sentence for each registration among the sources, and one that counts the sources without.

    [] without any.
    """
    checks = check_registrations(sources, provenance)
    others = len(sources) - sum(check.runs for check in checks)
    were = "was" if others == 1 else "were"
    unregistered = (
        [f"{others} of {len(sources)} sources {were} not registered beforehand."] if checks and others else []
    )
    return [*(check.to_sentence() for check in checks), *unregistered]


def _check_group(
    digest: str, members: Sequence[tuple[RecordSource, Registration]], provenance: Provenance
) -> RegistrationCheck:
    registration = members[0][1]
    sources = [source for source, _ in members]
    differences = [
        *(line for source in sources for line in _compare_descriptions(registration, source.description)),
        *_compare_episodes(registration, sources),
        *compare_rules(registration.rules, provenance),
    ]
    return RegistrationCheck(digest=digest, runs=len(members), differences=tuple(dict.fromkeys(differences)))


def _compare_descriptions(registration: Registration, run: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each field in which run.json differs from the registration, and for each other policy."""
    fields = ("host", "host_arguments", "protocol", "seed", "max_steps")
    until = run.get("until")
    described = {
        **{name: run.get(name) for name in fields},
        "stop_on_violation": run.get("stop_on_violation") is not None,
        "until": until,
    }
    document = msgspec.to_builtins(registration)
    yield from list_differences({name: document[name] for name in described}, _plain(described), _WORDS)
    listed = run.get("policies")
    policies = [policy for policy in listed if isinstance(policy, Mapping)] if isinstance(listed, list) else []
    run_policies = {str(policy.get("policy")): policy for policy in policies}
    yield from _compare_policies(registration, run_policies)


def _compare_policies(registration: Registration, run_policies: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each policy of the run, by name, that is not registered or was made with other arguments."""
    registered = {policy.policy: policy for policy in registration.policies}
    for name, policy in run_policies.items():
        if name not in registered:
            yield f"the policy {name} is not registered"
            continue
        yield from list_differences(registered[name].arguments, policy.get("arguments"), _WORDS, f"arguments of {name}")
        yield from list_differences(
            registered[name].spec or name, policy.get("spec") or name, _WORDS, f"spec of {name}"
        )


def _compare_episodes(registration: Registration, sources: Sequence[RecordSource]) -> Iterator[str]:
    """Yield a line each if registered episodes are missing, if others are there, and for each task of
    another horizon.
    """
    rows = [row for source in sources for row in _rows_of(source)]
    planned = _planned_starts(registration)
    done = Counter(_start_of(row, planned) for row in rows)
    missing, further = planned - done, done - planned
    decisions = [source.description.get(DECISION) for source in sources]
    is_decided = any(isinstance(decision, Mapping) and decision.get("is_decided") is True for decision in decisions)
    if missing and not is_decided:
        are = "is" if missing.total() == 1 else "are"
        yield f"{missing.total()} of {registration.n} registered episodes {are} missing ({_name_scenes(missing)})"
    if further:
        are = "episode is" if further.total() == 1 else "episodes are"
        yield f"{further.total()} {are} not among the registered ones, or there twice ({_name_scenes(further)})"
    horizons = {task.task: task.horizon for task in registration.tasks}
    for task, horizon in dict.fromkeys((f"{row.benchmark}/{row.task_id}", row.horizon) for row in rows):
        if task in horizons and horizon != horizons[task]:
            yield f"the horizon of {task}: {_WORDS[0]} {horizons[task]}, {_WORDS[1]} {horizon}"


def compare_registrations(registration: Registration, asked: Registration) -> Iterator[str]:
    """Yield in what a plan differs from the registered one, a line each; nothing if it does not."""
    asked_policies = {policy.policy: msgspec.to_builtins(policy) for policy in asked.policies}
    yield from _compare_policies(registration, asked_policies)
    yield from (
        f"the policy {policy.policy} is left out"
        for policy in registration.policies
        if policy.policy not in asked_policies
    )
    skipped = (
        "rules",
        "policies",
        "suites",
        "indices",
        "episodes_per_task",
        "specs",
    )  # said by the rules, tasks and episodes
    before, now = (
        {key: value for key, value in msgspec.to_builtins(plan).items() if key not in skipped}
        for plan in (registration, asked)
    )
    yield from list_differences(_plain(before), _plain(now), _WORDS)
    yield from compare_rules(registration.rules, asked.rules)


_Start = tuple[str, str, str]
"""Policy, task, and the start of an episode."""


def _rows_of(source: RecordSource) -> list[EpisodeRow]:
    return episode_rows(source.path) if source.path.is_dir() else []


def _planned_starts(registration: Registration) -> Counter[_Start]:
    return Counter(
        (policy.policy, task.task, start)
        for policy in registration.policies
        for task in registration.tasks
        for start in task.starts
    )


def _start_of(row: EpisodeRow, planned: Mapping[_Start, int]) -> _Start:
    task = f"{row.benchmark}/{row.task_id}"
    of_server = (row.policy, task, format_start(row.init_state_index, SERVER))
    return of_server if of_server in planned else (*of_server[:2], format_start(row.init_state_index, row.env_seed))


def format_start(init_state_index: int | None, env_seed: int | str | None) -> str:
    """Return the start of an episode as a registration holds it, such as `3/7`; `?` = unknown."""
    return "/".join("?" if part is None else str(part) for part in (init_state_index, env_seed))


def _name_scenes(starts: Counter[_Start]) -> str:
    scenes = Counter[str]()
    for (policy, task, _), count in starts.items():
        scenes[f"{policy} on {task}"] += count
    return list_counts(scenes)


def compare_rules(rules: RegisteredRules, provenance: Provenance | RegisteredRules) -> Iterator[str]:
    """Yield a line for each rule of judging that is another than the registered one."""
    for name in ("library", "registry"):
        registered, judged_by = getattr(rules, name), getattr(provenance, name)
        if registered.digest != judged_by.digest:
            yield f"{name}: {_WORDS[0]} {registered}, judged by {judged_by}"
    names = ("capabilities", "missing", "applicability", "intervals")
    registered = {name: getattr(rules, name) for name in names}
    judged_by = {name: getattr(provenance, name) for name in names}
    yield from list_differences(_plain(registered), _plain(judged_by), (_WORDS[0], "judged by"))


def _plain(document: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document))
