# SPDX-License-Identifier: Apache-2.0
# rdtd. `make help` lists the targets; everything that is built lands in build/<variant>/.
VERSION   := 0.1.0
SOVERSION := 0

PREFIX        ?= /usr/local
bindir        ?= $(PREFIX)/bin
libdir        ?= $(PREFIX)/lib
includedir    ?= $(PREFIX)/include
sysconfdir    ?= /etc
mandir        ?= $(PREFIX)/share/man
docdir        ?= $(PREFIX)/share/doc/rdtd
completiondir ?= $(PREFIX)/share/bash-completion/completions
unitdir       ?= $(PREFIX)/lib/systemd/system
sysusersdir   ?= $(PREFIX)/lib/sysusers.d
backenddir     = $(libdir)/rdtd
conffile       = $(sysconfdir)/rdtd/rdtd.conf

VARIANT ?= release
B := build/$(VARIANT)

# A line for each backend that needs a library: its pkg-config modules. A backend whose library is missing is dropped,
# and make prints a line about it, unless the backend is required.
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
CUDA_FETCHED        := build/cuda/$(CUDA_WHEEL)/nvidia/cu13
REQUIRED_BACKENDS   := host ucx stream

PKGS := libuv libprotobuf-c openssl inih jansson $(foreach b,$(REQUIRED_BACKENDS),$(BACKEND_PKGS_$(b)))

# ---- compiler ----

ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(VARIANT)),clang,gcc)
endif
ifeq ($(origin CXX),default)
CXX := $(if $(filter fuzz,$(VARIANT)),clang++,g++)
endif

CFLAGS_release := -O2 -g -D_FORTIFY_SOURCE=2
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
CFLAGS_cov     := -O0 -g --coverage
CFLAGS_fuzz    := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
ifndef CFLAGS_$(VARIANT)
$(error VARIANT=$(VARIANT): expected one of release, asan, tsan, cov, fuzz)
endif

WARNINGS := -Wall -Wextra -Wno-unused-parameter -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef -Wformat=2 \
            $(if $(filter 1,$(WERROR)),-Werror)
ifeq ($(VARIANT),fuzz)
WARNINGS := -Wall
else ifneq ($(VARIANT),release) # instrumented code misleads the compiler's flow analysis
WARNINGS := -Wall -Wno-format-truncation -Wno-stringop-truncation -Wno-stringop-overflow -Wno-maybe-uninitialized
endif
CPPFLAGS_ALL := -D_GNU_SOURCE -iquote . -iquote proto -iquote backends -iquote $(B)/gen $(CPPFLAGS)
CFLAGS_ALL    = -std=c11 $(CFLAGS_$(VARIANT)) -fstack-protector-strong -pthread $(CFLAGS)
LDFLAGS_ALL   = $(CFLAGS_$(VARIANT)) -pthread -Wl,-z,relro,-z,now -Wl,--as-needed $(LDFLAGS)
SHARED        = -shared $(if $(filter fuzz,$(VARIANT)),,-Wl,--no-undefined) # clang's runtimes are the program's

Q := $(if $(filter 1,$(V)),,@)
say = $(if $(Q),@printf '  %-6s %s\n' '$(1)' '$(2)')

# ---- what there is ----

PROTOS := $(wildcard proto/*.proto)
METRICS_H := $(addprefix $(B)/gen/,status_metrics.h reply_metrics.h etcd_metrics.h)
GEN_H  := $(PROTOS:proto/%.proto=$(B)/gen/%.pb-c.h) $(METRICS_H)
GEN_O  := $(PROTOS:proto/%.proto=$(B)/obj/gen/%.pb-c.o)

obj  = $(patsubst %.c,$(B)/obj/%.o,$(1))
srcs = $(foreach d,$(1),$(wildcard $(d)/*.c))

PROTO_O   := $(call obj,$(call srcs,proto)) $(GEN_O)
CTL_C      = $(filter-out $(if $(NCURSES),,%/ctl_top.c),$(call srcs,client/ctl client/ctl/files client/ctl/perf client/ctl/timeline))
CLIENT_O  := $(call obj,$(call srcs,client client/session client/memory client/plan))
DAEMON_O  := $(call obj,$(filter-out daemon/main.c daemon/keeper.c daemon/directory/etcd/%,$(call srcs,daemon daemon/* daemon/*/*)))
SUPPORT_O := $(call obj,$(call srcs,tests/support tests/support/fakes))
PLUGIN_O  := $(call obj,$(wildcard proto/rdt_status.c proto/rdt_dtype.c)) # what a plug-in carries of proto/
LISTEN_O  := $(call obj,backends/common/address.c backends/common/configured.c) # and those that listen
CUDA_O    := $(call obj,backends/common/cuda_driver.c backends/common/cuda_share.c) # and those that use a GPU

HEADERS := $(wildcard client/rdt.h client/rdt_*.h backends/rdt_*.h proto/rdt_*.h)

