"""Distinct names for the policies of several sources. Policies with different arguments, servers or checkpoints differ.

Two sources have the same policy only if their run.json files describe the policy in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PosixPath

from safevla_bench.errors import Place, RunError
from safevla_bench.sources.runs.folder import RUN, policy_rows, read_volatile


class NamedSource(PosixPath):
    """The path of a source whose policy is shown under the user's name for it, as in `safevla tables mine=runs/x`."""

    policy: str | None = None

    @classmethod
    def parse(cls, text: str) -> Path:
        """Parse `NAME=PATH` to a source whose policy is shown as NAME. Any other text is a path without a name.
        A text is also read as a path if this path exists, if NAME or PATH is empty, or if NAME has a "/".
        """
        name, equals, path = text.partition("=")
        if not equals or not name or not path or "/" in name or Path(text).exists():
            return Path(text)
        named = cls(path)  # a `NamedSource` is a path with a policy name
        named.policy = name
        return named

    def __reduce__(self) -> tuple[object, ...]:
        """Return the function and argument with which pickle restores the source, including the policy's name."""
        return NamedSource.parse, (f"{self.policy}={self}" if self.policy else str(self),)  # `str(self)` is the path


PolicyNames = Mapping[str | None, str]  # name of a policy in a source's records -> displayed name
# Keys of a policy in run.json that do not distinguish it from other policies.
_NOT_IDENTIFYING = ("policy", "privileged", "cameras")
_BASELINE = "noop"
_LONGEST_TEXT = 32
_MOST_FACTS = 3


@dataclass(frozen=True)
class PolicyIdentity:
    """One policy, as one source describes it."""

    name: str
    source: Path
    facts: Mapping[str, str]
    """Dotted name -> value, for the facts that distinguish policies, such as arguments, dialect and checkpoints."""
    statements: Mapping[str, str]  # suite -> statement of the policy or its server about itself
    servers: Mapping[str, str]  # suite -> the server that was queried

    def is_same(self, other: PolicyIdentity) -> bool:
        """Return whether two policies are the same. Their facts must be equal. In each suite that both ran, the
        servers' statements about themselves must also be equal. If a server made no statement in a suite, the servers'
        addresses in this suite must be equal.
        """
        # Compare the suites for which each of the two policies has a known statement or server.
        for suite in {*self.statements, *self.servers} & {*other.statements, *other.servers}:
            have_statements = suite in self.statements and suite in other.statements
            # Compare the policies' statements if both made one in this suite; otherwise, the addresses.
            own, others = (self.statements, other.statements) if have_statements else (self.servers, other.servers)
            if own.get(suite) != others.get(suite):
                return False
        return self.facts == other.facts


def identify_policies(path: Path, description: Mapping[str, object]) -> list[PolicyIdentity]:
    """Return the identity of each policy in a run.json, or []. Raises `RunError` if the JSON is nested too deeply."""
    identities = []
    try:
        for row in policy_rows(description):
            identifying = {key: value for key, value in row.items() if key not in _NOT_IDENTIFYING}
            statements = _statements_by_suite(description, row["policy"])
            # A policy with an `entry` uses the servers of --server. Other policies have their server in `row`.
            servers = _servers_by_suite(description) if "entry" in row else {}
            facts = dict(_flatten_facts(identifying))
            identities.append(PolicyIdentity(row["policy"], path, facts, statements, servers))
    except RecursionError:
        problem, place = "the description of a policy is nested too deeply", Place(file=str(path / RUN))
        raise RunError(problem, remedy="Restore the file.", place=place) from None
    return identities


