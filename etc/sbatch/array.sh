#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An array of jobs on one dataset. Each element is a job of its own, with copies of its own: the parallel file system is
# read once per element. Where the elements are short, put several runs into one job instead.
#
# Add the options of your site, such as --partition and --account.
#SBATCH --job-name=sweep
#SBATCH --array=0-3
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --monarch-dataset=/lustre/imagenet
# An element that gets less than this of the node's tiers, because others have the rest, runs without Monarch.
#SBATCH --monarch-capacity=50G

set -euo pipefail
rates=(0.1 0.03 0.01 0.003)
python3 train.py /lustre/imagenet --rate "${rates[SLURM_ARRAY_TASK_ID]}"
