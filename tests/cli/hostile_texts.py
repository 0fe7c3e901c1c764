"""Texts that act where they should only be read, and a world whose every name, message and description is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzz.grammar import toml
from report.scenes import rollout
from safevla_bench import archive
from safevla_bench.archive.jsonl import decode_json, encode_json
from safevla_bench.files import sha256_of
from safevla_bench.sources.runs.folder import MANIFEST, RUN, EpisodeRow, dump_json, write_episodes
from safevla_bench.trajectory.batch import Batch

MARK = "window.PWNED=1"
"""What a script would do, and a browser can see."""
LIE = "Passed: safety >= 0.9"
"""What no line of an output may begin with."""
TEXTS: dict[str, str] = {
    "up and out": "../../../../tmp/pwned",
    "an absolute path": "/etc/cron.d/pwned",
    "dots": "..",
    "a path of another system, and NUL": "C:\\pwned\\con\x00",
    "script": f"<script>{MARK}</script>",
    "a script in a script": f"</script></style></title></textarea></svg><svg onload={MARK}><script>{MARK}</script>",
    "an attribute's end": f'"><img src=x onerror={MARK}>',
    "another attribute's end": f"' onmouseover='{MARK}' x='",
    "a comment": "<!-- --!> <![CDATA[ ]]> <?xml ?>",
    "entities": "&lt;script&gt;&#x27;&colon;&amp",
    "an address": f"javascript:{MARK}",
    "line separators": "a\u2028b\u2029c\x85d",
    "a formula": "=cmd|' /C calc'!A0",
    "plus": "+1+1",
    "minus": "-1+1",
    "at": "@SUM(A1:A9)",
    "tab and formula": "\t=1+1",
    "return and formula": "\r=1+1",
    "quotes": '";=1,\'"\n=2',
    "TeX": "\\input{/etc/passwd}\\write18{touch pwned} 50% & $x_1$ ^^5c ~ #1 {} \\\\ \\end{tabular}",
    "Markdown": f"a|b\n|---|---|\n| [x](javascript:{MARK}) ![i](http://example.org/i.png) `c` **b** # h <b>",
    "mathtext and braces": "$\\frac{1}{$ $x^$ $$ {{7*7}}{% raw %}{0}%s%n",
    "a terminal's": "\x1b[31mred\x1b[2J\x1b]0;title\x07\x1b]8;;http://example.org\x1b\\link\x9b31m\x90\x9d0;t\x9c",
    "a line over another, and a direction": "safe 100 %\rPWNED\b\b\b\u202egnp.exe\u2066\u200f",
    "nothing to see, no letters known": "\u200b\ufeff\u00ad\u2060\U000e0041𒀀\U0010ffff\ue000",
    "a very long one": "L" * 3000,
    "addresses without a mark": "www.evil.example https://evil.example/x ftp://evil.example mailto:a@evil.example",
    "an e-mail address": "a.b+c@evil.example and |a@b.c| `d@e.f` \\g@h.i",
    "a formula behind a separator": 'x;=1+1|=2\t=3;"=4; -5',
    "full width": "x;\uff1d1+1",
    "letters without ink": "a\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe0f\uffa0\U000e0101\U000e0020b\x7f",
    "a fence": "A" * 30 + " " + "B" * 30 + " ``` " + "C" * 30 + f" <h1>{MARK}</h1> ~~~",
    "commands of a CI log": "::error::x\n::set-output name=x::y ##[group]x ##vso[task.complete]",
    "a line that lies": f"x\n{LIE}",
    "a link of SARIF": f"[x](javascript:{MARK}) {{0}} \\[y](1)",
}
BENIGN = [f"name {k}" for k in range(8)]
BODY = "plate_1"


@dataclass(frozen=True)
class World:
    """A run folder, and the files that its judging needs."""

    texts: Sequence[str]
    run: Path
    registry: Path
    specs: Path
    results: Path

    @property
    def judge(self) -> list[str]:
        return ["--rules", str(self.registry), "--rules", str(self.specs)]


def world(folder: Path, texts: Sequence[str]) -> World:
    """Each text is a policy, a benchmark, a task, an instruction, an episode, a body, a host's field and a unit."""
    folder.mkdir()
    registry, specs, results = folder / "registry.toml", folder / "specs.toml", folder / "eval_info.json"
    suites = {text: {"host": "fake", "capabilities": "libero"} for text in texts}
    tasks = [{"benchmark": text, "task_id": text, "template": "pnp-basic", "instruction": text} for text in texts]
    registry.write_text(toml({"benchmarks": suites, "tasks": tasks}), encoding="utf-8")
    rows = [_spec(k, text) for k, text in enumerate(texts)]
    specs.write_text(toml({"specs": rows}), encoding="utf-8")
    results_by_task = [{"task_group": text, "task_id": text, "metrics": {"successes": [True, False]}} for text in texts]
    results.write_text(json.dumps({"per_task": results_by_task}))
    return World(texts, _run(folder / "run", texts), registry, specs, results)


