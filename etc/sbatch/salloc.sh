#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An interactive allocation with a dataset, to be run on a login node:
#
#   bash salloc.sh                           a shell; each srun in it has the dataset
#   bash salloc.sh srun python3 train.py     one command
#
# salloc's own shell usually runs on the login node, without Monarch; the steps that srun starts have it. The copies
# stay from step to step, until the allocation ends.
#
# Add the options of your site, such as --partition and --account.
set -euo pipefail
exec salloc --nodes=1 --time=01:00:00 --monarch-dataset=/lustre/imagenet "$@"
