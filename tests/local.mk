# SPDX-License-Identifier: Apache-2.0
# A GoogleTest program of all units, and end-to-end tests *.t, executables that print TAP.
#
# Tests find the tree by MONARCH_BUILDDIR and MONARCH_SRCDIR.  What a sanitizer build preloads needs SAN_RT
# before it in LD_PRELOAD (empty otherwise).  MONARCH_TEST_ALL=1 asks for the long forms.

TEST_EXTENSIONS = .t
TEST_TIMEOUT = 900
# Of programs of GoogleTest: removing files takes long where a disk discards what they held.
UNIT_TIMEOUT = 1800
tests/cpython.log: TEST_TIMEOUT = 7200
tests/farm.log: TEST_TIMEOUT = 7200
tests/inject.log: TEST_TIMEOUT = 7200
tests/packages.log: TEST_TIMEOUT = 7200
tests/posix.log: TEST_TIMEOUT = 7200
tests/vm.log: TEST_TIMEOUT = 14400

tap_driver = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_DRIVER = $(tap_driver)
LOG_COMPILER = $(top_srcdir)/build-aux/test-limit $(UNIT_TIMEOUT) $(top_srcdir)/build-aux/gtest-tap
T_LOG_DRIVER = $(tap_driver)
T_LOG_COMPILER = $(top_srcdir)/build-aux/test-limit $(TEST_TIMEOUT)

if SANITIZED
sanitizer_runtime = $$(case '$(SAN_FLAGS)' in \
	*address*) $(CXX) -print-file-name=libasan.so;; \
	*thread*) $(CXX) -print-file-name=libtsan.so;; esac)
# Leaks of the programs under which end-to-end tests run are not ours.  A cancelled thread spoils the runtime's own stack of signals.
T_LOG_COMPILER += env ASAN_OPTIONS="$${ASAN_OPTIONS-detect_leaks=0:use_sigaltstack=0}"
endif
AM_TESTS_ENVIRONMENT = \
	SAN_RT="$(sanitizer_runtime)"; \
	MONARCH_BUILDDIR='$(abs_top_builddir)'; \
	MONARCH_SRCDIR='$(abs_top_srcdir)'; \
	export SAN_RT MONARCH_BUILDDIR MONARCH_SRCDIR;

if HAVE_GTEST
check_PROGRAMS += tests/unit
tests_unit_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS) $(PEER_CFLAGS) $(GTEST_CFLAGS) $(SLURM_CFLAGS)
tests_unit_LDADD = runtime/libpeer.a simulate/libsimulate.a $(libmonarch) $(PEER_LIBS) $(GTEST_LIBS) -ldl
tests_unit_SOURCES = \
	%D%/catalog_fixture.h \
	%D%/evict_fixture.h \
	%D%/faulty_os.cc \
	%D%/faulty_os.h \
	%D%/gate.h \
	%D%/hanging_fs.h \
	%D%/listed.h \
	%D%/loopback.h \
	%D%/logged.cc \
	%D%/logged.h \
	%D%/machine.h \
	%D%/manual_clock.h \
	%D%/node_fixture.h \
	%D%/peer_fixture.h \
	%D%/placement_fixture.h \
	%D%/private_mounts.h \
	%D%/quiet.cc \
	%D%/quiet.h \
	%D%/remover_fixture.h \
	%D%/scratch.h \
	%D%/stores.h \
	%D%/tiers.h \
	%D%/trapped_calls.h
# Tests that compile as one (--disable-unity: each by itself): a list NAME is unity/NAME.cc.
unit_agent = \
	%D%/again_test.cc \
	%D%/agent_parts_test.cc \
	%D%/agent_test.cc \
	%D%/credit_test.cc \
	%D%/evict_test.cc \
	%D%/hard_links_test.cc \
	%D%/order_test.cc
unit_base = \
	%D%/case_name.cc \
	%D%/base_test.cc \
	%D%/copier_test.cc \
	%D%/paths_test.cc \
	%D%/probe_test.cc \
	%D%/remover_locks_test.cc \
	%D%/remover_test.cc \
	%D%/root_log_test.cc
unit_catalog = \
	%D%/board_test.cc \
	%D%/catalog_test.cc \
	%D%/catalog_model_test.cc \
	%D%/change_watch_test.cc \
	%D%/series_test.cc \
	%D%/walker_test.cc
unit_config = \
	%D%/config_test.cc \
	%D%/discovery_test.cc \
	%D%/hierarchy_test.cc \
	%D%/open_times_test.cc \
	%D%/reader_test.cc
unit_fuzz = \
	%D%/fuzz_test.cc \
	%D%/simulate_test.cc \
	$(fuzz_sources)
unit_jobs = \
	%D%/accounting_test.cc \
	%D%/identity_test.cc \
	%D%/job_memory_test.cc \
	%D%/job_options_test.cc \
	%D%/job_peers_test.cc \
	%D%/metrics_test.cc \
	%D%/nodes_report_test.cc \
	%D%/part_test.cc \
	%D%/policy_test.cc \
	%D%/slurmstepds_test.cc \
	%D%/spool_test.cc \
	%D%/state_test.cc \
	%D%/sweep_test.cc \
	%D%/watch_test.cc
