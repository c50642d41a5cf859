# SPDX-License-Identifier: Apache-2.0
# The developer's commands.

EXTRA_DIST += \
	%D%/apptainer \
	%D%/bench \
	%D%/build \
	%D%/check \
	%D%/demo \
	%D%/demo-report \
	%D%/deps \
	%D%/flaky \
	%D%/fuzz \
	%D%/lab \
	%D%/lab.d/peers \
	%D%/lab.d/pfs \
	%D%/lab.d/slurm \
	%D%/lab.d/slurm-config.sh \
	%D%/lab.d/vm \
	%D%/lib.sh \
	%D%/package \
	%D%/scratch.sh \
	%D%/size \
	%D%/slurm-versions
