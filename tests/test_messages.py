"""Messages of errors: none appears, disappears or loses its problem, place or remedy unseen; their wording is free."""

from __future__ import annotations

from collections import Counter

from golden_messages import FOLDER, collect_messages, read_headings


def test_every_message_is_in_the_approval_file_of_its_package_with_its_parts():
    approved = {path.name: Counter(read_headings(path.read_text(encoding="utf-8"))) for path in FOLDER.iterdir()}
    current = {name: Counter(read_headings(text)) for name, text in collect_messages().items()}
    new, gone = (
        [line for name, lines in one.items() for line in (lines - other.get(name, Counter()))]
        for one, other in ((current, approved), (approved, current))
    )
    assert (new, gone) == ([], []), "messages are new or gone, or have other parts: look at them, then `make golden`"
