# SPDX-License-Identifier: Apache-2.0
# The library, the node agent, and what an agent with peers loads.

noinst_LIBRARIES += %D%/libmonarch.a
%C%_libmonarch_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS)
# A program exports nothing of it but what its list of symbols says; what is hidden no list can export.
%C%_libmonarch_a_CXXFLAGS = $(AM_CXXFLAGS) -fvisibility=default
%C%_libmonarch_a_SOURCES = \
	%D%/agent/agent.h \
	%D%/agent/load_peers.h \
	%D%/agent/membership.h \
	%D%/agent/nodes_file.h \
	%D%/agent/order_watch.h \
	%D%/agent/progress.h \
	%D%/agent/series_file.h \
	%D%/agent/take_over.h \
	%D%/agent/use_watch.h \
	%D%/agent/sweep.cc \
	%D%/agent/sweep.h \
	%D%/base/argv.h \
	%D%/base/clock.h \
	%D%/base/command_line.h \
	%D%/base/escape.h \
	%D%/base/fd.h \
	%D%/base/json.h \
	%D%/base/log.h \
	%D%/base/memory.h \
	%D%/base/mountinfo.h \
	%D%/base/mutex.h \
	%D%/base/nearest.h \
	%D%/base/number.h \
	%D%/base/os.cc \
	%D%/base/os.h \
	%D%/base/paths.cc \
	%D%/base/paths.h \
	%D%/base/patience.h \
	%D%/base/pipe.h \
	%D%/base/remove_tree.cc \
	%D%/base/remove_tree.h \
	%D%/base/replace_file.h \
	%D%/base/result.h \
	%D%/base/size.h \
	%D%/base/throttle.h \
	%D%/base/uring.cc \
	%D%/base/uring.h \
	%D%/config/config.h \
	%D%/config/dataset_rules.h \
	%D%/config/keys.h \
	%D%/config/policy_keys.h \
	%D%/config/show.h \
	%D%/config/user_options.h \
	%D%/config/values.h \
	%D%/hierarchy/discovery.cc \
	%D%/hierarchy/discovery.h \
	%D%/hierarchy/driver.h \
	%D%/hierarchy/grant.h \
	%D%/hierarchy/hierarchy.h \
	%D%/hierarchy/job_room.cc \
	%D%/hierarchy/job_room.h \
	%D%/hierarchy/locality.h \
	%D%/hierarchy/tier.h \
	%D%/layout/board_client.h \
	%D%/layout/board_layout.h \
	%D%/layout/catalog_layout.h \
	%D%/layout/catalog_reader.h \
	%D%/layout/globs.h \
	%D%/layout/groups.h \
	%D%/layout/space.h \
	%D%/layout/order_layout.h \
	%D%/layout/path_hash.h \
	%D%/layout/shared_map.h \
	%D%/layout/statx.h \
	%D%/metadata/board.h \
	%D%/metadata/catalog.h \
	%D%/metadata/change_watch.h \
	%D%/metadata/dataset.cc \
	%D%/metadata/dataset.h \
	%D%/metadata/nodes_told.h \
	%D%/metadata/run_file.h \
	%D%/metadata/series.h \
	%D%/metadata/walker.cc \
	%D%/metadata/walker.h \
	%D%/node/await.h \
	%D%/node/account_for.h \
	%D%/node/accounting.h \
	%D%/node/acl.h \
	%D%/node/agent_conf.h \
	%D%/node/boot.h \
	%D%/node/cgroup.h \
	%D%/node/closing.h \
	%D%/node/epilog.h \
	%D%/node/identity.h \
	%D%/node/job_dirs.h \
	%D%/node/job_memory.h \
	%D%/node/job_options.h \
	%D%/node/job_peers.h \
	%D%/node/job_report.h \
	%D%/node/job_status.h \
	%D%/node/keeper.h \
	%D%/node/launch.h \
	%D%/node/ledger.h \
	%D%/node/life.h \
	%D%/node/memory_tier.h \
	%D%/node/metrics.h \
	%D%/node/open_times.h \
	%D%/node/nodes_report.h \
	%D%/node/owners_files.h \
	%D%/node/owners_report.h \
	%D%/node/part.cc \
	%D%/node/part.h \
	%D%/node/job_facts.h \
	%D%/node/policy.h \
	%D%/node/probe.h \
	%D%/node/child.h \
	%D%/node/removal.h \
	%D%/node/resume.h \
	%D%/node/reports.h \
	%D%/node/root_log.cc \
	%D%/node/root_log.h \
	%D%/node/slurmstepds.h \
	%D%/node/spool.h \
	%D%/node/start.h \
	%D%/node/state.cc \
	%D%/node/state.h \
	%D%/node/sweep.h \
	%D%/node/watch.h \
	%D%/placement/chunk_stager.h \
	%D%/placement/context.h \
	%D%/placement/copier.h \
	%D%/placement/copying.h \
	%D%/placement/credit.h \
	%D%/placement/evict.h \
	%D%/placement/file_stager.h \
	%D%/placement/hard_links.h \
	%D%/placement/pfs_source.h \
	%D%/placement/placement.h \
	%D%/placement/order.h \
	%D%/placement/queue.h \
	%D%/placement/source.h \
	%D%/placement/sparse_copies.h \
	%D%/placement/staging.h \
	%D%/placement/tier_health.h \
	%D%/placement/write_back.h \
	%D%/store/client.cc \
	%D%/store/client.h \
	%D%/store/local_store.h \
	%D%/store/protocol.h \
	%D%/store/server.cc \
	%D%/store/server.h \
	%D%/store/store.h