UCX_UNIT := $(addprefix $(B)/tests/unit/backends/,ucx_silent ucx_strangers) # they load the plug-in
UNIT  = $(filter-out $(if $(filter gloo,$(BACKENDS)),,%/backends/gloo_mesh) $(if $(filter ucx,$(BACKENDS)),,$(UCX_UNIT)),\
          $(patsubst %.c,$(B)/%,$(call srcs,tests/unit/* tests/abi)))
INTEG := $(patsubst %.c,$(B)/%,$(call srcs,tests/integration/* tests/gpu))
GPU_BENCH := $(B)/tests/bench/gpu $(B)/tests/bench/gpu_nodes
GPU_PROBE = $(if $(CUDA_INC),$(B)/tests/gpu/gpu-probe) # asks a driver and NCCL; carries nothing of rdtd
BENCH := $(filter-out $(GPU_BENCH),$(patsubst %.c,$(B)/%,$(call srcs,tests/bench)))
FAULT := $(if $(wildcard tests/faults/fault_matrix.c),$(B)/tests/faults/fault_matrix)
SIMS  := $(patsubst %.c,$(B)/%,$(call srcs,tests/simulation)) # programs that run the daemon's decisions without a daemon
FUZZ  := $(patsubst %.c,$(B)/%,$(call srcs,tests/fuzz))
FUZZ_O := $(call obj,$(filter-out $(if $(filter fuzz,$(VARIANT)),%/replay.c),$(call srcs,tests/fuzz/harness)))

PY_FILES  := $(wildcard client/python/rdtd/*.py client/python/rdtd/*.pyi client/python/rdtd/py.typed)

LIBRDT := $(B)/librdt.so.$(VERSION)
LIBCUDA := $(B)/librdt-cuda.so.$(VERSION) # librdt-cuda
LIBCUDA_O := $(call obj,$(call srcs,client/cuda))
PROGRAMS := $(B)/rdtd $(B)/rdtd-keeper $(B)/rdtctl
# Each needs a library that nothing else needs, and is left out without it.
ETCD := $(if $(shell pkg-config --exists libcurl && echo yes),$(B)/rdtd-etcd)
EXPORTER := $(if $(shell pkg-config --exists libmicrohttpd && echo yes),$(B)/rdtd-exporter)
LOOPBACK := $(if $(wildcard tests/loopback/*.c),$(B)/tests/rdt_loopback.so)
GROUPED  := $(B)/tests/rdt_grouped.so
FAKE     := $(B)/tests/rdt_fake.so # a memory kind whose devices are memfds
VOID     := $(B)/tests/rdt_void.so
VOIDGROUP := $(B)/tests/rdt_voidgroup.so
FROZEN   := $(B)/tests/rdt_v1.so # built with the headers of version 1 of the plug-in interface
PRELOAD := $(if $(filter release,$(VARIANT)),$(B)/tests/preload/fail_alloc.so) # the sanitizers have an allocator of their own
BROKEN   := $(B)/tests/rdt_broken.so
# Fakes of the libraries that a machine without a GPU lacks, in folders because they have the real names.
FAKES    := $(addprefix $(B)/tests/,fake_cuda/libcuda.so.1 fake_cuda/libnvidia-ml.so.1 fake_nccl/libnccl.so.2 \
             stub_cuda/libcuda.so.1)
CHECK    := $(B)/rdt-check-backend
CHECK_O  := $(call obj,$(call srcs,tests/conformance) tests/support/backend_host.c tests/support/backend_peer.c)
# Manual pages: NAME.N.scd lies in the room that it describes and becomes $(B)/man/NAME.N; rdtd prints what
# rdtd.conf(5) says of each key.
MAN_SCD  := $(wildcard $(foreach n,1 3 5 7 8,daemon/*.$(n).scd daemon/*/*.$(n).scd client/*.$(n).scd \
            client/*/*.$(n).scd backends/*.$(n).scd proto/*.$(n).scd))
MANPAGES := $(if $(shell command -v scdoc),$(addprefix $(B)/man/,$(notdir $(MAN_SCD:.scd=))))
CONF     := $(B)/rdtd.conf # the template, which rdtd prints

# ---- libraries: looked for only when something is going to be compiled ----

NO_LIBS_NEEDED := help clean deps deb test-deb wheel test-wheel image ucx-wheels cuda-headers fault-matrix test demo bench \
                  bench-workloads check-backend check-asan check-tsan cov fuzz format uninstall
ifneq ($(filter-out $(NO_LIBS_NEEDED),$(or $(MAKECMDGOALS),all)),)

MISSING := $(shell for p in $(PKGS); do pkg-config --exists $$p 2>/dev/null || echo $$p; done; \
                   for c in $(CC) protoc-c; do command -v $$c >/dev/null || echo $$c; done)
ifneq ($(strip $(MISSING)),)
$(error missing: $(strip $(MISSING)). `make deps` installs what is needed ($(shell .ci/deps --build --missing)))
endif

cflags = $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(1)))
libs   = $(shell pkg-config --libs $(1))

ALL_CFLAGS  := $(call cflags,libuv libprotobuf-c openssl inih jansson)
DAEMON_LIBS := $(call libs,libuv libprotobuf-c openssl inih) -ldl
CLIENT_LIBS := $(call libs,libprotobuf-c)
CTL_LIBS    := $(call libs,libprotobuf-c jansson)
NCURSES     := $(shell pkg-config --exists ncursesw 2>/dev/null && echo ncursesw)
$(if $(NCURSES),,$(info rdtctl: built without top, ncursesw is not installed))
UCX_CFLAGS  := $(call cflags,ucx)
UCX_LIBS    := $(call libs,ucx)
TEST_LIBS    = $(shell pkg-config --libs criterion) $(DAEMON_LIBS) $(CTL_LIBS)

BACKENDS := $(filter-out common,$(foreach d,$(wildcard backends/*/),$(if $(wildcard $(d)*.c),$(notdir $(d:/=)))))
DROPPED  := $(foreach b,$(BACKENDS),$(if $(BACKEND_PKGS_$(b)),$(shell pkg-config --exists $(BACKEND_PKGS_$(b)) || echo $(b))))
DROPPED  += $(foreach b,$(BACKENDS),$(if $(BACKEND_HEADER_$(b)),$(shell printf '\043include <%s>\n\043if __has_include(<%s>)\n\043error\n\043endif\n' $(BACKEND_HEADER_$(b)) $(BACKEND_WITHOUT_$(b)) | \
                $(CXX) -E -x c++ - >/dev/null 2>&1 || echo $(b))))
$(foreach b,$(DROPPED),$(info backend $(b): dropped, $(or $(BACKEND_PKGS_$(b)),$(BACKEND_HEADER_$(b)) for a C++ compiler) is not installed$(if $(BACKEND_WITHOUT_$(b)), (or of another generation))))
BACKENDS := $(filter-out $(DROPPED),$(BACKENDS))

# cuda.h is looked for in these places only, not in the compiler's own paths.
CUDA_PLACES := $(if $(CUDA_HOME),$(filter-out no,$(CUDA_HOME)),/usr/local/cuda /opt/cuda $(CUDA_FETCHED) /usr)
CUDA_INC    := $(firstword $(foreach p,$(CUDA_PLACES),$(if $(wildcard $(p)/include/cuda.h),$(p)/include)))
ifneq ($(CUDA_INC),)
CUDA_CFLAGS := $(if $(filter /usr/include,$(CUDA_INC)),,-isystem $(CUDA_INC))
ifneq ($(shell printf '\043include "%s/cuda.h"\n\043if CUDA_VERSION < 11040\n\043error\n\043endif\n' $(CUDA_INC) | $(CC) -E -x c - >/dev/null 2>&1 && echo yes),yes)
CUDA_TOO_OLD := $(CUDA_INC)
CUDA_INC     :=
endif
endif
ifeq ($(CUDA_INC),)
$(info backends $(filter $(CUDA_BACKENDS),$(BACKENDS)): dropped, $(if $(filter no,$(CUDA_HOME)),CUDA_HOME=no,$(if $(CUDA_TOO_OLD),$(CUDA_TOO_OLD)/cuda.h is older than CUDA 11.4,no cuda.h in $(CUDA_PLACES:%=%/include); `make cuda-headers` fetches one (2.3 MB))))
BACKENDS := $(filter-out $(CUDA_BACKENDS),$(BACKENDS))
endif

# The Python package, for the Python that PYTHON names (PYTHON=no: none). Built with asan it runs in a Python that loads
# asan first; the variants tsan and fuzz have no package.
PYTHON ?= $(or $(wildcard /usr/bin/python3),python3)
PY_INFO := $(if $(filter no,$(PYTHON)),,$(shell $(PYTHON) -c 'import sysconfig as s; print(s.get_paths()["include"], s.get_config_var("EXT_SUFFIX"))' 2>/dev/null))
ifneq ($(filter release asan cov,$(VARIANT)),)
ifneq ($(wildcard $(firstword $(PY_INFO))/Python.h),)
PY_EXT := $(B)/python/rdtd/_rdt$(lastword $(PY_INFO))
else
$(info python: dropped, $(if $(filter no,$(PYTHON)),PYTHON=no,$(PYTHON) has no Python.h (Debian: python3-dev)))
endif
endif

ifeq ($(EXPORTER),)
$(info rdtd-exporter: dropped, no libmicrohttpd (Debian: libmicrohttpd-dev))
endif

