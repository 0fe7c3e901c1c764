"""The first sentence of a comparison says what it established, and no more; the block below agrees with it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.difference import Difference
from safevla_bench.report.render import render_text
from safevla_bench.report.tables.comparison_answer import answer_table, describe_comparison

FIVE = Difference(
    first="careful",
    second="hasty",
    difference=0.5,
    ci=(0.084, 0.763),
    ci_by_task=(0.02, 0.9),
    pairs=10,
    tasks=5,
    only_first=5,
    only_second=0,
    test="McNemar, mid-p",
    p_value=0.031,
    p_by_task=0.125,
    p_adjusted=0.125,
    tasks_needed=6,
)


def compare(*differences: Difference, metric: str = "safety", **changes: object) -> Comparison:
    names = tuple(dict.fromkeys(name for item in differences for name in (item.first, item.second)))
    standings = tuple(
        PolicyStanding(policy=name, n=10, count=5, value=0.5, ci=(0.2, 0.8), ci_by_task=None, letters="a")
        for name in names
    )
    compared = MetricComparison(metric=metric, standings=standings, differences=differences, primary=True)
    scope = SuiteComparison(suite=None, pairs=10, left_out=0, tasks=differences[0].tasks, metrics=(compared,))
    fields = {"policies": names, "paired": True, "confidence": 0.95, "seed": 0, "scopes": (scope,)}
    return Comparison(**{**fields, **changes})


SWAPPED = replace(
    FIVE, first="hasty", second="careful", difference=-0.5, ci=(-0.763, -0.084), only_first=0, only_second=5
)
HERE = "careful is safer than hasty on these tasks: 5 of 10 pairs against 0 (50.0 points, 8.4 to 76.3)."


@pytest.mark.parametrize(
    ("difference", "sentence"),
    [
        (FIVE, f"{HERE} Not established for tasks like these: 5 tasks, 6 needed."),
        (SWAPPED, f"{HERE} Not established for tasks like these: 5 tasks, 6 needed."),
        (replace(FIVE, tasks_needed=None), f"{HERE} Not established for tasks like these (p 0.125)."),
        (
            replace(FIVE, tasks_needed=None, p_by_task=0.01, better="careful"),
            f"{HERE} The same holds for tasks like these (2.0 to 90.0).",
        ),
        (replace(FIVE, tasks=1, tasks_needed=None, p_by_task=None, better="careful"), HERE),
        (replace(FIVE, sequential=True, tasks_needed=None, better="careful"), HERE),
        (
            replace(FIVE, p_value=0.3, ci=(-0.1, 0.8)),
            "No difference in Safety is established between careful and hasty: 5 of 10 pairs against 0 (50.0 points, "
            "−10.0 to 80.0).",
        ),
        (replace(FIVE, identical=True, difference=0.0), "Safety of careful and hasty is the same in each of 10 pairs."),
        (
            replace(FIVE, tasks_needed=None, undecided=True, unknown=2),
            f"{HERE} The same holds for tasks like these (2.0 to 90.0). Undecided all the same: 2 episodes without a "
            "value could change that (--allow-crashed leaves them out).",
        ),
        (replace(FIVE, difference=None), "Safety of careful and hasty cannot be compared: one has no value."),
        (
            replace(FIVE, pairs=None, only_first=None, only_second=None),
            "careful is safer than hasty on these tasks: 50.0 points, 8.4 to 76.3. Not established for tasks like "
            "these: 5 tasks, 6 needed.",
        ),
    ],
)
def test_two_policies(difference, sentence):
    assert describe_comparison(compare(difference)) == sentence


def test_less_severity_is_better():
    difference = replace(FIVE, difference=-0.4, ci=(-0.7, 0.0), only_first=None, only_second=None)
    assert describe_comparison(compare(difference, metric="vsi")).startswith(
        "careful is safer than hasty on these tasks: 0.400, 0.000 to 0.700."
    )


def test_several_policies_name_what_is_established_and_where():
    third = replace(FIVE, second="third", tasks_needed=None, better="careful", tasks=8)
    same = replace(FIVE, first="hasty", second="third", tasks_needed=None, tasks=8)
    first = replace(third, second="hasty")
    shown = describe_comparison(compare(first, third, same))
    assert shown == "Established for tasks like these: careful safer than hasty, careful safer than third."
    few = describe_comparison(compare(FIVE, replace(FIVE, second="third")))
    assert few == "No two of 3 policies are shown to differ in Safety. It takes 6 tasks; these are 5."


def test_the_block_says_whose_difference_it_is_and_what_is_established():
    text = render_text(answer_table(compare(SWAPPED), ["Judged by …"]), width=120)
    assert "10 pairs of episodes of 5 tasks in one suite" in text
    assert "B 50.0 (8.4 to 76.3)" in text
    assert "B safer, on these tasks" in text
    assert text.rstrip().endswith("Judged by …")
    assert "no" in render_text(answer_table(compare(replace(FIVE, p_value=0.3))), width=120).split()


def test_the_sentence_reads_a_comparison_that_was_stored():
    stored = msgspec.json.decode(msgspec.json.encode(compare(FIVE)), type=Comparison)
    assert describe_comparison(stored) == describe_comparison(compare(FIVE))
