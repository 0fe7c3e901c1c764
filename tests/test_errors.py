"""A message says where, what and what to do, in that order."""

from __future__ import annotations

from safevla_bench.errors import CollectedError, Place, RecordError


def test_a_message_names_place_problem_and_remedy():
    place = Place(file="a.jsonl", line=3, episode="x", step=0, field="contacts[1].force_n")
    message = str(RecordError("-1.0 is negative", remedy="Write the magnitude.", place=place))
    assert message == (
        "a.jsonl, line 3, episode 'x', step 0, field contacts[1].force_n: -1.0 is negative\n  Write the magnitude."
    )


def test_an_outer_place_fills_only_what_is_open():
    error = RecordError("wrong", place=Place(line=2, step=0)).with_place(Place(file="f", line=9))
    assert error.place == Place(file="f", line=2, step=0)


def test_several_errors_hide_none():
    message = str(CollectedError([RecordError("one"), RecordError("two")], remedy="Mend both."))
    assert message == "one\ntwo\n  Mend both."
