# SPDX-License-Identifier: Apache-2.0
# monarchctl.

bin_PROGRAMS += monarchctl
monarchctl_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) $(checked_flags) $(MONARCH_CFLAGS)
monarchctl_LDADD = $(libmonarch)
monarchctl_SOURCES = \
	%D%/advice.cc \
	%D%/advice.h \
	%D%/bounded.cc \
	%D%/bounded.h \
	%D%/clean.cc \
	%D%/commands.h \
	%D%/config.cc \
	%D%/container.cc \
	%D%/doctor.cc \
	%D%/jobs.cc \
	%D%/jobs.h \
	%D%/monarchctl.cc \
	%D%/output.cc \
	%D%/output.h \
	%D%/plan.cc \
	%D%/page.cc \
	%D%/page.h \
	%D%/timeline.cc \
	%D%/timeline.h \
	%D%/run.cc \
	%D%/slurm_facts.cc \
	%D%/slurm_facts.h \
	%D%/status.cc \
	%D%/summary.cc \
	%D%/tiers.cc \
	%D%/tiers.h \
	%D%/version.cc \
	%D%/wait.cc \
	%D%/wait.h
