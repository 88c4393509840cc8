# SPDX-License-Identifier: Apache-2.0
# What is installed, and the packages and images made of it.

.PHONY: install uninstall deb-run test-deb image-run

# Everything that systemd/install puts somewhere, and where.
INSTALLED := DESTDIR PREFIX bindir libdir includedir mandir docdir completiondir unitdir sysusersdir backenddir conffile pythondir \
    VERSION SOVERSION PROGRAMS EXPORTER CHECK CONF LIBRDT LIBCUDA BACKEND_SO HEADERS MANPAGES PY_FILES PY_EXT
for_install = $(foreach v,$(INSTALLED),$(v)='$($(v))') PYTHON='$(INSTALL_PYTHON)'
install: all
	@$(for_install) systemd/install
uninstall:
	@$(for_install) systemd/install --remove

# Debian packages in build/deb, and their test in a new Debian, which debootstrap fetches once.
deb-run:
	@systemd/make-deb $(VERSION) $(if $(CUDA_INC),$(abspath $(CUDA_INC)/..))
test-deb:
	@.ci/deps debhelper dh-python lintian debootstrap
	+@RDT_TEST_PACKAGES=1 $(SUB) T=admin/test_packages test-run

image-run: all
	@systemd/image/build '$(VERSION)' build/image/rdtd-$(VERSION).oci.tar
