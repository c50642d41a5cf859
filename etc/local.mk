# SPDX-License-Identifier: Apache-2.0
# Samples for the administrator, and the directory in /run.

templates = \
	%D%/monarch.tmpfiles.conf \
	%D%/plugstack.conf.d/monarch.conf

$(templates): Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	$(SED) -e 's|[@]bindir[@]|$(bindir)|g' -e 's|[@]libdir[@]|$(libdir)|g' -e 's|[@]sysconfdir[@]|$(sysconfdir)|g' \
		-e 's|[@]runstatedir[@]|$(runstatedir)|g' $(srcdir)/$@.in > $@.tmp && mv $@.tmp $@
%D%/monarch.tmpfiles.conf: %D%/monarch.tmpfiles.conf.in
%D%/plugstack.conf.d/monarch.conf: %D%/plugstack.conf.d/monarch.conf.in
CLEANFILES += $(templates)
EXTRA_DIST += \
	%D%/monarch.tmpfiles.conf.in \
	%D%/plugstack.conf.d/monarch.conf.in

dist_pkgdata_DATA += %D%/monarch.conf.sample
plugstackdir = $(pkgdatadir)/plugstack.conf.d
plugstack_DATA = %D%/plugstack.conf.d/monarch.conf
if INSTALL_TMPFILES
install-data-hook:
	$(MKDIR_P) '$(DESTDIR)$(tmpfilesdir)'
	$(INSTALL_DATA) %D%/monarch.tmpfiles.conf '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
uninstall-hook:
	rm -f '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
all-local: %D%/monarch.tmpfiles.conf
endif
