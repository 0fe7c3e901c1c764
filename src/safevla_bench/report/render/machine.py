"""Tables as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from safevla_bench.report.tables import Table


def json(tables: Sequence[Table]) -> str:
    """A list of tables with all that they hold: a cell's text, value, interval, detail, emphasis and mark."""
    return msgspec.json.format(msgspec.json.encode(list(tables)), indent=2).decode() + "\n"
