# SPDX-License-Identifier: Apache-2.0
# The simulator: a library without threads and without calls to the system, and samples for it.

noinst_LIBRARIES += %D%/libsimulate.a
%C%_libsimulate_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags)
%C%_libsimulate_a_SOURCES = \
	%D%/accesses.h \
	%D%/copies.h \
	%D%/model.h \
	%D%/plan.h \
	%D%/run.h
# Compile as one (--disable-unity: each by itself): a list NAME is unity/NAME.cc.
simulate_policies = \
	%D%/policies/deepio.cc \
	%D%/policies/lbann.cc \
	%D%/policies/locality_aware.cc \
	%D%/policies/monarch.cc \
	%D%/policies/nopfs.cc \
	%D%/policies/parallel_staging.cc \
	%D%/policies/policies.cc
simulate_runs = \
	%D%/accesses.cc \
	%D%/copies.cc \
	%D%/model.cc \
	%D%/run.cc
if UNITY
nodist_%C%_libsimulate_a_SOURCES = unity/simulate_policies.cc unity/simulate_runs.cc
unity += $(nodist_%C%_libsimulate_a_SOURCES)
else
%C%_libsimulate_a_SOURCES += $(simulate_policies) $(simulate_runs)
endif
