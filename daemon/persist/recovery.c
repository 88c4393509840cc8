/* SPDX-License-Identifier: Apache-2.0 */
/* The start and the end of the room, and the messages to the keeper. */
#include "daemon/persist/recovery.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/persist/recovery_impl.h"
#include "proto/plain_text.h"
#include "proto/wire_limits.h"

#define NO_ROOM_LINES_NS UINT64_C(10000000000)

struct recovery_counts recovery_counts(const struct recovery *recovery)
{
    return recovery->journal ? recovery->counts : (struct recovery_counts){0};
}

bool recovery_keeper_is_up(const struct recovery *recovery)
{
    return recovery->journal && keeper_link_is_up(&recovery->link);
}

/* ---- the keeper ---- */

/* A new keeper, or the old one after it did not read for long: it gets everything that it should have. */
static void on_up(void *arg)
{
    struct recovery *recovery = arg;
    struct storing storing = {.n = 0};
    struct region *region;
    size_t cursor = 0;

    recovery_store(recovery, &storing, KEEPER_JOURNAL, journal_fd(recovery->journal));
    while ((region = map_next(&recovery->kept_regions, &cursor)))
        recovery_store_region(recovery, &storing, region);
    recovery_store_end(recovery, &storing);
}

static bool is_kept(void *arg, uint64_t id)
{
    struct recovery *recovery = arg;

    return id < KEEPER_FIRST_REGION || map_get_u64(&recovery->kept_regions, keeper_region(id));
}

/* ---- the start ---- */

static void on_held(void *arg, uint64_t id, int take_fd)
{
    struct map *held = arg;
    struct held *entry = map_get_u64(held, id) ? NULL : malloc(sizeof *entry);

    if (!entry || !map_put_u64(held, id, entry)) {
        free(entry);
        (void)close(take_fd);
        return;
    }
    *entry = (struct held){.id = id, .fd = take_fd};
}

/* The keeper drops what no record names, such as memory whose object ended a moment before the earlier daemon did. */
static void drop_rest(struct recovery *recovery, struct map *held)
{
    struct held *entry;
    size_t cursor = 0;

    while ((entry = map_next(held, &cursor))) {
        (void)close(entry->fd);
        if (recovery->journal && entry->id >= KEEPER_FIRST_REGION)
            keeper_link_drop(&recovery->link, entry->id);
        free(entry);
    }
    map_fini(held);
}

static enum rdt_status new_journal(struct recovery *recovery, struct rdt_error *err)
{
    const uint64_t id = KEEPER_JOURNAL;
    enum rdt_status status = journal_create(&recovery->journal, err);
    int fd;

    if (status != RDT_OK)
        return status;
    fd = journal_fd(recovery->journal);
    memcpy(journal_state(recovery->journal)->node_uuid, recovery->node->uuid, 16);
    keeper_link_store(&recovery->link, &id, &fd, 1);
    return RDT_OK;
}

static enum rdt_status check_node(struct recovery *recovery, bool may_take_uuid, struct rdt_error *err)
{
    const uint8_t *uuid = journal_state(recovery->journal)->node_uuid;
    char theirs[33], ours[33];

    if (may_take_uuid)
        memcpy(recovery->node->uuid, uuid, 16);
    if (memcmp(recovery->node->uuid, uuid, 16) == 0)
        return RDT_OK;
    node_hex(uuid, theirs);
    node_hex(recovery->node->uuid, ours);
    return rdt_error_set(
        err, RDT_INVALID,
        "the keeper at %s has the objects of node %s, and state_dir says that this is node %s: give each daemon "
        "its own keeper, or restart rdtd-keeper to give those objects up",
        recovery->keeper, theirs, ours);
}

/* What cannot be read now could not be read at the next start either: the daemon starts without it. */
static enum rdt_status set_aside(struct recovery *recovery, int take_fd, struct rdt_error *err)
{
    const uint64_t id = KEEPER_SET_ASIDE;

    keeper_link_store(&recovery->link, &id, &take_fd, 1);
    (void)close(take_fd);
    journal_close(recovery->journal);
    recovery->journal = NULL;
    return new_journal(recovery, err);
}

