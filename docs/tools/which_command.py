"""Writes reference/which-command.md and the README's rows of it: python docs/tools/which_command.py

With --check nothing is written: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from made_page import format_table, run_script

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "reference" / "which-command.md", ROOT / "README.md"
BEGIN, END = "<!-- common commands: begin -->\n", "<!-- common commands: end -->"


class Row(NamedTuple):
    """A question, the command that answers it, and pages that say more, as links from docs/."""

    question: str
    command: str
    more: str = ""
    is_common: bool = False


EVAL = "`safevla eval --host libero --suite libero-spatial --episodes 20 --policy"
SECTIONS = {
    "Start": [
        Row("Is this machine ready? What is wrong?", "`safevla doctor`", "[by symptom](howto/symptoms.md)", True),
        Row(
            "Is it the right policy server?",
            "`safevla doctor --server openpi:HOST:8000`",
            "[servers](howto/servers.md)",
        ),
        Row("What does a judgement look like?", "`safevla demo`", "[tutorial](tutorials/judge.md)"),
    ],
    "Roll out and record": [
        Row(
            "How safe is my policy?",
            f"{EVAL} mine=openpi:ws://HOST:8000 --out runs/mine`",
            "[tutorial](tutorials/evaluate.md), [servers](howto/servers.md)",
            True,
        ),
        Row(
            "Where does my policy run, if not here?",
            "`safevla serve --policy python:my_policy:Policy --port 8000` there, `--policy openpi:HOST:8000` here",
            "[servers](howto/servers.md#serving-a-policy)",
        ),
        Row(
            "How do I record my own loop?",
            '`env = record_until_closed(env, policy="mine", out="runs/mine")`',
            "[recording](howto/recording.md), [tutorial](tutorials/record.ipynb), "
            "[a MuJoCo loop](howto/mujoco-loop.md), [another engine](howto/another-engine.md)",
            True,
        ),
        Row(
            "How do I add my simulator?",
            "one module, one file of tags, one test class",
            "[a host](howto/adding-a-host.md)",
        ),
        Row(
            "Can the run stop as soon as a gate is decided?",
            '`safevla eval --config eval.toml --until "safety >= 0.9"`',
            "[looks](howto/comparing.md#looking-while-episodes-come)",
        ),
        Row(
            "From which starts does it succeed unsafely?",
            "`safevla search --host libero --suite libero-spatial --policy NAME --out runs/search`",
            "[search](howto/searching.md)",
        ),
    ],
    "Judge": [
        Row(
            "How safe was what I recorded?",
            "`safevla score runs/mine`, or `episodes.jsonl`, with `--out results`",
            "[tutorial](tutorials/judge.md), [real robots](howto/real-robots.md)",
            True,
        ),
        Row("Which episodes are bad?", "`safevla episodes runs/mine --unsafe --sort vsi`"),
        Row("Why is this one unsafe?", "`safevla show runs/mine :3`", "[one episode](explanation/one-episode.md)"),
        Row("Why is it not judged?", "`safevla show runs/mine :3`", "[not judged](howto/not-judged.md)"),
        Row("What did it look like?", "`safevla frames runs/mine --episode :3 --video`", "[frames](howto/frames.md)"),
        Row("How does a signal go?", "`safevla show runs/mine :3 --all`", "[plot a signal](howto/plot-a-signal.md)"),
        Row("Which bodies are there?", "`safevla validate runs/mine --bodies`", "[bodies](howto/list-bodies.md)"),
        Row(
            "Which limits apply, and what do they mean?",
            "`safevla tasks --suite libero-goal`, `safevla specs --explain joint_torque`",
            "[specifications](reference/specifications.md)",
        ),
        Row(
            "Can I add a rule of my own?",
            "`safevla specs --template`, then `--check FILE`, then `safevla score runs/mine --rules FILE`",
            "[a specification](howto/own-specifications.md)",
        ),
        Row(
            "Would other thresholds change the result?",
            "`safevla sensitivity runs/mine`; one: `safevla score runs/mine --set joint_torque=1.5`",
            "[for one suite](howto/suite-threshold.md)",
        ),
        Row(
            "Would other physics? Which contact did it?",
            "`safevla sensitivity runs/mine --physics`, `safevla show runs/mine :3 --without contact:A,B`",
            "[firmness](howto/firmness.md)",
        ),
    ],
    "Compare and decide": [
        Row(
            "Is A safer than B? Good enough to ship?",
            "`safevla compare A=runs/a B=runs/b`, `safevla gate runs/b --min-safety 0.9`",
            "[tutorial](tutorials/compare.md), [comparing](howto/comparing.md)",
            True,
        ),
        Row(
            "Is it no worse than main?",
            "`safevla gate runs/mine --baseline runs/main --min-safety -0.05 --min-sr -0.05`",
        ),
        Row(
            "Which checkpoint do I take?",
            '`safevla select 10k=runs/a 20k=runs/b --max sr --subject-to "safety >= 0.9"`',
            "[select](howto/comparing.md#which-checkpoint-to-take)",
        ),
        Row("How many episodes do I need?", "`safevla compare --plan 5 --assume tasks=10`"),
        Row(
            "What do other places, looks or words do to it?",
            "`safevla compare --changes runs/goal runs/goal-swap runs/goal-again`",
            "[changes](howto/comparing.md#what-a-change-of-the-scene-does)",
        ),
        Row("How do my numbers compare with the paper's?", "`safevla compare runs/mine paper:pi0.5`"),
    ],
    "Check and publish": [
        Row(
            "Is this run what it says?",
            "`safevla verify runs/mine --audit 24` (plays 24 episodes of each policy again)",
            "[verify](howto/verify.md)",
        ),
        Row(
            "How do I publish it?",
            "`safevla tables runs/mine`, `safevla figures runs/mine --out figures`, "
            "`safevla board runs/mine --out site`",
            "[tables](reference/tables.md), [figures](howto/figures.md), [board](howto/board.md)",
        ),
    ],
}
TEXT = """\
# Which command?

Made by `python docs/tools/which_command.py`; do not edit. `safevla COMMAND --help` lists the usual options,
`--help-all` every one; [all commands](commands.md). In Python: [the same in one call](../howto/python.md).
"""


def format_rows(rows: list[Row], docs: str) -> str:
    """Return a table; `docs` leads from the page to the folder docs."""
    return format_table(
        ("question", "command", "more"),
        [(row.question, row.command, row.more.replace("](", f"]({docs}/")) for row in rows],
    )


def build_page() -> str:
    """Return the page of all rows."""
    parts = (f"\n## {title}\n\n{format_rows(rows, '..')}\n" for title, rows in SECTIONS.items())
    return TEXT + "".join(parts)


def build_readme() -> str:
    """Return the README with the most common rows."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    common = [row for rows in SECTIONS.values() for row in rows if row.is_common]
    return f"{before}{BEGIN}{format_rows(common, 'docs')}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        README.write_text(build_readme(), encoding="utf-8")
    sys.exit(run_script(sys.argv[1:], PAGE, build_page))
