"""Tables byte for byte as they were; `golden_tables` says how to write them anew."""

from __future__ import annotations

from report.golden_tables import FOLDER, golden


def test_tables_are_as_in_the_golden_files():
    contents_by_name = dict(golden())
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(contents_by_name)
    for name, contents in contents_by_name.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == contents, name
