"""`python -m learned.safer`: does training on safe successes, with weights or on preferences make a student safer?

Five variants of one student, each trained with several seeds, with and without a filter. The plan of every evaluation
is registered before anything is trained. What is there already stays, so that the same command goes on after a stop.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import safevla_bench as sb
from learned.plan import CAMERAS, IMAGE_SIZE, Plan, Student
from learned.record import plan_demo, record_demos
from learned.run import SAFEVLA, Job, record_job, run_jobs, train_job
from safevla_bench import hosts
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.rollout.found import FileStart, FoundSuite
from safevla_bench.rollout.plan import policy_seed
from safevla_bench.sources.runs.folder import dump_json

TEACHERS, TASK = "careful+hasty", 7
"""Every demonstration of the careful teacher is safe, and fewer than half of the hasty one's of task 7."""
ENV_SEED = 2000
"""Of the scenes for pairs. That of demonstrations is 1000, that of evaluations the protocol's."""
FILTERS = {"": (), "filtered": ("--filter", "speed-cap:share=0.5")}
FILTERED = ("plain", "preferred")
"""The variants that are evaluated behind the filter, too: a filter, retraining, and both."""
PLAIN = ("", "plain")
READINGS = ("default", "net-force")
"""The reading by which pairs are chosen, and one that they do not use."""
COLUMNS = ("success", "Safety", "clean success", "steps")


def list_students(seeds: Sequence[int]) -> list[Student]:
    """Return the variants of each seed: as it is, on safe successes only, with weights, with preferences in 200 steps
    and in 20.
    """
    return [
        student
        for seed in seeds
        for student in (
            Student(f"plain-{seed}", TEACHERS, seed=seed),
            Student(f"safe-{seed}", TEACHERS, "safe", seed),
            Student(f"weighted-{seed}", TEACHERS, seed=seed, is_weighted=True),
            Student(f"preferred-{seed}", TEACHERS, seed=seed, base=f"plain-{seed}"),
            Student(f"nudged-{seed}", TEACHERS, seed=seed, base=f"plain-{seed}", preference_steps=20),
        )
    ]


def plan_jobs(plan: Plan) -> list[Job]:
    """Return every job: registrations first, then demonstrations, trainings, rollouts, pairs and evaluations."""
    evaluations = [(student, label) for student in plan.students for label in FILTERS if is_evaluated(student, label)]
    registered = [register_job(plan, student, label) for student, label in evaluations]
    jobs = [*registered]
    for teacher in plan.students[0].teachers:
        command = run_self(plan, "--record", teacher)
        jobs += [replace(record_job(plan, teacher, task), command=command) for task in plan.tasks]
    jobs.append(Job("draw starts", run_self(plan, "--starts"), starts_file(plan)))
    for student in plan.students:
        needs = (plan.pair_folder(student.base) / "meta/pairs.jsonl",) if student.base else ()
        train = train_job(plan, student)
        command = run_self(plan, "--train", student.name)
        jobs.append(replace(train, command=command, needs=(*train.needs, *needs, *(job.done for job in registered))))
        if any(other.base == student.name for other in plan.students):
            jobs += [rollout_job(plan, student), pairs_job(plan, student)]
    return [*jobs, *(evaluate_job(plan, student, label) for student, label in evaluations)]


def run_self(plan: Plan, *words: str) -> tuple[str, ...]:
    """Return the command of one job of this module, with the plan's seeds."""
    seeds = ",".join(map(str, dict.fromkeys(student.seed for student in plan.students)))
    return (sys.executable, "-m", "learned.safer", "--out", str(plan.out), "--seeds", seeds, *words)


def starts_file(plan: Plan) -> Path:
    """Return the suite of found starts for pairs."""
    return plan.out / "starts.json"


def is_evaluated(student: Student, label: str) -> bool:
    """Return whether a student is evaluated behind one of `FILTERS`."""
    return not label or variant_of(student) in FILTERED


def variant_of(student: Student) -> str:
    """Return the variant of a student: `plain`, `safe`, `weighted`, `preferred` or `nudged`."""
    return student.name.partition("-")[0]


def name_evaluation(student: Student, label: str) -> str:
    """Return the name of the evaluation of a student behind one of `FILTERS`."""
    return "-".join(filter(None, (student.name, label)))


def policy_words(plan: Plan, student: Student, *arguments: str) -> list[str]:
    """Return the options of a student as a policy."""
    given = (f"weights={plan.weights(student.name)}", *arguments)
    options = [f"--policy-arg={student.name}:{argument}" for argument in given]
    return ["--policy", f"{student.name}=python:learned.policy:Policy", *options]


def register_job(plan: Plan, student: Student, label: str) -> Job:
    """Return the job that registers an evaluation from LIBERO's own initial states, before any training."""
    name = name_evaluation(student, label)
    file = plan.out / "registered" / f"{name}.json"
    tasks = ("--task", ",".join(map(str, plan.tasks)), "--episodes", str(plan.states))
    words = ("eval", "--host", "libero", "--suite", plan.suite, *tasks, *policy_words(plan, student), *FILTERS[label])
    return Job(f"register {name}", (*SAFEVLA, *words, "--dry-run", "--freeze", str(file)), file)


def evaluate_job(plan: Plan, student: Student, label: str) -> Job:
    """Return the job that runs what was registered."""
    name = name_evaluation(student, label)
    file, folder = plan.out / "registered" / f"{name}.json", plan.evaluation(name)
    words = ("eval", "--registered", str(file), "--trust", str(file), "--out", str(folder), "--resume")
    return Job(f"evaluate {name}", (*SAFEVLA, *words), folder / "report.html", (file, plan.weights(student.name)))


