/* One backend file: opened, checked, and its tables copied. For plugin*.c only. */
#ifndef DAEMON_PLUGIN_LOAD_H
#define DAEMON_PLUGIN_LOAD_H

#include <stdbool.h>

#include "backends/rdt_backend.h"
#include "daemon/list.h"
#include "daemon/options.h"

struct plugin {
    struct list link;
    char *path, *name; /* the name is lower case */
    void *library;     /* of dlopen */
    /* Our copies: what the file's version lacks is NULL. */
    struct rdt_backend backend;
    struct rdt_memory_ops memory;
    struct rdt_transport_ops transport;
    bool has_memory, has_transport;

    struct rdt_host host;          /* lent to the plug-in from open on */
    const struct options *options; /* while open runs, else NULL */
    char listen_host[65];
};

/* INVALID or SYSTEM: names file and fault. */
enum rdt_status plugin_load(const char *path, struct plugin **plugin_p, struct rdt_error *err);

/* Frees the struct. keep_mapped: of a sound plug-in, opened or not: what vendor libraries start in their constructors, and their
 * threads and exit handlers, outlives their close. */
void plugin_unload(struct plugin *plugin, bool keep_mapped);

#endif
