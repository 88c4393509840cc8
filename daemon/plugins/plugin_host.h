/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to what a plug-in asks the daemon while it opens. Private to plugin*.c. */
#ifndef DAEMON_PLUGIN_HOST_H
#define DAEMON_PLUGIN_HOST_H

#include <stdio.h>

#include "daemon/plugins/plugin_load.h"

/* Fills plugin->host. */
void plugin_host_init(struct plugin *plugin);

/* Checks that every key of every section that is not the daemon's own was declared by a plug-in of the
 * list. Each fault names the key. */
void plugin_host_check(const struct list *plugins, const struct options *options, struct option_faults *faults);

/* The same for the settings of the request that loads the plug-in. INVALID names the first wrong one. */
enum rdt_status plugin_host_check_own(const struct plugin *plugin, struct rdt_error *err);

/* The plug-in has refused the value of the key with which the sentence begins ("ports = x: ..."): it gets the default from now
 * on, so that its next open finds the next fault. False: the sentence begins with no key, or with one that was refused
 * before. */
bool plugin_host_disregard(struct plugin *plugin, const char *sentence);

/* Writes the plug-ins' sections with the effective values, and a comment for each key. */
void plugin_host_dump(const struct list *plugins, const struct options *options, FILE *out);

#endif
