/* The table of what can be configured: one row per key drives file, environment, flags, dump and help. For options*.c only. */
#ifndef DAEMON_OPTIONS_KEYS_H
#define DAEMON_OPTIONS_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/config/options.h"
#include "rdt_status.h"

enum option_type { OPTION_STRING, OPTION_BOOL, OPTION_UINT, OPTION_COUNT, OPTION_BYTES, OPTION_DURATION };

struct option_key {
    const char *section, *name; /* a name is unique among all sections: flags and environment bear no section */
    enum option_type type;
    size_t offset;     /* in struct options: char *, bool, uint32_t, uint64_t for all others */
    uint64_t min, max; /* numbers; strings: least and most bytes */
    bool is_path;      /* relative to the directory of the file that says it */
    enum rdt_status (*check)(const char *text, struct rdt_error *err); /* strings; NULL: anything */
    const char *fallback;
    const char *help; /* lines; no full stop at the end */
};

extern const struct option_key option_keys[];
extern const size_t n_option_keys;

/* Where plug-ins are installed; options.c, which the Makefile tells. */
extern const char option_backend_dir[];

/* Parses, checks and stores; the error is about the value alone ("0 is less than 1"). */
enum rdt_status option_key_set(struct options *options, const struct option_key *key, const char *text, struct rdt_error *err);

/* A space and the value as it could be written in a file; nothing if it is empty. */
void option_key_print(const struct options *options, const struct option_key *key, FILE *out);

/* ---- values ---- */

enum rdt_status option_parse_bool(const char *text, bool *value_p, struct rdt_error *err);
enum rdt_status option_parse_uint(const char *text, uint64_t *value_p, struct rdt_error *err);
enum rdt_status option_parse_bytes(const char *text, uint64_t *value_p, struct rdt_error *err);
enum rdt_status option_parse_duration(const char *text, uint64_t *value_p, struct rdt_error *err);

#define OPTION_TEXT_BYTES 32
void option_format_bytes(uint64_t bytes, char text_p[OPTION_TEXT_BYTES]);
void option_format_duration(uint64_t ns, char text_p[OPTION_TEXT_BYTES]);

/* The least limit on the memory of the control group that `groups` (/proc/self/cgroup) names, or of one above it, below `mount`
 * (/sys/fs/cgroup). UINT64_MAX: none. */
uint64_t option_cgroup_limit_bytes(const char *groups, const char *mount);

#endif
