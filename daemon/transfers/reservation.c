/* SPDX-License-Identifier: Apache-2.0 */
/* See reservation.h. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"

struct reservation_group {
    struct list link; /* in reservation->groups */
    struct reservation *reservation;
    struct remote *peer; /* used for comparison only */
    unsigned unknown;    /* transfers that have joined and whose size is not known yet */
    unsigned n_ready;
    uint64_t bytes;    /* needed by the transfers that wait */
    struct list ready; /* struct move.reserve.link */
    /* Lets them go on, or fail. Meanwhile it has a reference of the reservation, and the bytes are promised. */
    struct slice start;
    bool starting;
    struct rdt_error err;
};

struct reservation {
    struct regions *regions;
    unsigned refs; /* the message, each transfer in a group, and a running settle */
    bool sealed;
    struct list groups;
};

struct reservation *reservation_create(struct regions *regions)
{
    struct reservation *reservation = calloc(1, sizeof *reservation);

    if (!reservation)
        return NULL;
    reservation->regions = regions;
    reservation->refs = 1;
    list_init(&reservation->groups);
    return reservation;
}

static void unref(struct reservation *reservation)
{
    if (--reservation->refs > 0)
        return;
    list_for_each_safe (node, &reservation->groups)
        free(container_of(node, struct reservation_group, link));
    free(reservation);
}

static void take_out(struct transfer *transfer)
{
    struct reservation_group *group = transfer->move.reserve.group;

    if (list_empty(&transfer->move.reserve.link)) {
        group->unknown--;
    } else {
        list_remove(&transfer->move.reserve.link);
        group->n_ready--;
        group->bytes -= transfer->move.reserve.bytes;
        if (group->starting && group->err.status == RDT_OK)
            regions_unpromise(group->reservation->regions, transfer->move.reserve.bytes);
    }
    transfer->move.reserve.group = NULL;
}

static enum rdt_status check_limit(const struct reservation_group *group, struct rdt_error *err)
{
    const struct regions *regions = group->reservation->regions;
    uint64_t limit = regions->limit_bytes;

    if (regions_would_fit(regions, group->bytes))
        return RDT_OK;
    return rdt_error_set(
        err, group->bytes > limit ? RDT_LIMIT : RDT_NO_MEMORY,
        "the %u objects of this fetch need %llu bytes together, but %llu bytes of the daemon's memory_limit of %llu are in "
        "use: fetch fewer at a time, or release some",
        group->n_ready, (unsigned long long)group->bytes, (unsigned long long)regions_claimed_bytes(regions),
        (unsigned long long)limit);
}

static void end_start(struct reservation_group *group)
{
    struct regions *regions = group->reservation->regions;

    group->starting = false;
    slice_stop(&group->start);
    if (regions->accounts && group->err.status == RDT_OK) /* items that have ended meanwhile did not take what was promised */
        account_room_freed(regions->accounts, USAGE_BYTES, NULL);
    unref(group->reservation);
}

static bool start_some(struct slice *slice, uint64_t until_ns)
{
    struct reservation_group *group = container_of(slice, struct reservation_group, start);
    struct reservation *reservation = group->reservation;
    bool left;

    reservation->refs++; /* the end of a transfer may end others of the group, and with the last one the group */
    list_drain (struct transfer, transfer, &group->ready, move.reserve.link) {
        struct rdt_error err = group->err;
        take_out(transfer);
        unref(reservation);
        transfer->move.reserve.on_room(transfer, err.status == RDT_OK ? NULL : &err);
        if (uv_hrtime() >= until_ns)
            break;
    }
    left = group->starting && !list_empty(&group->ready);
    if (group->starting && !left)
        end_start(group);
    unref(reservation);
    return !left;
}

/* Lets all waiting transfers go on or fail, when all sizes are known, or when the known sizes exceed the limit already. */
static void settle(struct reservation_group *group)
{
    struct reservation *reservation = group->reservation;
    struct regions *regions = reservation->regions;
    bool complete = reservation->sealed && group->unknown == 0;

    if (group->starting || list_empty(&group->ready) || (!complete && group->bytes <= regions->limit_bytes))
        return;
    group->err.status = RDT_OK;
    if (!complete || group->n_ready > 1) /* A single transfer learns from the allocation itself whether there is room. */
        (void)check_limit(group, &group->err);
    group->starting = true;
    reservation->refs++;
    if (group->err.status == RDT_OK)
        regions_promise(regions, group->bytes);
    group->start.run = start_some;
    slice_begin(regions->deadlines ? &regions->deadlines->slices : NULL, &group->start);
}

void reservation_seal(struct reservation *reservation)
{
    if (!reservation)
        return;
    reservation->sealed = true;
    list_for_each (node, &reservation->groups)
        settle(container_of(node, struct reservation_group, link));
    unref(reservation);
}

static struct reservation_group *group_of(struct reservation *reservation, struct remote *peer)
{
    struct reservation_group *group;

    list_for_each (node, &reservation->groups)
        if (container_of(node, struct reservation_group, link)->peer == peer)
            return container_of(node, struct reservation_group, link);
    group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    group->reservation = reservation;
    group->peer = peer;
    list_init(&group->ready);
    list_append(&reservation->groups, &group->link);
    return group;
}

void reservation_join(struct transfer *transfer, struct remote *peer)
{
    struct reservation *reservation = transfer->move.reserve.message;

    transfer->move.reserve.message = NULL; /* A transfer joins a group once only. */
    if (!reservation || transfer->move.target || transfer->wish.meta_only)
        return;
    assert(!transfer->move.reserve.group);
    transfer->move.reserve.group = group_of(reservation, peer);
    if (!transfer->move.reserve.group)
        return;
    transfer->move.reserve.group->unknown++;
    reservation->refs++;
}

bool reservation_wait(struct transfer *transfer, reservation_room on_room)
{
    struct reservation_group *group = transfer->move.reserve.group;

    if (!group)
        return false;
    group->unknown--;
    group->n_ready++;
    transfer->move.reserve.bytes = transfer->move.stream_bytes;
    if (transfer->move.reserve.bytes > UINT64_MAX - group->bytes) /* it is taken off again (take_out) */
        transfer->move.reserve.bytes = UINT64_MAX - group->bytes;
    group->bytes += transfer->move.reserve.bytes;
    transfer->move.reserve.on_room = on_room;
    list_append(&group->ready, &transfer->move.reserve.link);
    settle(group);
    return true;
}

void reservation_leave(struct transfer *transfer)
{
    struct reservation_group *group = transfer->move.reserve.group;
    struct reservation *reservation;

    transfer->move.reserve.message = NULL;
    if (!group)
        return;
    reservation = group->reservation;
    take_out(transfer);
    if (group->starting && list_empty(&group->ready))
        end_start(group);
    else
        settle(group);
    unref(reservation);
}