unit_large = \
	%D%/faults_test.cc \
	%D%/large_files_test.cc \
	%D%/placement_test.cc \
	%D%/queue_test.cc \
	%D%/store_test.cc \
	%D%/tier_errors_test.cc \
	%D%/tier_health_test.cc
unit_life = \
	%D%/cgroup_test.cc \
	%D%/hostile_test.cc \
	%D%/job_dirs_test.cc \
	%D%/keeper_test.cc \
	%D%/launch_test.cc \
	%D%/ledger_test.cc \
	%D%/start_test.cc
unit_opens = \
	%D%/opens_test.cc
unit_peer_calls = \
	%D%/peer_control_test.cc \
	%D%/peer_handshake_test.cc \
	%D%/peer_members_test.cc \
	%D%/peer_node_test.cc
unit_peer_data = \
	%D%/peer_data_test.cc \
	%D%/peer_directory_test.cc \
	%D%/peer_gathering_test.cc \
	%D%/peer_holdings_test.cc \
	%D%/peer_report_test.cc \
	%D%/peer_source_test.cc \
	%D%/peers_test.cc \
	%D%/share_walk_test.cc \
	%D%/told_values_test.cc
# The longest first: nothing waits for it at the end.
if UNITY
unit_unity = unity/unit_peer_data.cc unity/unit_large.cc unity/unit_jobs.cc unity/unit_agent.cc unity/unit_base.cc \
	unity/unit_peer_calls.cc unity/unit_life.cc unity/unit_catalog.cc unity/unit_config.cc unity/unit_fuzz.cc unity/unit_opens.cc
unity += $(unit_unity)
nodist_tests_unit_SOURCES = $(unit_unity) unity/preload_client.cc unity/preload_decide.cc unity/preload_resolve.cc
else
tests_unit_SOURCES += $(unit_agent) $(unit_base) $(unit_catalog) $(unit_config) $(unit_fuzz) $(unit_jobs) $(unit_large) \
	$(unit_life) $(unit_opens) $(preload_client) $(preload_decide) $(preload_resolve) $(unit_peer_calls) $(unit_peer_data)
endif
TESTS += tests/unit

# The plugin is built without a library of ours: its tests are a program that it takes for Slurm.
if HAVE_SLURM
check_PROGRAMS += tests/spank
tests_spank_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(GTEST_CFLAGS) $(SLURM_CFLAGS)
tests_spank_LDADD = $(GTEST_LIBS) -ldl
tests_spank_LDFLAGS = -rdynamic
tests_spank_SOURCES = \
	%D%/fake_slurm.cc \
	%D%/hanging_fs.h \
	%D%/private_mounts.h \
	%D%/scratch.h \
	%D%/spank_fixture.h
spank_tests = \
	%D%/spank_key_test.cc \
	%D%/spank_mounts_test.cc \
	%D%/spank_test.cc
if UNITY
nodist_tests_spank_SOURCES = unity/spank_tests.cc
unity += $(nodist_tests_spank_SOURCES)
else
tests_spank_SOURCES += $(spank_tests)
endif
TESTS += tests/spank
endif
endif

# What is fuzzed: a program each by `make fuzzers`, for dev/fuzz, and the kept inputs in tests/unit.
fuzz_sources = \
	%D%/fuzz/board.cc \
	%D%/fuzz/config.cc \
	%D%/fuzz/counters.cc \
	%D%/fuzz/directory.cc \
	%D%/fuzz/messages.cc \
	%D%/fuzz/mounts.cc \
	%D%/fuzz/record.cc \
	%D%/fuzz/store.cc \
	%D%/fuzz/targets.h
fuzz_targets = board config counters messages mounts record store
if HAVE_SLURM
fuzz_sources += %D%/fuzz/options.cc
fuzz_targets += options
endif
# All that the targets call: a fifth of the runtime, and clang needs minutes for the rest. What is missing here does not link.
fuzzed_sources = \
	runtime/base/clock.cc \
	runtime/base/escape.cc \
	runtime/base/json.cc \
	runtime/base/log.cc \
	runtime/base/memory.cc \
	runtime/base/mountinfo.cc \
	runtime/base/nearest.cc \
	runtime/base/os.cc \
	runtime/base/paths.cc \
	runtime/base/remove_tree.cc \
	runtime/base/replace_file.cc \
	runtime/base/size.cc \
	runtime/config/config.cc \
	runtime/config/policy_keys.cc \
	runtime/hierarchy/discovery.cc \
	runtime/metadata/board.cc \
	runtime/metadata/catalog.cc \
	runtime/metadata/nodes_told.cc \
	runtime/metadata/run_file.cc \
	runtime/metadata/series.cc \
	runtime/node/accounting.cc \
	runtime/node/await.cc \
	runtime/config/user_options.cc \
	runtime/node/job_options.cc \
	runtime/node/job_report.cc \
	runtime/node/nodes_report.cc \
	runtime/node/open_times.cc \
	runtime/node/child.cc \
	runtime/node/spool.cc \
	runtime/node/state.cc \
	runtime/peer/messages.cc \
	runtime/store/server.cc
