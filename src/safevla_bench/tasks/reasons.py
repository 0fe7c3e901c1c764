"""Reasons why a specification does not judge an episode, or why its safety is unknown: stored codes, and their text.

A reason is one or more parts `CODE:FIELD,FIELD`, joined by `;`, such as `needs:held_target;invalid_with:non_spillable`.
Files hold it in this form. `reasons.toml` has the texts of codes and tags, which are inserted when a reason is shown.
"""

from __future__ import annotations

from urllib.parse import unquote

from safevla_bench.files import read_shipped
from safevla_bench.tasks.entries import Registry

NEEDS, INVALID_WITH, OTHER_LIMIT, OTHER_SUITES = "needs", "invalid_with", "other_limit", "other_suites"
CAPABILITIES, SIGNAL_MISSING = "capabilities", "signal_missing"
UNDECIDED = PAST_THE_END, CUT_OFF, POSE_UNKNOWN = "past_the_end", "cut_off", "pose_unknown"
EVERY_PHASE, NO_SUBGOALS, NO_OPENING = "every_phase", "no_subgoals", "no_opening"
NO_SUBGOAL_OF, NO_PREDICATE_OF = "no_subgoal_of", "no_predicate_of"  # of clauses that stay switched off; by tags
SOME_PHASES = "some_phases"  # of a clause that is judged in some phases of a task: in tables, not in files
LEFT_OUT = frozenset({CAPABILITIES, SIGNAL_MISSING, *UNDECIDED})  # apply by tags, but did not judge the episode
_ESCAPES = str.maketrans({character: f"%{ord(character):02X}" for character in "%,;"})
CODES, _TAGS = read_shipped(__package__, "reasons.toml", dict[str, dict[str, str]]).values()
"""Code -> its text, with the fields at {}; tag -> what it, or its lack, says."""


def write_reason(code: str, *fields: str) -> str:
    """Return one part of a reason."""
    return f"{code}:{','.join(field.translate(_ESCAPES) for field in fields)}" if fields else code


def read_reason(reason: str) -> dict[str, list[str]]:
    """Return the codes of a reason with their fields; {} for ""."""
    parts = (part.partition(":") for part in filter(None, reason.split(";")))
    return {code: [*map(unquote, fields.split(","))] if fields else [] for code, _, fields in parts}


def describe_reason(
    reason: str, registry: Registry | None = None, benchmark: str = "", *, with_tags: bool = True
) -> str:
    """Return the text of a reason, with the meaning of each tag, and its name unless `with_tags` is false. Tags without
    a meaning are listed by name; what is not a reason's code is unchanged, such as the texts of older files.

    With a registry, a tag that the benchmark's host lacks has the host's explanation, and one that only the host's full
    capability set has, and not the paper's, is called left out.

    >>> describe_reason("needs:held_target;signal_missing:contacts")
    'the task holds no object (held_target); signal missing: contacts'
    """
    codes, words = read_reason(reason), dict(_TAGS)
    if not codes.keys() <= CODES.keys():
        return reason
    if registry and (suite := registry.benchmarks.get(registry.find_suite(benchmark))):
        words |= registry.absence_reasons(benchmark)
        if full := registry.capability_sets.get(f"{suite.capabilities}-full"):
            remedy = f"--set capabilities={full.name} judges it"
            left_out = f"left out by the paper's {suite.capabilities} capability set; {remedy}"
            words |= dict.fromkeys(full.tags - registry.capability_sets[suite.capabilities].tags, left_out)
    texts = []
    for code, fields in codes.items():
        if code in (NEEDS, INVALID_WITH) and words.keys() >= set(fields):
            texts += [f"{words[tag]} ({tag})" if with_tags else words[tag] for tag in fields]
        else:
            texts.append(CODES[code].format(", ".join(fields)))
    return "; ".join(texts)