ifeq ($(ETCD),)
$(info rdtd-etcd: dropped, no libcurl (Debian: libcurl4-openssl-dev))
endif

ifeq ($(MANPAGES),)
$(info manual pages: dropped, no scdoc (Debian: scdoc))
endif

endif

BACKEND_SO := $(BACKENDS:%=$(B)/backends/rdt_%.so)

# ---- build ----

.PHONY: all python tests benches deps test test-run test-ray test-ray-own wheel wheel-run test-wheel \
        check-backend check-backend-run check-asan check-tsan check-layers bench bench-run demo demo-run \
        fuzz fuzz-run fault-matrix fault-matrix-run cov format tidy ucx-wheels cuda-headers test-gpu \
        bench-gpu probe-gpu gpu-bundle image install uninstall clean help FORCE bench-workloads deb deb-run \
        test-deb
.DELETE_ON_ERROR:
.SUFFIXES:

all: $(PROGRAMS) $(EXPORTER) $(ETCD) $(CHECK) $(CONF) $(MANPAGES) $(LIBRDT) $(B)/librdt.a $(BACKEND_SO) $(PY_EXT) $(if $(CUDA_INC),$(LIBCUDA))
tests: all $(UNIT) $(INTEG) $(SIMS) $(FUZZ) $(FAULT) $(LOOPBACK) $(GROUPED) $(FAKE) $(FROZEN) $(BROKEN) $(PRELOAD) $(GPU_BENCH) $(GPU_PROBE) \
       $(if $(CUDA_INC),$(FAKES))
benches: all $(BENCH)

# A stamp file changes when its text changes, so that other flags, sources or paths rebuild what depends on them.
define stamp
$(B)/.$(1): FORCE
	@mkdir -p $$(@D); printf '%s\n' '$(2)' | cmp -s - $$@ || printf '%s\n' '$(2)' >$$@
endef
$(eval $(call stamp,flags,$(CC) $(WARNINGS) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL)))
STAMPED := $(PROTO_O) $(CLIENT_O) $(CTL_C) $(DAEMON_O) $(SUPPORT_O) $(wildcard backends/*.c backends/*/*.c client/cuda/*.c)
$(eval $(call stamp,sources,$(STAMPED)))
$(eval $(call stamp,python,$(PYTHON) $(PY_INFO) $(PY_FILES)))
$(eval $(call stamp,paths,$(backenddir) $(conffile)))
$(eval $(call stamp,cuda,$(CUDA_INC)))
$(eval $(call stamp,ncurses,$(NCURSES)))

# The objects of proto, of client and of the plug-ins go into shared libraries.
OBJFLAGS = -fPIE
$(B)/obj/gen/%.o: WARNINGS =
$(B)/obj/gen/%.o $(B)/obj/proto/%.o $(B)/obj/client/%.o: OBJFLAGS = -fPIC -fno-semantic-interposition
$(B)/obj/client/ctl/%.o: OBJFLAGS += $(if $(NCURSES),-DRDT_HAVE_NCURSES $(call cflags,$(NCURSES)))
$(B)/obj/client/ctl/rdtctl.o: $(B)/.ncurses
PLUGIN_DIRS := backends tests/loopback tests/grouped tests/fake_device tests/fuzz/void tests/abi/v1 tests/conformance/broken
$(PLUGIN_DIRS:%=$(B)/obj/%/%.o): OBJFLAGS = -fPIC -fno-semantic-interposition
$(B)/obj/tests/bench/%.o: OBJFLAGS = -fPIE $(UCX_CFLAGS)
$(B)/obj/daemon/config/options_keys.o: OBJFLAGS = -fPIE -DRDT_BACKEND_DIR='"$(backenddir)"' -DRDT_CONFIG_FILE='"$(conffile)"'
$(B)/obj/daemon/config/options_keys.o: $(B)/.paths

compile = $(CC) $(CPPFLAGS_ALL) $(ALL_CFLAGS) $(WARNINGS) $(CFLAGS_ALL) $(OBJFLAGS) -MMD -MP -c -o $@ $<

$(B)/obj/%.o: %.c $(B)/.flags | $(GEN_H)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(compile)

# C++ is only for libraries without a C interface.
$(B)/obj/%.o: %.cc $(B)/.flags
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(CXX) $(CPPFLAGS_ALL) $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARNINGS)) -std=c++17 $(CFLAGS_$(VARIANT)) \
	    -fstack-protector-strong -pthread $(CXXFLAGS) $(OBJFLAGS) -MMD -MP -c -o $@ $<

$(B)/obj/backends/gloo/mesh.o $(B)/obj/backends/gloo/pair.o: OBJFLAGS += -idirafter backends/gloo/absent

$(B)/obj/gen/%.o: $(B)/gen/%.c $(B)/.flags | $(GEN_H)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(compile)

# Each rule depends on all .proto files, because one may import another.
$(B)/gen/%.pb-c.c $(B)/gen/%.pb-c.h: proto/%.proto $(PROTOS)
	$(call say,PROTO,$<)
	$(Q)mkdir -p $(@D)
	$(Q)protoc-c --proto_path=proto --c_out=$(B)/gen $<

# The fields of these messages that have a line "// rdtd_NAME: HELP" above them are metrics without labels: rdt_metrics includes
# these files, and rdtd-exporter(8) what is made of them.
$(B)/gen/status_metrics.h: METRICS_OF = StatusReply
$(B)/gen/reply_metrics.h: METRICS_OF = MetricsReply
$(B)/gen/etcd_metrics.h: METRICS_OF = EtcdInfo
$(METRICS_H): proto/rdt.proto
	$(Q)mkdir -p $(@D)
	$(Q)sed -n -e '/^message $(METRICS_OF)/,/^}/ { /\/ \(rdtd\|process\)_[a-z_]*: / { N' \
	    -e 's|.*/ \([a-z_]*\): \(.*\)\n *[a-z0-9]* \([a-z0-9_]*\) =.*|METRIC(\1, "\2", \3)|p; } }' $< >$@
$(B)/gen/metrics.scd: $(METRICS_H)
	$(Q)sed 's/METRIC(\([a-z_]*\), "\(.*\)", .*/*\1*\n\2\n/' $^ | fold -sw 72 | sed 's/ $$//; s/^[^*]/\t&/' >$@
$(B)/man/rdtd-exporter.8: $(B)/gen/metrics.scd

# The functions of the installed headers, by header and section, for librdt(3).
$(B)/gen/functions.scd: $(wildcard client/rdt*.h proto/rdt_*.h)
	$(Q)mkdir -p $(@D)
	$(Q)awk 'FNR == 1 { file = FILENAME; sub(/.*\//, "", file); title = "*" file "*" } \
	    /^\/\* ---- / { title = $$0; gsub(/^\/\* ---- | ----.*/, "", title); title = "*" file "*, " title } \
	    !/^(typedef|static|#)/ && match($$0, /^[a-z][a-z0-9_ *]*[ *]rdt_[a-z0-9_]+\(/) { \
	    name = substr($$0, 1, RLENGTH); sub(/.*[ *]/, "", name); \
	    printf "%s\t%s)", title == last ? ",\n" : (last ? "\n\n" : "") title "\n", name; last = title } \
	    END { print "\n" }' $^ >$@
