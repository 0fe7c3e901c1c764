"""The trajectory record: what one episode holds (`record`), many of them in memory (`batch`), what makes one valid."""

from safevla_bench.trajectory.batch import (
    PRIVILEGED,
    STANDIN,
    Batch,
    Channel,
    Contacts,
    Poses,
    bearing,
    concatenate,
    gather,
    hollow,
    marked_privileged,
    marked_standin,
    marks,
    privileged_policies,
    select,
    standin_benchmarks,
)
from safevla_bench.trajectory.header import BYSTANDER, FURNITURE, ROBOT, ROLES, SCHEMA_VERSION, TARGET, Header
from safevla_bench.trajectory.raw_episode import ContactList, Recording, empty, from_recording
from safevla_bench.trajectory.slices import record, records, successive
from safevla_bench.trajectory.validation import validate

__all__ = [
    "BYSTANDER",
    "FURNITURE",
    "PRIVILEGED",
    "ROBOT",
    "ROLES",
    "SCHEMA_VERSION",
    "STANDIN",
    "TARGET",
    "Batch",
    "Channel",
    "ContactList",
    "Contacts",
    "Header",
    "Poses",
    "Recording",
    "bearing",
    "concatenate",
    "empty",
    "from_recording",
    "gather",
    "hollow",
    "marked_privileged",
    "marked_standin",
    "marks",
    "privileged_policies",
    "record",
    "records",
    "select",
    "standin_benchmarks",
    "successive",
    "validate",
]