def rollout_job(plan: Plan, student: Student) -> Job:
    """Return the job that rolls out a sampling student from the scenes for pairs."""
    from learned.preference import NOISE

    folder = plan.out / "rollouts" / student.name
    policy = policy_words(plan, student, f"noise={NOISE}")
    words = ("eval", "--suite", f"found:{starts_file(plan)}", *policy, "--out", str(folder), "--resume")
    needs = (starts_file(plan), plan.weights(student.name))
    return Job(f"roll out {student.name}", (*SAFEVLA, *words), folder / "report.html", needs)


def pairs_job(plan: Plan, student: Student) -> Job:
    """Return the job that pairs a student's rollouts and renders what it saw."""
    source, folder = plan.out / "rollouts" / student.name, plan.pair_folder(student.name)
    pictures = ("--cameras", ",".join(CAMERAS), "--image-size", str(IMAGE_SIZE))
    words = ("export", str(source), "--format", "pairs:failures=yes", *pictures, "--out", str(folder))
    return Job(f"pair {student.name}", (*SAFEVLA, *words), folder / "meta/pairs.jsonl", (source / "report.html",))


def draw_starts(plan: Plan) -> FoundSuite:
    """Return the scenes for pairs, drawn by LIBERO's resets, with several seeds of the policy each."""
    starts = []
    tasks = [task for task in hosts.make_host("libero").tasks(plan.suite) if task.index in plan.tasks]
    for task in tasks:
        for number in range(plan.pair_states):
            start = replace(plan_demo(task, TEACHERS, number).start, env_seed=ENV_SEED)
            for trial in range(1, plan.pair_seeds + 1):
                seed = policy_seed(ENV_SEED, task, number * plan.pair_seeds + trial)
                starts.append(
                    FileStart(task_id=task.task_id, start=start, policy_seed=seed, trial=trial, value=None, violated=(),
                              distance_m=None, merged=0)
                )  # fmt: skip
    return FoundSuite(name="pairs", host="libero", host_arguments={}, suite=plan.suite, protocol=load_protocol().name,
                      policy=TEACHERS, objective="pairs", method="drawn", seed=ENV_SEED, tasks=(),
                      starts=tuple(starts))  # fmt: skip


def measure_evaluation(folder: Path, reading: str) -> list[float]:
    """Return an evaluation's numbers by a reading, in the order of `COLUMNS`, the first three in %: over the episodes
    that have them.
    """
    judged = judge([folder], sb.load_ruleset(reading))
    scores = judged.scores
    clean = (scores.success & scores.safe)[scores.is_judged & scores.is_counted]
    shares = [scores.success[scores.is_counted], scores.safe[scores.is_judged], clean]
    return [*(100 * float(share.mean()) for share in shares), float((judged.records.lengths - 1).mean())]


def summarize(plan: Plan) -> list[dict[str, object]]:
    """Return a row for each reading, filter and variant: the mean over its trainings, and the mean difference from the
    unfiltered plain student of the same seed, each with its standard deviation (None of a single training).
    """
    rows: list[dict[str, object]] = []
    for reading in READINGS:
        values = {
            (label, student): measure_evaluation(plan.evaluation(name_evaluation(student, label)), reading)
            for student in plan.students
            for label in FILTERS
            if is_evaluated(student, label)
        }
        plain = {student.seed: own for (label, student), own in values.items() if (label, variant_of(student)) == PLAIN}
        for label, variant in dict.fromkeys((label, variant_of(student)) for label, student in values):
            own = {s.seed: value for (at, s), value in values.items() if (at, variant_of(s)) == (label, variant)}
            numbers = np.array(list(own.values()))
            gains = numbers - np.array([plain[seed] for seed in own])
            row = {name: describe_spread(numbers[:, k]) for k, name in enumerate(COLUMNS)}
            row |= {f"{name} - plain": describe_spread(gains[:, k]) for k, name in enumerate(COLUMNS)}
            rows.append({"reading": reading, "filter": label, "variant": variant, "trainings": len(own), **row})
    return rows


def describe_spread(values: NDArray[np.float64]) -> tuple[float, float | None]:
    """Return mean and standard deviation of values over trainings."""
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, or one job."""
    parser = argparse.ArgumentParser(prog="python -m learned.safer", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/safer"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", default="0,1,2", help="of the trainings; at least three for a comparison")
    parser.add_argument("--record", metavar="TEACHER")
    parser.add_argument("--train", metavar="STUDENT")
    parser.add_argument("--starts", action="store_true")
    chosen = parser.parse_args(arguments)
    students = list_students([int(seed) for seed in chosen.seeds.split(",")])
    plan = Plan(
        chosen.out, tasks=(TASK,), steps=1500, states=20, pair_states=10, checkpoints=(), students=tuple(students)
    )
    if chosen.starts:
        starts_file(plan).write_bytes(dump_json(draw_starts(plan)))
    elif chosen.record:
        record_demos(plan, chosen.record, TASK)
    elif chosen.train:
        from learned.train import train_student

        train_student(plan, plan.find_student(chosen.train))
    else:
        (plan.out / "registered").mkdir(parents=True, exist_ok=True)
        run_jobs(plan_jobs(plan), chosen.workers)
        table = summarize(plan)
        (plan.out / "table.json").write_text(json.dumps(table, indent=2))
        for row in table:
            print(json.dumps(row))


if __name__ == "__main__":
    main()
