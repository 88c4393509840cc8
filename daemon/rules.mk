# SPDX-License-Identifier: Apache-2.0
# rdtd, its keeper and its agent for etcd, the template of the configuration, and the manual pages of all rooms.

PROGRAM_C := daemon/main.c daemon/keeper.c daemon/directory/etcd/%
DAEMON_O := $(call obj,$(filter-out $(PROGRAM_C),$(call srcs,daemon daemon/* daemon/*/*)))
ETCD     := $(and $(call have,libcurl,rdtd-etcd: dropped$(,) no libcurl (Debian: libcurl4-openssl-dev)),$(B)/rdtd-etcd)
PROGRAMS += $(B)/rdtd $(B)/rdtd-keeper $(ETCD)

$(B)/obj/daemon/config/options_keys.o: OBJFLAGS = -fPIE -DRDT_BACKEND_DIR='"$(backenddir)"' -DRDT_CONFIG_FILE='"$(conffile)"'
$(B)/obj/daemon/config/options_keys.o: $(B)/.found

$(B)/rdtd: $(B)/obj/daemon/main.o $(B)/librdtd.a $(B)/libproto.a
$(B)/rdtd: LIBS = $(DAEMON_LIBS)
$(B)/rdtd-keeper: $(B)/obj/daemon/keeper.o $(B)/librdtd.a $(B)/libproto.a
$(B)/rdtd-etcd: $(call obj,$(call srcs,daemon/directory/etcd)) $(B)/libproto.a
$(B)/rdtd-etcd: LIBS = $(call libs,libcurl jansson libprotobuf-c)

# ---- configuration and manual pages ----

# The template, which rdtd prints.
CONF := $(B)/rdtd.conf
$(CONF): $(B)/rdtd
	$(Q)$< --dump-config=template >$@

# NAME.N.scd lies in the room that it describes and becomes $(B)/man/NAME.N.
MAN_SCD  := $(wildcard $(foreach n,1 3 5 7 8,daemon/*.$(n).scd daemon/*/*.$(n).scd client/*.$(n).scd \
            client/*/*.$(n).scd backends/*.$(n).scd proto/*.$(n).scd))
MANPAGES := $(if $(shell command -v scdoc),$(addprefix $(B)/man/,$(notdir $(MAN_SCD:.scd=))))
$(if $(MANPAGES),,$(if $(NEEDS_LIBS),$(info manual pages: dropped$(,) no scdoc (Debian: scdoc))))

vpath %.scd $(sort $(dir $(MAN_SCD)))
$(B)/man/%: %.scd daemon/make-page
	$(call make_file,MAN,daemon/make-page $< $(B) >$@)

# What the programs read whose output a page includes.
$(B)/man/rdtd.conf.5: $(B)/rdtd
$(B)/man/rdtd-exporter.8: client/package/list-metrics proto/rdt.proto
$(B)/man/librdt.3: client/package/list-functions $(wildcard client/rdt*.h proto/rdt_*.h)