$(B)/man/librdt.3: $(B)/gen/functions.scd

# What rdtctl alone writes: the fields of Perfetto's format.
$(B)/gen/perfetto.pb-c.c $(B)/gen/perfetto.pb-c.h: client/ctl/timeline/perfetto.proto
	$(call say,PROTO,$<)
	$(Q)mkdir -p $(@D)
	$(Q)protoc-c --proto_path=$(<D) --c_out=$(B)/gen $<
$(B)/obj/client/ctl/timeline/perfetto.o: | $(B)/gen/perfetto.pb-c.h

$(B)/libproto.a: $(PROTO_O)
$(B)/librdt.a: $(CLIENT_O)
$(B)/librdtd.a: $(DAEMON_O)
$(B)/libsupport.a: $(SUPPORT_O)
$(B)/librdt-cuda.a: $(LIBCUDA_O) $(CUDA_O)
$(B)/libproto.a $(B)/librdt.a $(B)/librdtd.a $(B)/libsupport.a $(B)/librdt-cuda.a: $(B)/.sources
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

$(LIBRDT): $(CLIENT_O) $(PROTO_O) client/package/librdt.map $(B)/.sources
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(SHARED) -Wl,-soname,librdt.so.$(SOVERSION) -Wl,--version-script=client/package/librdt.map -o $@ \
	    $(filter %.o,$^) $(CLIENT_LIBS)
	$(Q)ln -sf $(@F) $(B)/librdt.so.$(SOVERSION) && ln -sf librdt.so.$(SOVERSION) $(B)/librdt.so

$(LIBCUDA): $(LIBCUDA_O) $(CUDA_O) client/cuda/librdt-cuda.map $(LIBRDT) $(B)/.sources
	$(call say,LINK,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) $(SHARED) -Wl,-soname,librdt-cuda.so.$(SOVERSION) -Wl,--version-script=client/cuda/librdt-cuda.map -o $@ \
	    $(filter %.o,$^) $(LIBRDT)
	$(Q)ln -sf $(@F) $(B)/librdt-cuda.so.$(SOVERSION) && ln -sf librdt-cuda.so.$(SOVERSION) $(B)/librdt-cuda.so
$(LIBCUDA_O): OBJFLAGS += -iquote client $(CUDA_CFLAGS)

# ---- configuration and manual pages ----

$(CONF): $(B)/rdtd
	$(Q)$< --dump-config=template >$@

$(B)/gen/option_keys.scd: $(B)/rdtd
	$(Q)$< --dump-config=man >$@
$(B)/man/rdtd.conf.5: $(B)/gen/option_keys.scd

# scdoc takes backslashes out of programs, too, so they are doubled for it. It writes a paragraph mark beside every
# heading and before the end of an indented block, which mandoc reports: the marks beside headings go, the others move
# behind the block, and the title becomes upper case.
tidy_page = awk '/^\.TH / { sub(/"[^"]*"/, toupper($$2)) } /^\.P$$/ { held = 1; next } \
    { if (held && !heading && !/^\.(SH|SS|RE)/) print ".P"; held = /^\.RE/; heading = /^\.(TH|SH|SS)/; print }'
vpath %.scd $(sort $(dir $(MAN_SCD)))
$(B)/man/%: %.scd
	$(call say,MAN,$@)
	$(Q)mkdir -p $(@D)
	$(Q)awk '/^; include / { file = "$(B)/gen/" $$3; while ((getline < file) > 0) print; next } \
	    /^```/ { code = !code } code { gsub(/\\/, "\\\\\\\\") } { print }' $< | scdoc | $(tidy_page) >$@

# ---- programs ----

$(B)/rdtd: $(B)/obj/daemon/main.o $(B)/librdtd.a $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(DAEMON_LIBS)

$(B)/rdtd-keeper: $(B)/obj/daemon/keeper.o $(B)/librdtd.a $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^

$(B)/rdtctl: $(call obj,$(CTL_C)) $(B)/obj/gen/perfetto.pb-c.o $(B)/librdt.a $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(CTL_LIBS) $(if $(NCURSES),$(call libs,$(NCURSES)))

$(B)/rdtd-exporter: $(call obj,$(call srcs,client/exporter)) $(B)/librdt.a $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(CLIENT_LIBS) $(call libs,libmicrohttpd)

$(B)/rdtd-etcd: $(call obj,$(call srcs,daemon/directory/etcd)) $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ $(call libs,libcurl jansson libprotobuf-c)

# The package as it is imported, PYTHONPATH=$(B)/python: librdt is within, so it needs nothing that is installed.
python: $(PY_EXT)
	$(if $(PY_EXT),,$(error no Python package: see above))