# These compile as one (--disable-unity: each by itself): a list NAME is unity/NAME.cc. A file that is not in one has
# calls that others may not have (tests/os_calls.t), or is replaced by tests.
base = \
	%D%/base/clock.cc \
	%D%/base/command_line.cc \
	%D%/base/escape.cc \
	%D%/base/json.cc \
	%D%/base/log.cc \
	%D%/base/memory.cc \
	%D%/base/mountinfo.cc \
	%D%/base/nearest.cc \
	%D%/base/replace_file.cc \
	%D%/base/size.cc \
	%D%/base/throttle.cc
config = \
	%D%/config/config.cc \
	%D%/config/dataset_rules.cc \
	%D%/config/policy_keys.cc \
	%D%/config/show.cc \
	%D%/config/user_options.cc
agent = \
	%D%/agent/agent.cc \
	%D%/agent/load_peers.cc \
	%D%/agent/membership.cc \
	%D%/agent/nodes_file.cc \
	%D%/agent/order_watch.cc \
	%D%/agent/progress.cc \
	%D%/agent/series_file.cc \
	%D%/agent/take_over.cc \
	%D%/agent/use_watch.cc
hierarchy = \
	%D%/hierarchy/driver.cc \
	%D%/hierarchy/grant.cc \
	%D%/hierarchy/hierarchy.cc \
	%D%/hierarchy/locality.cc \
	%D%/hierarchy/tier.cc \
	%D%/store/local_store.cc
metadata = \
	%D%/metadata/board.cc \
	%D%/metadata/catalog.cc \
	%D%/metadata/change_watch.cc \
	%D%/metadata/nodes_told.cc \
	%D%/metadata/run_file.cc \
	%D%/metadata/series.cc
node_start = \
	%D%/node/account_for.cc \
	%D%/node/accounting.cc \
	%D%/node/agent_conf.cc \
	%D%/node/await.cc \
	%D%/node/boot.cc \
	%D%/node/closing.cc \
	%D%/node/identity.cc \
	%D%/node/job_facts.cc \
	%D%/node/job_options.cc \
	%D%/node/policy.cc \
	%D%/node/child.cc \
	%D%/node/start.cc
node_life = \
	%D%/node/cgroup.cc \
	%D%/node/epilog.cc \
	%D%/node/keeper.cc \
	%D%/node/launch.cc \
	%D%/node/life.cc \
	%D%/node/open_times.cc \
	%D%/node/owners_files.cc \
	%D%/node/owners_report.cc \
	%D%/node/slurmstepds.cc \
	%D%/node/spool.cc
node_report = \
	%D%/node/job_memory.cc \
	%D%/node/job_peers.cc \
	%D%/node/job_report.cc \
	%D%/node/job_status.cc \
	%D%/node/metrics.cc \
	%D%/node/nodes_report.cc \
	%D%/node/reports.cc \
	%D%/node/watch.cc
node_tiers = \
	%D%/node/acl.cc \
	%D%/node/job_dirs.cc \
	%D%/node/ledger.cc \
	%D%/node/memory_tier.cc \
	%D%/node/probe.cc \
	%D%/node/removal.cc \
	%D%/node/resume.cc \
	%D%/node/sweep.cc
placement = \
	%D%/placement/chunk_stager.cc \
	%D%/placement/copier.cc \
	%D%/placement/credit.cc \
	%D%/placement/evict.cc \
	%D%/placement/file_stager.cc \
	%D%/placement/hard_links.cc \
	%D%/placement/pfs_source.cc \
	%D%/placement/placement.cc \
	%D%/placement/order.cc \
	%D%/placement/queue.cc \
	%D%/placement/tier_health.cc \
	%D%/placement/write_back.cc
if UNITY
nodist_%C%_libmonarch_a_SOURCES = unity/agent.cc unity/base.cc unity/config.cc unity/hierarchy.cc unity/metadata.cc \
	unity/node_start.cc unity/node_life.cc unity/node_report.cc unity/node_tiers.cc unity/placement.cc
