# SPDX-License-Identifier: Apache-2.0
# Programs that measure: made with the rest, not installed.

noinst_PROGRAMS += bench/io_reader bench/remove_tree
bench_io_reader_SOURCES = \
	%D%/io_reader.cc
bench_remove_tree_CPPFLAGS = $(AM_CPPFLAGS) $(MONARCH_CFLAGS)
bench_remove_tree_LDADD = $(libmonarch)
bench_remove_tree_SOURCES = \
	%D%/remove_tree.cc

noinst_PROGRAMS += bench/calls
bench_calls_SOURCES = \
	%D%/calls.cc

noinst_PROGRAMS += bench/send_loop
bench_send_loop_SOURCES = \
	%D%/send_loop.cc

noinst_PROGRAMS += bench/walk_tree
bench_walk_tree_SOURCES = \
	%D%/walk_tree.cc

EXTRA_DIST += \
	%D%/all \
	%D%/clairvoyance \
	%D%/cluster.py \
	%D%/epochs \
	%D%/figures.py \
	%D%/hints \
	%D%/lib.py \
	%D%/lifecycle \
	%D%/machine.py \
	%D%/memory \
	%D%/metadata \
	%D%/neighbour \
	%D%/once \
	%D%/opener.py \
	%D%/overhead \
	%D%/partial \
	%D%/peer_nodes.py \
	%D%/peers \
	%D%/picture.py \
	%D%/reads \
	%D%/removal \
	%D%/scale \
	%D%/simulated \
	%D%/start \
	%D%/tuning \
	%D%/waste
