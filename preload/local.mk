# SPDX-License-Identifier: Apache-2.0
# The library in the tasks: nothing but the C library, and of the runtime only the headers in layout/.

soexec_PROGRAMS += libmonarch_preload.so
# Without stubs a call into libc touches one line of the cache less: after a system call few are left there.
# Fortified headers would define the functions that this library defines; and what libc's headers declare
# non-null is null in programs that ask for EFAULT.
libmonarch_preload_so_CXXFLAGS = $(so_compile_flags) -U_FORTIFY_SOURCE -fno-delete-null-pointer-checks \
	-ftls-model=initial-exec -fno-plt
libmonarch_preload_so_LDFLAGS = $(so_link_flags) -Wl,-soname,libmonarch_preload.so -Wl,-z,defs -Wl,-z,nodelete \
	-Wl,--version-script=%D%/preload.map
libmonarch_preload_so_LDADD = $(LIBDL_SONAME)
EXTRA_libmonarch_preload_so_DEPENDENCIES = %D%/preload.map
libmonarch_preload_so_SOURCES = \
	%D%/client/attach.cc \
	%D%/client/client.h \
	%D%/client/environment.cc %D%/client/environment.h \
	%D%/client/exclude.cc \
	%D%/client/log.cc \
	%D%/client/room.h \
	%D%/decide/attributes.cc %D%/decide/attributes.h \
	%D%/decide/changes.cc %D%/decide/changes.h \
	%D%/decide/descriptors.cc %D%/decide/descriptors.h \
	%D%/decide/duplicates.cc %D%/decide/duplicates.h \
	%D%/decide/large.cc %D%/decide/large.h \
	%D%/decide/listings.cc %D%/decide/listings.h \
	%D%/decide/locks.cc %D%/decide/locks.h \
	%D%/decide/opens.cc %D%/decide/opens.h \
	%D%/decide/returns.cc %D%/decide/returns.h \
	%D%/decide/waiting.h \
	%D%/hooks.h \
	%D%/hooks/change.cc \
	%D%/hooks/count.cc \
	%D%/hooks/descriptor.cc \
	%D%/hooks/directory.cc \
	%D%/hooks/exec.cc \
	%D%/hooks/link.cc \
	%D%/hooks/lock.cc \
	%D%/hooks/open.cc \
	%D%/hooks/space.cc \
	%D%/hooks/stat.cc \
	%D%/next/kernel.h \
	%D%/next/next.cc %D%/next/next.h \
	%D%/resolve/mounts.cc \
	%D%/resolve/names.cc %D%/resolve/names.h \
	%D%/resolve/originals.cc %D%/resolve/originals.h \
	%D%/resolve/paths.cc %D%/resolve/paths.h \
	%D%/resolve/roots.cc %D%/resolve/roots.h \
	%D%/resolve/words.h

# What hooks.h lists, and nothing else. No version name: a versioned symbol does not interpose.
%D%/preload.map: %D%/hooks.h
	$(AM_V_GEN)$(MKDIR_P) %D% && { echo '{ global:' && \
	sed -n '/^#define MONARCH_HOOKS/,/^$$/p' $(srcdir)/%D%/hooks.h | grep -o 'X([A-Za-z_0-9]*,' | sed 's/X(\(.*\),/\1;/' && \
	echo 'local: *; };'; } >$@.new && mv $@.new $@
CLEANFILES += %D%/preload.map
