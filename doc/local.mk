# SPDX-License-Identifier: Apache-2.0
# Manual pages go to dist_man_MANS, all else to EXTRA_DIST.

dist_man_MANS += \
	%D%/monarch.7 \
	%D%/monarch.conf.5 \
	%D%/monarchctl.1 \
	%D%/monarchd.8 \
	%D%/spank_monarch.8
EXTRA_DIST += \
	%D%/design.md \
	%D%/performance.md \
	%D%/slurm.md
