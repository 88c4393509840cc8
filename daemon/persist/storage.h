/* SPDX-License-Identifier: Apache-2.0 */
/* The place on the disk: objects and names that survive a reboot, as files of the directory storage_dir.
 *
 * Owns: the directory, whose files nobody else may write (storage_file.h has their format), and the threads that write and
 * remove files there, so that a slow disk delays nobody else.
 *
 * Before an object is first served from its file, the bytes are compared with the checksums that were computed when it was
 * written (storage_check.c). Later readers trust the page cache.
 *
 * Refuses: to know clients, requests and peers; memory on devices; objects that may change. Storing an object changes neither
 * who holds it nor how long it lives: when it ends, its file is removed. A later daemon restores only objects that outlive
 * their client anyway: detached objects, whose time to live begins again, and those of published names without a lease.
 *
 *   storage_store ──► QUEUED ──► WRITING ──► DURABLE ──► (the object ends, and no record of a name refers to it) removed
 *                       │           │  no space, a fault of the disk: its waiters are told; the object stays in memory
 *                       ▼           ▼
 *                       the object ends: no file is left
 *
 *   an object     a temporary file, fsync, rename, fsync of the directory: the file is there whole, or it is not there
 *   a version     its object is DURABLE ──► the record of the name is replaced in the same way ──► the file of the version
 *                 before is removed, unless something else refers to it
 *
 * One object is written at a time, and held meanwhile. So some versions of a name are stored even if they are published faster
 * than the disk can write them. A version that waits in the queue is skipped if its object ends.
 *
 * Evictable objects are stored for the cache only (objects/cache_spill.c): with the same files, which name no names.
 *
 * Everything here runs on the loop thread, except the work that storage_write.c hands to the threads. */
#ifndef DAEMON_STORAGE_H
#define DAEMON_STORAGE_H

#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/work.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"

struct check_work;
struct stored;

struct stores_later { /* struct store_later.link: puts that are stored when files of the cache have made room */
    struct list waiting;
    struct list may_try; /* there may be room */
    struct slice slice;  /* of `may_try` */
};

struct storage {
    const char *directory; /* "": nothing is stored */
    struct regions *regions;
    struct accounts *accounts; /* charged USAGE_STORED_BYTES: the files of objects, and those that will be written */
    struct plugins *plugins;
    struct object_table *objects;
    struct names *names;
    Rdt__Pb__StatusReply *counts; /* where everything is counted that STATUS shows */

    /* The rest belongs to this room. */
    struct names_observer observer;
    int dir;                  /* -1: nothing is stored */
    int lock;                 /* of the directory */
    struct work_pool *writer; /* writes objects */
    struct work_pool *helper; /* everything that is quick: records, removals; and reads files ahead */
    struct map stored;        /* generation -> struct stored */
    struct map by_name;       /* name of the record's file -> struct stored_name */
    struct list queue;        /* struct stored.queue */
    struct list in_memory;    /* struct stored.queue of durable objects whose memory could be given up */
    struct stores_later later;
    struct list dropped;    /* struct claim.link: of objects that will not be stored; they are freed in slices */
    struct slice drop;      /* of `dropped` */
    struct stored *writing; /* NULL: nothing is being written */
    bool frozen;            /* the daemon starts or ends: what happens to objects and names does not touch the files */
    void (*write_again)(struct stored *stored); /* of a DURABLE object that is in memory: its file is damaged */
    struct storage_scrub *scrub;                /* NULL: none is running */
    struct work scrub_start;                    /* run NULL: no scrub begins */
    unsigned n_removals;                        /* on their way to the disk */
    uint64_t order;                             /* of the file that was written last (ObjectRecord.order) */
    uint64_t n_objects, n_names;                /* durable */
    struct log_rare spill_failures;
};

/* The daemon ends: objects and names that end from now on keep their files for the next daemon. Writing stops. */
void storage_freeze(struct storage *storage);

/* Ends the threads, then calls on_closed. The tables must still be there. */
void storage_close(struct storage *storage, void (*on_closed)(void *arg), void *arg);
void storage_fini(struct storage *storage);

/* Begins to store the object and the names under which it is published, unless that has been done. UNSUPPORTED: nothing is
 * stored here, or the object lies on a device; INVALID: it is not live, may change, or is evictable; LIMIT: storage_max, or
 * owner_max_stored_bytes of the object's owner; NO_MEMORY. */
enum rdt_status storage_store(struct storage *storage, struct object *object, struct rdt_error *err);

/* The same for a put, which waits for nothing: if files of the cache leave for it, it is tried again when there may be room, as
 * a request that waits for room is, for as long. What fails then is counted as any other failure. */
enum rdt_status storage_store_soon(struct storage *storage, struct object *object, struct rdt_error *err);

struct storage_waiter {
    struct list link;
    /* Called once, after the waiter was removed from its list. err NULL: object and names are durable. Otherwise: SYSTEM (the
     * disk; the sentence names the file), LIMIT, FREED (the object ended first), SHUTTING_DOWN. */
    void (*on_done)(struct storage_waiter *, const struct rdt_error *err);
};

/* After storage_store: waits until object and names are durable. false: they are. list_remove(&waiter->link) ends the wait. */
bool storage_wait(struct storage *storage, const struct object *object, struct storage_waiter *waiter);

/* An object of this node can no longer be fetched (object_table.on_ended). */
void storage_object_ended(struct storage *storage, const struct object *object);

/* Frees at least `bytes` of the memory of stored objects that nobody uses, which are then served from their files. Returns how
 * many bytes were freed; if the objects have fewer than `bytes`, nothing is freed, and it returns how many they have. */
uint64_t storage_spill(struct storage *storage, uint64_t bytes);

/* A scrub reads all files of objects from the disk and compares them with their checksums. */
struct storage_scrub {
    void (*on_done)(struct storage_scrub *);                /* called once, unless it is stopped */
    uint64_t checked, damaged, without_sums, failed, bytes; /* so far; failed: files that could not be read */
    uint64_t *generations;                                  /* [n]; this and the rest belong to the room */
    struct check_work *check;                               /* of the file that it reads; NULL: none now */
    size_t n, next;
};

/* Begins it; *scrub is zero but for on_done. UNSUPPORTED: nothing is stored here; BUSY: one is running; NO_MEMORY. */
enum rdt_status storage_scrub(struct storage *storage, struct storage_scrub *scrub, struct rdt_error *err);
void storage_scrub_stop(struct storage *storage);

/* Calls on_done when the files whose removal has begun are removed, and the one that is being written if its object has
 * ended. The answer to a free, an unpublish or a put that replaces a stored object waits for this, because after a crash the
 * next daemon must not restore what was ended. The object of that generation (0: none) was freed: if
 * it is being written and nobody else holds it, the writing stops, and on_done waits for that. false: there is nothing to wait
 * for, and on_done is not called. */
struct storage_barrier {
    struct work work; /* first */
    struct list link; /* in stored->barriers */
    bool abandoned;
    void (*on_done)(struct storage_barrier *); /* frees it; when `abandoned`, nobody waits any more */
};
bool storage_barrier(struct storage *storage, uint64_t generation, struct storage_barrier *barrier);

#endif
