"""`python -m learned.run`: records, trains, evaluates and compares; what is there already is left alone.

Jobs run side by side, each in a process of its own, as soon as what they need is there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from learned.plan import DONE, Plan, Student

Check = Callable[[], bool]
POLL_S = 1.0
SAFEVLA = (sys.executable, "-m", "safevla_bench")


@dataclass(frozen=True)
class Job:
    """A command, the file that exists once it is done, and the files that it needs."""

    name: str
    command: tuple[str, ...]
    done: Path
    needs: tuple[Path, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.done.exists()

    @property
    def is_ready(self) -> bool:
        return all(path.exists() for path in self.needs)


def plan_jobs(plan: Plan) -> list[Job]:
    """Return every job in the order in which they are begun."""
    first = plan.weights(plan.students[0].name)
    teachers = list(dict.fromkeys(teacher for student in plan.students for teacher in student.teachers))
    return [
        *(record_job(plan, teacher, task) for teacher in teachers for task in plan.tasks),
        *student_jobs(plan, plan.students, plan.states),
        *checkpoint_jobs(plan, plan.students[0]),
        evaluate_job(plan, "blind", first, plan.checkpoint_states, ("blind=yes",)),
        *(job for seed in plan.repeats for job in student_jobs(plan, plan.repeated(seed), plan.repeat_states)),
    ]


def student_jobs(plan: Plan, students: Sequence[Student], states: int) -> list[Job]:
    """Return the jobs that train some students, and then those that evaluate them."""
    training = [train_job(plan, student) for student in students]
    return training + [evaluate_job(plan, each.name, plan.weights(each.name), states) for each in students]


def checkpoint_jobs(plan: Plan, student: Student) -> list[Job]:
    """Return the jobs that evaluate one student as it was during its training, and at its end."""
    steps = (*plan.checkpoints, plan.steps)
    return [
        evaluate_job(plan, f"step-{step}", plan.weights(student.name, step), plan.checkpoint_states) for step in steps
    ]


def record_job(plan: Plan, teacher: str, task: int) -> Job:
    """Return the job that records a teacher in a task."""
    return Job(
        f"record {teacher} task {task}",
        (sys.executable, "-m", "learned.run", "--out", str(plan.out), "--record", teacher, str(task)),
        plan.demo_folder(teacher, task) / DONE,
    )


def train_job(plan: Plan, student: Student) -> Job:
    """Return the job that trains a student, once its teacher is recorded."""
    return Job(
        f"train {student.name}",
        (sys.executable, "-m", "learned.run", "--out", str(plan.out), "--train", student.name),
        plan.weights(student.name),
        tuple(plan.demo_folder(teacher, task) / DONE for teacher in student.teachers for task in plan.tasks),
    )


def evaluate_job(plan: Plan, name: str, weights: Path, states: int, arguments: Sequence[str] = ()) -> Job:
    """Return the job that rolls out some weights from LIBERO's own initial states, and judges every episode."""
    folder = plan.evaluation(name)
    options = [f"--policy-arg={name}:{argument}" for argument in (f"weights={weights}", *arguments)]
    command = (
        *SAFEVLA, "eval", "--host", "libero", "--suite", plan.suite, "--task", ",".join(map(str, plan.tasks)),
        "--episodes", str(states), "--policy", f"{name}=python:learned.policy:Policy", *options,
        "--out", str(folder), "--resume",
    )  # fmt: skip
    return Job(f"evaluate {name}", command, folder / "report.html", (weights,))


def run_jobs(jobs: Sequence[Job], workers: int) -> None:
    """Run the jobs that are not done, some at a time; stop at the first that fails.

    Raises:
        SystemExit: a job failed.
    """
    left = [job for job in jobs if not job.is_done]
    running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
    total, begun = len(jobs), time.monotonic()
    while left or running:
        for job in [job for job in left if job.is_ready][: workers - len(running)]:
            left.remove(job)
            running[job.name] = job, subprocess.Popen(job.command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        time.sleep(POLL_S)
        for name, (job, process) in list(running.items()):
            if process.poll() is None:
                continue
            del running[name]
            if process.returncode or not job.is_done:
                for _, other in running.values():
                    other.terminate()
                raise SystemExit(f"{name} failed; run the same again to go on from here")
            minutes, done = (time.monotonic() - begun) / 60, total - len(left) - len(running)
            print(f"[{done} of {total} jobs] {name} done after {minutes:.0f} minutes", flush=True)
        if left and not running and not any(job.is_ready for job in left):
            raise SystemExit(f"{left[0].name} needs {', '.join(map(str, left[0].needs))}")


def show_results(plan: Plan) -> None:
    """Print the students' rates, by task too, each two of them on the same states, and the checkpoints; draw these."""
    students = [str(plan.evaluation(student.name)) for student in plan.students]
    steps = [str(plan.evaluation(f"step-{step}")) for step in (*plan.checkpoints, plan.steps)]
    again = [[str(plan.evaluation(each.name)) for each in plan.repeated(seed)] for seed in plan.repeats]
    show("tables", "--which", "main,tasks", *students)
    show("compare", *students)
    for repeated in again:
        show("compare", *repeated)
    show("score", str(plan.evaluation("blind")))
    show("figures", "--which", "series", "--style", "layout=pooled", "--style", "across=Training steps", *steps,
         "--out", str(plan.out / "figures"))  # fmt: skip


def show(*words: str) -> None:
    """Run a command of safevla, which is printed before what it says."""
    print(f"\n$ safevla {' '.join(words)}", flush=True)
    subprocess.run([*SAFEVLA, *words], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, or one job."""
    parser = argparse.ArgumentParser(prog="python -m learned.run", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/learned"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", nargs=2, metavar=("TEACHER", "TASK"))
    parser.add_argument("--train", metavar="STUDENT")
    chosen = parser.parse_args(arguments)
    plan = Plan(chosen.out)
    if chosen.record:
        from learned.record import record_demos

        record_demos(plan, chosen.record[0], int(chosen.record[1]))
    elif chosen.train:
        from learned.train import train_student

        train_student(plan, plan.find_student(chosen.train))
    else:
        run_jobs(plan_jobs(plan), chosen.workers)
        show_results(plan)


if __name__ == "__main__":
    main()
