/* SPDX-License-Identifier: Apache-2.0 */
/* What a configuration that was read again has changed, and which of that a running daemon takes over. */
#include <string.h>
#include <strings.h>

#include "daemon/config/options_keys.h"
#include "proto/plain_text.h"

static bool reloads(const struct option_key *key, bool peers_stay)
{
    return key->reload == RELOAD_ALWAYS || (key->reload == RELOAD_OF_PEERS && peers_stay);
}

static const char *extra_value(const struct options *options, const struct options_extra *wanted)
{
    for (const struct options_extra *extra = options->extras; extra; extra = extra->next)
        if (strcasecmp(extra->section, wanted->section) == 0 && strcmp(extra->key, wanted->key) == 0)
            return extra->value;
    return NULL;
}

static void compare_extras(const struct options *now, const struct options *fresh, options_on_change on_change, void *arg)
{
    for (const struct options_extra *extra = fresh->extras; extra; extra = extra->next) {
        const char *before = extra_value(now, extra);
        if (!before || strcmp(before, extra->value) != 0)
            on_change(arg, extra->section, extra->key, before ? before : "", extra->value, false);
    }
    for (const struct options_extra *extra = now->extras; extra; extra = extra->next)
        if (!extra_value(fresh, extra))
            on_change(arg, extra->section, extra->key, extra->value, "", false);
}

static unsigned count_nodes(const struct node_entry *nodes)
{
    unsigned n = 0;
    for (; nodes; nodes = nodes->next)
        n++;
    return n;
}

void options_compare(const struct options *now, const struct options *fresh, options_on_change on_change, void *arg)
{
    bool peers_stay = options_have_peers(now) && options_have_peers(fresh);
    char before[48], after[48];
    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        const char *was = option_key_text(now, key, before), *is = option_key_text(fresh, key, after);
        if (strcmp(was, is) != 0)
            on_change(arg, key->section, key->name, was, is, reloads(key, peers_stay));
    }
    if (strcmp(now->nodes, fresh->nodes) == 0 && !options_same_nodes(now->node_list, fresh->node_list)) {
        unsigned n_before = count_nodes(now->node_list), n_after = count_nodes(fresh->node_list);
        snprintf(before, sizeof before, "a file with %u node%s", n_before, text_plural(n_before));
        snprintf(after, sizeof after, "a file with %u node%s", n_after, text_plural(n_after));
        on_change(arg, "network", "nodes", before, after, true);
    }
    compare_extras(now, fresh, on_change, arg);
}

static size_t value_bytes(const struct option_key *key)
{
    static const size_t bytes[] = {
        [OPTION_STRING] = sizeof(char *),  [OPTION_BOOL] = sizeof(bool),      [OPTION_UINT] = sizeof(uint32_t),
        [OPTION_COUNT] = sizeof(uint64_t), [OPTION_BYTES] = sizeof(uint64_t), [OPTION_DURATION] = sizeof(uint64_t)};
    return bytes[key->type];
}

static void swap(void *a, void *b, size_t bytes)
{
    char kept[sizeof(uint64_t)];
    memcpy(kept, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, kept, bytes);
}

void options_adopt(struct options *options, struct options *fresh)
{
    struct node_entry *nodes = options->node_list;
    bool peers_stay = options_have_peers(options) && options_have_peers(fresh);
    for (size_t i = 0; i < n_option_keys; i++) {
        const struct option_key *key = &option_keys[i];
        char was[OPTION_TEXT_BYTES], is[OPTION_TEXT_BYTES];
        if (reloads(key, peers_stay) || strcmp(option_key_text(options, key, was), option_key_text(fresh, key, is)) == 0)
            options->origins[i] = fresh->origins[i];
        if (reloads(key, peers_stay))
            swap((char *)options + key->offset, (char *)fresh + key->offset, value_bytes(key));
    }
    swap(&options->config, &fresh->config, sizeof options->config); /* the lines of the origins are those of this file */
    options->node_list = fresh->node_list;
    fresh->node_list = nodes;
}
