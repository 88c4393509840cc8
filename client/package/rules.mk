# SPDX-License-Identifier: Apache-2.0
# librdt, librdt-cuda, rdtctl, rdtd-exporter and the Python package.

CLIENT_O  := $(call obj,$(call srcs,client client/session client/memory client/plan))
LIBCUDA_O := $(call obj,$(call srcs,client/cuda))
CTL_C      = $(filter-out $(if $(NCURSES),,%/ctl_top.c),$(call srcs,client/ctl client/ctl/*))
HEADERS   := $(wildcard client/rdt.h client/rdt_*.h backends/rdt_*.h proto/rdt_*.h)

NCURSES := $(and $(call have,ncursesw),ncursesw)
$(if $(NCURSES),,$(call without,rdtctl: built without top$(,) ncursesw is not installed))

LIBRDT   := $(B)/librdt.so.$(VERSION)
LIBCUDA  := $(if $(CUDA_INC),$(B)/librdt-cuda.so.$(VERSION))
PROGRAMS += $(B)/rdtctl
EXPORTER := $(and $(call have,libmicrohttpd),$(B)/rdtd-exporter)
PROGRAMS += $(EXPORTER)
$(if $(EXPORTER),,$(call without,rdtd-exporter: dropped$(,) no libmicrohttpd (Debian: libmicrohttpd-dev)))

# $(call links,NAME): the names of a library for the run-time and the compile-time linker.
links = $(Q)ln -sf $(@F) $(B)/$(1).so.$(SOVERSION) && ln -sf $(1).so.$(SOVERSION) $(B)/$(1).so

$(LIBRDT): $(CLIENT_O) $(PROTO_O) client/package/librdt.map $(B)/.sources
	$(call link,$(library) -Wl$(,)-soname$(,)librdt.so.$(SOVERSION) $(symbols)client/package/librdt.map $(CLIENT_LIBS))
	$(call links,librdt)

ifdef CUDA_INC
$(LIBCUDA): $(LIBCUDA_O) $(CUDA_O) client/cuda/librdt-cuda.map $(LIBRDT) $(B)/.sources
	$(call link,$(library) -Wl$(,)-soname$(,)librdt-cuda.so.$(SOVERSION) $(symbols)client/cuda/librdt-cuda.map $(LIBRDT))
	$(call links,librdt-cuda)
endif
$(LIBCUDA_O): OBJFLAGS += -iquote client $(CUDA_CFLAGS)

$(B)/obj/client/ctl/%.o: OBJFLAGS += $(if $(NCURSES),-DRDT_HAVE_NCURSES $(call cflags,$(NCURSES)))
$(B)/obj/client/ctl/rdtctl.o: $(B)/.found
$(B)/rdtctl: $(call obj,$(CTL_C)) $(B)/librdt.a $(B)/libproto.a
	$(call link,$(program) $^ $(CTL_LIBS) $(if $(NCURSES),$(call libs,$(NCURSES))))

$(B)/rdtd-exporter: $(call obj,$(call srcs,client/exporter)) $(B)/librdt.a $(B)/libproto.a
	$(call link,$(program) $^ $(CLIENT_LIBS) $(call libs,libmicrohttpd))

# ---- Python ----

# The Python package, for the Python that PYTHON names (PYTHON=no: none). Built with asan it runs in a Python that loads
# asan first; the variants tsan and fuzz have no package.
PYTHON ?= $(or $(wildcard /usr/bin/python3),python3)
INSTALL_PYTHON = $(or $(PYTHON),$(wildcard /usr/bin/python3),python3)
PY_FILES := $(wildcard client/python/rdtd/*.py client/python/rdtd/*.pyi client/python/rdtd/py.typed)
PY_ASKS := import sysconfig as s; print(s.get_paths()["include"], s.get_config_var("EXT_SUFFIX"))
PY_INFO := $(and $(NEEDS_LIBS),$(filter-out no,$(PYTHON)),$(shell $(PYTHON) -c '$(PY_ASKS)' 2>/dev/null))
ifneq ($(filter release asan cov,$(VARIANT)),)
PY_EXT := $(if $(wildcard $(firstword $(PY_INFO))/Python.h),$(B)/python/rdtd/_rdt$(lastword $(PY_INFO)))
$(if $(PY_EXT),,$(call without,python: dropped$(,) PYTHON=$(PYTHON) has no Python.h (Debian: python3-dev)))
endif

.PHONY: python wheel-run test-wheel

# The package as it is imported, PYTHONPATH=$(B)/python: librdt is within, so it needs nothing that is installed.
python: $(PY_EXT)
	$(if $(PY_EXT),,$(error no Python package: see above))

# GPU memory is within too where cuda.h is.
$(PY_EXT): $(call obj,$(call srcs,client/python/src)) $(if $(CUDA_INC),$(B)/librdt-cuda.a) $(B)/librdt.a $(B)/libproto.a \
    $(PY_FILES) client/python/python.map $(B)/.python
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && rm -rf $(@D)/* && cp $(PY_FILES) $(@D)/
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
