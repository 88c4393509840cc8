/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: --flag VALUE and --flag=VALUE for every key, and the few flags that are not keys. */
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options_keys.h"
#include "daemon/config/options_sources.h"
#include "suggest.h"

#define FLAG_BYTES 64

/* Flags that are not keys. */
static const struct special {
    const char *name;
    enum { NO_VALUE, VALUE, VALUE_OR_NONE } takes;
    size_t offset; /* NO_VALUE: of its bool */
} specials[] = {
    {"config", VALUE, 0},
    {"backend", VALUE, 0},
    {"set", VALUE, 0},
    {"check-config", NO_VALUE, offsetof(struct options, check_config)},
    {"dump-config", VALUE_OR_NONE, 0},
    {"version", NO_VALUE, offsetof(struct options, version)},
    {"help", NO_VALUE, offsetof(struct options, help)},
};
#define N_SPECIALS (sizeof specials / sizeof specials[0])

struct flag {
    char name[FLAG_BYTES]; /* without dashes in front */
    const char *value;     /* NULL: none */
    const struct special *special;
    const struct option_key *key;
    int next; /* index of the argument after it */
};

static void flag_name(const struct option_key *key, char name_p[FLAG_BYTES])
{
    snprintf(name_p, FLAG_BYTES, "%s", key->name);
    for (char *p = name_p; *p != 0; p++) {
        if (*p == '_')
            *p = '-';
    }
}

static void find_flag(struct flag *flag)
{
    for (size_t i = 0; i < N_SPECIALS; i++) {
        if (strcmp(specials[i].name, flag->name) == 0)
            flag->special = &specials[i];
    }
    for (size_t i = 0; i < n_option_keys; i++) {
        char name[FLAG_BYTES];
        flag_name(&option_keys[i], name);
        if (strcmp(name, flag->name) == 0)
            flag->key = &option_keys[i];
    }
}

static enum rdt_status unknown_flag(const char *word, struct rdt_error *err)
{
    if (!err)
        return RDT_INVALID;
    char flags[64][FLAG_BYTES];
    struct suggest nearest;
    suggest_init(&nearest, word);
    for (size_t i = 0; i < N_SPECIALS; i++)
        suggest_try(&nearest, specials[i].name);
    for (size_t i = 0; i < n_option_keys && i < sizeof flags / sizeof flags[0]; i++) {
        flag_name(&option_keys[i], flags[i]);
        suggest_try(&nearest, flags[i]);
    }
    char hint[96];
    suggest_hint(&nearest, "--", hint, sizeof hint);
    return option_key_unknown(word, "flag", hint, err);
}

/* Reads the flag at argv[i]. On error flag_p->next is the argument to continue with. */
static enum rdt_status read_flag(int argc, char **argv, int i, struct flag *flag_p, struct rdt_error *err)
{
    const char *argument = argv[i];
    *flag_p = (struct flag){.next = i + 1};
    if (strncmp(argument, "--", 2) != 0 || argument[2] == 0)
        return rdt_error_set(err, RDT_INVALID, "expected a flag: --help lists them");
    const char *equals = strchr(argument, '=');
    size_t bytes = equals ? (size_t)(equals - argument - 2) : strlen(argument) - 2;
    snprintf(flag_p->name, sizeof flag_p->name, "%.*s", (int)bytes, argument + 2);
    if (equals)
        flag_p->value = equals + 1;
    if (bytes < sizeof flag_p->name)
        find_flag(flag_p);
    if (!flag_p->special && !flag_p->key) {
        if (!equals && flag_p->next < argc && strncmp(argv[flag_p->next], "--", 2) != 0)
            flag_p->next++; /* the value of the unknown flag: reports one fault instead of two */
        return unknown_flag(flag_p->name, err);
    }

    if (flag_p->special && flag_p->special->takes == NO_VALUE && flag_p->value)
        return rdt_error_set(err, RDT_INVALID, "takes no value");
    if ((flag_p->key || flag_p->special->takes == VALUE) && !flag_p->value) {
        if (flag_p->next >= argc)
            return rdt_error_set(err, RDT_INVALID, "needs a value");
        flag_p->value = argv[flag_p->next++];
    }
    return RDT_OK;
}

