"""Tables as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps

import msgspec

from safevla_bench.report.tables import Table


def json(tables: Sequence[Table]) -> str:
    """A list of tables with all that they hold: a cell's text, value, interval, detail, emphasis and mark.

    All but ASCII is escaped, so that no name from a record acts on a terminal.
    """
    return dumps(msgspec.to_builtins(list(tables)), indent=2) + "\n"
