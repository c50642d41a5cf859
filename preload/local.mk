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
	%D%/client/client.h \
	%D%/client/environment.h \
	%D%/client/room.h \
	%D%/decide/attributes.h \
	%D%/decide/changes.h \
	%D%/decide/descriptors.h \
	%D%/decide/duplicates.h \
	%D%/decide/large.h \
	%D%/decide/listings.h \
	%D%/decide/locks.h \
	%D%/decide/opens.h \
	%D%/decide/returns.h \
	%D%/decide/waiting.h \
	%D%/hooks.h \
	%D%/next/kernel.h \
	%D%/next/next.h \
	%D%/resolve/names.h \
	%D%/resolve/originals.h \
	%D%/resolve/paths.h \
	%D%/resolve/roots.h \
	%D%/resolve/words.h

# Compile as one (--disable-unity: each by itself): a list NAME is unity/NAME.cc.
preload_client = \
	%D%/client/environment.cc \
	%D%/client/exclude.cc \
	%D%/client/log.cc \
	%D%/next/next.cc
preload_resolve = \
	%D%/resolve/mounts.cc \
	%D%/resolve/names.cc \
	%D%/resolve/originals.cc \
	%D%/resolve/paths.cc \
	%D%/resolve/roots.cc
preload_decide = \
	%D%/decide/attach.cc \
	%D%/decide/attributes.cc \
	%D%/decide/changes.cc \
	%D%/decide/descriptors.cc \
	%D%/decide/duplicates.cc \
	%D%/decide/large.cc \
	%D%/decide/listings.cc \
	%D%/decide/locks.cc \
	%D%/decide/opens.cc \
	%D%/decide/returns.cc
preload_hooks = \
	%D%/hooks/change.cc \
	%D%/hooks/count.cc \
	%D%/hooks/descriptor.cc \
	%D%/hooks/directory.cc \
	%D%/hooks/exec.cc \
	%D%/hooks/link.cc \
	%D%/hooks/lock.cc \
	%D%/hooks/open.cc \
	%D%/hooks/space.cc \
	%D%/hooks/stat.cc
if UNITY
nodist_libmonarch_preload_so_SOURCES = unity/preload_client.cc unity/preload_decide.cc unity/preload_hooks.cc \
	unity/preload_resolve.cc
unity += $(nodist_libmonarch_preload_so_SOURCES)
else
libmonarch_preload_so_SOURCES += $(preload_client) $(preload_decide) $(preload_hooks) $(preload_resolve)
endif

# What hooks.h lists, and nothing else. No version name: a versioned symbol does not interpose.
%D%/preload.map: %D%/hooks.h
	$(AM_V_GEN)$(MKDIR_P) %D% && { echo '{ global:' && \
	sed -n '/^#define MONARCH_HOOKS/,/^$$/p' $(srcdir)/%D%/hooks.h | grep -o 'X([A-Za-z_0-9]*,' | sed 's/X(\(.*\),/\1;/' && \
	echo 'local: *; };'; } >$@.new && mv $@.new $@
CLEANFILES += %D%/preload.map
