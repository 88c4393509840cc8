/* SPDX-License-Identifier: Apache-2.0 */
/* When each provider reads its source. */
#include "daemon/directory/directory.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/directory/directory_impl.h"

#define FILE_INTERVAL_NS INT64_C(1000000000)
#define DNS_INTERVAL_NS INT64_C(5000000000)

static const struct {
    int64_t interval_ns; /* 0: it is not read, but tells */
    enum rdt_status (*read)(struct directory_reading *, struct rdt_error *);
} sources[DIRECTORY_SOURCES] = {
    [DIRECTORY_FILE] = {FILE_INTERVAL_NS, directory_read_file},
    [DIRECTORY_DNS] = {DNS_INTERVAL_NS, directory_read_dns},
    [DIRECTORY_ETCD] = {0, NULL},
};

static const char *argument_of(const struct directory_provider *provider)
{
    return directory_source_from(provider->directory, provider->source);
}

static struct node_entry *copy_of(const struct node_entry *from)
{
    struct node_entry *first = NULL, **last = &first;

    for (; from && (*last = malloc(sizeof **last)); from = from->next, last = &(*last)->next) {
        **last = *from;
        (*last)->next = NULL;
    }
    return first;
}

/* ---- reading ---- */

static void run_reading(struct work *work)
{
    struct directory_reading *reading = container_of(work, struct directory_reading, work);

    reading->status = reading->read(reading, &reading->err);
}

static void reading_free(struct directory_reading *reading)
{
    options_free_nodes(reading->nodes);
    free(reading->argument);
    free(reading);
}

static void take(struct directory_provider *provider, struct directory_reading *reading)
{
    directory_note(provider, reading->status == RDT_OK ? NULL : &reading->err);
    if (reading->status != RDT_OK)
        return;
    memcpy(provider->stamp, reading->stamp, sizeof provider->stamp);
    if (reading->unchanged)
        return;
    directory_take(provider, reading->nodes);
    reading->nodes = NULL;
}

static void wait_for_next(struct directory_provider *provider)
{
    if (!deadline_set(provider->directory->deadlines, &provider->next, sources[provider->source].interval_ns))
        log_error("directory %s: no memory for a timer: it is not read again", directory_source_name(provider->source));
}

static void on_read(struct work *work)
{
    struct directory_reading *reading = container_of(work, struct directory_reading, work);
    struct directory_provider *provider = reading->provider;

    if (provider) {
        provider->reading = NULL;
        take(provider, reading);
        wait_for_next(provider);
    }
    reading_free(reading);
}

static void on_time(struct deadline *deadline)
{
    struct directory_provider *provider = container_of(deadline, struct directory_provider, next);
    struct directory_reading *reading = calloc(1, sizeof *reading);

    if (reading)
        reading->argument = strdup(argument_of(provider));
    if (!reading || !reading->argument) {
        free(reading);
        wait_for_next(provider);
        return;
    }
    reading->work = (struct work){.run = run_reading, .done = on_read};
    reading->provider = provider;
    reading->read = sources[provider->source].read;
    memcpy(reading->stamp, provider->stamp, sizeof reading->stamp);
    provider->reading = reading;
    owner_work_submit(provider->directory->owner_work, &reading->work, NULL, false);
}

/* Readings that are under way no longer count. */
static void stop(struct directory_provider *provider)
{
    deadline_unset(provider->directory->deadlines, &provider->next);
    if (provider->reading)
        provider->reading->provider = NULL;
    provider->reading = NULL;
}

/* Starts the providers with the present options. A source that is no longer configured names no node. */
static void begin(struct directory_provider *provider)
{
    struct directory *directory = provider->directory;

    stop(provider);
    provider->active = directory->peers && argument_of(provider)[0] != '\0';
    memset(provider->stamp, 0, sizeof provider->stamp);
    if (provider->source == DIRECTORY_FILE) { /* the configuration check has just read the file */
        options_free_nodes(provider->nodes);
        provider->nodes = copy_of(directory->options->node_list);
        provider->confirmed_ns = provider->active ? uv_hrtime() : 0;
        provider->error[0] = '\0';
    } else if (!provider->active) {
        options_free_nodes(provider->nodes);
        provider->nodes = NULL;
        provider->confirmed_ns = 0;
        provider->error[0] = '\0';
    }
    if (provider->source == DIRECTORY_ETCD)
        directory_etcd_begin(provider);
    else if (provider->active)
        on_time(&provider->next);
}

void directory_start(struct directory *directory)
{
    directory->etcd_info = (Rdt__Pb__EtcdInfo)RDT__PB__ETCD_INFO__INIT;
    for (unsigned i = 0; i < DIRECTORY_SOURCES; i++) {
        directory->providers[i] = (struct directory_provider){
            .directory = directory, .source = (enum directory_source)i, .next = {.on_passed = on_time}};
        begin(&directory->providers[i]);
    }
    directory->table = copy_of(directory->options->node_list); /* which peers_create has dialled */
}

void directory_reload(struct directory *directory)
{
    for (unsigned i = 0; i < DIRECTORY_SOURCES; i++)
        begin(&directory->providers[i]);
    directory_merge(directory);
}

void directory_close(struct directory *directory, bool comes_back)
{
    directory_etcd_close(directory, comes_back);
    for (unsigned i = 0; i < DIRECTORY_SOURCES && directory->providers[i].directory; i++) {
        stop(&directory->providers[i]);
        options_free_nodes(directory->providers[i].nodes);
        directory->providers[i].nodes = NULL;
    }
    options_free_nodes(directory->table);
    directory->table = NULL;
}