unity += $(nodist_%C%_libmonarch_a_SOURCES)
else
%C%_libmonarch_a_SOURCES += $(agent) $(base) $(config) $(hierarchy) $(metadata) $(node_start) $(node_life) $(node_report) $(node_tiers) $(placement)
endif

# What a program that uses the library links.
libmonarch = %D%/libmonarch.a $(MONARCH_LIBS) $(LIBURING_LIBS)

noinst_LIBRARIES += %D%/libpeer.a
%C%_libpeer_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS) $(PEER_CFLAGS)
%C%_libpeer_a_CXXFLAGS = $(common_compile_flags) -fPIC -fvisibility=default
%C%_libpeer_a_SOURCES = \
	%D%/peer/changes.h \
	%D%/peer/control.h \
	%D%/peer/directory.h \
	%D%/peer/fetch.h \
	%D%/peer/gathering.h \
	%D%/peer/handshake.cc \
	%D%/peer/handshake.h \
	%D%/peer/holdings.h \
	%D%/peer/job.h \
	%D%/peer/key.h \
	%D%/peer/members.h \
	%D%/peer/messages.h \
	%D%/peer/node.h \
	%D%/peer/peer_source.h \
	%D%/peer/peers.h \
	%D%/peer/report.h \
	%D%/peer/serve.h \
	%D%/peer/share_walk.h \
	%D%/peer/socket.h \
	%D%/peer/told_values.h \
	%D%/peer/wire.h
peer_control = \
	%D%/peer/control.cc \
	%D%/peer/fetch.cc \
	%D%/peer/gathering.cc \
	%D%/peer/holdings.cc \
	%D%/peer/key.cc
peer_source = \
	%D%/peer/changes.cc \
	%D%/peer/directory.cc \
	%D%/peer/members.cc \
	%D%/peer/node.cc \
	%D%/peer/peer_source.cc
peer_told = \
	%D%/peer/share_walk.cc \
	%D%/peer/socket.cc \
	%D%/peer/told_values.cc \
	%D%/peer/wire.cc
peer_group = \
	%D%/peer/messages.cc \
	%D%/peer/peers.cc \
	%D%/peer/report.cc \
	%D%/peer/serve.cc
if UNITY
nodist_%C%_libpeer_a_SOURCES = unity/peer_control.cc unity/peer_source.cc unity/peer_told.cc unity/peer_group.cc
unity += $(nodist_%C%_libpeer_a_SOURCES)
else
%C%_libpeer_a_SOURCES += $(peer_control) $(peer_source) $(peer_told) $(peer_group)
endif

# OpenSSL and libevent take longer to start than all else of the agent: those that have no peers do without.
# What it shares with the agent it has from monarchd: one log, one os.h.
soexec_PROGRAMS += libmonarch_peers.so
libmonarch_peers_so_CPPFLAGS = $(%C%_libpeer_a_CPPFLAGS)
libmonarch_peers_so_CXXFLAGS = $(%C%_libpeer_a_CXXFLAGS)
libmonarch_peers_so_LDFLAGS = $(common_link_flags) -shared -pthread -Wl,-soname,libmonarch_peers.so \
	-Wl,--version-script=$(srcdir)/%D%/peer/peers.map
libmonarch_peers_so_LDADD = %D%/libpeer.a $(PEER_LIBS) $(MONARCH_LIBS)
EXTRA_libmonarch_peers_so_DEPENDENCIES = %D%/peer/peers.map
libmonarch_peers_so_SOURCES = \
	%D%/peer/create.cc
EXTRA_DIST += %D%/peer/peers.map

# What libmonarch_peers.so needs of monarchd, and nothing else.
%D%/monarchd.exports: libmonarch_peers.so
	$(AM_V_GEN){ echo '{' && $(NM) -D -u libmonarch_peers.so | sed -n 's/^ *[Uw] \(_Z[^@]*7monarch[^@]*\)$$/\1;/p' && \
	echo '};'; } >$@.new && mv $@.new $@
CLEANFILES += %D%/monarchd.exports

sbin_PROGRAMS += monarchd
monarchd_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) -DPKGDATADIR='"$(pkgdatadir)"' $(checked_flags) $(MONARCH_CFLAGS)
monarchd_LDADD = $(libmonarch) -ldl
monarchd_LDFLAGS = $(AM_LDFLAGS) -Wl,--dynamic-list=%D%/monarchd.exports
EXTRA_monarchd_DEPENDENCIES = %D%/monarchd.exports
monarchd_SOURCES = \
	%D%/monarchd/monarchd.cc

# The one program that links libslurm.
if HAVE_LIBSLURM
pkglibexec_PROGRAMS += monarch_account
monarch_account_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(SLURM_CFLAGS)
monarch_account_LDADD = $(SLURM_LIBS)
monarch_account_SOURCES = \
	%D%/account/monarch_account.cc \
	spank/slurm_release.h
endif
