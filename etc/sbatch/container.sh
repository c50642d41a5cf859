#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program in a container: Charliecloud here. `monarchctl container-args` prints what other tools need: apptainer, bwrap,
# enroot, podman, pyxis. The dataset has to be mounted at the path that it has on the node.
#
# Add the options of your site, such as --partition and --account.
#SBATCH --job-name=container
#SBATCH --time=04:00:00
#SBATCH --monarch-dataset=/lustre/imagenet

set -euo pipefail
# The image needs directories with the paths that are mounted, or --write.
# shellcheck disable=SC2046  # it prints arguments, one word each
ch-run --write $(monarchctl container-args charliecloud) --bind=/lustre/imagenet:/lustre/imagenet \
    "$HOME/image" -- sh train.sh /lustre/imagenet