# GPU memory is within too where cuda.h is.
$(PY_EXT): $(call obj,$(call srcs,client/python/src)) $(if $(CUDA_INC),$(B)/librdt-cuda.a) $(B)/librdt.a $(B)/libproto.a $(PY_FILES) $(B)/python.map \
  $(B)/.python
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && rm -rf $(@D)/* && cp $(PY_FILES) $(@D)/
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,--version-script=$(B)/python.map -o $@ $(filter %.o %.a,$^) $(CLIENT_LIBS)
$(B)/python.map: Makefile
	$(Q)mkdir -p $(@D) && echo '{ global: PyInit__rdt; rdt_torch_alloc; rdt_torch_free; local: *; };' >$@
$(B)/obj/client/python/%.o: OBJFLAGS = -fPIC -fno-semantic-interposition -Iclient -Iclient/cuda -Iproto -isystem $(firstword $(PY_INFO)) \
  $(if $(CUDA_INC),,-DRDTPY_WITHOUT_CUDA)
$(B)/obj/client/python/%.o: $(B)/.python $(B)/.cuda

# What is given to users for plug-ins of their own: libc and the statuses.
$(CHECK): $(CHECK_O) $(PLUGIN_O)
	$(call say,LINK,$@)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $^ -ldl

# A plug-in shows one symbol.
$(B)/plugin.map:
	$(Q)mkdir -p $(@D) && echo '{ global: rdt_backend_init; local: *; };' >$@
link_plugin = $(CC) $(LDFLAGS_ALL) $(SHARED) -Wl,--version-script=$(B)/plugin.map -o $@ $(filter %.o,$^)

# backend NAME: backends/NAME/*.c, nothing of the daemon, its own libraries.
define backend
$(B)/backends/rdt_$(1).so: $(call obj,$(call srcs,backends/$(1))) $(patsubst %.cc,$(B)/obj/%.o,$(wildcard backends/$(1)/*.cc)) $(PLUGIN_O) $(LISTEN_O) $(if $(filter $(CUDA_BACKENDS),$(1)),$(CUDA_O)) $(B)/plugin.map $(B)/.sources
	$$(call say,LINK,$$@)
	$(Q)mkdir -p $$(@D)
	$(Q)$$(link_plugin) $(if $(BACKEND_PKGS_$(1)),$(call libs,$(BACKEND_PKGS_$(1)))) $(BACKEND_LIBS_$(1))
$(B)/obj/backends/$(1)/%.o: OBJFLAGS += $(if $(BACKEND_PKGS_$(1)),$(call cflags,$(BACKEND_PKGS_$(1)))) $(if $(filter $(CUDA_BACKENDS),$(1)),$(CUDA_CFLAGS))
endef
$(foreach b,$(BACKENDS),$(eval $(call backend,$(b))))
$(CUDA_O): OBJFLAGS += $(CUDA_CFLAGS)

$(LOOPBACK): $(call obj,$(call srcs,tests/loopback))
$(GROUPED): $(call obj,$(filter-out %/backend.c,$(call srcs,tests/loopback)) $(call srcs,tests/grouped))
$(VOID): $(call obj,tests/fuzz/void/core.c tests/fuzz/void/void.c)
$(VOIDGROUP): $(call obj,tests/fuzz/void/core.c tests/fuzz/void/group.c)
$(FAKE): $(call obj,$(call srcs,tests/fake_device))
$(LOOPBACK) $(GROUPED) $(VOID) $(VOIDGROUP) $(FAKE): $(PLUGIN_O)
$(FROZEN): $(call obj,$(call srcs,tests/abi/v1))
$(BROKEN): $(call obj,$(call srcs,tests/conformance/broken) tests/abi/v1/memory.c tests/abi/v1/transport.c)
$(LOOPBACK) $(GROUPED) $(VOID) $(VOIDGROUP) $(FAKE) $(FROZEN) $(BROKEN): $(B)/plugin.map $(B)/.sources
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_plugin)

$(B)/tests/preload/fail_alloc.so: $(B)/obj/tests/preload/fail_alloc.o
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(SHARED) -o $@ $^
$(B)/obj/tests/preload/%.o: OBJFLAGS = -fPIC

$(B)/tests/fake_cuda/libcuda.so.1: $(call obj,$(call srcs,tests/fake_cuda))
$(B)/tests/fake_cuda/libnvidia-ml.so.1: $(call obj,$(call srcs,tests/fake_nvml)) $(B)/tests/fake_cuda/libcuda.so.1
$(B)/tests/fake_nccl/libnccl.so.2: $(call obj,$(call srcs,tests/fake_nccl)) $(B)/tests/fake_cuda/libcuda.so.1
$(B)/tests/stub_cuda/libcuda.so.1: $(call obj,$(call srcs,tests/stub_cuda))
$(FAKES): $(B)/.sources
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS_ALL) $(SHARED) -Wl,-soname,$(@F) -o $@ $(filter %.o %.so.1,$^)
$(B)/obj/tests/fake_cuda/%.o $(B)/obj/tests/fake_nccl/%.o $(B)/obj/tests/fake_nvml/%.o $(B)/obj/tests/stub_cuda/%.o: WARNINGS := $(filter-out -Wmissing-prototypes -Wstrict-prototypes,$(WARNINGS))
$(B)/obj/tests/fake_cuda/%.o $(B)/obj/tests/fake_nccl/%.o $(B)/obj/tests/fake_nvml/%.o $(B)/obj/tests/stub_cuda/%.o: OBJFLAGS = -fPIC $(CUDA_CFLAGS)


# ---- test programs ----

link_test = $(CC) -pie $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

# By default Criterion puts its arena at addresses that ThreadSanitizer reserves.
CRITERION_O := $(if $(filter tsan,$(VARIANT)),$(B)/obj/tests/criterion_tsan.o)

$(UNIT): $(B)/%: $(B)/obj/%.o $(CRITERION_O) $(B)/librdtd.a $(B)/librdt.a $(B)/libproto.a $(B)/libsupport.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_test) $(TEST_LIBS)

$(SIMS): $(B)/%: $(B)/obj/%.o $(B)/librdtd.a $(B)/libproto.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_test) $(DAEMON_LIBS)

$(INTEG) $(FAULT) $(GPU_BENCH): $(B)/%: $(B)/obj/%.o $(CRITERION_O) $(B)/librdt.a $(B)/libproto.a $(B)/libsupport.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_test) $(TEST_LIBS)

CUDA_TESTS := $(filter $(B)/tests/integration/devices/cuda%,$(INTEG)) $(B)/tests/gpu/one_gpu $(GPU_BENCH)
$(CUDA_TESTS:$(B)/%=$(B)/obj/%.o): OBJFLAGS += $(if $(CUDA_INC),-iquote client,-DRDT_WITHOUT_CUDA)
$(CUDA_TESTS:$(B)/%=$(B)/obj/%.o): $(B)/.cuda
$(CUDA_TESTS): $(if $(CUDA_INC),$(LIBCUDA_O) $(CUDA_O))
$(B)/obj/tests/gpu/one_gpu.o: OBJFLAGS += $(CUDA_CFLAGS)
$(B)/tests/gpu/one_gpu: $(if $(CUDA_INC),$(call obj,backends/nccl/nccl_api.c))
$(B)/obj/tests/gpu/probe/%.o: OBJFLAGS = -fPIE $(CUDA_CFLAGS)
$(B)/tests/gpu/gpu-probe: $(call obj,$(call srcs,tests/gpu/probe)) $(B)/.sources
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) -pie $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -ldl
$(B)/tests/abi/frozen: $(call obj,$(call srcs,tests/abi/layout))
$(addprefix $(B)/tests/integration/,hostile/hostile_replica hostile/hostile_holds hostile/hostile_peer hostile/hostile_tickets calls/tensor_runs): $(B)/librdtd.a # the rogue peer uses the daemon's TLS
$(B)/tests/integration/faults/recovery_damage: $(B)/librdtd.a # it writes journals
$(B)/tests/integration/nodes/stream_lanes: $(call obj,proto/rdt_status.c)
$(B)/tests/unit/backends/gloo_mesh: $(B)/obj/backends/gloo/mesh.o $(B)/obj/backends/gloo/pair.o
$(B)/tests/unit/backends/gloo_mesh: TEST_LIBS += $(BACKEND_LIBS_gloo)
$(B)/tests/unit/backends/stream_strangers: $(call obj,$(wildcard backends/stream/*.c)) $(LISTEN_O)
$(B)/tests/unit/backends/address: $(LISTEN_O)
$(UCX_UNIT): $(call obj,backends/ucx/wire.c tests/support/backend_host.c proto/rdt_status.c)
$(UCX_UNIT): TEST_LIBS += $(UCX_LIBS)
$(B)/obj/tests/unit/backends/ucx_%.o: OBJFLAGS = -fPIE $(UCX_CFLAGS)

$(BENCH): $(B)/%: $(B)/obj/%.o $(B)/librdt.a $(B)/libproto.a $(B)/libsupport.a
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_test) $(DAEMON_LIBS) $(CTL_LIBS) $(UCX_LIBS)

# Linked with libFuzzer, or with a main that replays files.
$(FUZZ): $(B)/%: $(B)/obj/%.o $(FUZZ_O) $(B)/librdtd.a $(B)/librdt.a $(B)/libproto.a $(B)/libsupport.a \
    | $(B)/backends/rdt_host.so $(VOID) $(VOIDGROUP)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(link_test) -Wl,--wrap=uv_run $(if $(filter fuzz,$(VARIANT)),-fsanitize=fuzzer -rdynamic) $(DAEMON_LIBS) $(CTL_LIBS)

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

# ---- targets for people: each installs missing packages first, then starts make again, which now finds them ----

SUB = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

deps:
	@.ci/deps --build

test:
	@.ci/deps
	+@$(SUB) VARIANT=$(VARIANT) test-run

# Ray, torch, numpy and pyarrow by name, in a virtual environment: some gigabytes. RAY='ray==2.56.0' for another version; pip's
# own variables name another index (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL).
RAY ?= ray>=2.56
RAY_ENV := build/ray
test-ray: $(RAY_ENV)/.has-ray
	+@RDT_RAY_PYTHON=$(CURDIR)/$(RAY_ENV)/bin/python $(SUB) VARIANT=$(VARIANT) T=python/test_ray test-run

$(RAY_ENV)/.has-ray: FORCE
	@.ci/deps python3-venv
	@[ "$$(cat $(RAY_ENV)/.has 2>/dev/null)" = '$(RAY)' ] || { rm -rf $(RAY_ENV) && $(PYTHON) -m venv $(RAY_ENV) && \
	    $(RAY_ENV)/bin/pip -q --disable-pip-version-check install '$(RAY)' torch numpy pyarrow && echo '$(RAY)' >$(RAY_ENV)/.has; }

# Ray's own tests of its transports; its wheels do not carry them: make test-ray-own RAY_SOURCE=PATH, a checkout of Ray.
# They compare lists of tensors by pytest's approx, and 9.2 refuses to.
test-ray-own:
	@[ -d '$(RAY_SOURCE)/python/ray/tests/rdt' ] || { echo 'make test-ray-own RAY_SOURCE=PATH: a checkout of Ray, which has python/ray/tests/rdt (its wheels have not)' >&2; exit 2; }
	+@$(SUB) VARIANT=$(VARIANT) all $(RAY_ENV)/.has-ray
	@$(RAY_ENV)/bin/pip -q --disable-pip-version-check install 'pytest<9' pytest-timeout tensordict
	@RDT_BUILD_DIR=$(CURDIR)/$(B) PYTHONPATH=$(CURDIR)/$(B)/python:$(CURDIR)/tests/python PYTHONDONTWRITEBYTECODE=1 \
	    $(RAY_ENV)/bin/python tests/python/ray_own.py '$(RAY_SOURCE)' build/ray-own

# Wheels that contain librdt, in build/wheels, for each of PYTHONS, and their tests in those Pythons.
PYTHONS ?= $(INSTALL_PYTHON)
wheel:
	@.ci/deps --build python3-venv
	+@$(SUB) B=build/wheel CPPFLAGS='-include $(CURDIR)/client/package/glibc_2_28.h' wheel-run
wheel-run: $(B)/librdt.a $(B)/libproto.a $(if $(CUDA_INC),$(B)/librdt-cuda.a)
	@client/python/make-wheels $(B) build/wheels $(PYTHONS)

test-wheel: wheel
	@.ci/deps
	+@RDT_PYTHONS='$(PYTHONS)' $(SUB) VARIANT=$(VARIANT) T=python/test_wheel test-run

check-asan check-tsan: check-%:
	@.ci/deps
	+@$(SUB) VARIANT=$* test-run

test-run: tests
	@tests/run-tests $(B) '$(T)'

check-layers: all
	@tests/check-layers $(B)

# SO=PATH, SET='KEY=VALUE ...', ONLY=text. Runs the checks as installed, and again under sanitizers if the compiler has them.
sanitizers = echo 'int main(void) { return 0; }' | $(CC) -fsanitize=address,undefined -x c - -o /dev/null 2>/dev/null
check-backend:
	@[ -n '$(SO)' ] || { echo "make check-backend SO=./mine.so [SET='key=value ...'] [ONLY=text]" >&2; exit 2; }
	@.ci/deps
	+@$(SUB) VARIANT=$(VARIANT) check-backend-run
	+@if [ $(VARIANT) != release ]; then :; elif $(sanitizers); then echo; echo 'under sanitizers:'; \
	    ASAN_OPTIONS=$${ASAN_OPTIONS:-detect_leaks=0} UCX_MEM_MMAP_HOOK_MODE=none UCX_MEM_MALLOC_HOOKS=n $(SUB) VARIANT=asan check-backend-run; \
	else echo 'not run under sanitizers: $(CC) has none'; fi

check-backend-run: $(CHECK)
	@$(CHECK) $(addprefix --set ,$(SET)) $(if $(ONLY),--only '$(ONLY)') '$(SO)'

demo:
	@.ci/deps
	+@$(SUB) demo-run

demo-run: all
	@RDT_BUILD_DIR=$(CURDIR)/$(B) tests/demo/demo.sh

# For a machine with a GPU; without one they print that and end.
test-gpu bench-gpu probe-gpu: %-gpu: tests
	@RDT_BUILD_DIR=$(CURDIR)/$(B) tests/gpu/run $* '$(T)'
gpu-bundle: tests
	$(if $(CUDA_INC),,$(error gpu-bundle: built without cuda.h; see above))
	@.ci/deps patchelf
	@tests/gpu/bundle $(B) build/rdt-gpu.tar.gz

bench:
	@.ci/deps
	+@$(SUB) bench-run

bench-run: benches
	@RDT_BUILD_DIR=$(CURDIR)/$(B) tests/bench/run

# The tools of bench-workloads, by name from PyPI: some gigabytes. Its variables: tests/bench/workloads/run.py.
WORKLOADS_ENV := build/workloads
WORKLOADS_TOOLS := ray>=2.56 torch numpy nixl==1.5.1 safetensors pyarrow
bench-workloads: $(WORKLOADS_ENV)/.has-tools
	+@$(SUB) all
	@RDT_BUILD_DIR=$(CURDIR)/$(B) $(WORKLOADS_ENV)/bin/python tests/bench/workloads/run.py
	@[ ! -f build/workloads.json ] || $(WORKLOADS_ENV)/bin/python tests/bench/workloads/picture.py build/workloads.json build/workloads.svg

$(WORKLOADS_ENV)/.has-tools: FORCE
	@.ci/deps python3-venv
	@[ "$$(cat $@ 2>/dev/null)" = '$(WORKLOADS_TOOLS)' ] || { rm -rf $(WORKLOADS_ENV) && $(PYTHON) -m venv $(WORKLOADS_ENV) && \
	    $(WORKLOADS_ENV)/bin/pip -q --disable-pip-version-check install $(foreach t,$(WORKLOADS_TOOLS),'$(t)') && echo '$(WORKLOADS_TOOLS)' >$@; }

# Every cell of the fault matrix; CELL=text: only those whose name contains it.
ROUNDS ?= 100
fault-matrix:
	@.ci/deps
	+@$(SUB) VARIANT=$(VARIANT) fault-matrix-run

fault-matrix-run: tests
	@RDT_BUILD_DIR=$(CURDIR)/$(B) RDT_VARIANT=$(VARIANT) $(FAULT) --rounds $(ROUNDS) --jobs $(shell nproc) --cell '$(CELL)'

TIME ?= 60
fuzz:
	@.ci/deps clang libclang-rt-dev
	+@$(SUB) VARIANT=fuzz fuzz-run

fuzz-run: $(FUZZ)
	@tests/fuzz/run $(B) $(TIME) '$(T)'

# Newer versions of UCX than Debian's, each in its own folder. Tests use one only if RDT_UCX_PATH names it.
UCX_WHEELS ?= 1.19.0 1.22.0
ucx-wheels:
	@command -v pip >/dev/null || .ci/deps python3-pip
	@for v in $(UCX_WHEELS); do \
	    if ! [ -e build/ucx/$$v/libucx/lib/libucp.so.0 ]; then \
	        rm -rf build/ucx/$$v && mkdir -p build/ucx/$$v && \
	        pip download -q --disable-pip-version-check --no-deps -d build/ucx/$$v libucx-cu13==$$v && \
	        python3 -m zipfile -e build/ucx/$$v/*.whl build/ucx/$$v && rm build/ucx/$$v/*.whl || exit 1; \
	    fi; \
	    echo "RDT_UCX_PATH=$(CURDIR)/build/ucx/$$v/libucx/lib make test T=ucx"; \
	done

# The header of NVIDIA's driver from its Python package. Its licence forbids to redistribute it, so it stays in build/.
cuda-headers:
	@command -v pip >/dev/null || .ci/deps python3-pip
	@if ! [ -e $(CUDA_FETCHED)/include/cuda.h ]; then \
	    rm -rf build/cuda/$(CUDA_WHEEL) && mkdir -p build/cuda/$(CUDA_WHEEL) && \
	    pip download -q --disable-pip-version-check --no-deps -d build/cuda/$(CUDA_WHEEL) nvidia-cuda-runtime==$(CUDA_WHEEL) && \
	    python3 -m zipfile -e build/cuda/$(CUDA_WHEEL)/*.whl build/cuda/$(CUDA_WHEEL) && rm build/cuda/$(CUDA_WHEEL)/*.whl || exit 1; \
	fi; echo '$(CUDA_FETCHED)/include/cuda.h'

# Debian packages in build/deb.
deb:
	@.ci/deps --build debhelper dh-python
	+@$(SUB) deb-run
deb-run:
	@systemd/make-deb $(VERSION) $(if $(CUDA_INC),$(abspath $(CUDA_INC)/..))

# In a new Debian, which debootstrap fetches once.
test-deb:
	@.ci/deps debhelper dh-python lintian debootstrap
	+@RDT_TEST_PACKAGES=1 $(SUB) T=admin/test_packages test-run

cov:
	@.ci/deps gcovr
	+@$(SUB) VARIANT=cov test-run
	@gcovr --root . --object-directory build/cov --exclude build/ --exclude tests/ --txt build/cov/coverage.txt --print-summary

format:
	@.ci/deps clang-format
	@find proto daemon backends client tests -name '*.[ch]' ! -path 'tests/examples/*' ! -path 'tests/abi/v1/rdt_*' -print0 | xargs -0 clang-format -i

empty :=
TIDY := $(subst $(empty) ,,-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*,bugprone-*, \
                            -bugprone-easily-swappable-parameters,-bugprone-reserved-identifier,performance-*)
tidy: $(GEN_H)
	@.ci/deps clang-tidy
	@clang-tidy --quiet --checks='$(TIDY)' $(call srcs,proto client client/session client/memory client/plan client/ctl daemon daemon/* daemon/*/* backends/common $(BACKENDS:%=backends/%)) \
	    -- -std=c11 $(CPPFLAGS_ALL) $(ALL_CFLAGS) $(UCX_CFLAGS) $(CUDA_CFLAGS)

