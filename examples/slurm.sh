#!/usr/bin/env bash
# One plan as an array of jobs, then one job that joins the shards and judges them:
#
#   array=$(sbatch --parsable --array=1-8 --cpus-per-task=4 --time=4:00:00 --requeue examples/slurm.sh)
#   sbatch --dependency=afterok:"$array" examples/slurm.sh
#
# Any scheduler will do: set SLURM_ARRAY_TASK_ID to 1, 2, ... for the shards, leave it unset for the last step.
# A job that was preempted, killed or ran out of time is submitted again as it was, and goes on where it stopped.
set -euo pipefail

SHARDS=${SHARDS:-8}                     # as many as the array has jobs
CONFIG=${CONFIG:-examples/eval.toml}    # what to run: docs/running.md
OUT=${OUT:-runs/array}                  # where every job can write

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    # Exit code 4: done, with crashed episodes, which are counted and in no rate. The last step is to follow all the same.
    safevla eval --record-only --resume --config "$CONFIG" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" \
        --workers "${SLURM_CPUS_PER_TASK:-1}" --out "$OUT/shard-$SLURM_ARRAY_TASK_ID" || (($? == 4))
else
    safevla merge "$OUT"/shard-* --out "$OUT/merged"
    safevla score "$OUT/merged" --out "$OUT/merged"
fi
