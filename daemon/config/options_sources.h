/* The sources of settings: the file and the flags. For options*.c only. */
#ifndef DAEMON_OPTIONS_SOURCES_H
#define DAEMON_OPTIONS_SOURCES_H

#include <stdbool.h>

#include "daemon/config/options.h"
#include "rdt_status.h"

/* Collects faults: keeps the first one, and prints all as soon as there is a second. */
struct option_faults {
    unsigned n;
    struct rdt_error first;
};

/* Adds a fault: `why`, preceded by the formatted place. */
void option_fault(struct option_faults *faults, const struct rdt_error *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

bool option_section_is_ours(const char *section);

/* Any key of any section; those of sections that are not ours are kept for the backends. base_dir: what relative
 * paths are relative to, NULL: the working directory. */
enum rdt_status option_set(struct options *options, const char *section, const char *name, const char *text,
                           const char *base_dir, int line, struct rdt_error *err);

/* The whole file, every fault with its line. */
void option_read_file(struct options *options, const char *path, struct option_faults *faults);

/* What must be known before anything else is read: config, help and version. True: --config was given. */
bool option_scan_flags(struct options *options, int argc, char **argv);

void option_apply_flags(struct options *options, int argc, char **argv, struct option_faults *faults);

#endif
