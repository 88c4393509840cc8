/* SPDX-License-Identifier: Apache-2.0 */
/* Sets a key by its section and name, and collects the faults of all sources. Keys of other sections are kept for the
 * backends. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/log.h"
#include "daemon/config/options_keys.h"
#include "daemon/config/options_sources.h"
#include "suggest.h"

/* ---- faults ---- */

void option_fault(struct option_faults *faults, const struct rdt_error *why, const char *fmt, ...)
{
    struct rdt_error fault = *why;
    char where[sizeof fault.msg];
    va_list args;
    va_start(args, fmt);
    vsnprintf(where, sizeof where, fmt, args);
    va_end(args);
    if (where[0])
        rdt_error_prefix(&fault, "%s", where);
    faults->n++;
    if (faults->n == 1) {
        faults->first = fault;
        return;
    }
    if (faults->quiet)
        return;
    if (faults->n == 2)
        log_fatal("%s", faults->first.msg);
    log_fatal("%s", fault.msg);
}

/* ---- keys of backends ---- */

void options_extra_free(struct options_extra *extras)
{
    while (extras) {
        struct options_extra *extra = extras;
        extras = extra->next;
        free(extra->section);
        free(extra->key);
        free(extra->value);
        free(extra);
    }
}

/* ---- keys ---- */

static const struct option_key *find_key(const char *section, const char *name)
{
    for (size_t i = 0; i < n_option_keys; i++) {
        if ((!section || strcmp(option_keys[i].section, section) == 0) && strcmp(option_keys[i].name, name) == 0)
            return &option_keys[i];
    }
    return NULL;
}

static bool section_is_ours(const char *section)
{
    for (size_t i = 0; i < n_option_keys; i++) {
        if (strcmp(option_keys[i].section, section) == 0)
            return true;
    }
    return false;
}

static enum rdt_status set_extra(struct options *options, const char *section, const char *name, const char *text, int line,
                                 struct rdt_error *err)
{
    struct options_extra **at = &options->extras;
    while (*at && (strcasecmp((*at)->section, section) != 0 || strcmp((*at)->key, name) != 0))
        at = &(*at)->next;
    char *value = strdup(text);
    if (value && !*at) {
        struct options_extra *extra = calloc(1, sizeof(*extra));
        if (extra) {
            *at = extra; /* options_fini frees it even half built */
            extra->section = strdup(section);
            extra->key = strdup(name);
        }
    }
    if (value == NULL || *at == NULL || (*at)->section == NULL || (*at)->key == NULL) {
        free(value);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    }
    free((*at)->value);
    (*at)->value = value;
    (*at)->line = line;
    return RDT_OK;
}

/* Makes the "no such key" error, with the section or the name under which there is such a key. */
static enum rdt_status unknown_key(const char *section, const char *name, struct rdt_error *err)
{
    const struct option_key *elsewhere = find_key(NULL, name);
    if (elsewhere)
        return rdt_error_set(err, RDT_INVALID, "no such key here: it belongs in section [%s]", elsewhere->section);
    struct suggest nearest;
    char hint[96];
    suggest_init(&nearest, name);
    for (size_t i = 0; i < n_option_keys; i++) {
        if (strcmp(option_keys[i].section, section) == 0)
            suggest_try(&nearest, option_keys[i].name);
    }
    suggest_hint(&nearest, "", hint, sizeof hint);
    return option_key_unknown(name, "key", hint, err);
}

enum rdt_status option_set(struct options *options, const char *section, const char *name, const char *text,
                           const char *base_dir, int line, struct rdt_error *err)
{
    const struct option_key *key = find_key(section, name);
    if (!key) {
        if (section_is_ours(section))
            return unknown_key(section, name, err);
        return set_extra(options, section, name, text, line, err);
    }
    option_key_origin(options, key, line > 0 ? OPTION_FROM_FILE : OPTION_FROM_FLAG, line);
    if (!key->is_path || !base_dir || text[0] == '/' || text[0] == 0)
        return option_key_set(options, key, text, err);
    char *path;
    if (asprintf(&path, "%s/%s", base_dir, text) < 0)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    enum rdt_status status = option_key_set(options, key, path, err);
    free(path);
    return status;
}
