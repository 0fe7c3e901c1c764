"""A compressed record is believed only once its checksum has been read."""

from __future__ import annotations

from safevla_bench import archive
from safevla_bench.errors import DamageError
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.sources.runs.folder import archive_parts


def test_a_record_is_never_given_before_its_checksum_was_read(tmp_path):
    asked = Request(host="fake", suites=("fake",), tasks=(0,), policies=("random",), max_steps=4)
    roll_out(asked, tmp_path / "run")
    (part,) = archive_parts(tmp_path / "run")
    content = part.read_bytes()
    for cut in range(1, 8):
        part.write_bytes(content[:-cut])
        assert [type(one) for one in archive.read_episodes([part])] == [DamageError]
