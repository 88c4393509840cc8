/* SPDX-License-Identifier: Apache-2.0 */
/* One backend file: opened, checked, and its tables copied. Private to plugin*.c. */
#ifndef DAEMON_PLUGIN_LOAD_H
#define DAEMON_PLUGIN_LOAD_H

#include <stdbool.h>

#include "backends/rdt_backend.h"
#include "daemon/config/options.h"
#include "proto/list.h"

#define PLUGIN_MAX_REFUSED 32u

struct plugin {
    struct list link;
    char *path, *name; /* name: lower case */
    void *library;     /* from dlopen */
    /* Copies; entries that the file's ABI minor version lacks are NULL. */
    struct rdt_backend backend;
    struct rdt_memory_ops memory;
    struct rdt_transport_ops transport;
    bool has_memory, has_transport;
    struct memory_kind *kind; /* the instances while they are in the lists; NULL: it has none */
    struct transport *instance;
    struct options_extra
        *settings; /* of its own section, that came with the request to load it; before those of the configuration */

    const struct rdt_config_key *refused[PLUGIN_MAX_REFUSED]; /* keys whose values it has refused: it gets their defaults */
    unsigned n_refused;

    struct rdt_host host;          /* lent to the plug-in from open on */
    const struct options *options; /* while open runs; otherwise NULL */
    char listen_host[65];
    char pool_idle[24]; /* nanoseconds */
};

/* Loads and checks a file. Errors are those of plugins_create; each names the file and the fault. guarded:
 * nobody else may be able to write to a directory on the path either. */
enum rdt_status plugin_load(const char *path, bool guarded, struct plugin **plugin_p, struct rdt_error *err);

/* In plugin_file.c. Opens the file at the real path and checks the open file, not its name. The caller
 * closes *fd_p. plugin_file_is: whether the path still leads to that file. */
enum rdt_status plugin_file_open(const char *path, bool guarded, int *fd_p, struct rdt_error *err);
bool plugin_file_is(const char *path, int fd);

/* Unmaps the file of a plug-in that will be freed. None of its code may run any more. */
void plugin_unmap(struct plugin *plugin);

/* Frees a plug-in that is in no list. keep_mapped: leaves a sound file mapped, because threads and exit
 * handlers that vendors' libraries start in constructors outlive their close. */
void plugin_unload(struct plugin *plugin, bool keep_mapped);

#endif
