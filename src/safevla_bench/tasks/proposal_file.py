"""Proposals as a registry file that `--registry` reads as it stands, each choice with its reason in a comment."""

from __future__ import annotations

import json
from collections.abc import Sequence

from safevla_bench.tasks.entries import Registry
from safevla_bench.tasks.proposal import Proposal
from safevla_bench.text.sanitize import inert

_HEAD = (
    "# Proposed by `safevla tags propose` from the goals. A person should answer every line that begins with `# audit`",
    "# and change the task where the answer asks for it. Then: safevla score SOURCE --out DIR --registry THIS_FILE",
)


def as_toml(proposals: Sequence[Proposal], registry: Registry, *, host: str, capabilities: str) -> str:
    """The registry file; benchmarks that the registry has already are not declared again."""
    lines = list(_HEAD)
    for benchmark in dict.fromkeys(one.benchmark for one in proposals):
        if benchmark not in registry.benchmarks:
            lines += ["", f"[benchmarks.{_quoted(benchmark)}]", f"host = {_quoted(host)}"]
            lines += [f"capabilities = {_quoted(capabilities)}"]
    for one in proposals:
        lines += ["", *_task(one)]
    return "\n".join(lines) + "\n"


def as_rows(proposals: Sequence[Proposal]) -> list[dict[str, object]]:
    """One plain row a proposal; it has `template`, or `components` where it has several phases."""
    return [
        {
            "benchmark": one.benchmark,
            "task_id": one.task_id,
            **({"template": one.template} if one.template else {"components": list(one.components)}),
            "instruction": one.instruction,
            "object_tags": dict(one.object_tags),
            "reasons": list(one.reasons),
            "audit": list(one.audit),
        }
        for one in proposals
    ]


def _task(one: Proposal) -> list[str]:
    kind = f"template = {_quoted(one.template)}" if one.template else f"components = [{_listed(one.components)}]"
    lines = ["[[tasks]]", f"benchmark = {_quoted(one.benchmark)}", f"task_id = {_quoted(one.task_id)}", kind]
    lines.append(f"instruction = {_quoted(one.instruction)}")
    if one.object_tags:
        tags = ", ".join(f"{tag} = {_quoted(reason)}" for tag, reason in one.object_tags.items())
        lines.append(f"object_tags = {{ {tags} }}")
    lines += [f"# why: {inert(reason)}" for reason in one.reasons]
    return lines + [f"# audit: {inert(question)}" for question in one.audit]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_quoted(name) for name in names)


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are JSON's, but for DEL, which has to be escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
