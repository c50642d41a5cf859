#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch on several nodes (DistributedDataParallel). The nodes read each file of the dataset from the parallel file
# system once, and get it from each other.
#
# Add the options of your site, such as --partition, --account and --gpus-per-node.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --monarch-dataset=/lustre/imagenet

set -euo pipefail
# torch.distributed meets at this address; each task takes its rank from Slurm.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# shellcheck disable=SC2016  # the tasks expand it, each for itself
srun bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    exec python3 train.py /lustre/imagenet'