static enum rdt_status parse_dump(const char *text, enum options_dump *dump_p, struct rdt_error *err)
{
    if (!text)
        *dump_p = OPTIONS_DUMP_EFFECTIVE;
    else if (strcmp(text, "template") == 0)
        *dump_p = OPTIONS_DUMP_TEMPLATE;
    else if (strcmp(text, "man") == 0)
        *dump_p = OPTIONS_DUMP_MAN;
    else
        return rdt_error_set(err, RDT_INVALID, "expected template, man or no value");
    return RDT_OK;
}

bool option_scan_flags(struct options *options, int argc, char **argv)
{
    bool named = false;
    struct flag flag;
    for (int i = 1; i < argc; i = flag.next) {
        if (read_flag(argc, argv, i, &flag, NULL) != RDT_OK || !flag.special)
            continue;
        if (flag.special->takes == NO_VALUE) {
            *(bool *)((char *)options + flag.special->offset) = true;
        } else if (strcmp(flag.name, "dump-config") == 0) {
            (void)parse_dump(flag.value, &options->dump_config, NULL);
        } else if (strcmp(flag.name, "config") == 0) {
            free(options->config);
            options->config = strdup(flag.value);
            named = true;
        }
    }
    return named;
}

/* SECTION.KEY=VALUE */
static enum rdt_status apply_set(struct options *options, const char *text, struct rdt_error *err)
{
    const char *equals = strchr(text, '=');
    const char *dot = equals ? memchr(text, '.', (size_t)(equals - text)) : NULL;
    if (!dot || dot == text || dot + 1 == equals)
        return rdt_error_set(err, RDT_INVALID, "expected SECTION.KEY=VALUE, as in transfer.chunks_in_flight=8");
    char *section = strndup(text, (size_t)(dot - text)), *name = strndup(dot + 1, (size_t)(equals - dot - 1));
    enum rdt_status status = RDT_NO_MEMORY;
    if (!section || !name)
        rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    else
        status = option_set(options, section, name, equals + 1, NULL, 0, err);
    free(section);
    free(name);
    return status;
}

static enum rdt_status add_backend(struct options *options, const char *path, struct rdt_error *err)
{
    char *all;
    if (path[0] == 0 || strchr(path, ','))
        return rdt_error_set(err, RDT_INVALID, "expected one path without commas");
    if (asprintf(&all, "%s%s%s", options->backends, options->backends[0] != 0 ? "," : "", path) < 0)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    free(options->backends);
    options->backends = all;
    for (size_t i = 0; i < n_option_keys; i++)
        if (strcmp(option_keys[i].name, "backends") == 0)
            option_key_origin(options, &option_keys[i], OPTION_FROM_FLAG, 0);
    return RDT_OK;
}

static enum rdt_status apply_flag(struct options *options, const struct flag *flag, struct rdt_error *err)
{
    if (flag->key) {
        option_key_origin(options, flag->key, OPTION_FROM_FLAG, 0);
        return option_key_set(options, flag->key, flag->value, err);
    }
    if (strcmp(flag->name, "set") == 0)
        return apply_set(options, flag->value, err);
    if (strcmp(flag->name, "backend") == 0)
        return add_backend(options, flag->value, err);
    if (strcmp(flag->name, "dump-config") == 0)
        return parse_dump(flag->value, &options->dump_config, err);
    return RDT_OK; /* option_scan_flags has applied it */
}

void option_apply_flags(struct options *options, int argc, char **argv, struct option_faults *faults)
{
    struct flag flag;
    for (int i = 1; i < argc; i = flag.next) {
        struct rdt_error why;
        if (read_flag(argc, argv, i, &flag, &why) != RDT_OK)
            option_fault(faults, &why, "%s", argv[i]);
        else if (apply_flag(options, &flag, &why) != RDT_OK)
            option_fault(faults, &why, "--%s %s", flag.name, flag.value); /* a flag without a value cannot fail here */
    }
}