# ---- a container image ----

IMAGE := build/image/rdtd-$(VERSION).oci.tar
image:
	@.ci/deps --build buildah mmdebstrap
	+@$(SUB) VARIANT=release all
	@systemd/image/build '$(VERSION)' '$(IMAGE)'

# ---- install ----

# Where PYTHON looks: Debian's in dist-packages below /usr/local, or below /usr in one folder for every 3.x.
INSTALL_PYTHON = $(or $(PYTHON),$(wildcard /usr/bin/python3),python3)
pythondir ?= $(shell $(INSTALL_PYTHON) -c 'import sys, sysconfig; debian = "dist-packages" in sysconfig.get_path("platlib"); \
    print(sys.argv[1] + "/lib/python" + ("3" if debian and sys.argv[1] == "/usr" else "%d.%d" % sys.version_info[:2]) + \
    "/" + ("dist-packages" if debian else "site-packages"))' '$(PREFIX)' 2>/dev/null)
# What importlib.metadata and pip read; RECORD is missing on purpose, so that pip refuses to uninstall and names `make`.
py_metadata = { printf 'Metadata-Version: 2.1\nVersion: %s\n' '$(VERSION)'; sed -nE 's/^name = "(.*)"$$/Name: \1/p; \
    s/^description = "(.*)"$$/Summary: \1/p; s/^requires-python = "(.*)"$$/Requires-Python: \1/p' client/python/pyproject.toml; }
