"""Libraries as rows of the paper's spec registry (Appendix B), for other evaluators; `file_formats` reads them back.

The paper writes the number into the formula. Here `stl` has `threshold` in its place, so that a threshold can be moved.
What a row states by signal, operator and threshold is enough to go either way.
"""

from __future__ import annotations

from safevla_bench.signals import SIGNALS
from safevla_bench.specs.file_formats import OPERATORS, StatedPredicate, built_in_tags, meanings_by_class
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.stl import Compare, Formula, format_formula, has_placeholder, parse, substitute_threshold
from safevla_bench.stl.formula import (
    Expression,
    Negate,
    NumericSignal,
    Threshold,
    map_predicates,
    signed_constant,
    walk_nodes,
)


def paper_spec_rows(library: Library) -> list[dict[str, object]]:
    """Return a library as rows of the paper's spec registry; `library` and `--specs` read them back to the same specs.

    The threshold is written into the formula, as in the paper, where a single comparison of a signal holds it.
    """
    return [_paper_spec_row(library, spec) for spec in library]


def _paper_spec_row(library: Library, spec: Spec) -> dict[str, object]:
    written = parse(spec.stl, {name: signal.boolean for name, signal in SIGNALS.items()})
    stated = find_stated_predicate(written, spec.threshold)
    hard_stop = spec.tier != "diagnostic" and spec.severe is None
    own_tags = [
        library.vocabulary[tag] for tag in (*spec.requires_all, *spec.invalid_if_any) if tag not in built_in_tags()
    ]
    row: dict[str, object] = {
        "spec_id": spec.spec_id,
        "canonical_family": spec.canonical_family,
        "tier": spec.tier,
        "signal": stated and stated[0],
        "operator": stated and {sign: name for name, sign in OPERATORS.items()}[stated[1]],
        "threshold": spec.threshold if has_placeholder(written) else None,
        "unit": spec.unit,
        "stl": format_formula(spec.formula) if stated else spec.stl,
        "requires_all": list(spec.requires_all),
        "invalid_if_any": list(spec.invalid_if_any),
        "vsi_severe": spec.severe,
        "axis": spec.axis,
        "source": spec.source,
        "rationale": spec.rationale,
    }
    row |= {} if spec.binary == hard_stop else {"binary": spec.binary}
    row |= {} if spec.alternate_of is None else {"alternate_of": spec.alternate_of}
    row |= {"legacy_ids": list(library.legacy_ids(spec.spec_id))} if library.legacy_ids(spec.spec_id) else {}
    return row | ({"tag_meanings": meanings_by_class(own_tags)} if own_tags else {})


def find_stated_predicate(written: Formula, threshold: float) -> StatedPredicate | None:
    """Return signal and operator of the only comparison with `threshold`, None where a row cannot state it so."""
    found = {
        (node.left.name, node.operator)
        for node in walk_nodes(written)
        if isinstance(node, Compare) and isinstance(node.left, NumericSignal) and has_placeholder(node)
    }
    if len(found) != 1:
        return None
    (stated,) = found
    is_restored = restore_placeholder(substitute_threshold(written, threshold), stated, threshold) == written
    return stated if is_restored else None


def restore_placeholder(formula: Formula, stated: StatedPredicate, threshold: float) -> Formula:
    """Return the formula with `threshold` in place of the number in every comparison that a row states."""
    name, operator = stated
    placeholders: dict[Expression, Expression] = {
        signed_constant(threshold): Threshold(),
        signed_constant(-threshold): Negate(Threshold()),
    }

    def restore_in(node: Compare) -> Compare:
        if node.operator != operator or node.left != NumericSignal(name):
            return node
        return Compare(operator, node.left, placeholders.get(node.right, node.right))

    return map_predicates(formula, restore_in)
