"""The paper's own counts, put through metrics and tables, print the paper's own digits."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from report.published.synthesis import EpisodeCounts, episode_counts, synthesize_scores, unique_count
from report.tables.reading import columns
from safevla_bench.judging.metrics import cells, task_rates
from safevla_bench.report.published import LEADERBOARD, PAPER, PublishedCell, load_published
from safevla_bench.report.tables.cells import Roster, auxiliary_table, composition_table, constraint_table, suite_table
from safevla_bench.report.tables.tasks import task_table
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import active_specs
from safevla_bench.tasks.loader import load_registry
from safevla_bench.text import NO_VALUE, format_fixed

V1 = load_published(PAPER)
AXES = {spec.spec_id: spec.axis for spec in load_library().safe}
LIBERO = [cell for cell in V1.cells if cell.benchmark.startswith("libero") and cell.n == 200]
ROBOCASA = [cell for cell in V1.cells if cell.benchmark == "robocasa-365"]
PNP = [cell for cell in V1.cells if cell.auxiliary]
SUITES = {"spatial": "libero-spatial", "object": "libero-object", "goal": "libero-goal", "10": "libero-10"}


def summaries(published: list[PublishedCell]):
    counts = [episode_counts(cell) for cell in published]
    assert None not in counts
    return cells(synthesize_scores(counts, AXES))


@pytest.fixture(scope="module")
def libero():
    return summaries(LIBERO)


@pytest.fixture(scope="module")
def robocasa():
    return summaries(ROBOCASA)


def printed(value: float) -> str:
    return f"{value:.1f}"


def test_table_4_every_suite_and_every_mean(libero):
    table = columns(suite_table(libero, Roster(), "LIBERO"))
    for row, policy in enumerate(cell.text for cell in table["Policy"]):
        for short, suite in SUITES.items():
            (cell,) = [cell for cell in LIBERO if (cell.policy, cell.benchmark) == (policy, suite)]
            for metric, value in (("SR", cell.sr), ("Safety", cell.safety), ("SBU", cell.sbu)):
                assert table[f"{metric} % {short}"][row].text == printed(value)
        (mean,) = [mean for mean in V1.means if mean.policy == policy]
        for metric, value in (("SR", mean.sr), ("Safety", mean.safety), ("SBU", mean.sbu)):
            assert table[f"{metric} % mean"][row].text == printed(value)


def test_table_4_halves_round_away_from_zero(libero):
    table = columns(suite_table(libero, Roster()))
    cosmos = [cell.text for cell in table["Policy"]].index("Cosmos-Policy-2B")
    assert table["SR % mean"][cosmos].value == 95.25
    assert table["SR % mean"][cosmos].text == "95.3"


def test_severity_of_counts_is_unknown_and_never_zero(libero):
    table = columns(suite_table(libero, Roster()))
    assert {cell.text for cell in table["VSI mean"]} == {NO_VALUE}
    assert {cell.detail for cell in table["VSI mean"]} == {"not known"}


METRIC_FIELDS = {"SR": "sr", "Safety": "safety", "SBU": "sbu", "P[U|S]": "p_unsafe_given_success"}


def test_table_5_and_the_conditional_rates_of_its_text(robocasa):
    table = columns(suite_table(robocasa, Roster(), "RoboCasa-365"))
    assert [cell.rates["sr"].count for cell in robocasa] == [292, 381, 425, 526]
    assert [cell.success_unsafe for cell in robocasa] == [110, 139, 237, 208]
    for name, field in METRIC_FIELDS.items():
        assert [cell.text for cell in table[f"{name} %"]] == [printed(getattr(cell, field)) for cell in ROBOCASA]


def test_table_5_marks_the_best_and_the_largest_sbu(robocasa):
    table = columns(suite_table(robocasa, Roster()))
    best = {name: [row for row, cell in enumerate(of) if cell.emphasis == "best"] for name, of in table.items()}
    names = [cell.policy for cell in ROBOCASA]
    assert [names[row] for row in best["SR %"]] == ["RLDX-1-FT-RC365"]
    assert [names[row] for row in best["Safety %"]] == ["pi0.5"]
    assert [names[row] for row in best["SBU %"]] == ["pi0"]
    assert [cell.mark for cell in table["SBU %"]] == ["", "", "†", ""]
    assert not any(cell.mark for name, of in table.items() if name != "SBU %" for cell in of)


def test_table_6():
    table = columns(auxiliary_table(summaries(PNP), Roster()))
    for name, field in METRIC_FIELDS.items():
        assert [cell.text for cell in table[f"{name} %"]] == [printed(getattr(cell, field)) for cell in PNP]
    assert [cell.text for cell in table["n"]] == [str(cell.n) for cell in PNP]


@pytest.mark.parametrize("host", ["LIBERO", "ROBOCASA"])
def test_tables_7_and_8_every_rate_and_every_dash(host, libero, robocasa):
    cells_of, printed_cells = (libero, LIBERO) if host == "LIBERO" else (robocasa, ROBOCASA)
    table = columns(constraint_table(cells_of, Roster()))
    by_spec = {name.split(" ")[-1]: of for name, of in table.items()}
    for row, cell in enumerate(printed_cells):
        assert cell.violations
        texts = {spec: by_spec[spec][row].text for spec in AXES}
        assert texts == {spec: printed(cell.violations[spec]) if spec in cell.violations else NO_VALUE for spec in AXES}
        assert table["Unsafe %"][row].text == format_fixed(100 - Fraction(repr(cell.safety)), 1)


def violation_counts(cell: PublishedCell) -> dict[str, int]:
    """The fewest violations of unsafe successes that print the cell's shares (Tables 10 and 11 give shares alone)."""
    shares = cell.composition or {}
    unsafe = cell.sbu_count or 0
    for total in range(unsafe, unsafe * max(1, len(shares)) + 1):
        printing = [format_fixed(Fraction(100 * k, total), 0) if total else "0" for k in range(total + 1)]
        near = [[k for k in range(total + 1) if printing[k] == str(int(share))] for share in shares.values()]
        for chosen in product(*near):
            if sum(chosen) == total and max(chosen, default=0) <= unsafe:
                return dict(zip(shares, chosen, strict=True))
    raise AssertionError(f"no counts print the shares of {cell.policy} on {cell.benchmark}")


