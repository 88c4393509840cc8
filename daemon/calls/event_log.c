/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/calls/event_log.h"

#include <stdlib.h>
#include <string.h>

#define TENANT_UID UINT32_MAX /* no user has it */

struct event_entry {
    Rdt__Pb__ListKind kind;
    enum row_visibility visibility;
    struct owner owner;
    size_t bytes;
    uint8_t packed[];
};

bool row_audience_has(const struct row_audience *audience, const struct owner *who)
{
    if (audience->visibility == ROW_ALL || owner_equal(audience->owner, who))
        return true;
    return audience->visibility == ROW_TENANT && strcmp(audience->owner->tenant, who->tenant) == 0;
}

/* ---- counting ---- */

static size_t count_key(uint8_t key_p[OWNER_KEY_MAX_BYTES], const struct owner *owner, bool tenant)
{
    struct owner of = *owner;

    if (tenant)
        of.uid = TENANT_UID;
    return owner_key(key_p, &of, NULL, 0);
}

/* The count of that audience. NULL: none of its watchers is an ordinary user. */
static struct event_count *count_find(const struct event_log *log, const struct row_audience *audience)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];

    if (audience->visibility == ROW_ALL)
        return (struct event_count *)&log->shown;
    return map_get(&log->counts, key, count_key(key, audience->owner, audience->visibility == ROW_TENANT));
}

static struct event_count *count_get(struct event_log *log, const struct owner *owner, bool tenant)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t bytes = count_key(key, owner, tenant);
    struct event_count *count = map_get(&log->counts, key, bytes);

    if (count)
        return count;
    count = calloc(1, sizeof *count);
    if (!count)
        return NULL;
    memcpy(count->key, key, bytes);
    count->key_bytes = bytes;
    if (!map_put(&log->counts, count->key, bytes, count)) {
        free(count);
        return NULL;
    }
    return count;
}

static void count_put(struct event_log *log, struct event_count *count)
{
    if (--count->watchers > 0 || count->key_bytes == 0)
        return;
    (void)map_remove(&log->counts, count->key, count->key_bytes);
    free(count);
}

/* The events so far that the watcher may see and has asked for. */
static uint64_t seen(const struct event_watcher *watcher)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < watcher->n_counts; i++)
        for (unsigned kind = 0; kind < EVENT_KINDS; kind++)
            n += watcher->kinds >> kind & 1u ? watcher->counts[i]->events[kind] : 0;
    return n;
}

/* ---- the log ---- */

static bool serve_in_turn(struct slice *slice, uint64_t until_ns)
{
    struct event_log *log = container_of(slice, struct event_log, slice);

    for (unsigned i = 0; i < EVENT_WATCHERS_PER_TURN && !list_empty(&log->ready); i++) {
        struct event_watcher *watcher = container_of(list_first(&log->ready), struct event_watcher, link);
        if (!event_watcher_serve(watcher, until_ns)) {
            list_remove(&watcher->link); /* its turn ends */
            list_append(&log->ready, &watcher->link);
        }
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&log->ready);
}

void event_log_init(struct event_log *log, struct slices *slices)
{
    memset(log, 0, sizeof *log);
    log->slices = slices;
    log->slice.run = serve_in_turn;
    list_init(&log->ready);
    list_init(&log->resting);
    map_init(&log->counts);
}

static void drop_first(struct event_log *log)
{
    struct event_entry **entry = &log->entries[log->first++ % EVENT_LOG_ENTRIES];

    if (*entry)
        log->bytes -= (*entry)->bytes;
    free(*entry);
    *entry = NULL;
}

void event_log_fini(struct event_log *log)
{
    slice_stop(&log->slice);
    while (log->first < log->next)
        drop_first(log);
    map_fini(&log->counts);
}

unsigned event_log_watched(const struct event_log *log)
{
    unsigned kinds = 0;

    for (unsigned kind = 0; kind < EVENT_KINDS; kind++)
        kinds |= log->watching[kind] > 0 ? 1u << kind : 0;
    return kinds;
}

bool event_log_wanted(const struct event_log *log, Rdt__Pb__ListKind kind, const struct row_audience *audience)
{
    const struct event_count *count;

    if (log->watching[kind] == 0)
        return false;
    count = count_find(log, audience);
    return log->all.watchers > 0 || (count && count->watchers > 0);
}

