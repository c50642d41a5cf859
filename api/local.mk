# SPDX-License-Identifier: Apache-2.0
# libmonarch, for programs that call Monarch: shared and static, nothing but the C library. What it decides is the preload
# library's code.

include_HEADERS = %D%/libmonarch.h
lib_LIBRARIES = %D%/libmonarch.a
api_libmonarch_a_CXXFLAGS = $(so_compile_flags) -U_FORTIFY_SOURCE -fno-delete-null-pointer-checks
api_libmonarch_a_SOURCES = \
	%D%/environment.cc \
	%D%/libmonarch.cc \
	preload/client/exclude.cc \
	preload/client/log.cc \
	preload/decide/attach.cc \
	preload/decide/changes.cc \
	preload/decide/opens.cc \
	preload/resolve/mounts.cc \
	preload/resolve/names.cc \
	preload/resolve/originals.cc \
	preload/resolve/paths.cc \
	preload/resolve/roots.cc

# Its name has the number of its ABI, which stays 1 as long as nothing is taken away.
apiexecdir = $(libdir)
apiexec_PROGRAMS = libmonarch.so.1
libmonarch_so_1_SOURCES =
libmonarch_so_1_LINK = $(CXX) $(CXXFLAGS) $(libmonarch_so_1_LDFLAGS) $(LDFLAGS) -o $@ \
	-Wl,--whole-archive %D%/libmonarch.a -Wl,--no-whole-archive
# Not --exclude-libs, which would hide all that is in the archive.
libmonarch_so_1_LDFLAGS = $(common_link_flags) -shared -static-libstdc++ -static-libgcc -Wl,-soname,libmonarch.so.1 -Wl,-z,defs -Wl,--version-script=$(srcdir)/%D%/libmonarch.map
libmonarch_so_1_LDADD =
EXTRA_libmonarch_so_1_DEPENDENCIES = %D%/libmonarch.a %D%/libmonarch.map
EXTRA_DIST += %D%/libmonarch.map %D%/libmonarch.pc.in
install-exec-hook:
	ln -sf libmonarch.so.1 '$(DESTDIR)$(libdir)/libmonarch.so'
uninstall-local:
	rm -f '$(DESTDIR)$(libdir)/libmonarch.so'

pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = %D%/libmonarch.pc
%D%/libmonarch.pc: %D%/libmonarch.pc.in Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SED) -e 's|[@]prefix[@]|$(prefix)|g' -e 's|[@]libdir[@]|$(libdir)|g' \
		-e 's|[@]includedir[@]|$(includedir)|g' -e 's|[@]VERSION[@]|$(VERSION)|g' $(srcdir)/$@.in >$@.tmp && mv $@.tmp $@
CLEANFILES += %D%/libmonarch.pc
