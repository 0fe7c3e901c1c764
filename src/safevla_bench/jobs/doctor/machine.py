"""The class `Diagnosis`, and checks of the machine: folders, disk, graphics, and an episode in a simulator.

As a program, this module records and judges one short episode and prints the result as JSON:

    python -m safevla_bench.jobs.doctor.machine HOST
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from safevla_bench import hosts, version
from safevla_bench.errors import HostError, RegistryError, SafevlaError, find_exception
from safevla_bench.hosts.libero import plus
from safevla_bench.hosts.maniskill.graphics import REMEDY as VULKAN_REMEDY
from safevla_bench.hosts.maniskill.host import DOWNLOAD, SIMPLER, missing_downloads
from safevla_bench.hosts.mujoco.environment import FAST
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.verify.replays import compare_records
from safevla_bench.judging.provenance_marks import STANDIN
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.memory import SETTING, is_enforced, read_budget
from safevla_bench.plugins import NO_ARGUMENTS, OWN_DISTRIBUTION
from safevla_bench.policies.builtin import Noop, Random
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes
from safevla_bench.trajectory.batch import Batch

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check: its level, what the check found, and a remedy (None if none is needed)."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def passed_check(check: str, detail: str) -> Diagnosis:
    """Return the diagnosis of a check that passed."""
    return Diagnosis(check, "ok", detail)


def warned_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that works only partly, or may fail."""
    return Diagnosis(check, "warning", detail, remedy)


def failed_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that does not work."""
    return Diagnosis(check, "error", detail, remedy)


# Graphics


_BACKENDS = ("", "egl", "osmesa", "glfw")
_OFF_WORDS = ("disable", "disabled", "off", "false", "0")


def check_graphics(*, quick: bool) -> Iterator[Diagnosis]:
    """Check the variable MUJOCO_GL. Also render a frame, unless `quick` is true or the value is not a backend."""
    backend = os.environ.get("MUJOCO_GL", "").lower()
    # "" means that MUJOCO_GL is not set; MuJoCo then renders by EGL.
    if backend in _OFF_WORDS:
        remedy = "For policies that want images: unset MUJOCO_GL"
        yield warned_check("MUJOCO_GL", f"{backend}: nothing is rendered", remedy)
    elif backend not in _BACKENDS:
        found = f"{backend!r} is not a rendering backend: importing a simulator fails"
        yield failed_check("MUJOCO_GL", found, "unset MUJOCO_GL, or set it to `egl`, `osmesa` or `glfw`")
    elif quick:
        yield passed_check("MUJOCO_GL", backend or "not set: EGL is used")
    else:
        yield _check_rendering(backend or "egl")


def check_vulkan() -> Diagnosis:
    """Check that SAPIEN renders a frame. A failure is only a warning, because only policies with images need frames."""
    diagnosis = _check_frame("rendering by SAPIEN", "safevla_bench.hosts.maniskill.graphics", VULKAN_REMEDY)
    return replace(diagnosis, level="warning") if diagnosis.level == "error" else diagnosis


def check_downloads() -> Diagnosis:
    """Check the files of SimplerEnv's tasks. A missing file is only a warning, because other tasks need no files."""
    if missing := missing_downloads():
        remedy = f"For the suite {SIMPLER}: {DOWNLOAD}"
        return warned_check("SimplerEnv's files", f"missing: {', '.join(missing)}", remedy)
    return passed_check("SimplerEnv's files", "present")


def check_plus() -> Diagnosis:
    """Check LIBERO-plus's files, which only one suite needs. Warn about missing files if the user set the folder."""
    check = "LIBERO-plus's files"
    try:
        # LIBERO-plus perturbs LIBERO's tasks; not every perturbed task can run.
        folder, runnable_n, task_n = plus.data_folder(), len(plus.select_variants(None)), len(plus.list_variants())
    except HostError as error:
        remedy = f"For the suite {plus.SUITE}: {error.remedy}"
        # A user who set the folder's variable expects the files. All other users do not need the files.
        if plus.FOLDER in os.environ:
            return warned_check(check, error.problem, remedy)
        return passed_check(check, f"none. {remedy}")
    gaps = f"LIBERO lacks the scenes, textures and objects of {', '.join(plus.REFUSED)}"
    return passed_check(check, f"in {folder}: {runnable_n:,} of {task_n:,} tasks can run; {gaps}")


