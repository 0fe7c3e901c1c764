#!/usr/bin/env bash
# One plan as an array of jobs, then one job that joins the shards and judges them (docs/howto/clusters.md):
#
#   array=$(sbatch --parsable --array=1-8 --cpus-per-task=4 --time=4:00:00 --requeue examples/slurm.sh)
#   sbatch --dependency=afterok:"$array" examples/slurm.sh
#
# Words after the script are options of `safevla eval`, such as --trust asked.toml; in the last step, of `safevla score`.
# Any scheduler will do: set SLURM_ARRAY_TASK_ID to 1, 2, ... for the shards, leave it unset for the last step.
# Two minutes before its time is up a job stops and queues itself again; one that was preempted or killed is submitted again
# as it was. Either goes on where it stopped.
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
set -euo pipefail

SHARDS=${SHARDS:-8}                     # as many as the array has jobs
CONFIG=${CONFIG:-examples/eval.toml}    # what to run: docs/howto/running.md
OUT=${OUT:-runs/array}                  # where every job can write
SAFEVLA=${SAFEVLA:-safevla}             # or: apptainer run --nv safevla.sif

requeue() {
    trap '' USR1
    kill "$!"
    wait "$!" || true
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    exit
}

if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    trap requeue USR1 # before the run begins: without it, the signal would end this script
    # shellcheck disable=SC2086  # words of a command
    $SAFEVLA eval --record-only --resume --config "$CONFIG" --shard "$SLURM_ARRAY_TASK_ID/$SHARDS" \
        --workers "${SLURM_CPUS_PER_TASK:-1}" --out "$OUT/shard-$SLURM_ARRAY_TASK_ID" "$@" &
    # Exit code 4: done, with crashed episodes, which are counted and in no rate. The last step is to follow all the same.
    wait "$!" || (($? == 4))
else
    $SAFEVLA merge "$OUT"/shard-* --out "$OUT/merged"
    $SAFEVLA score "$OUT/merged" --out "$OUT/merged" "$@"
fi
