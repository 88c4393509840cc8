/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's end of the connection to its keeper (keeper_packet.h). Sending never blocks: packets that the keeper does not
 * accept at once wait in a queue, with duplicates of their descriptors. If the keeper ends or does not read for long, the link
 * is down until a new connection succeeds; on_up then sends everything again.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_KEEPER_LINK_H
#define DAEMON_KEEPER_LINK_H

#include <uv.h>

#include "daemon/base/deadline.h"
#include "daemon/base/work.h"
#include "daemon/persist/keeper_packet.h"
#include "proto/list.h"
#include "rdt_status.h"

struct keeper_link {
    const char *path;
    int fd;                     /* -1: down */
    bool greeted;               /* the keeper has answered HELLO */
    uint64_t n_held;            /* READY: the descriptors that the keeper held then */
    struct keeper_watch *watch; /* of fd; NULL: the loop does not watch it */
    uv_loop_t *loop;
    struct deadlines *deadlines; /* NULL: before keeper_link_start, and after keeper_link_close */
    struct deadline retry;       /* the next attempt, or the end of the wait for READY */
    struct deadline flush;       /* of `drops` */
    struct list queue;           /* struct packet.link: not sent yet */
    unsigned n_queued;
    struct keeper_message drops; /* ids that have not been dropped yet */
    uint64_t n_refused;          /* descriptors that the keeper had no room for */

    /* Set by the owner after keeper_link_open. */
    struct work_pool *pool; /* closes descriptors from the queue, which may be the last ones of much memory */
    void *arg;
    void (*on_up)(void *arg);                /* store everything now */
    bool (*is_kept)(void *arg, uint64_t id); /* whether the keeper should still hold it */
};

/* Connects and waits for the keeper's greeting, and sets link->n_held. For the daemon's start: it blocks for some seconds at
 * most. path is borrowed. DISCONNECTED: no keeper answers there. BUSY: it serves another daemon. PROTOCOL. */
enum rdt_status keeper_link_open(struct keeper_link *link, const char *path, struct rdt_error *err);

/* Fetches everything that the keeper holds; on_fd takes each descriptor. For the daemon's start; it blocks. */
enum rdt_status keeper_link_fetch(struct keeper_link *link, void (*on_fd)(void *arg, uint64_t id, int take_fd), void *arg,
                                  struct rdt_error *err);

/* From now on the loop drives the link, and connects again when it is lost. */
void keeper_link_start(struct keeper_link *link, uv_loop_t *loop, struct deadlines *deadlines);

/* Sends the queued packets as far as the keeper accepts them, and ends the connection. The loop may need one more iteration. */
void keeper_link_close(struct keeper_link *link);

bool keeper_link_is_up(const struct keeper_link *link);

/* Hands descriptors to the keeper; they are borrowed. n is at most KEEPER_MAX_IDS. Does nothing while the link is down. */
void keeper_link_store(struct keeper_link *link, const uint64_t *ids, const int *fds, unsigned n);

/* Makes the keeper close that descriptor, within some milliseconds. */
void keeper_link_drop(struct keeper_link *link, uint64_t id);

#endif