PY_DIST_INFO = $(pythondir)/rdtd-$(VERSION).dist-info

substitute = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@bindir@|$(bindir)|g' -e 's|@libdir@|$(libdir)|g' \
                 -e 's|@includedir@|$(includedir)|g' -e 's|@backenddir@|$(backenddir)|g' -e 's|@conffile@|$(conffile)|g' \
                 -e 's|@VERSION@|$(VERSION)|g'
COMPLETION := $(wildcard client/ctl/rdtctl.bash)
# Uses a temporary file, because several installations may run at the same time.
filled = t=$$(mktemp) && trap "rm -f $$t" EXIT && $(substitute) $(1) >$$t

install: all
	@install -d $(addprefix $(DESTDIR),$(bindir) $(libdir)/pkgconfig $(includedir)/rdt $(backenddir) $(unitdir) $(sysusersdir) \
	    $(dir $(conffile)) $(if $(COMPLETION),$(completiondir)))
	@install -m755 $(PROGRAMS) $(EXPORTER) $(ETCD) $(CHECK) $(DESTDIR)$(bindir)/
	@install -m755 $(LIBRDT) $(DESTDIR)$(libdir)/
	@ln -sf $(notdir $(LIBRDT)) $(DESTDIR)$(libdir)/librdt.so.$(SOVERSION)
	@ln -sf librdt.so.$(SOVERSION) $(DESTDIR)$(libdir)/librdt.so
	@$(if $(CUDA_INC),install -m755 $(LIBCUDA) $(DESTDIR)$(libdir)/ && ln -sf $(notdir $(LIBCUDA)) $(DESTDIR)$(libdir)/librdt-cuda.so.$(SOVERSION) && \
	    ln -sf librdt-cuda.so.$(SOVERSION) $(DESTDIR)$(libdir)/librdt-cuda.so && install -d $(DESTDIR)$(includedir)/rdt && \
	    install -m644 client/cuda/rdt_cuda.h $(DESTDIR)$(includedir)/rdt/ && $(call filled,client/cuda/rdt-cuda.pc.in) && \
	    install -m644 $$t $(DESTDIR)$(libdir)/pkgconfig/rdt-cuda.pc)
	@install -m755 $(BACKEND_SO) $(DESTDIR)$(backenddir)/
	@install -m644 $(HEADERS) $(DESTDIR)$(includedir)/rdt/
	@$(call filled,client/package/rdt.pc.in) && install -m644 $$t $(DESTDIR)$(libdir)/pkgconfig/rdt.pc
	@$(call filled,systemd/rdtd.service.in) && install -m644 $$t $(DESTDIR)$(unitdir)/rdtd.service
	@$(call filled,systemd/rdtd-keeper.service.in) && install -m644 $$t $(DESTDIR)$(unitdir)/rdtd-keeper.service
	@$(if $(EXPORTER),$(call filled,systemd/rdtd-exporter.service.in) && install -m644 $$t $(DESTDIR)$(unitdir)/rdtd-exporter.service)
	@install -m644 systemd/rdtd.socket $(DESTDIR)$(unitdir)/
	@install -m644 systemd/rdtd.sysusers $(DESTDIR)$(sysusersdir)/rdtd.conf
	@if [ -e $(DESTDIR)$(conffile) ] && ! cmp -s $(CONF) $(DESTDIR)$(conffile); then \
	    install -m644 $(CONF) $(DESTDIR)$(conffile).new; echo "$(conffile) was kept; the template is $(conffile).new"; \
	else install -m644 $(CONF) $(DESTDIR)$(conffile); fi
	@$(if $(COMPLETION),install -m644 $(COMPLETION) $(DESTDIR)$(completiondir)/rdtctl)
	@$(if $(PY_EXT),install -d $(DESTDIR)$(pythondir)/rdtd && install -m644 $(PY_FILES) $(PY_EXT) $(DESTDIR)$(pythondir)/rdtd/ && \
	    rm -rf $(DESTDIR)$(pythondir)/rdtd-*.dist-info && install -d $(DESTDIR)$(PY_DIST_INFO) && \
	    $(py_metadata) | install -m644 /dev/stdin $(DESTDIR)$(PY_DIST_INFO)/METADATA && \
	    echo make | install -m644 /dev/stdin $(DESTDIR)$(PY_DIST_INFO)/INSTALLER)
	@$(foreach m,$(MANPAGES),install -D -m644 $(m) $(DESTDIR)$(mandir)/man$(subst .,,$(suffix $(m)))/$(notdir $(m));)
	@install -D -m644 -t $(DESTDIR)$(docdir) daemon/LICENSE daemon/CHANGELOG.md systemd/rdtd-grafana.json
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig
	@echo 'installed below $(DESTDIR)$(PREFIX)'