def _flatten_facts(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    # Yields (dotted name, text) for each value in a tree.
    # `name` is the dotted name of `value`, as in `arguments.checkpoint`; "" for the whole tree.
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _flatten_facts(value[key], f"{name}.{key}" if name else str(key))
    else:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        # The prefixes `server_` and `arguments.` only show where run.json stores the fact.
        yield name.removeprefix("server_").removeprefix("arguments."), text


def _statements_by_suite(description: Mapping[str, object], policy: str) -> dict[str, str]:
    # Returns suite -> the policy's statements about itself, as one text. Malformed entries of run.json are ignored.
    greetings = read_volatile(description).get("policies_say")
    texts: dict[str, list[str]] = {}
    for row in greetings if isinstance(greetings, list) else ():
        if isinstance(row, Mapping) and row.get("policy") == policy:
            texts.setdefault(str(row.get("suite")), []).append(json.dumps(row.get("says"), sort_keys=True, default=str))
    return {suite: ", ".join(sorted(suite_texts)) for suite, suite_texts in texts.items()}


def _servers_by_suite(description: Mapping[str, object]) -> dict[str, str]:
    # Returns suite -> URL of the policy server that ran the suite; {} without servers.
    listed_servers, run_suites = read_volatile(description).get("servers"), description.get("suites")
    servers: dict[str, str] = {}
    # A text is SUITE=URL or URL. A URL without a suite is the server of all suites that no other text names.
    for text in listed_servers if isinstance(listed_servers, list | tuple) else ():
        suite, _, url = str(text).rpartition("=")  # a text without `=` has the suite ""
        if suite:
            servers[suite] = url
        elif isinstance(run_suites, list | tuple):
            servers |= {str(suite): url for suite in run_suites if str(suite) not in servers}
    return servers


def name_source(path: Path, recorded: Sequence[str | None]) -> PolicyNames:
    """Return recorded name -> user's name for the policy of a source; {} if the user gave no name. The baseline `noop`
    keeps its name if the source has another policy. Raises `RunError` if there are several policies besides `noop`.
    """
    name = getattr(path, "policy", None)  # a `NamedSource` has the name that the user gave
    if name is None:
        return {}
    # If the baseline `noop` is the only policy, it gets the user's name.
    named_policies = [policy for policy in recorded if policy != _BASELINE] or list(recorded)
    if len(named_policies) > 1:
        listed = ", ".join(map(str, named_policies))
        problem = f"{name} names one policy, but the source has {len(named_policies)}: {listed}"
        remedy = "Leave the name out. To name policies, run them with --policy NAME=POLICY."
        raise RunError(problem, remedy=remedy, place=Place(file=str(path)))
    return dict.fromkeys(named_policies, name)


def distinguish_policies(identities: Sequence[Sequence[PolicyIdentity]], paths: Sequence[Path]) -> list[PolicyNames]:
    """Return for each source: name -> new name, for the policies that have the same name as a different policy.
    `identities` are the policies in each source's run.json. An archive has no run.json, so it may have any policy.
    """
    all_identities = [identity for source_identities in identities for identity in source_identities]
    renamed: list[dict[str | None, str]] = [{} for _ in paths]  # for each source, name -> new name
    for name in dict.fromkeys(identity.name for identity in all_identities):
        groups = _group_same_policies([identity for identity in all_identities if identity.name == name])
        if len(groups) == 1:  # all policies with this name are the same policy, so the name stays
            continue
        labels = _label_groups(name, groups)
        for new_names, source_identities, path in zip(renamed, identities, paths, strict=True):
            if not source_identities:  # an archive may have any of the policies with this name
                new_names[name] = f"{name} ({path.name})"
            for label, group in zip(labels, groups, strict=True):
                if name not in new_names and any(identity in source_identities for identity in group):
                    new_names[name] = label
    return list(renamed)  # a new list, because mypy does not convert the type of items


def _group_same_policies(identities: Sequence[PolicyIdentity]) -> list[list[PolicyIdentity]]:
    # Returns groups of identities. All members of a group describe the same policy. The order is kept.
    groups: list[list[PolicyIdentity]] = []
    for identity in identities:
        for group in groups:
            if all(identity.is_same(other) for other in group):
                group.append(identity)
                break
        else:  # no existing group has this policy
            groups.append([identity])
    return groups


def _label_groups(name: str, groups: Sequence[Sequence[PolicyIdentity]]) -> list[str]:
    # Return a distinct label for each group: NAME (KEY=VALUE, …).
    # If labels with facts are not distinct, return NAME (SOURCE, …). If they are not, either, return NAME #1, NAME #2.
    facts: list[dict[str, str]] = []  # for each group, the facts about its first policy
    for first, *_ in groups:
        servers = {f"server of {suite}": url for suite, url in first.servers.items()}
        statements = {f"said on {suite}": text for suite, text in first.statements.items()}
        facts.append({**first.facts, **servers, **statements})
    # Show up to 3 facts that differ between the groups, and whose names and values have at most 32 characters.
    shown_keys = []
    for key in dict.fromkeys(key for group_facts in facts for key in group_facts):
        values = {group_facts.get(key) for group_facts in facts}  # None = a group lacks the fact
        if len(values) > 1 and all(len(text or "") <= _LONGEST_TEXT for text in (key, *values)):
            shown_keys.append(key)
    labels = []
    for group_facts in facts:
        texts = [f"{key}={group_facts[key]}" if key in group_facts else f"no {key}" for key in shown_keys[:_MOST_FACTS]]
        labels.append(f"{name} ({', '.join(texts)})")
    if not shown_keys or len(set(labels)) < len(labels):
        # For each group, the file names of the group's sources, without duplicates.
        sources = [dict.fromkeys(identity.source.name for identity in group) for group in groups]
        labels = [f"{name} ({', '.join(group_sources)})" for group_sources in sources]
    if len(set(labels)) < len(labels):
        labels = [f"{name} #{number}" for number in range(1, len(groups) + 1)]
    return labels


def describe_names(names: Sequence[PolicyNames]) -> list[str]:
    """Return a sentence for each recorded name that several policies share, except names that the user gave."""
    labels_by_policy: dict[str | None, dict[str, None]] = {}  # the inner keys are the distinct displayed names
    for source_names in names:
        for policy, name in source_names.items():
            labels_by_policy.setdefault(policy, {})[name] = None
    return [
        f"{policy} is the name of {len(labels)} policies here, which differ in arguments, servers or checkpoints: "
        f"{'; '.join(labels)}."
        for policy, labels in labels_by_policy.items()
        if any(label.startswith(f"{policy} ") for label in labels)  # label made from the recorded name
    ]