def _check_rendering(backend: str) -> Diagnosis:
    # Render a frame by MuJoCo with this backend. A passed check also names the backend.
    module = "safevla_bench.hosts.mujoco.renderer"
    diagnosis = _check_frame("rendering", module, _RENDERING_REMEDY, environment={"MUJOCO_GL": backend})
    return replace(diagnosis, found=f"{diagnosis.found}, backend {backend}") if diagnosis.level == "ok" else diagnosis


def _check_frame(check: str, module: str, remedy: str, *, environment: Mapping[str, str] = NO_ARGUMENTS) -> Diagnosis:
    # Run a module that renders a frame and prints JSON: darkest and brightest pixel value, and the renderer's name.
    # A crash, a timeout or a blank frame is a failed check. `environment` adds environment variables.
    rendered = _run_probe(check, remedy, module, environment=environment)
    if isinstance(rendered, Diagnosis):
        return rendered
    # A frame in which all pixels are equal is blank.
    if rendered["darkest"] == rendered["brightest"]:
        return failed_check(check, f"the frame rendered by {rendered['renderer']} is blank", remedy)
    return passed_check(check, f"a frame was rendered by {rendered['renderer']}")


_RENDERING_REMEDY = (
    "unset MUJOCO_GL and MUJOCO_EGL_DEVICE_ID; without a GPU: apt-get install libgl1 libegl1 libegl-mesa0; "
    "policies without images need no rendering"
)
TIMEOUT_S = 300  # time limit for a separate process, which renders a frame or runs an episode


def _run_probe(
    check: str, remedy: str, *arguments: str, environment: Mapping[str, str] = NO_ARGUMENTS
) -> dict[str, str] | Diagnosis:
    # Run `python -m ARGUMENTS` in a separate process.
    # Return the JSON object in the output's last line. If the process fails or hangs, return a failed check.
    command = [sys.executable, "-m", *arguments]
    try:
        env = {**os.environ, **environment}
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return failed_check(check, f"did not end within {TIMEOUT_S} s", remedy)
    if process.returncode < 0:  # a negative return code is the negated number of a signal
        return failed_check(check, f"crashed with signal {-process.returncode}", remedy)
    if process.returncode:
        # The first result of `find_exception` is the traceback's line that names the exception; "" without a traceback.
        return failed_check(check, find_exception(process.stderr)[0] or "the process printed nothing", remedy)
    output: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
    return output


# The package, the current folder, and the folder of a future run


_GIB = 2**30
_DISK_GIB = 2.0  # with less free disk space, the check gives a warning


def check_machine(out: Path | None) -> Iterator[Diagnosis]:
    """Report the package's version; check the current folder, `out` (the folder of a future run) and memory limit."""
    yield passed_check(OWN_DISTRIBUTION, version.__version__)
    yield _check_folder("current folder", Path.cwd())
    if out is not None:
        is_empty_folder = out.is_dir() and not any(out.iterdir())
        if out.exists() and not is_empty_folder:
            remedy = "Choose an --out that does not exist: a run is written to a new folder."
            yield warned_check("--out", f"{out} exists and is not an empty folder", remedy)
        # Check the existing folder in which the run would make new folders. The root folder always exists.
        existing_folder = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
        yield _check_folder("--out", existing_folder)
    yield from _check_memory_limit()


def _check_memory_limit() -> Iterator[Diagnosis]:
    # Yield a diagnosis of the memory limit for reading untrusted files; nothing if the default limit works.
    check = "memory limit"
    try:
        limit = f"{read_budget() / _GIB:g} GiB of memory for reading untrusted files (variable {SETTING})"
    except SafevlaError as error:
        yield failed_check(check, error.problem, str(error.remedy))
        return
    if not is_enforced():
        remedy = "Read untrusted files on Linux, or in a container or virtual machine with limited memory."
        yield warned_check(check, f"this system does not enforce the memory limit; on Linux it is {limit}", remedy)
    elif SETTING in os.environ:  # do not report the default limit
        yield passed_check(check, limit)