uninstall:
	rm -f $(addprefix $(DESTDIR)$(bindir)/,rdtd rdtd-keeper rdtctl rdtd-exporter rdtd-etcd rdt-check-backend) \
	    $(addprefix $(DESTDIR)$(libdir)/librdt.so,.$(VERSION) .$(SOVERSION)) \
	    $(wildcard $(DESTDIR)$(libdir)/librdt-cuda.so*) $(DESTDIR)$(libdir)/pkgconfig/rdt-cuda.pc \
	    $(DESTDIR)$(includedir)/rdt/rdt_cuda.h \
	    $(DESTDIR)$(libdir)/librdt.so $(DESTDIR)$(libdir)/pkgconfig/rdt.pc $(DESTDIR)$(backenddir)/rdt_*.so \
	    $(addprefix $(DESTDIR)$(includedir)/rdt/,$(notdir $(HEADERS))) $(addprefix $(DESTDIR)$(unitdir)/rdtd,.service .socket -keeper.service -exporter.service) \
	    $(DESTDIR)$(sysusersdir)/rdtd.conf $(DESTDIR)$(completiondir)/rdtctl \
	    $(foreach m,$(MANPAGES),$(DESTDIR)$(mandir)/man$(subst .,,$(suffix $(m)))/$(notdir $(m)))
	rm -rf $(DESTDIR)$(docdir)
	$(if $(pythondir),rm -rf $(DESTDIR)$(pythondir)/rdtd $(DESTDIR)$(PY_DIST_INFO))
	rmdir $(DESTDIR)$(backenddir) $(DESTDIR)$(includedir)/rdt 2>/dev/null || true

clean:
	rm -rf build

help:
	@printf '%s\n' \
	'make                  build everything into build/release; VARIANT=asan or VARIANT=tsan: into build/asan, build/tsan' \
	'make python           build the Python package in build/release/python; `make` does so if Python.h is there' \
	'                      (PYTHON=python3.12 chooses the Python, PYTHON=no builds none)' \
	'make deps             install the Debian packages that a build needs, or print which' \
	'make test [T=name]    build and run all tests, or those whose name contains T' \
	'make test-ray         install ray, torch, numpy and pyarrow into build/ray and run the tests of Ray over rdtd' \
	'make test-ray-own RAY_SOURCE=PATH   run the tests of a checkout of Ray over rdtd, and print what it changes in them' \
	'make wheel PYTHONS="python3.12 ..."   build a wheel for each Python in build/wheels; it contains librdt' \
	'make test-wheel PYTHONS="python3.12 ..."   build them and run their tests, each in a virtual environment' \
	'make check-asan       run the tests under AddressSanitizer and UndefinedBehaviorSanitizer' \
	'make check-tsan       run the tests under ThreadSanitizer' \
	'make check-backend SO=./mine.so [SET="key=value ..."]   check a plug-in against the contract of the interface' \
	'make check-layers     check which room includes and links which' \
	'make demo [FILE=...]  move a file between two daemons' \
	'make bench            measure beside a reference; BENCH_ROWS=text: only the groups whose name contains it' \
	'make bench-workloads  measure whole jobs beside what people use; WORKLOADS="weights rl", ABLATE=1 and more: tests/bench/README.md' \
	'make fault-matrix     run every fault at every step, ROUNDS (100) times each; CELL=text: only matching cells' \
	'make fuzz [TIME=60] [T=name]   run the fuzz targets, or those whose name contains T, for TIME seconds each' \
	'make cov              measure the coverage of the tests' \
	'make probe-gpu, make test-gpu, make bench-gpu, make gpu-bundle   for a machine with a GPU (tests/gpu/README.md)' \
	'make cuda-headers     fetch the header of the CUDA driver (2.3 MB), with which `make` also builds cuda and nccl' \
	'make ucx-wheels       fetch newer versions of UCX for the tests, and print how to choose one' \
	'make format, make tidy   run clang-format in place; run clang-tidy' \
	'make install          install into PREFIX (/usr/local); also DESTDIR, libdir, sysconfdir, unitdir, mandir, pythondir' \
	'make uninstall        remove what `make install` has installed' \
	'make image            make a container image from Debian packages and this build, build/image/*.oci.tar' \
	'make deb              build Debian packages in build/deb' \
	'make test-deb         build them, install them in a new Debian 12, and upgrade them there; as root' \
	'make clean            remove build/' \
	'V=1 prints the commands. WERROR=1 turns warnings into errors.'
