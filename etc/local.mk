# SPDX-License-Identifier: Apache-2.0
# Samples for the administrator, the directory in /run, and the unit that cleans up at boot.

templates = \
	%D%/monarch-sweep.service \
	%D%/monarch.tmpfiles.conf \
	%D%/plugstack.conf.d/monarch.conf

$(templates): Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	$(SED) -e 's|[@]bindir[@]|$(bindir)|g' -e 's|[@]libdir[@]|$(libdir)|g' -e 's|[@]sbindir[@]|$(sbindir)|g' -e 's|[@]sysconfdir[@]|$(sysconfdir)|g' \
		-e 's|[@]runstatedir[@]|$(runstatedir)|g' $(srcdir)/$@.in > $@.tmp && mv $@.tmp $@
%D%/monarch-sweep.service: %D%/monarch-sweep.service.in
%D%/monarch.tmpfiles.conf: %D%/monarch.tmpfiles.conf.in
%D%/plugstack.conf.d/monarch.conf: %D%/plugstack.conf.d/monarch.conf.in
CLEANFILES += $(templates)
EXTRA_DIST += \
	%D%/monarch-sweep.service.in \
	%D%/monarch.tmpfiles.conf.in \
	%D%/plugstack.conf.d/monarch.conf.in

dist_pkgdata_DATA += %D%/monarch.conf.sample
plugstackdir = $(pkgdatadir)/plugstack.conf.d
plugstack_DATA = %D%/plugstack.conf.d/monarch.conf
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = %D%/completions/bash/monarchctl
zshcompletiondir = $(datadir)/zsh/site-functions
dist_zshcompletion_DATA = %D%/completions/zsh/_monarchctl
if INSTALL_TMPFILES
install-data-hook:
	$(MKDIR_P) '$(DESTDIR)$(tmpfilesdir)'
	$(INSTALL_DATA) %D%/monarch.tmpfiles.conf '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
uninstall-hook:
	rm -f '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
all-local: %D%/monarch.tmpfiles.conf
endif
if INSTALL_UNITS
systemdsystemunit_DATA = %D%/monarch-sweep.service
endif
