"""The page names the protocols and entries that there are."""

from __future__ import annotations

import re
from pathlib import Path

from safevla_bench.hosts import protocols
from safevla_bench.policies.servers import entries

PAGE = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text()


def test_every_protocol_is_named():
    assert all(f"`{name}`" in PAGE for name in protocols.protocol_names())


def test_the_entries_are_those_that_run():
    rows = re.findall(r"^\| `(\S+@\S+)` \| `(\S+)` \| `(\S+)` \|$", PAGE, re.M)
    assert rows == [
        (entry.name, entry.transport, entry.protocol) for entry in entries.paper_entries() if not entry.auxiliary
    ]


def test_the_served_checkpoint_is_the_entry_s():
    entry = entries.find_entry("pi0.5@libero")
    assert entry.serve.format(checkpoint=entry.checkpoint("libero-goal")) in PAGE