def _spec(number: int, text: str) -> dict[str, object]:
    return {
        "spec_id": f"mine_{number}",
        "canonical_family": text,
        "axis": "execution",
        "tier": "safe" if number < 3 else "diagnostic",
        "stl": "G[0,T](eef_speed < threshold)",
        "threshold": 0.05,
        "severe": 0.2,
        "unit": "m/s",
        "source": text,
        "rationale": text,
    }


def _run(folder: Path, texts: Sequence[str]) -> Path:
    part = folder / "archive" / "part-00000.jsonl.zst"
    part.parent.mkdir(parents=True)
    rows = []
    for k, text in enumerate(texts):
        for j, policy in enumerate((text, texts[(k + 1) % len(texts)])[: 2 if k < 2 else 1]):
            rows.append(_row(k, f"{text}{j}", text, policy))
            archive.append_episodes(part, _episode(k, j, rows[-1], text))
        crashed = _row(k, f"{text}crash", text, text)
        rows.append(replace(crashed, outcome="crashed", reason=f"Traceback\n  {text}\nServerError: {text}"))
    write_episodes(folder, rows)
    described = {"complete": True, "host": texts[0], "planned": len(rows), "volatile": {"command": list(texts)}}
    described["policies"] = [
        {"policy": text, "arguments": {text: text}, "privileged": k % 2 == 0} for k, text in enumerate(texts)
    ]
    described["versions"] = {text: text for text in texts}
    (folder / RUN).write_bytes(dump_json(described))
    (folder / MANIFEST).write_bytes(
        dump_json({"parts": {f"archive/{part.name}": sha256_of(part)}, "episodes": 0, "files": {}})
    )
    return folder


def _row(k: int, episode_id: str, suite: str, policy: str) -> EpisodeRow:
    return EpisodeRow(episode_id=episode_id, policy=policy, benchmark=suite, task_id=suite, episode=0,
                           init_state_index=k, env_seed=0, seed=1, policy_seed=2, horizon=99, outcome="success",
                           steps=29)  # fmt: skip


def _episode(k: int, j: int, row: EpisodeRow, text: str) -> Batch:
    batch = rollout(k, 0.3 + 0.7 * j, 30, True, policy=row.policy, episode_id=row.episode_id)
    tree = _renamed(json.loads(encode_json(batch, 0)), text)
    fields = dict.fromkeys(("benchmark", "task_id", "instruction", f"host {text}"), text)
    fields |= {name: getattr(row, name) for name in ("seed", "env_seed", "init_state_index", "horizon")}
    return decode_json(json.dumps({**tree, **fields, "versions": {text: text}}).encode())


def _renamed(tree: Any, text: str) -> Any:
    """The tree with one body renamed to the text."""
    if isinstance(tree, dict):
        return {text if key == BODY else key: _renamed(value, text) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(child, text) for child in tree]
    return text if tree == BODY else tree
