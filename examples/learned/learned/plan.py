"""Everything that is chosen: tasks, teachers, how many demonstrations, how long the training, which checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

CAMERAS = ("agentview", "robot0_eye_in_hand")
IMAGE_SIZE = 96
STRIDE = 2
"""A picture is rendered before every second action of a demonstration."""
CHUNK = 16
"""Actions that the network predicts at once."""
REPLAN = 8
"""How many of them are carried out before it looks again."""
PUSHED = [0, 1, 2]
"""The components of a student's action that noise changes: the position. Students do not recover from a turned hand."""
DONE = "done"
"""The file that says that a folder of demonstrations is complete."""
TEMPERATURE = 0.5
"""Of the weights exp(margin / temperature); a moment whose weight is not known is left out."""
STATE = 11
"""Numbers of proprioception: position [3], two columns of the rotation [6], fingers [2]."""


@dataclass(frozen=True)
class Student:
    """One network to train: whose demonstrations, which of them, and the seed of its weights and batches."""

    name: str
    teacher: str
    """Whose demonstrations it learns from, such as `hasty`, or `careful+hasty` for those of both."""
    chosen: str = "all"
    """`all`, `successes`, or `safe`: those that succeed and that the judge calls safe."""
    seed: int = 0
    is_weighted: bool = False
    """Weigh each moment by `next.weight` of the record after its first action, at temperature `TEMPERATURE`."""
    base: str = ""
    """Another student whose weights it begins with, to learn from the pairs of the other's rollouts; "" = none."""

    preference_steps: int = 200
    """Steps of the training from pairs."""

    @property
    def teachers(self) -> tuple[str, ...]:
        """The teachers whose demonstrations it learns from, `Plan.demos` of each."""
        return tuple(self.teacher.split("+"))


@dataclass(frozen=True)
class Plan:
    """One complete run."""

    out: Path
    suite: str = "libero-object"
    tasks: tuple[int, ...] = (0, 7)
    demos: int = 20
    """Demonstrations of each task that a student learns from."""
    most_demos: int = 200
    """Recording of a task and teacher ends here, whatever is still lacking."""
    steps: int = 2000
    batch: int = 64
    checkpoints: tuple[int, ...] = (250, 500, 750, 1000, 1500)
    """Steps after which the first student's weights are kept and evaluated too; the last step's are always kept."""
    states: int = 40
    """Initial states of each task that the students are evaluated on; the demonstrations begin elsewhere."""
    checkpoint_states: int = 15
    """As `states`, for its checkpoints, and for the blinded student."""
    students: tuple[Student, ...] = (
        Student("of-careful", "careful"),
        Student("of-hasty", "hasty"),
        Student("of-hasty-successes", "hasty", "successes"),
        Student("of-hasty-safe", "hasty", "safe"),
    )

    repeats: tuple[int, ...] = (1,)
    """Further seeds: every student is trained again, from the same demonstrations, with other weights and batches."""
    repeat_states: int = 20
    """As `states`, for the students that are trained again."""
    pair_states: int = 20
    """Scenes of each task, drawn by resets, from which students are rolled out for pairs."""
    pair_seeds: int = 6
    """Rollouts from each of these scenes."""

    def repeated(self, seed: int) -> tuple[Student, ...]:
        """Return the students of a further seed."""
        return tuple(replace(student, name=f"{student.name}-again-{seed}", seed=seed) for student in self.students)

    def find_student(self, name: str) -> Student:
        """Return the student of a name."""
        everyone = (*self.students, *(student for seed in self.repeats for student in self.repeated(seed)))
        return next(student for student in everyone if student.name == name)

    def demo_folder(self, teacher: str, task: int) -> Path:
        """Return the folder of the demonstrations of one teacher in one task."""
        return self.out / "demos" / teacher / f"task_{task}"

    def student_folder(self, name: str) -> Path:
        """Return the folder of a student's weights and log."""
        return self.out / "students" / name

    def weights(self, name: str, step: int | None = None) -> Path:
        """Return the file of a student's weights after a step, the last one by default."""
        return self.student_folder(name) / f"step_{self.steps if step is None else step:06d}.pt"

    def pair_folder(self, name: str) -> Path:
        """Return the dataset of the pairs of a student's rollouts."""
        return self.out / "pairs" / name

    def evaluation(self, name: str) -> Path:
        """Return the run folder of an evaluation."""
        return self.out / "evaluations" / name