void event_log_add(struct event_log *log, Rdt__Pb__ListKind kind, const struct row_audience *audience,
                   const Rdt__Pb__Event *message)
{
    size_t bytes = message ? rdt__pb__event__get_packed_size(message) : 0;
    struct event_entry *entry = bytes > 0 && bytes <= EVENT_LOG_BYTES ? malloc(sizeof *entry + bytes) : NULL;
    struct event_count *count = count_find(log, audience);

    log->all.events[kind]++;
    if (count)
        count->events[kind]++;
    if (entry) {
        *entry = (struct event_entry){.kind = kind, .visibility = audience->visibility, .bytes = bytes};
        if (audience->owner)
            entry->owner = *audience->owner;
        (void)rdt__pb__event__pack(message, entry->packed);
        log->bytes += bytes;
    }
    while (log->first < log->next && (log->bytes > EVENT_LOG_BYTES || log->next - log->first == EVENT_LOG_ENTRIES))
        drop_first(log);
    log->entries[log->next++ % EVENT_LOG_ENTRIES] = entry;
    list_splice(&log->ready, &log->resting);
    if (!list_empty(&log->ready))
        slice_start(log->slices, &log->slice);
}

/* ---- watchers ---- */

enum rdt_status event_watcher_start(struct event_log *log, struct event_watcher *watcher, struct rdt_error *err)
{
    struct event_count *of_owner = NULL, *of_tenant = NULL;

    if (!watcher->admin) {
        of_owner = count_get(log, watcher->owner, false);
        of_tenant = count_get(log, watcher->owner, true);
        if (of_owner)
            of_owner->watchers++;
        if (of_tenant)
            of_tenant->watchers++;
        if (!of_owner || !of_tenant) {
            if (of_owner)
                count_put(log, of_owner);
            if (of_tenant)
                count_put(log, of_tenant);
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a watch");
        }
        watcher->counts[watcher->n_counts++] = of_owner;
        watcher->counts[watcher->n_counts++] = of_tenant;
    }
    watcher->counts[watcher->n_counts++] = watcher->admin ? &log->all : &log->shown;
    watcher->counts[watcher->n_counts - 1]->watchers++;
    watcher->log = log;
    watcher->next = log->next;
    watcher->base = seen(watcher);
    for (unsigned kind = 0; kind < EVENT_KINDS; kind++)
        log->watching[kind] += watcher->kinds >> kind & 1u;
    list_append(&log->resting, &watcher->link);
    return RDT_OK;
}

void event_watcher_stop(struct event_watcher *watcher)
{
    struct event_log *log = watcher->log;

    list_remove(&watcher->link);
    for (unsigned i = 0; i < watcher->n_counts; i++)
        count_put(log, watcher->counts[i]);
    for (unsigned kind = 0; kind < EVENT_KINDS; kind++)
        log->watching[kind] -= watcher->kinds >> kind & 1u;
}

static void send_event(struct event_watcher *watcher, const uint8_t *rest, size_t bytes)
{
    watcher->send(watcher, rest, bytes);
    watcher->lost = 0;
}

/* It has fallen behind the log: it loses everything up to now. */
static void skip_lost(struct event_watcher *watcher)
{
    uint64_t sequence = seen(watcher) - watcher->base;

    watcher->lost += sequence - watcher->sequence;
    watcher->sequence = sequence;
    watcher->next = watcher->log->next;
}

static void look_at(struct event_watcher *watcher, const struct event_entry *entry)
{
    const struct row_audience audience = {entry->visibility, &entry->owner};

    if (!(watcher->kinds >> entry->kind & 1u) || !(watcher->admin || row_audience_has(&audience, watcher->owner)))
        return;
    watcher->sequence++;
    send_event(watcher, entry->packed, entry->bytes);
}

/* Says how many were lost, in an event of its own, because the next one may come late. */
static void send_lost(struct event_watcher *watcher)
{
    Rdt__Pb__Event message = RDT__PB__EVENT__INIT;
    uint8_t packed[16];

    message.what = (char *)"lost";
    send_event(watcher, packed, rdt__pb__event__pack(&message, packed));
}

bool event_watcher_serve(struct event_watcher *watcher, uint64_t until_ns)
{
    struct event_log *log = watcher->log;

    while (watcher->next < log->next && watcher->has_room(watcher)) {
        if (watcher->next < log->first || !log->entries[watcher->next % EVENT_LOG_ENTRIES])
            skip_lost(watcher);
        else
            look_at(watcher, log->entries[watcher->next++ % EVENT_LOG_ENTRIES]);
        if (uv_hrtime() >= until_ns)
            break;
    }
    if (watcher->lost > 0 && watcher->has_room(watcher))
        send_lost(watcher);
    if (watcher->next < log->next && watcher->has_room(watcher))
        return false;
    list_remove(&watcher->link);
    if (watcher->next == log->next)
        list_append(&log->resting, &watcher->link);
    return true;
}

void event_watcher_unblock(struct event_watcher *watcher)
{
    struct event_log *log = watcher->log;

    if (!list_empty(&watcher->link))
        return;
    list_append(&log->ready, &watcher->link);
    slice_start(log->slices, &log->slice);
}
