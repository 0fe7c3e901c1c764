"""Known forces on MuJoCo come out of the recorder; docs/evidence/forces.md has them on other engines too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")


@pytest.fixture(scope="module")
def forces():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import forces

        yield forces
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize("name", ["at rest", "on nine feet", "squeezed"])
@pytest.mark.parametrize("step_s", [0.004, 0.001])
def test_the_net_force_of_what_does_not_move_is_the_known_one_however_many_points_share_it(forces, name, step_s):
    case = next(case for case in forces.CASES if case.name == name)
    measured = forces.measure(case, "mujoco", step_s, {})
    assert measured.net_n == pytest.approx(case.known_n, rel=1e-3)
    assert measured.impulse_ns == pytest.approx(measured.known_ns, rel=1e-3)
    assert measured.single_n <= 0.26 * case.known_n


@pytest.mark.parametrize("name", ["pushed: hand", "pushed: floor"])
def test_the_impulse_of_a_pushed_box_is_the_known_one_though_it_hops(forces, name):
    case = next(case for case in forces.CASES if case.name == name)
    measured = forces.measure(case, "mujoco", 0.002, {})
    assert measured.impulse_ns == pytest.approx(measured.known_ns, rel=0.02)


@pytest.mark.parametrize("solref", ["0.02 1", "0.001 1"])
@pytest.mark.parametrize("step_s", [0.004, 0.001])
def test_the_impulse_of_an_impact_is_the_gain_of_momentum_whatever_its_peak(forces, solref, step_s):
    measured = forces.measure(forces.DROPS[0], "mujoco", step_s, {"solref": solref})
    assert measured.impulse_ns == pytest.approx(measured.known_ns, rel=1e-6)
    assert measured.known_ns == pytest.approx(0.5 * 9.81 * 0.25, rel=0.02)  # at rest again: the weight over the time


def test_a_cell_is_one_number_where_all_steps_agree_and_a_dash_where_nothing_touches(forces):
    cells = [forces.format_cell(ratios) for ratios in ([1.0, 1.001], [0.5, 0.0], [12.34, 2.0, 1.0])]
    assert cells == ["1.00", "0.50 –", "1.00–12.3"]


def test_the_page_names_every_row(forces):
    page = (Path(__file__).parents[2] / "docs" / "evidence" / "forces.md").read_text(encoding="utf-8")
    assert all(page.count(f"| {forces.row_name(row)} |") == 3 for row in forces.ROWS)
