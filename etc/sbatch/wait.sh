#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A script that prepares something else until half of the dataset is staged on this node, for ten minutes at most. Where
# there is nothing to prepare, --monarch-wait=50% does the same without a loop.
#
# Add the options of your site, such as --partition and --account.
#SBATCH --job-name=wait
#SBATCH --time=04:00:00
#SBATCH --monarch-dataset=/lustre/imagenet
#SBATCH --monarch-prefetch=all

set -euo pipefail
sh prepare.sh &
# A job that runs without Monarch has no such file, and does not wait.
for _ in $(seq 600); do
    [ -n "${MONARCH_IO_STATE:-}" ] || break
    state=$(sed -n 's/^state=//p' "$MONARCH_IO_STATE" 2>/dev/null) || state=
    percent=$(sed -n 's/^percent=//p' "$MONARCH_IO_STATE" 2>/dev/null) || percent=
    # Until the agent is ready there is no file.
    if [ -n "$state" ]; then
        [ "$state" = staging-in ] || break
        [ "$percent" -lt 50 ] || break
    fi
    sleep 1
done
wait
srun python3 train.py /lustre/imagenet
