#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A program in a container: Charliecloud here. `monarchctl container-args` prints what other tools need: apptainer, bwrap,
# enroot, podman. Containers of pyxis and enroot need none where the administrator has installed Monarch's hook. The dataset
# may be mounted at any path.
#
# Add the options of your site, such as --partition and --account.
#SBATCH --job-name=container
#SBATCH --time=04:00:00
#SBATCH --monarch-dataset=/lustre/imagenet

set -euo pipefail
# The image needs directories with the paths that are mounted, or --write.
# shellcheck disable=SC2046  # it prints arguments, one word each
ch-run --write $(monarchctl container-args charliecloud) --bind=/lustre/imagenet:/data \
    "$HOME/image" -- sh train.sh /data
