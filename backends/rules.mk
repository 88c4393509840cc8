# SPDX-License-Identifier: Apache-2.0
# The plug-ins: rdt_NAME.so of backends/NAME/*.c, nothing of the daemon, its own libraries.

# A line for each backend that needs a library: its pkg-config modules. A backend whose library is missing is dropped,
# and make prints a line about it, unless the backend is required (PKGS in the Makefile).
BACKEND_PKGS_ucx    := ucx
BACKEND_PKGS_stream := openssl
# A library without pkg-config is found by a header.
BACKEND_HEADER_gloo := gloo/config.h
BACKEND_WITHOUT_gloo := gloo/transport/tcp/listener.h # versions after 2023, whose pairs differ, have this header
BACKEND_LIBS_gloo   := -lgloo -lstdc++
# These need the header of NVIDIA's driver, cuda.h, and link nothing, because they load the driver and NCCL at run time.
# The header comes from CUDA_HOME, the usual prefixes, or `make cuda-headers`; without it, or with CUDA_HOME=no, these
# backends are left out.
CUDA_BACKENDS       := cuda nccl
CUDA_WHEEL          ?= 13.0.96

PLUGIN_O  := $(call obj,$(wildcard proto/rdt_status.c proto/rdt_dtype.c)) # what a plug-in carries of proto/
LISTEN_O  := $(call obj,backends/common/address.c backends/common/configured.c) # and those that listen
CUDA_O    := $(call obj,backends/common/cuda_driver.c backends/common/cuda_share.c) # and those that use a GPU

ifdef NEEDS_LIBS
UCX_CFLAGS  := $(call cflags,ucx)
UCX_LIBS    := $(call libs,ucx)
CUDA_PLACES := $(or $(CUDA_HOME),/usr/local/cuda /opt/cuda build/cuda/$(CUDA_WHEEL)/nvidia/cu13 /usr)
CUDA_INC    := $(shell backends/find-cuda '$(CC)' $(CUDA_PLACES))
CUDA_CFLAGS := $(if $(filter /usr/include,$(CUDA_INC)),,$(CUDA_INC:%=-isystem %))
BACKENDS    := $(shell backends/find-backends '$(CXX)' $(foreach v,$(filter BACKEND_%,$(.VARIABLES)),'$(v)=$($(v))'))
BACKENDS    := $(filter-out $(if $(CUDA_INC),,$(CUDA_BACKENDS)),$(BACKENDS))
endif
BACKEND_SO := $(BACKENDS:%=$(B)/backends/rdt_%.so)

link_plugin = $(library) $(symbols)backends/plugin.map

PLUGIN_DIRS := backends $(addprefix tests/,loopback grouped fake_device fuzz/void abi/v1 conformance/broken preload)
$(PLUGIN_DIRS:%=$(B)/obj/%/%.o): OBJFLAGS = -fPIC -fno-semantic-interposition
$(B)/obj/backends/gloo/mesh.o $(B)/obj/backends/gloo/pair.o: OBJFLAGS += -idirafter backends/gloo/absent
define backend
$(B)/backends/rdt_$(1).so: $(call obj,$(call srcs,backends/$(1))) $(patsubst %.cc,$(B)/obj/%.o,$(wildcard backends/$(1)/*.cc)) \
    $(PLUGIN_O) $(LISTEN_O) $(if $(filter $(CUDA_BACKENDS),$(1)),$(CUDA_O)) backends/plugin.map $(B)/.sources
	$$(call link,$$(link_plugin) $(if $(BACKEND_PKGS_$(1)),$(call libs,$(BACKEND_PKGS_$(1)))) $(BACKEND_LIBS_$(1)))
$(B)/obj/backends/$(1)/%.o: OBJFLAGS += $(if $(BACKEND_PKGS_$(1)),$(call cflags,$(BACKEND_PKGS_$(1)))) $(if $(filter $(CUDA_BACKENDS),$(1)),$(CUDA_CFLAGS))
endef
$(foreach b,$(BACKENDS),$(eval $(call backend,$(b))))
$(CUDA_O): OBJFLAGS += $(CUDA_CFLAGS)

.PHONY: ucx-wheels cuda-headers
ucx-wheels:
	@.ci/ucx-wheels $(UCX_WHEELS)

# The header of NVIDIA's driver from its Python package. Its licence forbids to redistribute it, so it stays in build/.
cuda-headers:
	@.ci/wheel build/cuda/$(CUDA_WHEEL) nvidia-cuda-runtime==$(CUDA_WHEEL) nvidia/cu13/include/cuda.h
