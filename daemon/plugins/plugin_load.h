/* One backend file: opened, checked, and its tables copied. For plugin*.c only. */
#ifndef DAEMON_PLUGIN_LOAD_H
#define DAEMON_PLUGIN_LOAD_H

#include <stdbool.h>

#include "backends/rdt_backend.h"
#include "daemon/base/list.h"
#include "daemon/config/options.h"

struct plugin {
    struct list link;
    char *path, *name; /* the name is lower case */
    void *library;     /* of dlopen */
    /* Our copies: what the file's version lacks is NULL. */
    struct rdt_backend backend;
    struct rdt_memory_ops memory;
    struct rdt_transport_ops transport;
    bool has_memory, has_transport;
    struct memory_kind *kind; /* of it, while it is in the lists; NULL: it has none */
    struct transport *instance;
    struct options_extra
        *settings; /* of its own section, that came with the request to load it; before those of the configuration */

    struct rdt_host host;          /* lent to the plug-in from open on */
    const struct options *options; /* while open runs, else NULL */
    char listen_host[65];
};

/* Errors as plugins_create's: each names file and fault. guarded: nobody else may write to a directory on the path either. */
enum rdt_status plugin_load(const char *path, bool guarded, struct plugin **plugin_p, struct rdt_error *err);

/* For plugin_load.c, in plugin_file.c: opens what is at the real path, and judges the file, never the name. The caller closes *fd_p.
 * plugin_file_is: the path still leads to it. */
enum rdt_status plugin_file_open(const char *path, bool guarded, int *fd_p, struct rdt_error *err);
bool plugin_file_is(const char *path, int fd);

/* Closes the file of a plug-in that is about to be freed; none of its code runs any more. */
void plugin_unmap(struct plugin *plugin);

/* Frees the struct, which is in no list. keep_mapped: of a sound plug-in, opened or not: what vendor libraries start in their constructors, and their
 * threads and exit handlers, outlives their close. */
void plugin_unload(struct plugin *plugin, bool keep_mapped);

#endif
