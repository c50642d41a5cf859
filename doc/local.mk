# SPDX-License-Identifier: Apache-2.0
# Manual pages go to dist_man_MANS, all else to EXTRA_DIST.
