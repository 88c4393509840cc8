# SPDX-License-Identifier: Apache-2.0
# The test programs, the plug-ins and fakes that they use, and the targets that run them.

SUPPORT_O := $(call obj,$(call srcs,tests/support tests/support/fakes)) $(LISTEN_O)
UNIT  := $(filter-out $(if $(filter gloo,$(BACKENDS)),,%/backends/gloo_mesh),$(patsubst %.c,$(B)/%,$(call srcs,tests/unit/* tests/abi)))
INTEG := $(patsubst %.c,$(B)/%,$(call srcs,tests/integration/* tests/gpu))
GPU_BENCH := $(B)/tests/bench/gpu $(B)/tests/bench/gpu_nodes
GPU_PROBE := $(if $(CUDA_INC),$(B)/tests/gpu/gpu-probe) # asks a driver and NCCL; carries nothing of rdtd
BENCH := $(filter-out $(GPU_BENCH),$(patsubst %.c,$(B)/%,$(call srcs,tests/bench)))
FAULT := $(B)/tests/faults/fault_matrix
SIMS  := $(patsubst %.c,$(B)/%,$(call srcs,tests/simulation)) # programs that run the daemon's decisions without a daemon
FUZZ  := $(patsubst %.c,$(B)/%,$(call srcs,tests/fuzz))
FUZZ_O := $(call obj,$(filter-out $(if $(filter fuzz,$(VARIANT)),%/replay.c),$(call srcs,tests/fuzz/harness)))
PRELOAD := $(if $(filter release,$(VARIANT)),$(B)/tests/preload/fail_alloc.so) # the sanitizers have an allocator of their own
TEST_PROGRAMS = $(UNIT) $(INTEG) $(SIMS) $(FUZZ) $(FAULT) $(GPU_BENCH) $(GPU_PROBE) $(BENCH)

# What Criterion's macros become takes four times as long to compile with -O2, and a test program mostly waits.
$(addprefix $(B)/obj/tests/,unit/%.o integration/%.o abi/%.o): TEST_CFLAGS = -U_FORTIFY_SOURCE -O0

# By default Criterion puts its arena at addresses that ThreadSanitizer reserves.
CRITERION_O := $(if $(filter tsan,$(VARIANT)),$(B)/obj/tests/criterion_tsan.o)

# ---- plug-ins ----

TEST_PLUGINS := $(patsubst %,$(B)/tests/rdt_%.so,loopback grouped fake v1 broken)
VOID := $(B)/tests/rdt_void.so $(B)/tests/rdt_voidgroup.so
$(B)/tests/rdt_loopback.so: $(call obj,$(call srcs,tests/loopback)) $(PLUGIN_O)
$(B)/tests/rdt_grouped.so: $(call obj,$(filter-out %/backend.c,$(call srcs,tests/loopback)) $(call srcs,tests/grouped)) $(PLUGIN_O)
$(B)/tests/rdt_void.so: $(call obj,tests/fuzz/void/core.c tests/fuzz/void/void.c) $(PLUGIN_O)
$(B)/tests/rdt_voidgroup.so: $(call obj,tests/fuzz/void/core.c tests/fuzz/void/group.c) $(PLUGIN_O)
# A memory kind whose devices are memfds.
$(B)/tests/rdt_fake.so: $(call obj,$(call srcs,tests/fake_device)) $(PLUGIN_O)
# Built with the headers of version 1 of the plug-in interface.
$(B)/tests/rdt_v1.so: $(call obj,$(call srcs,tests/abi/v1))
$(B)/tests/rdt_broken.so: $(call obj,$(call srcs,tests/conformance/broken) tests/abi/v1/memory.c tests/abi/v1/transport.c)
$(TEST_PLUGINS) $(VOID): backends/plugin.map $(B)/.sources
	$(call link,$(link_plugin))

# Fakes of the libraries that a machine without a GPU lacks, in folders because they have the real names.
FAKES := $(if $(CUDA_INC),$(addprefix $(B)/tests/,fake_cuda/libcuda.so.1 fake_cuda/libnvidia-ml.so.1 fake_nccl/libnccl.so.2 \
          stub_cuda/libcuda.so.1))
FAKES_O := $(addprefix $(B)/obj/tests/,fake_cuda/%.o fake_nccl/%.o fake_nvml/%.o stub_cuda/%.o)
$(B)/tests/fake_cuda/libcuda.so.1: $(call obj,$(call srcs,tests/fake_cuda))
$(B)/tests/fake_cuda/libnvidia-ml.so.1: $(call obj,$(call srcs,tests/fake_nvml)) $(B)/tests/fake_cuda/libcuda.so.1
$(B)/tests/fake_nccl/libnccl.so.2: $(call obj,$(call srcs,tests/fake_nccl)) $(B)/tests/fake_cuda/libcuda.so.1
$(B)/tests/stub_cuda/libcuda.so.1: $(call obj,$(call srcs,tests/stub_cuda))
$(PRELOAD): $(B)/obj/tests/preload/fail_alloc.o
$(FAKES) $(PRELOAD): $(B)/.sources
	$(call link,$(library) -Wl$(,)-soname$(,)$(@F))
$(FAKES_O): WARNINGS := $(filter-out -Wmissing-prototypes -Wstrict-prototypes,$(WARNINGS))
$(FAKES_O): OBJFLAGS = -fPIC $(CUDA_CFLAGS)

# ---- programs ----

tests: all $(UNIT) $(INTEG) $(SIMS) $(FUZZ) $(FAULT) $(TEST_PLUGINS) $(PRELOAD) $(GPU_BENCH) $(GPU_PROBE) $(FAKES)
benches: all $(BENCH)

# The linker drops the libraries that a program does not use.
$(TEST_PROGRAMS): LIBS = $(shell pkg-config --libs criterion 2>/dev/null) $(DAEMON_LIBS) $(CTL_LIBS) $(UCX_LIBS)
$(filter-out $(GPU_PROBE),$(TEST_PROGRAMS)): $(B)/%: $(B)/obj/%.o $(B)/libproto.a
$(UNIT) $(INTEG) $(FAULT) $(GPU_BENCH) $(BENCH) $(FUZZ): $(B)/librdt.a $(B)/libsupport.a
$(UNIT) $(SIMS) $(FUZZ): $(B)/librdtd.a
$(UNIT) $(INTEG) $(FAULT) $(GPU_BENCH): $(CRITERION_O)
# Linked with libFuzzer, or with a main that replays files.
$(FUZZ): $(FUZZ_O) | $(B)/backends/rdt_host.so $(VOID)
$(FUZZ): LIBS += -Wl,--wrap=uv_run $(if $(filter fuzz,$(VARIANT)),-fsanitize=fuzzer -rdynamic)

# What is given to users for plug-ins of their own: libc and the statuses.
CHECK    := $(B)/rdt-check-backend
$(CHECK): $(call obj,$(call srcs,tests/conformance) tests/support/backend_host.c tests/support/backend_peer.c) $(PLUGIN_O)
$(CHECK): LIBS = -ldl

# What single programs need beside that.
CUDA_TESTS := $(filter $(B)/tests/integration/devices/cuda%,$(INTEG)) $(B)/tests/gpu/one_gpu $(GPU_BENCH)
$(CUDA_TESTS:$(B)/%=$(B)/obj/%.o): OBJFLAGS += $(if $(CUDA_INC),-iquote client,-DRDT_WITHOUT_CUDA)
$(CUDA_TESTS:$(B)/%=$(B)/obj/%.o): $(B)/.found
$(CUDA_TESTS): $(if $(CUDA_INC),$(LIBCUDA_O) $(CUDA_O))
$(B)/obj/tests/gpu/%.o: OBJFLAGS += $(CUDA_CFLAGS)
$(B)/tests/gpu/one_gpu: $(if $(CUDA_INC),$(call obj,backends/nccl/nccl_api.c))
$(GPU_PROBE): $(call obj,$(call srcs,tests/gpu/probe)) $(B)/.sources
$(B)/tests/abi/frozen: $(call obj,$(call srcs,tests/abi/layout))
$(addprefix $(B)/tests/integration/,hostile/hostile_replica hostile/hostile_holds hostile/hostile_peer hostile/hostile_tickets \
    hostile/hostile_exists hostile/hostile_lookup hostile/hostile_many hostile/hostile_names calls/tensor_runs \
    faults/recovery_damage faults/storage): $(B)/librdtd.a # they use the daemon's TLS, or write journals
$(B)/tests/unit/backends/gloo_mesh: $(B)/obj/backends/gloo/mesh.o $(B)/obj/backends/gloo/pair.o
$(B)/tests/unit/backends/gloo_mesh: LIBS += $(BACKEND_LIBS_gloo)
$(filter $(B)/tests/unit/backends/stream_%,$(UNIT)): $(call obj,$(call srcs,backends/stream))
$(filter $(B)/tests/unit/backends/ucx_%,$(UNIT)): $(call obj,backends/ucx/wire.c)
$(B)/obj/tests/bench/%.o $(B)/obj/tests/unit/backends/ucx_%.o: OBJFLAGS = -fPIE $(UCX_CFLAGS)

# ---- targets for people: `make X` begins in the Makefile and continues here as X-run ----

.PHONY: $(BEGIN:%=%-run) check-asan check-tsan check-layers

test-run: tests
	@tests/run-tests $(B) '$(T)'
cov-run: test-run
	@gcovr --root . --object-directory $(B) --exclude build/ --exclude tests/ --txt $(B)/coverage.txt --print-summary
check-asan check-tsan: check-%:
	+@$(SUB) VARIANT=$* test
check-layers: all
	@tests/check-layers $(B)
demo-run: all
	@tests/demo/demo.sh
bench-run: benches
	@tests/bench/run
check-backend-run: $(CHECK)
	+@MAKE='$(SUB)' CC='$(CC)' SO='$(SO)' SET='$(SET)' ONLY='$(ONLY)' tests/conformance/check $(VARIANT)

# Every cell of the fault matrix; CELL=text: only those whose name contains it.
fault-matrix-run: tests
	@RDT_VARIANT=$(VARIANT) $(FAULT) --rounds $(or $(ROUNDS),100) --jobs $(shell nproc) --cell '$(CELL)'

fuzz-run: $(FUZZ)
	@tests/fuzz/run $(B) $(or $(TIME),60) '$(T)'

# Packages from PyPI, some gigabytes, are named here. RAY='ray==2.56.0' for another version.
RAY ?= ray>=2.56
test-ray-run:
	@.ci/venv build/ray $(PYTHON) '$(RAY)' torch numpy pyarrow
	+@RDT_RAY_PYTHON=$(CURDIR)/build/ray/bin/python $(SUB) VARIANT=$(VARIANT) T=python/test_ray test-run
test-ray-own-run: all # RAY_SOURCE=PATH, a checkout of Ray: its wheels do not carry its own tests
	@tests/python/ray-own '$(RAY_SOURCE)' $(PYTHON) '$(RAY)'
test-engines-run:
	@tests/engines/venv engines $(PYTHON)
	@tests/engines/venv trainers $(PYTHON)
	+@RDT_ENGINES_PYTHON=$(CURDIR)/build/engines/bin/python RDT_TRAINERS_PYTHON=$(CURDIR)/build/trainers/bin/python \
	  $(SUB) VARIANT=$(VARIANT) T=engines/test_engines test-run
bench-workloads-run: all # its variables: tests/bench/workloads/run.py
	@.ci/venv build/workloads $(PYTHON) 'ray>=2.56' torch numpy nixl==1.5.1 safetensors pyarrow
	@build/workloads/bin/python tests/bench/workloads/run.py

# For a machine with a GPU; without one they print that and end.
test-gpu-run bench-gpu-run probe-gpu-run: %-gpu-run: tests
	@tests/gpu/run $* '$(T)'
gpu-bundle-run: tests
	@tests/gpu/bundle $(B) build/rdt-gpu.tar.gz
