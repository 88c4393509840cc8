/* SPDX-License-Identifier: Apache-2.0 */
/* The sources of settings: the file and the flags. For options*.c only. */
#ifndef DAEMON_OPTIONS_SOURCES_H
#define DAEMON_OPTIONS_SOURCES_H

#include <stdbool.h>

#include "daemon/config/options.h"
#include "rdt_status.h"

/* Sets a key of any section; keys of sections that are not the daemon's own are stored for the backends.
 * base_dir: the directory that relative paths start from; NULL: the working directory. */
enum rdt_status option_set(struct options *options, const char *section, const char *name, const char *text,
                           const char *base_dir, int line, struct rdt_error *err);

/* Reads the whole file. Every fault is reported with its line. */
void option_read_file(struct options *options, const char *path, struct option_faults *faults);

/* Reads the flags that must be known before all other sources: config, help and version. Returns whether
 * --config was given. */
bool option_scan_flags(struct options *options, int argc, char **argv);

void option_apply_flags(struct options *options, int argc, char **argv, struct option_faults *faults);

#endif
