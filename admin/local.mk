# SPDX-License-Identifier: Apache-2.0
# monarchctl.

bin_PROGRAMS += monarchctl
monarchctl_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) -DPKGDATADIR='"$(pkgdatadir)"' -DSPANKDIR='"$(libdir)/slurm"' \
	$(checked_flags) $(MONARCH_CFLAGS) $(NCURSES_CFLAGS)
monarchctl_LDADD = simulate/libsimulate.a $(libmonarch) $(NCURSES_LIBS)
monarchctl_SOURCES = \
	%D%/advice.h \
	%D%/bounded.h \
	%D%/commands.h \
	%D%/defaults.h \
	%D%/job_text.h \
	%D%/jobs.h \
	%D%/monarchctl.cc \
	%D%/output.h \
	%D%/page.h \
	%D%/reports.h \
	%D%/screen.h \
	%D%/slurm_facts.h \
	%D%/tiers.h \
	%D%/timeline.h \
	%D%/wait.h
# Compile as one (--disable-unity: each by itself): a list NAME is unity/NAME.cc.
ctl_jobs = \
	%D%/advice.cc \
	%D%/job_text.cc \
	%D%/jobs.cc \
	%D%/report.cc \
	%D%/reports.cc \
	%D%/status.cc \
	%D%/tiers.cc
ctl_run = \
	%D%/bounded.cc \
	%D%/config.cc \
	%D%/container.cc \
	%D%/defaults.cc \
	%D%/doctor.cc \
	%D%/flush.cc \
	%D%/hint.cc \
	%D%/plan.cc \
	%D%/run.cc \
	%D%/simulate.cc \
	%D%/slurm_facts.cc \
	%D%/version.cc \
	%D%/wait.cc
ctl_top = \
	%D%/clean.cc \
	%D%/metrics.cc \
	%D%/output.cc \
	%D%/page.cc \
	%D%/screen.cc \
	%D%/timeline.cc \
	%D%/top.cc
if UNITY
nodist_monarchctl_SOURCES = unity/ctl_jobs.cc unity/ctl_run.cc unity/ctl_top.cc
unity += $(nodist_monarchctl_SOURCES)
else
monarchctl_SOURCES += $(ctl_jobs) $(ctl_run) $(ctl_top)
endif
