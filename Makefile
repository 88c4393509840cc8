# SPDX-License-Identifier: Apache-2.0
# rdtd. `make help` lists the targets; everything that is built lands in build/<variant>/. A room's own rules are in its rules.mk.
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

WARNINGS := -Wall -Wextra -Wno-unused-parameter -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wundef \
            -Wformat=2 $(if $(filter 1,$(WERROR)),-Werror)
ifeq ($(VARIANT),fuzz)
WARNINGS := -Wall
else ifneq ($(VARIANT),release) # instrumented code misleads the compiler's flow analysis
WARNINGS := -Wall -Wno-format-truncation -Wno-stringop-truncation -Wno-stringop-overflow -Wno-maybe-uninitialized
endif
CPPFLAGS_ALL := -D_GNU_SOURCE -iquote . -iquote proto -iquote backends -iquote $(B)/gen $(CPPFLAGS)
CFLAGS_ALL    = -std=c11 $(CFLAGS_$(VARIANT)) -fstack-protector-strong -pthread $(CFLAGS)
LDFLAGS_ALL   = $(CFLAGS_$(VARIANT)) -pthread -Wl,-z,relro,-z,now -Wl,--as-needed $(LDFLAGS)
SHARED        = -shared $(if $(filter fuzz,$(VARIANT)),,-Wl,--no-undefined) # clang's runtimes are the program's

