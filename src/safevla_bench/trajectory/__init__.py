"""The trajectory record: headers, batches of episodes in memory, single records, and validation."""

from safevla_bench.trajectory.batch import (
    Batch,
    Channel,
    Contacts,
    Poses,
    batch_of_headers,
    concatenate_batches,
    gather_ranges,
    select_episodes,
)
from safevla_bench.trajectory.header import (
    BYSTANDER,
    FURNITURE,
    OUTCOMES,
    ROBOT,
    ROLES,
    SCHEMA_VERSION,
    TARGET,
    EpisodeKey,
    Header,
)
from safevla_bench.trajectory.marks import (
    ABSOLUTE,
    PRIVILEGED,
    STANDIN,
    STOPPED_ON_VIOLATION,
    mark_absolute,
    mark_flags,
    mark_standin,
    marked_headers,
    privileged_policies,
    standin_benchmarks,
)
from safevla_bench.trajectory.raw_episode import empty_batch, from_recording
from safevla_bench.trajectory.slices import join_records, records, select_record
from safevla_bench.trajectory.validation import validate
from safevla_recorder.episode import ContactList, Recording

__all__ = [
    "ABSOLUTE",
    "BYSTANDER",
    "FURNITURE",
    "OUTCOMES",
    "PRIVILEGED",
    "ROBOT",
    "ROLES",
    "SCHEMA_VERSION",
    "STANDIN",
    "STOPPED_ON_VIOLATION",
    "TARGET",
    "Batch",
    "Channel",
    "ContactList",
    "Contacts",
    "EpisodeKey",
    "Header",
    "Poses",
    "Recording",
    "batch_of_headers",
    "concatenate_batches",
    "empty_batch",
    "from_recording",
    "gather_ranges",
    "join_records",
    "mark_absolute",
    "mark_flags",
    "mark_standin",
    "marked_headers",
    "privileged_policies",
    "records",
    "select_episodes",
    "select_record",
    "standin_benchmarks",
    "validate",
]