EXTRA_LIBRARIES = %D%/fuzz/libfuzz.a
%C%_fuzz_libfuzz_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS) $(PEER_CFLAGS) $(SLURM_CFLAGS)
%C%_fuzz_libfuzz_a_SOURCES = $(fuzz_sources) $(fuzzed_sources)
fuzzers: $(fuzz_targets:%=%D%/fuzz/fuzz-%)
$(fuzz_targets:%=%D%/fuzz/fuzz-%): %D%/fuzz/fuzz-%: %D%/fuzz/libfuzzer.cc %D%/fuzz/libfuzz.a
	$(AM_V_CXXLD)$(CXX) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(MONARCH_CFLAGS) $(CPPFLAGS) $(AM_CXXFLAGS) $(CXXFLAGS) \
		-DFUZZ_TARGET=$* -fsanitize=fuzzer $(AM_LDFLAGS) $(LDFLAGS) -o $@ \
		$(top_srcdir)/%D%/fuzz/libfuzzer.cc %D%/fuzz/libfuzz.a $(MONARCH_LIBS) $(LIBURING_LIBS) $(LIBS)
.PHONY: fuzzers
CLEANFILES += $(fuzz_targets:%=%D%/fuzz/fuzz-%)
EXTRA_DIST += \
	%D%/fuzz/libfuzzer.cc \
	%D%/fuzz/options.cc \
	%D%/fuzz/seeds

EXTRA_DIST += %D%/fixtures

check_PROGRAMS += tests/beside tests/only_v2.so tests/openat2.so tests/other_values.so tests/safety
tests_beside_LDADD = -lpthread -ldl
# The preload library is to find its syscall(3).
tests_beside_LDFLAGS = -rdynamic
tests_beside_SOURCES = \
	%D%/beside.cc \
	%D%/own_syscall.h
tests_only_v2_so_CXXFLAGS = $(so_compile_flags)
tests_only_v2_so_LDFLAGS = $(so_link_flags)
tests_only_v2_so_SOURCES = \
	%D%/only_v2.cc
tests_openat2_so_CXXFLAGS = $(so_compile_flags)
tests_openat2_so_LDFLAGS = $(so_link_flags)
tests_openat2_so_SOURCES = \
	%D%/openat2.cc
tests_other_values_so_CXXFLAGS = $(so_compile_flags)
tests_other_values_so_LDFLAGS = $(so_link_flags)
tests_other_values_so_SOURCES = \
	%D%/other_values.cc
tests_safety_LDADD = -lpthread -ldl
tests_safety_LDFLAGS = -rdynamic
tests_safety_SOURCES = \
	%D%/own_syscall.h \
	%D%/safety.cc

if HAVE_FUSE3
check_PROGRAMS += tests/slowfs
tests_slowfs_CPPFLAGS = $(AM_CPPFLAGS) $(FUSE3_CFLAGS)
tests_slowfs_LDADD = $(FUSE3_LIBS)
tests_slowfs_SOURCES = \
	%D%/slowfs.cc
endif

scripts = \
	%D%/api.t \
	%D%/cgroup.t \
	%D%/containers.t \
	%D%/cpython.t \
	%D%/ctl.t \
	%D%/demo.t \
	%D%/docs.t \
	%D%/environment.t \
	%D%/exports.t \
	%D%/farm.t \
	%D%/faults.t \
	%D%/guides.t \
	%D%/held.t \
	%D%/hints.t \
	%D%/hostile.t \
	%D%/hostile_containers.t \
	%D%/inject.t \
	%D%/keeper.t \
	%D%/large.t \
	%D%/matrix.t \
	%D%/metadata.t \
	%D%/metrics.t \
	%D%/model.t \
	%D%/monarchd.t \
	%D%/node.t \
	%D%/os_calls.t \
	%D%/packages.t \
	%D%/paths.t \
	%D%/peers.t \
	%D%/posix.t \
	%D%/programs.t \
	%D%/pyxis.t \
	%D%/reports.t \
	%D%/run.t \
	%D%/safety.t \
	%D%/slurm.t \
	%D%/slurm_hostile.t \
	%D%/slurm_key.t \
	%D%/slurm_life.t \
	%D%/slurm_policy.t \
	%D%/slurm_shares.t \
	%D%/slurm_versions.t \
	%D%/store.t \
	%D%/stress.t \
	%D%/top.t \
	%D%/vm.t \
	%D%/writes.t
EXTRA_DIST += \
	%D%/core \
	%D%/e2e.py \
	%D%/images.py \
	%D%/matrix \
	%D%/one_node.py \
	%D%/peers_lab.py \
	%D%/slurm_lab.py \
	%D%/slurm_rows.py

dist_check_SCRIPTS += $(scripts)
TESTS += $(scripts)