, := ,
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(Q),@printf '  %-6s %s\n' '$(1)' '$(2)')
obj  = $(patsubst %.c,$(B)/obj/%.o,$(1))
srcs = $(foreach d,$(1),$(wildcard $(d)/*.c))

# $(call make_file,WORD,COMMAND) is a recipe: it prints the word and the target, and runs the command.
define make_file
$(call say,$(1),$(if $(filter CC CXX PROTO,$(1)),$<,$@))
$(Q)mkdir -p $(@D)
$(Q)$(2)
endef
link = $(call make_file,LINK,$(1))
library = $(CC) $(LDFLAGS_ALL) $(SHARED) -o $@ $(filter %.o %.so.1 $(LIBRDT),$^)
symbols = -Wl,--version-script=

# ---- libraries: looked for only when something is going to be compiled ----

PKGS := libuv libprotobuf-c openssl inih jansson ucx
# These install what is missing and start make again, which now finds it.
BEGIN := test demo bench fault-matrix fuzz cov wheel deb image check-backend tidy
BEGIN += test-ray test-ray-own test-engines bench-workloads test-gpu bench-gpu probe-gpu gpu-bundle
NO_LIBS_NEEDED := $(BEGIN) help clean deps test-deb test-wheel ucx-wheels cuda-headers check-asan check-tsan format uninstall
ifneq ($(filter-out $(NO_LIBS_NEEDED),$(or $(MAKECMDGOALS),all)),)
NEEDS_LIBS := yes
MISSING := $(shell .ci/missing '$(CC)' $(PKGS))
$(if $(MISSING),$(error $(MISSING)))
endif

cflags = $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(1)))
libs   = $(shell pkg-config --libs $(1))
# $(call have,MODULE,TEXT): not empty if pkg-config knows the module; otherwise it prints the text
have   = $(if $(NEEDS_LIBS),$(or $(shell pkg-config --exists $(1) 2>/dev/null && echo yes),$(info $(2))))
ALL_CFLAGS  := $(if $(NEEDS_LIBS),$(call cflags,libuv libprotobuf-c openssl inih jansson))
DAEMON_LIBS := $(if $(NEEDS_LIBS),$(call libs,libuv libprotobuf-c openssl inih) -ldl)
CLIENT_LIBS := $(if $(NEEDS_LIBS),$(call libs,libprotobuf-c))
CTL_LIBS    := $(if $(NEEDS_LIBS),$(call libs,libprotobuf-c jansson) -ldl)

# ---- build ----

.DELETE_ON_ERROR:
.SUFFIXES:

all:

# Where the tests and figures find what was built.
export RDT_BUILD_DIR = $(CURDIR)/$(B)

# What protoc-c makes of the messages, and the metrics that their comments declare.
PROTOS := $(wildcard proto/*.proto)
METRICS_H := $(addprefix $(B)/gen/,status_metrics.h reply_metrics.h etcd_metrics.h)
GEN_H  := $(PROTOS:proto/%.proto=$(B)/gen/%.pb-c.h) $(METRICS_H)
PROTO_O := $(call obj,$(call srcs,proto)) $(PROTOS:proto/%.proto=$(B)/obj/gen/%.pb-c.o)

# The objects of proto, of client and of the plug-ins go into shared libraries.
$(B)/obj/gen/%.o: WARNINGS =
$(B)/obj/gen/%.o $(B)/obj/proto/%.o $(B)/obj/client/%.o: OBJFLAGS = -fPIC -fno-semantic-interposition

# Each rule depends on all .proto files, because one may import another.
$(B)/gen/%.pb-c.c $(B)/gen/%.pb-c.h: proto/%.proto $(PROTOS)
	$(call make_file,PROTO,protoc-c --proto_path=proto --c_out=$(B)/gen $<)

$(METRICS_H): $(B)/gen/%_metrics.h: client/package/list-metrics proto/rdt.proto
	$(call make_file,GEN,$< $* >$@)

include $(addsuffix /rules.mk,backends client/package daemon tests systemd)
all: $(PROGRAMS) $(CHECK) $(CONF) $(MANPAGES) $(LIBRDT) $(B)/librdt.a $(BACKEND_SO) $(PY_EXT) $(LIBCUDA)

# A stamp file changes when its text changes, so that other flags, sources or paths rebuild what depends on them.
define stamp
$(B)/.$(1): FORCE
	@mkdir -p $$(@D); printf '%s\n' '$(2)' | cmp -s - $$@ || printf '%s\n' '$(2)' >$$@
endef
$(eval $(call stamp,flags,$(CC) $(WARNINGS) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL)))
STAMPED := $(PROTO_O) $(CLIENT_O) $(CTL_C) $(DAEMON_O) $(SUPPORT_O) $(wildcard backends/*.c backends/*/*.c client/cuda/*.c)
$(eval $(call stamp,sources,$(STAMPED)))
$(eval $(call stamp,python,$(PYTHON) $(PY_INFO) $(PY_FILES)))
$(eval $(call stamp,found,$(CUDA_INC) $(NCURSES) $(backenddir) $(conffile)))

OBJFLAGS = -fPIE
compile = $(CC) $(CPPFLAGS_ALL) $(ALL_CFLAGS) $(WARNINGS) $(CFLAGS_ALL) $(OBJFLAGS) $(TEST_CFLAGS) -MMD -MP -c -o $@ $<

$(B)/obj/%.o: %.c $(B)/.flags | $(GEN_H)
	$(call make_file,CC,$(compile))

$(B)/obj/gen/%.o: $(B)/gen/%.c $(B)/.flags | $(GEN_H)
	$(call make_file,CC,$(compile))

# C++ is only for libraries without a C interface.
$(B)/obj/%.o: %.cc $(B)/.flags
	$(call make_file,CXX,$(CXX) $(CPPFLAGS_ALL) $(filter-out -Wstrict-prototypes -Wmissing-prototypes,$(WARNINGS)) -std=c++17 \
	    $(CFLAGS_$(VARIANT)) -fstack-protector-strong -pthread $(CXXFLAGS) $(OBJFLAGS) -MMD -MP -c -o $@ $<)

$(B)/libproto.a: $(PROTO_O)
$(B)/librdt.a: $(CLIENT_O)
$(B)/librdtd.a: $(DAEMON_O)
$(B)/libsupport.a: $(SUPPORT_O)
$(B)/librdt-cuda.a: $(LIBCUDA_O) $(CUDA_O)
$(B)/lib%.a: $(B)/.sources
	$(call make_file,AR,rm -f $@ && $(AR) rcs $@ $(filter %.o,$^))

# A program's own rule, in the rules of its room, names its objects and archives, and LIBS.
$(PROGRAMS) $(CHECK) $(TEST_PROGRAMS):
	$(call make_file,LINK,$(CC) -pie $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -Wl$(,)--start-group $(filter %.a,$^) -Wl$(,)--end-group \
	    $(LIBS))

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

# ---- targets for people ----

SUB = $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: all tests benches deps clean help format tidy-run FORCE $(BEGIN)
NEEDS_fuzz  := clang libclang-rt-dev
NEEDS_cov   := gcovr
NEEDS_wheel := --build python3-venv
NEEDS_deb   := --build build-essential debhelper dh-python
NEEDS_image := --build buildah mmdebstrap
NEEDS_tidy  := --build clang-tidy
NEEDS_gpu   := --build libcriterion-dev
AS_fuzz  := VARIANT=fuzz
AS_cov   := VARIANT=cov
AS_wheel := B=build/wheel CPPFLAGS='-include $(CURDIR)/client/package/glibc_2_28.h'
AS_image := VARIANT=release
$(BEGIN):
	@.ci/deps $(NEEDS_$(if $(findstring gpu,$@),gpu,$@))
	+@$(SUB) VARIANT=$(VARIANT) $(AS_$@) $@-run

deps:
	@.ci/deps --build

format:
	@.ci/format

tidy-run: $(GEN_H)
	@clang-tidy --quiet $(wildcard $(patsubst $(B)/obj/%.o,%.c,$(PROTO_O) $(CLIENT_O) $(DAEMON_O)) $(CTL_C) backends/*/*.c) \
	    -- -std=c11 $(CPPFLAGS_ALL) $(ALL_CFLAGS) $(UCX_CFLAGS) $(CUDA_CFLAGS)

clean:
	rm -rf build

help:
	@cat .ci/help.txt
