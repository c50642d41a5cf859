# SPDX-License-Identifier: Apache-2.0
# The SPANK plugin: the C library, and what the Slurm process that loads it provides (hence no -z defs).

if HAVE_SLURM
spankexecdir = $(libdir)/slurm
spankexec_PROGRAMS = spank_monarch.so
spank_monarch_so_CPPFLAGS = $(AM_CPPFLAGS) $(install_dirs) $(FORTIFY_CPPFLAGS) $(SLURM_CFLAGS)
spank_monarch_so_CXXFLAGS = $(so_compile_flags)
spank_monarch_so_LDFLAGS = $(so_link_flags) -Wl,-soname,spank_monarch.so \
	-Wl,--version-script=$(srcdir)/%D%/spank_monarch.map
EXTRA_spank_monarch_so_DEPENDENCIES = %D%/spank_monarch.map
spank_monarch_so_SOURCES = \
	%D%/defaults.cc \
	%D%/epilog.cc \
	%D%/helper.cc \
	%D%/key.cc \
	%D%/mounts.cc \
	%D%/node.cc \
	%D%/options.cc \
	%D%/plugin.h \
	%D%/slurm_release.h \
	%D%/spank_monarch.cc \
	%D%/submit.cc \
	%D%/task.cc \
	%D%/wait.cc
endif

EXTRA_DIST += %D%/spank_monarch.map