/* A record that ended the daemon while it was restored would do so at each start. */
static void give_up_last(struct recovery *recovery)
{
    struct journal_state *state = journal_state(recovery->journal);
    struct journal_slot *slot = state->reading != 0 ? journal_at(recovery->journal, state->reading) : NULL;

    state->reading = 0;
    if (!slot)
        return;
    recovery->counts.lost++;
    log_error("the last start ended while it restored record %016llx (%u bytes of kind %u), which is lost: please report this",
              (unsigned long long)slot->key, slot->bytes, slot->kind);
    journal_remove(recovery->journal, slot);
}

/* An earlier daemon, or a damaged file, may have numbers in the header that no later daemon could count on from. */
static void check_numbers(struct journal_state *state)
{
    if (!rdt_number_is_valid(state->next_region) || !rdt_number_is_valid(state->next_hold) ||
        !rdt_number_is_valid(state->next_session)) {
        log_error("the ids in the journal's header are out of range: this daemon continues those of the records");
        state->next_region = state->next_hold = state->next_session = 0;
    }
    if (state->names_version > RDT_MAX_LEARNED) {
        log_error("the journal says that a name had version %llu, which is out of range: new names begin after version %llu",
                  (unsigned long long)state->names_version, (unsigned long long)RDT_MAX_LEARNED);
        state->names_version = RDT_MAX_LEARNED;
    }
}

static enum rdt_status open_journal(struct recovery *recovery, int take_fd, bool may_take_uuid, bool *earlier_p,
                                    struct rdt_error *err)
{
    struct rdt_error why;
    struct journal_state *state;
    int copy = fcntl(take_fd, F_DUPFD_CLOEXEC, 0); /* for set_aside */
    enum rdt_status status = copy < 0 ? rdt_error_sys(err, errno, "opening the journal") : RDT_OK;

    if (copy < 0) {
        (void)close(take_fd);
        return status;
    }
    status = journal_open(take_fd, &recovery->journal, &why);
    if (status == RDT_INVALID || status == RDT_UNSUPPORTED) {
        log_error("the journal that the keeper at %s has cannot be read: %s. It is set aside, and its objects are given up",
                  recovery->keeper, why.msg);
        recovery->journal = NULL;
        return set_aside(recovery, copy, err);
    }
    if (status != RDT_OK) {
        (void)close(copy);
        return rdt_error_set(err, status, "the journal that the keeper at %s has cannot be opened: %s", recovery->keeper,
                             why.msg);
    }
    state = journal_state(recovery->journal);
    if (state->oldest_generation == 0)
        state->oldest_generation = state->generations; /* version 1 did not say */
    status = check_node(recovery, may_take_uuid, err);
    if (status == RDT_OK && ++state->n_attempts > RECOVERY_ATTEMPTS) {
        log_error("%u starts in a row ended while they read the journal, so it is set aside and its objects are given up: "
                  "please report this",
                  RECOVERY_ATTEMPTS);
        return set_aside(recovery, copy, err);
    }
    (void)close(copy);
    if (status != RDT_OK)
        return status; /* this start was refused: it did not end the daemon */
    if (state->n_attempts > 1)
        give_up_last(recovery);
    check_numbers(state);
    *earlier_p = true;
    return RDT_OK;
}

/* From here on no id is used twice, no matter what the next daemon restores. */
static void save_ids(struct recovery *recovery)
{
    struct journal_state *state = journal_state(recovery->journal);

    ids_save(&recovery->regions->ids, &state->next_region);
    client_save_hold_ids(&state->next_hold);
}

uint64_t *recovery_session_ids(struct recovery *recovery)
{
    return recovery->journal ? &journal_state(recovery->journal)->next_session : NULL;
}

/* The numbers in its header go, too. */
static void close_journal(struct recovery *recovery)
{
    recovery->frozen = true;
    if (recovery->regions) /* NULL: the start failed before this */
        ids_save(&recovery->regions->ids, NULL);
    client_save_hold_ids(NULL);
    journal_close(recovery->journal);
    recovery->journal = NULL;
}

enum rdt_status recovery_open(struct recovery *recovery, bool may_take_uuid, struct map *held_p, bool *earlier_p,
                              struct rdt_error *err)
{
    enum rdt_status status;
    int fd;

