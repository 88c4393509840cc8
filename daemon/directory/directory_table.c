/* SPDX-License-Identifier: Apache-2.0 */
/* The providers, their last lists, and the table that is merged from these. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/base/text.h"
#include "daemon/directory/directory_impl.h"

static const struct {
    const char *name, *key;
    size_t option;
} sources[DIRECTORY_SOURCES] = {
    [DIRECTORY_FILE] = {"file", "nodes", offsetof(struct options, nodes)},
    [DIRECTORY_DNS] = {"dns", "nodes_dns", offsetof(struct options, nodes_dns)},
    [DIRECTORY_ETCD] = {"etcd", "etcd_endpoints", offsetof(struct options, etcd_endpoints)},
};

const char *directory_source_name(enum directory_source source)
{
    return source < DIRECTORY_SOURCES ? sources[source].name : "met";
}

const char *directory_source_key(enum directory_source source)
{
    return sources[source].key;
}

const char *directory_source_from(const struct directory *directory, enum directory_source source)
{
    return *(char *const *)(const void *)((const char *)directory->options + sources[source].option);
}

/* ---- the table ---- */

/* Appends what the sources name, an address only from the first source that names it. false: no memory. */
static bool merge(const struct directory *directory, struct map *addresses, struct node_entry **last)
{
    for (unsigned i = 0; i < DIRECTORY_SOURCES; i++)
        for (const struct node_entry *entry = directory->providers[i].nodes; entry; entry = entry->next) {
            size_t bytes = strlen(entry->address);
            bool known = map_get(addresses, entry->address, bytes) != NULL;
            if (i > 0 && known)
                continue;
            *last = malloc(sizeof **last);
            if (!*last)
                return false;
            **last = *entry;
            (*last)->next = NULL;
            (*last)->source = (uint8_t)i;
            if (!known && !map_put(addresses, (*last)->address, bytes, *last))
                return false;
            last = &(*last)->next;
        }
    return true;
}

void directory_merge(struct directory *directory)
{
    struct node_entry *table = NULL;
    struct map addresses;
    bool merged;

    map_init(&addresses);
    merged = merge(directory, &addresses, &table);
    map_fini(&addresses);
    if (!merged) {
        log_error("no memory for the node table, which stays as it is");
        options_free_nodes(table);
        return;
    }
    if (options_same_nodes(table, directory->table)) {
        options_free_nodes(table);
        return;
    }
    if (directory->peers)
        peers_set_nodes(directory->peers, table);
    options_free_nodes(directory->table); /* which peers may still have been taking over */
    directory->table = table;
}

/* ---- what a provider says ---- */

void directory_note(struct directory_provider *provider, const struct rdt_error *err)
{
    const char *name = directory_source_name(provider->source);
    bool failed = provider->error[0] != '\0';

    if (err) {
        if (!failed ||
            (provider->source != DIRECTORY_ETCD && strncmp(provider->error, err->msg, sizeof provider->error - 1) != 0))
            log_warn("directory %s: %s; its last list stays in force", name, err->msg);
        provider->errors++;
        text_copy(provider->error, sizeof provider->error, err->msg);
        return;
    }
    if (failed)
        log_info("directory %s: it can be read again", name);
    provider->error[0] = '\0';
    provider->confirmed_ns = uv_hrtime();
}

void directory_take(struct directory_provider *provider, struct node_entry *take_nodes)
{
    options_free_nodes(provider->nodes);
    provider->nodes = take_nodes;
    directory_merge(provider->directory);
}
