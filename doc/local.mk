# SPDX-License-Identifier: Apache-2.0
# Manual pages go to dist_man_MANS, all else to EXTRA_DIST.

# As in the tree, so that links between them hold; that is why the manual pages are here, too.
nobase_dist_doc_DATA = \
	CHANGELOG.md \
	CONTRIBUTING.md \
	LICENSE \
	README.md \
	%D%/admin-guide.md \
	%D%/troubleshooting.md \
	%D%/user-guide.md \
	%D%/coverage.md \
	%D%/design.md \
	%D%/monarch.3 \
	%D%/monarch.7 \
	%D%/monarch.conf.5 \
	%D%/monarchctl.1 \
	%D%/monarchd.8 \
	%D%/spank_monarch.8 \
	%D%/peers.md \
	%D%/performance.md \
	%D%/performance/epochs-demand.svg \
	%D%/performance/epochs-first.svg \
	%D%/performance/epochs-first-processes.svg \
	%D%/performance/epochs-first-small.svg \
	%D%/performance/epochs-first-small-processes.svg \
	%D%/performance/epochs-large.svg \
	%D%/performance/epochs-processes.svg \
	%D%/performance/epochs-small.svg \
	%D%/performance/figures.csv \
	%D%/performance/gain.svg \
	%D%/performance/lifecycle.svg \
	%D%/performance/lifecycle-100k.svg \
	%D%/performance/memory.svg \
	%D%/performance/metadata.svg \
	%D%/performance/neighbour.svg \
	%D%/performance/once.svg \
	%D%/performance/overhead-many.svg \
	%D%/performance/overhead.svg \
	%D%/performance/partial.svg \
	%D%/performance/peers.svg \
	%D%/performance/reads-1g.svg \
	%D%/performance/reads-1g-cached.svg \
	%D%/performance/reads.svg \
	%D%/performance/scale.svg \
	%D%/performance/start.svg \
	%D%/performance/tuning.svg \
	%D%/performance/waste.svg \
	%D%/security.md \
	%D%/slurm.md \
	%D%/slurm-versions.md

dist_man_MANS += \
	%D%/monarch.3 \
	%D%/monarch.7 \
	%D%/monarch.conf.5 \
	%D%/monarchctl.1 \
	%D%/monarchd.8 \
	%D%/spank_monarch.8
EXTRA_DIST += \
	%D%/performance/epochs-demand.json \
	%D%/performance/epochs-first.json \
	%D%/performance/epochs-first-processes.json \
	%D%/performance/epochs-first-small.json \
	%D%/performance/epochs-first-small-processes.json \
	%D%/performance/epochs-large.json \
	%D%/performance/epochs-processes.json \
	%D%/performance/epochs-small.json \
	%D%/performance/lifecycle.json \
	%D%/performance/lifecycle-100k.json \
	%D%/performance/memory.json \
	%D%/performance/metadata.json \
	%D%/performance/neighbour.json \
	%D%/performance/once.json \
	%D%/performance/overhead-many.json \
	%D%/performance/overhead.json \
	%D%/performance/partial.json \
	%D%/performance/peers.json \
	%D%/performance/reads-1g.json \
	%D%/performance/reads-1g-cached.json \
	%D%/performance/reads.json \
	%D%/performance/scale.json \
	%D%/performance/start.json \
	%D%/performance/tuning.json \
	%D%/performance/waste.json
