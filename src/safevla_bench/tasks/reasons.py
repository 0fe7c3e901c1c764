"""Codes and texts of reasons: why a specification does not judge an episode, or why an episode's safety is unknown.

A reason is one or more parts `CODE:FIELD,FIELD`, joined by `;`, such as `needs:held_target;invalid_with:non_spillable`.
Files contain reasons in this form. `reasons.toml` has the texts for codes and tags that readers see.
"""

from __future__ import annotations

from urllib.parse import unquote

from safevla_bench.files import read_shipped
from safevla_bench.tasks.entries import Registry

NEEDS, INVALID_WITH, OTHER_LIMIT, OTHER_SUITES = "needs", "invalid_with", "other_limit", "other_suites"
CAPABILITIES, SIGNAL_MISSING = "capabilities", "signal_missing"
UNDECIDED = PAST_THE_END, CUT_OFF, POSE_UNKNOWN, NO_VALUE = "past_the_end", "cut_off", "pose_unknown", "no_value"
EVERY_PHASE, NO_SUBGOALS, NO_OPENING = "every_phase", "no_subgoals", "no_opening"
NO_SUBGOAL_OF, NO_PREDICATE_OF = "no_subgoal_of", "no_predicate_of"  # codes for episodes with unknown phases
SOME_PHASES = "some_phases"  # code in tables, not in files: the clause is judged only in some phases of a task
LEFT_OUT = frozenset({CAPABILITIES, SIGNAL_MISSING, *UNDECIDED})  # codes for clauses that apply but have no verdict
_ESCAPES = str.maketrans({character: f"%{ord(character):02X}" for character in "%,;"})
CODES, _TAGS = read_shipped(__package__, "reasons.toml", dict[str, dict[str, str]]).values()
"""The texts of codes, in which {} stands for a field, and the texts of tags that a task lacks or must not have."""


def write_reason(code: str, *fields: str) -> str:
    """Return one part of a reason, `CODE:FIELD,FIELD`, with special characters in the fields escaped."""
    # The special characters are %, comma and semicolon.
    return f"{code}:{','.join(field.translate(_ESCAPES) for field in fields)}" if fields else code


def read_reason(reason: str) -> dict[str, list[str]]:
    """Return the fields of each part of a reason, by code; {} for ""."""
    parts = (part.partition(":") for part in reason.split(";") if part)
    # Fields are split before they are unquoted, because an escaped comma belongs to its field.
    return {code: list(map(unquote, fields.split(","))) if fields else [] for code, _, fields in parts}


def describe_reason(
    reason: str, registry: Registry | None = None, benchmark: str = "", *, with_tags: bool = True
) -> str:
    """Return the text of a reason, with the meaning of each tag and, if `with_tags`, the tag's name. If a tag lacks a
    meaning, all tags of its code are listed by name. A text with unknown codes, as in old files, is returned unchanged.

    With a registry, the text has the host's reasons for lacking tags. Tags that the host's full capability set has,
    but the paper's set lacks, are described as left out by the paper.

    >>> describe_reason("needs:held_target;signal_missing:contacts")
    'the task holds no object (held_target); signal missing: contacts'
    """
    # `_TAGS` maps tags to their meanings, and `CODES` maps codes to texts with {} for the fields.
    fields_by_code, meanings = read_reason(reason), dict(_TAGS)
    if not fields_by_code.keys() <= CODES.keys():  # an older file has a text instead of codes
        return reason
    suite = registry.benchmarks.get(registry.find_suite(benchmark)) if registry else None
    if registry and suite:
        meanings |= registry.absence_reasons(benchmark)
        # The paper's set of a host may lack tags that the host measures; the set NAME-full has them.
        if full_set := registry.capability_sets.get(f"{suite.capabilities}-full"):
            remedy = f"--set capabilities={full_set.name} judges it"
            left_out = f"left out by the paper's {suite.capabilities} capability set; {remedy}"
            meanings |= dict.fromkeys(full_set.tags - registry.capability_sets[suite.capabilities].tags, left_out)
    texts = []
    for code, fields in fields_by_code.items():
        # The fields of these two codes are tags. If every tag has a meaning, the meanings are the text.
        if code in (NEEDS, INVALID_WITH) and meanings.keys() >= set(fields):
            texts += [f"{meanings[tag]} ({tag})" if with_tags else meanings[tag] for tag in fields]
        else:
            texts.append(CODES[code].format(", ".join(fields)))
    return "; ".join(texts)
