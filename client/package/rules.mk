# SPDX-License-Identifier: Apache-2.0
# librdt, librdt-cuda, rdtctl, rdtd-exporter and the Python package.

CLIENT_O  := $(call obj,$(call srcs,client client/session client/memory client/many client/plan))
LIBCUDA_O := $(call obj,$(call srcs,client/cuda))
CTL_C      = $(filter-out $(if $(NCURSES),,%/ctl_top.c),$(call srcs,client/ctl client/ctl/*))
HEADERS   := $(wildcard client/rdt.h client/rdt_*.h backends/rdt_*.h proto/rdt_*.h)

NCURSES := $(and $(call have,ncursesw,rdtctl: built without top$(,) ncursesw is not installed),ncursesw)

LIBRDT   := $(B)/librdt.so.$(VERSION)
LIBCUDA  := $(if $(CUDA_INC),$(B)/librdt-cuda.so.$(VERSION))
PROGRAMS += $(B)/rdtctl
EXPORTER := $(and $(call have,libmicrohttpd,rdtd-exporter: dropped$(,) no libmicrohttpd (Debian: libmicrohttpd-dev)),$(B)/rdtd-exporter)
PROGRAMS += $(EXPORTER)

# The libraries, and their names for the run-time and the compile-time linker.
$(LIBRDT): $(CLIENT_O) $(PROTO_O) client/package/librdt.map
$(LIBCUDA): $(LIBCUDA_O) $(CUDA_O) client/cuda/librdt-cuda.map $(LIBRDT)
$(LIBRDT) $(LIBCUDA): $(B)/%.so.$(VERSION): $(B)/.sources
	$(call link,$(library) -Wl$(,)-soname$(,)$*.so.$(SOVERSION) $(symbols)$(filter %.map,$^) $(CLIENT_LIBS))
	$(Q)ln -sf $(@F) $(B)/$*.so.$(SOVERSION) && ln -sf $*.so.$(SOVERSION) $(B)/$*.so
$(LIBCUDA_O): OBJFLAGS += -iquote client $(CUDA_CFLAGS)

$(B)/obj/client/ctl/%.o: OBJFLAGS += $(if $(NCURSES),-DRDT_HAVE_NCURSES $(call cflags,$(NCURSES)))
$(B)/obj/client/ctl/rdtctl.o: $(B)/.found
$(B)/rdtctl: $(call obj,$(CTL_C)) $(B)/librdt.a $(B)/libproto.a
$(B)/rdtctl: LIBS = $(CTL_LIBS) $(if $(NCURSES),$(call libs,$(NCURSES)))
$(B)/rdtd-exporter: $(call obj,$(call srcs,client/exporter)) $(B)/librdt.a $(B)/libproto.a
$(B)/rdtd-exporter: LIBS = $(CLIENT_LIBS) $(call libs,libmicrohttpd)

# ---- Python ----

# The Python package, for the Python that PYTHON names (PYTHON=no: none). Built with asan it runs in a Python that loads
# asan first; the variants tsan and fuzz have no package.
PYTHON ?= $(or $(wildcard /usr/bin/python3),python3)
INSTALL_PYTHON = $(or $(PYTHON),$(wildcard /usr/bin/python3),python3)
PY_FILES := $(wildcard client/python/rdtd/*.py client/python/rdtd/*.pyi client/python/rdtd/py.typed)
PY_FOR  := $(and $(NEEDS_LIBS),$(filter release asan cov,$(VARIANT)),$(filter-out no,$(PYTHON)))
PY_INFO := $(if $(PY_FOR),$(shell client/python/find-python $(PYTHON)))
PY_EXT  := $(if $(PY_INFO),$(B)/python/rdtd/_rdt$(lastword $(PY_INFO)))

.PHONY: python wheel-run test-wheel

# The package as it is imported, PYTHONPATH=$(B)/python: librdt is within, so it needs nothing that is installed, and the
# dist-info beside it says to engines which plug-ins it has.
python: $(PY_EXT)
	$(if $(PY_EXT),,$(error no Python package for PYTHON=$(PYTHON) and VARIANT=$(VARIANT)))

# GPU memory is within too where cuda.h is.
$(PY_EXT): $(call obj,$(call srcs,client/python/src)) $(if $(CUDA_INC),$(B)/librdt-cuda.a) $(B)/librdt.a $(B)/libproto.a \
    $(PY_FILES) client/python/python.map client/python/dist-info client/python/pyproject.toml $(B)/.python
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && rm -rf $(@D)/* && cp $(PY_FILES) $(@D)/
	$(Q)client/python/dist-info $(CURDIR)/$(B)/python/rdtd-$(VERSION).dist-info $(VERSION) make
	$(Q)$(CC) $(LDFLAGS_ALL) -shared $(symbols)client/python/python.map -o $@ $(filter %.o %.a,$^) $(CLIENT_LIBS)
$(B)/obj/client/python/%.o: OBJFLAGS = -fPIC -fno-semantic-interposition -Iclient -Iclient/cuda -Iproto \
    -isystem $(firstword $(PY_INFO)) $(if $(CUDA_INC),,-DRDTPY_WITHOUT_CUDA)
$(B)/obj/client/python/%.o: $(B)/.python $(B)/.found

# Wheels that contain librdt, in build/wheels, for each of PYTHONS, and their tests in those Pythons.
PYTHONS ?= $(INSTALL_PYTHON)
wheel-run: $(B)/librdt.a $(B)/libproto.a $(if $(CUDA_INC),$(B)/librdt-cuda.a)
	@client/python/make-wheels $(B) build/wheels $(PYTHONS)
test-wheel: wheel
	+@RDT_PYTHONS='$(PYTHONS)' $(SUB) VARIANT=$(VARIANT) T=python/test_wheel test
