# SPDX-License-Identifier: Apache-2.0
# The library and the node agent.

noinst_LIBRARIES += %D%/libmonarch.a
%C%_libmonarch_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS) $(PEER_CFLAGS)
%C%_libmonarch_a_SOURCES = \
	%D%/agent/agent.cc \
	%D%/agent/agent.h \
	%D%/agent/grant_watch.cc \
	%D%/agent/grant_watch.h \
	%D%/agent/membership.cc \
	%D%/agent/membership.h \
	%D%/agent/sweep.cc \
	%D%/agent/sweep.h \
	%D%/base/argv.h \
	%D%/base/escape.cc \
	%D%/base/escape.h \
	%D%/base/fd.h \
	%D%/base/log.cc \
	%D%/base/log.h \
	%D%/base/memory.cc \
	%D%/base/memory.h \
	%D%/base/mountinfo.cc \
	%D%/base/mountinfo.h \
	%D%/base/mutex.h \
	%D%/base/os.cc \
	%D%/base/os.h \
	%D%/base/paths.cc \
	%D%/base/paths.h \
	%D%/base/pipe.h \
	%D%/base/remove_tree.cc \
	%D%/base/remove_tree.h \
	%D%/base/result.h \
	%D%/base/size.cc \
	%D%/base/size.h \
	%D%/base/throttle.cc \
	%D%/base/throttle.h \
	%D%/base/uring.cc \
	%D%/base/uring.h \
	%D%/config/config.cc \
	%D%/config/config.h \
	%D%/hierarchy/discovery.cc \
	%D%/hierarchy/discovery.h \
	%D%/hierarchy/driver.cc \
	%D%/hierarchy/driver.h \
	%D%/hierarchy/grant.cc \
	%D%/hierarchy/grant.h \
	%D%/hierarchy/hierarchy.cc \
	%D%/hierarchy/hierarchy.h \
	%D%/hierarchy/locality.cc \
	%D%/hierarchy/locality.h \
	%D%/hierarchy/tier.cc \
	%D%/hierarchy/tier.h \
	%D%/layout/board_client.h \
	%D%/layout/board_layout.h \
	%D%/layout/catalog_layout.h \
	%D%/layout/catalog_reader.h \
	%D%/layout/groups.h \
	%D%/layout/path_hash.h \
	%D%/layout/shared_map.h \
	%D%/metadata/board.cc \
	%D%/metadata/board.h \
	%D%/metadata/catalog.cc \
	%D%/metadata/catalog.h \
	%D%/metadata/change_watch.cc \
	%D%/metadata/change_watch.h \
	%D%/metadata/dataset.cc \
	%D%/metadata/dataset.h \
	%D%/metadata/walker.cc \
	%D%/metadata/walker.h \
	%D%/node/accounting.cc \
	%D%/node/accounting.h \
	%D%/node/agent_conf.cc \
	%D%/node/agent_conf.h \
	%D%/node/cgroup.cc \
	%D%/node/cgroup.h \
	%D%/node/epilog.cc \
	%D%/node/epilog.h \
	%D%/node/identity.cc \
	%D%/node/identity.h \
	%D%/node/job_dirs.cc \
	%D%/node/job_dirs.h \
	%D%/node/job_peers.cc \
	%D%/node/job_peers.h \
	%D%/node/keeper.cc \
	%D%/node/keeper.h \
	%D%/node/launch.cc \
	%D%/node/launch.h \
	%D%/node/ledger.cc \
	%D%/node/ledger.h \
	%D%/node/life.cc \
	%D%/node/life.h \
	%D%/node/memory_tier.cc \
	%D%/node/memory_tier.h \
	%D%/node/mounts.cc \
	%D%/node/mounts.h \
	%D%/node/owner.cc \
	%D%/node/owner.h \
	%D%/node/probe.cc \
	%D%/node/probe.h \
	%D%/node/removal.cc \
	%D%/node/removal.h \
	%D%/node/slurmstepds.cc \
	%D%/node/slurmstepds.h \
	%D%/node/spool.cc \
	%D%/node/spool.h \
	%D%/node/start.cc \
	%D%/node/start.h \
	%D%/node/state.cc \
	%D%/node/state.h \
	%D%/node/sweep.cc \
	%D%/node/sweep.h \
	%D%/node/watch.cc \
	%D%/node/watch.h \
	%D%/peer/changes.cc \
	%D%/peer/changes.h \
	%D%/peer/control.cc \
	%D%/peer/control.h \
	%D%/peer/directory.cc \
	%D%/peer/directory.h \
	%D%/peer/fetch.cc \
	%D%/peer/fetch.h \
	%D%/peer/handshake.cc \
	%D%/peer/handshake.h \
	%D%/peer/holdings.cc \
	%D%/peer/holdings.h \
	%D%/peer/key.cc \
	%D%/peer/key.h \
	%D%/peer/members.cc \
	%D%/peer/members.h \
	%D%/peer/messages.cc \
	%D%/peer/messages.h \
	%D%/peer/node.cc \
	%D%/peer/node.h \
	%D%/peer/peer_source.cc \
	%D%/peer/peer_source.h \
	%D%/peer/peers.cc \
	%D%/peer/peers.h \
	%D%/peer/serve.cc \
	%D%/peer/serve.h \
	%D%/peer/socket.cc \
	%D%/peer/socket.h \
	%D%/peer/wire.cc \
	%D%/peer/wire.h \
	%D%/placement/chunk_stager.cc \
	%D%/placement/chunk_stager.h \
	%D%/placement/context.h \
	%D%/placement/copier.cc \
	%D%/placement/copier.h \
	%D%/placement/copying.h \
	%D%/placement/file_stager.cc \
	%D%/placement/file_stager.h \
	%D%/placement/hard_links.cc \
	%D%/placement/hard_links.h \
	%D%/placement/pfs_source.cc \
	%D%/placement/pfs_source.h \
	%D%/placement/placement.cc \
	%D%/placement/placement.h \
	%D%/placement/queue.cc \
	%D%/placement/queue.h \
	%D%/placement/source.h \
	%D%/placement/tier_health.cc \
	%D%/placement/tier_health.h \
	%D%/placement/write_back.cc \
	%D%/placement/write_back.h

# What a program that uses the library links.
libmonarch = %D%/libmonarch.a $(MONARCH_LIBS) $(LIBURING_LIBS)

sbin_PROGRAMS += monarchd
monarchd_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) $(checked_flags) $(MONARCH_CFLAGS)
monarchd_LDADD = $(libmonarch) $(PEER_LIBS)
monarchd_SOURCES = \
	%D%/monarchd/monarchd.cc

# The one program that links libslurm.
if HAVE_LIBSLURM
pkglibexec_PROGRAMS += monarch_account
monarch_account_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(SLURM_CFLAGS)
monarch_account_LDADD = $(SLURM_LIBS)
monarch_account_SOURCES = \
	%D%/account/monarch_account.cc
endif
