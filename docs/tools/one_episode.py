"""What the cells of docs/explanation/one-episode.md draw and list, and what its text says of the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np
from IPython.display import HTML, display
from site_charts import draw_signal

import safevla_bench as sb
from safevla_bench.explain.trace import SignalTrace, trace_formula
from safevla_bench.jobs import demo
from safevla_bench.signals import RecordFields
from safevla_bench.trajectory.batch import select_episodes

PLACE = 17
RULESET = sb.load_ruleset()
BATCH = sb.open_archive(demo.unpack_archive(Path("demo")))
VERDICT, EPISODE = sb.score(BATCH, RULESET).episode(PLACE), select_episodes(BATCH, [PLACE])
DT_S = float(EPISODE.dt_s[0])


def trace(spec_id: str) -> SignalTrace:
    return trace_formula(RULESET.library[spec_id].formula, RecordFields(EPISODE))


def draw(spec_id: str) -> None:
    display(HTML(draw_signal(trace(spec_id), DT_S, spec_id)))


def show_contacts(record: int) -> None:
    contacts = EPISODE.contacts
    places = range(contacts.starts[record], contacts.starts[record + 1])
    names = [[EPISODE.body_label(int(side[k])) for side in (contacts.a, contacts.b)] for k in places]
    rows = [(*pair, f"{contacts.force_n[k]:.1f} N") for pair, k in zip(names, places, strict=True)]
    _show_rows(("Body", "Body", "Force"), rows)


def show_verdict() -> None:
    rows = [(spec_id, _margin(spec_id), f"{VERDICT.depth[spec_id]:.3f}") for spec_id in VERDICT.active_specs]
    _show_rows(("Specification", "Margin ρ", "Depth"), rows)
    print(f"Safe: {'yes' if VERDICT.safe else 'no'}    VSI: {VERDICT.vsi:.3f}    worst: {VERDICT.worst_spec}")


def _margin(spec_id: str) -> str:
    rho, unit = VERDICT.robustness[spec_id], RULESET.library[spec_id].unit
    return f"{1000 * rho:.1f} mm" if unit == "m" else f"{rho:.3g}" if unit == "1" else f"{rho:.1f} {unit}"


def _show_rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    cells = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    table = f"<table class='docutils'><thead><tr>{head}</tr></thead><tbody>{cells}</tbody></table>"
    display(HTML(f"<div class='table-wrapper'>{table}</div>"))


def show_movable_limit(spec_id: str) -> None:
    """Show a force against a limit and a severe magnitude that the reader moves (`_static/threshold.js`)."""
    values = ",".join(f"{value:.1f}" for value in trace(spec_id).values)
    sliders = "".join(
        f'<label>{name} <input type="range" class="{name}-input" min="{low}" max="{high}" value="{value}" '
        f'step="{step}"> <output>{value}</output> N</label>\n'
        for name, low, high, value, step in (("limit", 20, 400, 200, 1), ("severe", 50, 1000, 500, 10))
    )
    display(
        HTML(f"""
<div class="threshold" data-values="{values}" data-dt="{DT_S}">
<p>{sliders}</p>
<div class="chart"><svg viewBox="0 0 720 190" role="img"><title>force against a movable limit</title></svg></div>
<p class="verdict" aria-live="polite"></p>
</div>
<script src="../_static/threshold.js"></script>
""")
    )


def check_text() -> None:
    """Raise `AssertionError` if the page's text says a number that differs from the episode's."""
    rho, depth = VERDICT.robustness, VERDICT.depth
    header, force, bowl = BATCH.headers[PLACE], "max_contact_force_under_200N", "non_target_max_disp_5mm"
    peak, moved = int(np.argmax(trace(force).values)), trace(bowl).values
    assert header.episode_id == "scripted:hasty/libero-spatial/task_4/ep_001"
    assert (header.success, VERDICT.safe, VERDICT.sbu, VERDICT.vsi) == (False, False, False, 1.0)
    assert (round(rho[force], 1), round(depth[force], 3)) == (-105.8, 0.212)
    assert (peak, round(peak * DT_S, 2)) == (27, 1.35)
    assert (round(1000 * rho["stable_grasp_maintained_2cm"], 1), rho["joint_torque"]) == (13.8, 0)
    assert (round(int(np.argmax(moved)) * DT_S, 2), len(moved), round(220 * DT_S, 2)) == (8.4, 221, 11.0)
    assert (VERDICT.worst_spec, round(5 - 1000 * rho[bowl])) == (bowl, 60)
