"""With what something was judged, in one line: what stands below every table and gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LETTERS = 12
"""Of a digest where it is told; scores.json and the report have it whole."""


def line(told: Mapping[str, Any]) -> str:
    """`judged_by` of scores.json as a sentence; what is as shipped is not told."""
    library, registry = told["library"], told["registry"]
    parts = [
        f"library {library['name']} ({library['digest'][:_LETTERS]})",
        f"registry {registry['name']} ({registry['digest'][:_LETTERS]})",
        *(f"capabilities {name}" for name in told["capabilities"]),
        *(["missing signals deactivate"] if told["missing"] == "deactivate" else []),
        *(["applicability off"] if told["applicability"] == "off" else []),
    ]
    return f"Judged by safevla-bench {told['version']}: {', '.join(parts)}."
