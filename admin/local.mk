# SPDX-License-Identifier: Apache-2.0
# monarchctl.

bin_PROGRAMS += monarchctl
monarchctl_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) -DPKGDATADIR='"$(pkgdatadir)"' -DSPANKDIR='"$(libdir)/slurm"' \
	$(checked_flags) $(MONARCH_CFLAGS) $(NCURSES_CFLAGS)
monarchctl_LDADD = $(libmonarch) $(NCURSES_LIBS)
monarchctl_SOURCES = \
	%D%/advice.cc \
	%D%/advice.h \
	%D%/bounded.cc \
	%D%/bounded.h \
	%D%/clean.cc \
	%D%/commands.h \
	%D%/config.cc \
	%D%/container.cc \
	%D%/defaults.cc \
	%D%/defaults.h \
	%D%/doctor.cc \
	%D%/flush.cc \
	%D%/job_text.cc \
	%D%/job_text.h \
	%D%/jobs.cc \
	%D%/jobs.h \
	%D%/kept.cc \
	%D%/kept.h \
	%D%/metrics.cc \
	%D%/monarchctl.cc \
	%D%/node_rows.cc \
	%D%/node_rows.h \
	%D%/open_times_text.cc \
	%D%/open_times_text.h \
	%D%/output.cc \
	%D%/output.h \
	%D%/page.cc \
	%D%/page.h \
	%D%/plan.cc \
	%D%/report.cc \
	%D%/report_json.cc \
	%D%/report_json.h \
	%D%/run.cc \
	%D%/screen.cc \
	%D%/screen.h \
	%D%/slurm_facts.cc \
	%D%/slurm_facts.h \
	%D%/status.cc \
	%D%/tiers.cc \
	%D%/tiers.h \
	%D%/timeline.cc \
	%D%/timeline.h \
	%D%/top.cc \
	%D%/version.cc \
	%D%/wait.cc \
	%D%/wait.h
