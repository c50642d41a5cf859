# SPDX-License-Identifier: Apache-2.0
# Samples for the administrator, the directory in /run, and the units of systemd's.

templates = \
	%D%/enroot/50-monarch.sh \
	%D%/monarch-metrics-textfile.service \
	%D%/monarch-metrics-textfile.timer \
	%D%/monarch-metrics.socket \
	%D%/monarch-metrics@.service \
	%D%/monarch-sweep.service \
	%D%/monarch.tmpfiles.conf \
	%D%/plugstack.conf.d/spank_monarch.conf \
	%D%/sites/diskless-ram/plugstack.conf \
	%D%/sites/exclusive-nvme/plugstack.conf \
	%D%/sites/shared-ssd/plugstack.conf

$(templates): Makefile
	$(AM_V_GEN)$(MKDIR_P) $(@D) && \
	$(SED) -e 's|[@]bindir[@]|$(bindir)|g' -e 's|[@]libdir[@]|$(libdir)|g' -e 's|[@]sbindir[@]|$(sbindir)|g' -e 's|[@]sysconfdir[@]|$(sysconfdir)|g' \
		-e 's|[@]runstatedir[@]|$(runstatedir)|g' $(srcdir)/$@.in > $@.tmp && mv $@.tmp $@
%D%/enroot/50-monarch.sh: %D%/enroot/50-monarch.sh.in
%D%/monarch-metrics-textfile.service: %D%/monarch-metrics-textfile.service.in
%D%/monarch-metrics-textfile.timer: %D%/monarch-metrics-textfile.timer.in
%D%/monarch-metrics.socket: %D%/monarch-metrics.socket.in
%D%/monarch-metrics@.service: %D%/monarch-metrics@.service.in
%D%/monarch-sweep.service: %D%/monarch-sweep.service.in
%D%/monarch.tmpfiles.conf: %D%/monarch.tmpfiles.conf.in
%D%/plugstack.conf.d/spank_monarch.conf: %D%/plugstack.conf.d/spank_monarch.conf.in
%D%/sites/diskless-ram/plugstack.conf: %D%/sites/diskless-ram/plugstack.conf.in
%D%/sites/exclusive-nvme/plugstack.conf: %D%/sites/exclusive-nvme/plugstack.conf.in
%D%/sites/shared-ssd/plugstack.conf: %D%/sites/shared-ssd/plugstack.conf.in
CLEANFILES += $(templates)
EXTRA_DIST += \
	%D%/enroot/50-monarch.sh.in \
	%D%/monarch-metrics-textfile.service.in \
	%D%/monarch-metrics-textfile.timer.in \
	%D%/monarch-metrics.socket.in \
	%D%/monarch-metrics@.service.in \
	%D%/monarch-sweep.service.in \
	%D%/monarch.tmpfiles.conf.in \
	%D%/plugstack.conf.d/spank_monarch.conf.in \
	%D%/sites/diskless-ram/plugstack.conf.in \
	%D%/sites/exclusive-nvme/plugstack.conf.in \
	%D%/sites/shared-ssd/plugstack.conf.in

dist_pkgdata_DATA += %D%/monarch.conf.sample
grafanadir = $(pkgdatadir)/grafana
dist_grafana_DATA = %D%/grafana/monarch.json
plugstackdir = $(pkgdatadir)/plugstack.conf.d
plugstack_DATA = %D%/plugstack.conf.d/spank_monarch.conf
enroothookdir = $(pkgdatadir)/enroot
enroothook_SCRIPTS = %D%/enroot/50-monarch.sh
if INSTALL_ENROOT_HOOK
sitehookdir = $(enrootsysconfdir)/hooks.d
sitehook_SCRIPTS = %D%/enroot/50-monarch.sh
endif
bashcompletiondir = $(datadir)/bash-completion/completions
dist_bashcompletion_DATA = %D%/completions/bash/monarchctl
zshcompletiondir = $(datadir)/zsh/site-functions
dist_zshcompletion_DATA = %D%/completions/zsh/_monarchctl
# Of three kinds of site, and scripts of jobs: tests/guides.t runs them.
diskless_ramdir = $(pkgdatadir)/sites/diskless-ram
dist_diskless_ram_DATA = %D%/sites/diskless-ram/monarch.conf
diskless_ram_DATA = %D%/sites/diskless-ram/plugstack.conf
exclusive_nvmedir = $(pkgdatadir)/sites/exclusive-nvme
dist_exclusive_nvme_DATA = %D%/sites/exclusive-nvme/monarch.conf
exclusive_nvme_DATA = %D%/sites/exclusive-nvme/plugstack.conf
shared_ssddir = $(pkgdatadir)/sites/shared-ssd
dist_shared_ssd_DATA = %D%/sites/shared-ssd/monarch.conf
shared_ssd_DATA = %D%/sites/shared-ssd/plugstack.conf
sbatchdir = $(pkgdatadir)/sbatch
dist_sbatch_SCRIPTS = \
	%D%/sbatch/array.sh \
	%D%/sbatch/container.sh \
	%D%/sbatch/pytorch-ddp.sh \
	%D%/sbatch/salloc.sh \
	%D%/sbatch/wait.sh
if INSTALL_TMPFILES
install-data-hook:
	$(MKDIR_P) '$(DESTDIR)$(tmpfilesdir)'
	$(INSTALL_DATA) %D%/monarch.tmpfiles.conf '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
uninstall-hook:
	rm -f '$(DESTDIR)$(tmpfilesdir)/monarch.conf'
all-local: %D%/monarch.tmpfiles.conf
endif
if INSTALL_UNITS
systemdsystemunit_DATA = \
	%D%/monarch-metrics-textfile.service \
	%D%/monarch-metrics-textfile.timer \
	%D%/monarch-metrics.socket \
	%D%/monarch-metrics@.service \
	%D%/monarch-sweep.service
endif