    map_init(held_p);
    *earlier_p = false;
    map_init(&recovery->filling);
    map_init(&recovery->sessions);
    map_init(&recovery->published);
    list_init(&recovery->far_holds);
    list_init(&recovery->node_holds);
    list_init(&recovery->groups);
    map_init(&recovery->kept_regions);
    recovery->no_room.every_ns = NO_ROOM_LINES_NS;
    recovery->link.fd = -1;
    if (recovery->keeper[0] == '\0')
        return RDT_OK;
    status = keeper_link_open(&recovery->link, recovery->keeper, err);
    if (status != RDT_OK)
        return status;
    recovery->link.pool = recovery->regions->pool;
    recovery->link.arg = recovery;
    recovery->link.on_up = on_up;
    recovery->link.is_kept = is_kept;
    if (recovery->link.n_held > 0)
        status = keeper_link_fetch(&recovery->link, on_held, held_p, err);
    fd = recovery_take_held(held_p, KEEPER_JOURNAL);
    if (status == RDT_OK)
        status = fd >= 0 ? open_journal(recovery, fd, may_take_uuid, earlier_p, err) : new_journal(recovery, err);
    if (status != RDT_OK && recovery->journal) /* the next start finds everything unchanged */
        close_journal(recovery);
    return status;
}

static void save_generations(struct recovery *recovery)
{
    journal_state(recovery->journal)->generations = recovery->objects->first_generation;
    journal_state(recovery->journal)->oldest_generation = recovery->objects->oldest_generation;
}

void recovery_begin(struct recovery *recovery, struct map *held)
{
    drop_rest(recovery, held);
    if (!recovery->journal)
        return;
    save_generations(recovery);
    save_ids(recovery);
    recovery_record(recovery);
    journal_state(recovery->journal)->n_attempts = 0;
}

void recovery_serve(struct recovery *recovery, uv_loop_t *loop)
{
    if (!recovery->journal)
        return;
    save_generations(recovery); /* files may have changed them (object_table_reserve) */
    keeper_link_start(&recovery->link, loop, recovery->deadlines);
}

void recovery_give_up(struct recovery *recovery, struct map *held)
{
    struct journal_state *state = recovery->journal ? journal_state(recovery->journal) : NULL;

    if (state && state->n_attempts > 0)
        state->n_attempts--; /* it has not ended the daemon, and may go well when there is memory again */
    if (state)
        close_journal(recovery);
    drop_rest(recovery, held);
}

/* ---- the end ---- */

void recovery_drain(struct recovery *recovery)
{
    recovery->lasting.ending = true;
}

/* The present records stay for the next daemon, whatever happens to the objects here. */
static void freeze(struct recovery *recovery)
{
    if (!recovery->journal || recovery->frozen)
        return;
    recovery->frozen = true;
    log_info("the keeper has %llu object%s, %llu name%s and %llu session%s for the next start of rdtd",
             (unsigned long long)recovery->counts.objects, text_plural(recovery->counts.objects),
             (unsigned long long)recovery->counts.names, text_plural(recovery->counts.names),
             (unsigned long long)recovery->counts.sessions, text_plural(recovery->counts.sessions));
}

/* The start has failed before they were taken. */
static void drop_restored(struct recovery *recovery)
{
    while (recovery->groups.next && !list_empty(&recovery->groups))
        recovery_free_group(container_of(list_first(&recovery->groups), struct kept_group, link));
    while (recovery->node_holds.next && !list_empty(&recovery->node_holds))
        recovery_free_node_hold(container_of(list_first(&recovery->node_holds), struct node_hold_record, link));
}

bool recovery_is_frozen(const struct recovery *recovery)
{
    return recovery->frozen;
}

void recovery_close(struct recovery *recovery)
{
    freeze(recovery); /* first: the next daemon is to have what is dropped here */
    drop_restored(recovery);
    if (recovery->journal)
        keeper_link_close(&recovery->link);
}

void recovery_fini(struct recovery *recovery)
{
    close_journal(recovery);
    recovery_fini_published(recovery);
    map_fini(&recovery->sessions);
    map_fini(&recovery->filling);
    map_fini(&recovery->kept_regions);
}
