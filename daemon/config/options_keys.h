/* SPDX-License-Identifier: Apache-2.0 */
/* The table of configuration keys. From one row come the key of the file, the environment variable, the flag, its
 * line in --help, the template rdtd.conf and the entry in rdtd.conf(5). A new key is a row here and a field of
 * struct options. For options*.c only. */
#ifndef DAEMON_OPTIONS_KEYS_H
#define DAEMON_OPTIONS_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/config/options.h"
#include "rdt_status.h"

enum option_type { OPTION_STRING, OPTION_BOOL, OPTION_UINT, OPTION_COUNT, OPTION_BYTES, OPTION_DURATION };

enum option_reload {
    RELOAD_NEVER,    /* a new value is for the next start */
    RELOAD_ALWAYS,   /* the loop thread alone reads it, and reads it anew each time, or daemon/reload.c spreads it */
    RELOAD_OF_PEERS, /* the same, if the daemon has peers before and after */
};

struct option_key {
    const char *section, *name; /* a name is unique among all sections: flags and environment bear no section */
    enum option_type type;
    size_t offset;     /* in struct options: char *, bool, uint32_t, uint64_t for all others */
    uint64_t min, max; /* of numbers; of strings: their length in bytes */
    enum option_reload reload;
    bool is_path; /* a relative path starts at the directory of the file that sets the key */
    enum rdt_status (*check)(const char *text, struct rdt_error *err); /* of strings; NULL: any text is valid */
    const char *fallback;                                              /* the default, as it would be written in the file */
    const char *value; /* strings: what to write, for --help and the manual page: "PATH" */
    const char *help;  /* complete sentences: what the key means */
    const char *why;   /* complete sentences: who changes it, and why; NULL: obvious, or the same for the whole section */
};

#define OPTION_UNBOUNDED (UINT64_C(1) << 50) /* a maximum that is not worth printing */

struct option_section {
    const char *name, *about; /* complete sentences */
};
extern const struct option_section option_sections[];
extern const size_t n_option_sections;

extern const struct option_key option_keys[];
extern const size_t n_option_keys;

/* The error of a key or flag that does not exist: `what`, and the hint; of a key that was removed: what to do instead. */
enum rdt_status option_key_unknown(const char *name, const char *what, const char *hint, struct rdt_error *err);

/* Where plug-ins and the configuration are installed. The Makefile sets both when it compiles options_keys.c. */
extern const char option_backend_dir[], option_config_file[];

/* Sets every key to its default. *options is written in any case and needs options_fini. Error: NO_MEMORY. */
enum rdt_status options_set_defaults(struct options *options, struct rdt_error *err);

/* Parses, checks and stores a value. The error is about the value alone ("0 is less than 1"). */
enum rdt_status option_key_set(struct options *options, const struct option_key *key, const char *text, struct rdt_error *err);

/* Notes where the value of the key comes from; line: of the file. */
void option_key_origin(struct options *options, const struct option_key *key, enum option_source source, int line);

/* "RDTD_KEY". */
#define OPTION_VARIABLE_BYTES 64
void option_key_variable(const struct option_key *key, char name_p[OPTION_VARIABLE_BYTES]);

/* The value as the file would have it; number_p holds it if it is a number. */
const char *option_key_text(const struct options *options, const struct option_key *key, char number_p[32]);

/* Prints a space and the value as the file would have it; nothing if the value is empty. */
void option_key_print(const struct options *options, const struct option_key *key, FILE *out);

/* ---- values ---- */

enum rdt_status option_parse_bool(const char *text, bool *value_p, struct rdt_error *err);
enum rdt_status option_parse_uint(const char *text, uint64_t *value_p, struct rdt_error *err);
enum rdt_status option_parse_bytes(const char *text, uint64_t *value_p, struct rdt_error *err);
enum rdt_status option_parse_duration(const char *text, uint64_t *value_p, struct rdt_error *err);

#define OPTION_TEXT_BYTES 32
void option_format_bytes(uint64_t bytes, char text_p[OPTION_TEXT_BYTES]);
void option_format_duration(uint64_t ns, char text_p[OPTION_TEXT_BYTES]);

#endif
