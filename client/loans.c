#include "loans.h"

#include <stdlib.h>

#include "alloc.h"
#include "rdt.pb-c.h"

/* The largest room for so many bytes: a few sizes to each doubling, so that what held one object holds the next of about its size. */
static uint64_t size_class(uint64_t bytes)
{
    uint64_t step = 4096;

    while (step < bytes / 8)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

static struct copy_room *room_of(const rdt *conn, uint64_t region)
{
    struct mapping *mapping = memory_find_room(&conn->memory, region);

    return mapping ? mapping->room : NULL;
}

/* The smallest that holds them and is not far too large; of those, what was used last: the caches may still know it. */
static struct copy_room *take_idle(rdt *conn, uint64_t bytes)
{
    struct copy_room *best = NULL;

    for (struct chain *link = conn->loans_idle.next; link != &conn->loans_idle; link = link->next) {
        struct copy_room *room = container_of(link, struct copy_room, link);
        if (room->bytes >= bytes && room->bytes <= size_class(bytes) && (!best || room->bytes < best->bytes))
            best = room;
    }
    if (best) {
        chain_remove(&best->link);
        best->putting = true;
    }
    return best;
}

static struct copy_room *take_lent_before(rdt *conn, uint64_t bytes)
{
    struct copy_room *room;

    connection_lock(conn);
    /* Word of what has come back, or is gone, may lie there unread: what is copied into pages that are gone nobody counts, and it is in vain. */
    if (!conn->polling && !(chain_is_empty(&conn->loans_idle) && chain_is_empty(&conn->loans_lent)))
        connection_poll(conn);
    room = take_idle(conn, bytes);
    connection_unlock(conn);
    return room;
}

enum rdt_status loans_take(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t deadline_ns, struct copy_room **room_p,
                            struct rdt_error *err)
{
    struct copy_room *room = fresh ? NULL : take_lent_before(conn, bytes);
    enum rdt_status status;

    if (!room) {
        room = calloc(1, sizeof *room);
        if (!room)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to keep note of a copy");
        room->bytes = bytes;
        status = alloc_region(conn, bytes, room_ns, deadline_ns, &room->mapping, NULL, err);
        if (status != RDT_OK) {
            free(room);
            return status;
        }
        connection_lock(conn);
        chain_init(&room->link);
        room->putting = true;
        room->mapping->room = room;
        connection_unlock(conn);
    }
    *room_p = room;
    return RDT_OK;
}

/* ---- what becomes of it ---- */

/* The daemon has it no more, or is told so. */
static void drop(rdt *conn, struct copy_room *room, bool tell)
{
    chain_remove(&room->link);
    room->mapping->room = NULL;
    if (tell)
        alloc_give_back(conn, room->mapping);
    else
        memory_unref(&conn->memory, room->mapping);
    free(room);
}

/* A room that no put has: as far as it is known. */
static void settle(rdt *conn, struct copy_room *room)
{
    chain_remove(&room->link);
    if (room->gone) {
        drop(conn, room, false);
    } else if (room->back) {
        room->back = false;
        room->again = true;
        chain_prepend(&conn->loans_idle, &room->link);
    } else {
        chain_prepend(&conn->loans_lent, &room->link);
    }
}

void loans_end(rdt *conn, struct copy_room *take_room, bool lent)
{
    take_room->putting = false;
    if (lent)
        settle(conn, take_room);
    else
        drop(conn, take_room, true);
}

void loans_on_back(rdt *conn, struct frame *frame)
{
    Rdt__Pb__RegionBack *back = rdt__pb__region_back__unpack(NULL, frame->length, frame->payload);

    if (!back)
        return; /* no memory: it is not used again, and goes when the daemon likes */
    for (size_t i = 0; i < back->n_regions; i++) {
        struct copy_room *room = room_of(conn, back->regions[i]);
        if (!room)
            continue;
        room->back = !back->gone;
        room->gone = back->gone;
        if (!room->putting)
            settle(conn, room);
    }
    rdt__pb__region_back__free_unpacked(back, NULL);
}

static void free_all(struct chain *rooms)
{
    while (!chain_is_empty(rooms)) {
        struct copy_room *room = container_of(rooms->next, struct copy_room, link);
        chain_remove(&room->link);
        room->mapping->room = NULL;
        free(room);
    }
}

void loans_fini(rdt *conn)
{
    free_all(&conn->loans_idle);
    free_all(&conn->loans_lent);
}
