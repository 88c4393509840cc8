/* What a plug-in may ask the core while it opens. For plugin*.c only. */
#ifndef DAEMON_PLUGIN_HOST_H
#define DAEMON_PLUGIN_HOST_H

#include <stdio.h>

#include "daemon/plugins/plugin_load.h"

/* Fills plugin->host. */
void plugin_host_init(struct plugin *plugin);

/* Every key of every section that is not the daemon's own is one that a plug-in of the list declared. INVALID names it. */
enum rdt_status plugin_host_check(const struct list *plugins, const struct options *options, struct rdt_error *err);

/* The same of the settings that came with the request to load it. */
enum rdt_status plugin_host_check_own(const struct plugin *plugin, struct rdt_error *err);

/* The plug-ins' own sections as a configuration file with a comment per key: the effective values. */
void plugin_host_dump(const struct list *plugins, const struct options *options, FILE *out);

#endif