def _check_folder(check: str, folder: Path) -> Diagnosis:
    # Check that files can be written into an existing folder, and that its disk has enough free space.
    try:
        with tempfile.TemporaryFile(dir=folder):  # deleted at once
            pass
    except OSError as error:
        detail = f"{folder} cannot be written to: {error.strerror}"
        return failed_check(check, detail, "Use a folder that can be written to.")
    free_gib = shutil.disk_usage(folder).free / _GIB
    state = f"{folder} can be written to, {free_gib:.1f} GiB free"
    if free_gib < _DISK_GIB:
        return warned_check(check, state, "Free some space: a long run with frames takes gigabytes.")
    return passed_check(check, state)


# An episode


STEPS = 30  # horizon of the test episode


def check_judging(host: str) -> Diagnosis:
    """Check that judging works: roll out, record and judge an episode of the host in this process."""
    try:
        summary = run_test_episode(host)
    except SafevlaError as error:
        return failed_check("judging", error.problem, error.remedy or "Install the package again.")
    return passed_check("judging", f"works: {summary}")


def check_episode(host: str) -> Diagnosis:
    """Check that the host works: in a separate process, roll out and judge an episode of the host's first task."""
    check, module = f"{host} episode", "safevla_bench.jobs.doctor.machine"
    output = _run_probe(check, f"For the full output: python -m {module} {host}", module, host)
    if isinstance(output, Diagnosis):
        return output
    # The module prints either a problem and its remedy, or a summary of the episode.
    if problem := output.get("problem"):
        return failed_check(check, problem, output["remedy"])
    return passed_check(check, output["summary"])


def run_test_episode(host: str) -> str:
    """Roll out and judge an episode of the host's first task; return a summary. Raises a `SafevlaError` on failure."""
    built_host = hosts.make_host(host)
    task = built_host.tasks(built_host.suites()[0])[0]
    env = built_host.make(task, Wants())  # `Wants()`: without camera pictures
    try:
        # One episode of the policy named "doctor", with at most `STEPS` steps:
        (planned,) = plan_episodes([task], 1, ["doctor"], load_protocol(), max_steps=STEPS)
        result = run_episode(env, Noop(), planned)
        # A crashed episode has no record. If the host refuses the action, the outcome is `invalid_action`.
        if result.batch is None or result.outcome == "invalid_action":
            problem, remedy = find_exception(result.reason or "")
            raise HostError(problem, remedy=remedy or f"The full error:\n{result.reason}")
        speed_note = _check_fast_mode(env, planned)
    finally:
        env.close()
    judgement = _describe_scores(result.batch, host)
    return f"{task.benchmark} {task.task_id}: {int(result.batch.lengths[0])} records, {judgement}{speed_note}"


def _check_fast_mode(env: HostEnv, planned: PlannedEpisode) -> str:
    # Return a remark that the host's fast mode does not change an episode, or "" if the host has no fast mode.
    # Raise `HostError` if the mode changes an episode.
    if type(env).run_fast is HostEnv.run_fast:  # the host does not override the method, so it has no fast mode
        return ""
    env.run_fast(False)
    # Random actions, with the same seed in both episodes, move the simulation more than `Noop` does.
    full_record = run_episode(env, Random(), planned).batch
    env.run_fast(True)
    fast_record = run_episode(env, Random(), planned).batch
    # The first result of `compare_records` is the list of differences.
    if full_record is None or fast_record is None or compare_records(full_record, fast_record)[0]:
        problem = "fast mode, which skips the simulator's repeated computations, changes an episode"
        raise HostError(problem, remedy=f"Report the versions above to us, and set {FAST}=no.")
    return ", and fast mode records the same bits"


def _describe_scores(batch: Batch, host: str) -> str:
    # Judge the test episode, and return a phrase with the number of specifications that judged it.
    try:
        scores = score(batch, load_ruleset(registry_files=hosts.registry_files(host)))
    except RegistryError:  # if a plug-in has no task tags, the user can supply them with --rules
        return "not judged: no registry has the task's tags"
    # If the simulator used stand-ins for the real assets, the phrase mentions them.
    standin_note = f", with {STANDIN}" if scores.standin_suites else ""
    return f"judged by {len(scores.episode(0).active_specs)} specifications{standin_note}"


def _print_test_result(host: str) -> None:
    # Run the test episode, and print its result as a JSON object that `check_episode` reads.
    try:
        print(json.dumps({"summary": run_test_episode(host)}))
    except SafevlaError as error:
        print(json.dumps({"problem": error.problem, "remedy": error.remedy or "See above."}))


if __name__ == "__main__":
    _print_test_result(sys.argv[1])
