# SPDX-License-Identifier: Apache-2.0
# The library in the tasks: nothing but the C library, and of the runtime only the headers in layout/.

preloadexecdir = $(pkglibdir)
preloadexec_PROGRAMS = libmonarch_preload.so
# Fortified headers would define the functions that this library defines; and what libc's headers declare
# non-null is null in programs that ask for EFAULT.
libmonarch_preload_so_CXXFLAGS = $(so_compile_flags) -U_FORTIFY_SOURCE -fno-delete-null-pointer-checks \
	-ftls-model=initial-exec
libmonarch_preload_so_LDFLAGS = $(so_link_flags) -Wl,-soname,libmonarch_preload.so -Wl,-z,defs -Wl,-z,nodelete \
	-Wl,--version-script=$(srcdir)/%D%/preload.map
libmonarch_preload_so_LDADD = $(LIBDL_SONAME)
EXTRA_libmonarch_preload_so_DEPENDENCIES = %D%/preload.map
libmonarch_preload_so_SOURCES = \
	%D%/changes.cc \
	%D%/directories.cc \
	%D%/environment.cc \
	%D%/environment.h \
	%D%/exclude.cc \
	%D%/hooks.h \
	%D%/hooks_change.cc \
	%D%/hooks_count.cc \
	%D%/hooks_descriptor.cc \
	%D%/hooks_directory.cc \
	%D%/hooks_exec.cc \
	%D%/hooks_open.cc \
	%D%/hooks_space.cc \
	%D%/hooks_stat.cc \
	%D%/init.cc \
	%D%/large_reads.cc \
	%D%/log.cc \
	%D%/lookup.cc \
	%D%/metadata.cc \
	%D%/originals.cc \
	%D%/paths.cc \
	%D%/preload.h

EXTRA_DIST += %D%/preload.map
