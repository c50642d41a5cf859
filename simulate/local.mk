# SPDX-License-Identifier: Apache-2.0
# The simulator: a library without threads and without calls to the system, and samples for it.

noinst_LIBRARIES += %D%/libsimulate.a
%C%_libsimulate_a_CPPFLAGS = $(AM_CPPFLAGS) $(checked_flags) $(MONARCH_CFLAGS)
%C%_libsimulate_a_SOURCES = \
	%D%/accesses.h \
	%D%/copies.h \
	%D%/model.h \
	%D%/plan.h \
	%D%/run.h \
	%D%/settings.h
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
	%D%/run.cc \
	%D%/settings.cc
if UNITY
nodist_%C%_libsimulate_a_SOURCES = unity/simulate_policies.cc unity/simulate_runs.cc
unity += $(nodist_%C%_libsimulate_a_SOURCES)
else
%C%_libsimulate_a_SOURCES += $(simulate_policies) $(simulate_runs)
endif

machinesdir = $(pkgdatadir)/simulate/machines
dist_machines_DATA = \
	%D%/machines/lab.ini \
	%D%/machines/lassen.ini \
	%D%/machines/nopfs-paper.ini \
	%D%/machines/nopfs-thesis.ini \
	%D%/machines/piz-daint.ini
datasetsdir = $(pkgdatadir)/simulate/datasets
dist_datasets_DATA = \
	%D%/datasets/cosmoflow-512.ini \
	%D%/datasets/cosmoflow.ini \
	%D%/datasets/imagenet-1k.ini \
	%D%/datasets/imagenet-22k.ini \
	%D%/datasets/mnist.ini \
	%D%/datasets/nopfs-thesis-1.ini \
	%D%/datasets/nopfs-thesis-2.ini \
	%D%/datasets/nopfs-thesis-3.ini \
	%D%/datasets/nopfs-thesis-4.ini \
	%D%/datasets/openimages.ini