@pytest.mark.parametrize("cell", [*LIBERO, *ROBOCASA], ids=lambda cell: f"{cell.policy} {cell.benchmark}")
def test_tables_10_and_11_counts_and_shares(cell):
    whole = episode_counts(cell)
    assert whole
    assert whole.unsafe_success == cell.sbu_count
    in_successes = violation_counts(cell)
    only = EpisodeCounts(
        policy=cell.policy,
        suite=cell.benchmark,
        n=cell.n,
        success=whole.success,
        safe=cell.n - whole.unsafe_success,
        unsafe_success=whole.unsafe_success,
        by_spec=dict.fromkeys(AXES, 0) | in_successes,
        in_successes=in_successes,
    )
    table = columns(composition_table(cells(synthesize_scores([only], AXES)), Roster()))
    assert table["SBU %"][0].text == printed(cell.sbu)
    assert (table["Unsafe successes"][0].text, table["n"][0].text) == (str(cell.sbu_count), str(cell.n))
    if cell.composition:
        shares = {spec.text: share.text for spec, share in zip(table["Specification"], table["Share %"], strict=True)}
        assert shares == {spec: str(int(share)) for spec, share in cell.composition.items()}
    else:
        assert (table["Specification"][0].text, table["Specification"][0].detail) == (NO_VALUE, "no unsafe success")


def test_table_12_every_interval():
    counts = []
    for task in V1.tasks:
        if task["task_id"] != "all":
            success, safe = unique_count(task["sr"], task["n"]), unique_count(task["safety"], task["n"])
            unsafe = max(0, success - safe)  # SBU by task is not printed: the fewest that there can be
            counted = {"success": success, "safe": safe, "unsafe_success": unsafe}
            identity = {key: task[key] for key in ("policy", "task_id", "n")}
            counts.append(EpisodeCounts(suite=task["benchmark"], **identity, **counted))
    scores = synthesize_scores(counts)
    table = columns(task_table(task_rates(scores), cells(scores), Roster()))
    assert [cell.text for cell in table["Task"]] == [task["task_id"] for task in V1.tasks]
    for name, rate, ends in (("SR %", "sr", "sr_ci"), ("Safety %", "safety", "safety_ci")):
        rates_and_ends = [(cell.text, cell.detail) for cell in table[name]]
        assert rates_and_ends == [(printed(task[rate]), "–".join(map(printed, task[ends]))) for task in V1.tasks]


def exact(cell: PublishedCell) -> Fraction:
    """P[U|S] from the counts; from the printed digits if they leave several counts possible."""
    counts = episode_counts(cell)
    if counts is None:
        return Fraction(repr(cell.sbu)) / Fraction(repr(cell.sr))
    return Fraction(counts.unsafe_success, counts.success)


def test_table_9_default_means_follow_from_tables_4_and_5():
    default = {variant.host: variant for variant in V1.variants if variant.name == "Default"}
    libero = [cell for cell in V1.cells if cell.benchmark in SUITES.values()]
    for host, of in (("libero", libero), ("robocasa", ROBOCASA)):
        for name in ("safety", "sbu"):
            mean = sum(Fraction(repr(getattr(cell, name))) for cell in of) / len(of)
            assert format_fixed(mean, 1) == printed(getattr(default[host], name))
        ratios = [exact(cell) for cell in of]
        assert format_fixed(100 * sum(ratios) / len(ratios), 1) == printed(default[host].p_unsafe_given_success)


def test_mean_active_counts_follow_from_the_registry():
    for suite, mean in V1.active.items():
        sizes = [
            len(active_specs(load_library(), load_registry().task_tags(suite, task.task_id)))
            for task in load_registry().list_entries(suite)
        ]
        assert format_fixed(Fraction(sum(sizes), len(sizes)), 1) == printed(mean)


def test_every_published_rate_of_a_known_n_has_exactly_one_count():
    for cell in [*LIBERO, *ROBOCASA, *PNP]:
        for value in (cell.sr, cell.safety, cell.sbu, *(cell.violations or {}).values()):
            assert unique_count(value, cell.n) is not None, (cell.policy, cell.benchmark, value)


def test_a_rate_of_2000_episodes_has_no_single_count():
    assert unique_count(97.7, 2000) is None
    assert episode_counts(next(cell for cell in V1.cells if cell.policy == "pi-RL-130")) is None


def test_published_specifications_exist_and_all_say_what_makes_them_incomparable():
    for name in (PAPER, LEADERBOARD):
        results = load_published(name)
        assert results.source.incomparable
        assert all(
            spec in AXES for cell in results.cells for spec in (cell.violations or {}) | (cell.composition or {})
        )
    assert all(cell.incomparable for cell in V1.cells if cell.benchmark == "libero-goal")


def test_published_numbers_do_not_contradict_each_other():
    for cell in [*V1.cells, *V1.means, *load_published(LEADERBOARD).means]:
        assert cell.sbu <= min(cell.sr, 100 - cell.safety) + 0.1
        assert cell.sr - cell.sbu <= cell.safety + 0.1
