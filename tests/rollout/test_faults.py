"""Whatever strikes a run, nothing is lost, doubled or taken for what it is not, and it can be completed to the byte.

`pytest -s` shows the table; docs/explanation/trust.md holds it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import faults

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cells(request, tmp_path_factory):
    """Each cell that a test of this session asks for; prints the table."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == NAME]
    cases = [(item.callspec.params["fault"], item.callspec.params["engine"]) for item in items]
    with faults.striking(tmp_path_factory.mktemp("faults"), cases) as cells:
        yield cells
    print("\n" + faults.table({cell: ended.result() for cell, ended in cells.items() if not ended.exception()}))


@pytest.mark.parametrize("engine", faults.ENGINES)
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name)
def test_a_run_that_is_struck_ends_as_documented_and_is_completed_to_the_byte(fault, engine, cells):
    ended = cells[fault.name, engine].result()
    (row,) = [line for line in faults.documented().splitlines() if line.startswith(f"| {fault.name} |")]
    assert row.split(" | ")[1 + list(faults.ENGINES).index(engine)].removesuffix(" |") == ended


NAME = "test_a_run_that_is_struck_ends_as_documented_and_is_completed_to_the_byte"
