/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share: storage.c (which objects are written, and when), and below it storage_restore.c,
 * storage_names.c, stored.c (one object), and storage_write.c (what the threads do). */
#ifndef DAEMON_STORAGE_IMPL_H
#define DAEMON_STORAGE_IMPL_H

#include <stdatomic.h>

#include "daemon/persist/storage.h"
#include "daemon/persist/storage_file.h"

#define STORAGE_MAX_WARNED 100u /* failures are logged up to this many; all are counted and reported to the waiters */
#define LANE_FILES 1u           /* records and removals, in the order of their submission */

/* The life of an entry, from stored_new to stored_free. storage.h says what ends it.
 *
 *         storage_store            its turn             it is written
 *   NEW ----------------> QUEUED ------------> WRITING ---------------> DURABLE
 *    |                     ^   ^                  |                      ^   |
 *    |                     |   | it was stopped,  |                      |   |
 *    |                     |   | and is wanted    |                      |   |
 *    |                     |   | again            |                      |   |
 *    |                     |   `------------------'                      |   |
 *    |                     |       its file is damaged, and it is in memory  |
 *    |                     `-----------------------------------------------'
 *    |   there is a file of an earlier daemon                            |
 *    `-------------------------------------------------------------------'
 *
 *   NEW       nobody has seen it yet
 *   QUEUED    in storage->queue; stored_free when its object ends, or if the writing cannot begin
 *   WRITING   storage->writing; stored_free when the writing has failed, or was stopped, which takes until the thread notices
 *   DURABLE   the file is there; stored_free when neither an object nor a record of a name needs it
 *
 * object->file.stored tells the rooms below: STORED of a DURABLE one, NOT_STORED without an entry, else STORING. */
enum stored_state { STORED_NEW, STORED_QUEUED, STORED_WRITING, STORED_DURABLE };

/* One object that is stored or will be. */
struct stored {
    struct storage *storage;
    uint64_t generation;
    struct object *object;    /* NULL: it has ended, and the file stays only for records of names on the disk */
    uint8_t state;            /* enum stored_state */
    struct account *account;  /* of the owner; one reference */
    uint64_t bytes;           /* charged to it */
    struct list queue;        /* QUEUED: in storage->queue; DURABLE: in storage->in_memory while it has memory */
    struct list waiters;      /* struct storage_waiter.link */
    struct list claims;       /* struct claim.link: names whose version it is, and whose record does not refer to it yet; those
                               * whose record is being written are behind the others */
    struct slice write;       /* of `claims` */
    struct list barriers;     /* struct storage_barrier.link: submitted when only a removal that has begun is left */
    bool has_sums;            /* its file has checksums */
    bool for_cache;           /* of an evictable object, which the cache has had written */
    uint64_t order;           /* of its file (ObjectRecord.order), if this daemon has restored it */
    bool from_file;           /* this daemon has put the object again from the file: the journal did not have it */
    unsigned n_names;         /* records on the disk that refer to it */
    struct store_work *work;  /* WRITING */
    struct check_work *check; /* NULL: its file is not being checked */
    char *damage;             /* what is wrong with its file, which has been set aside; NULL: nothing is known to be */
};

/* A name with a record on the disk, or with one that is being written. */
struct stored_name {
    struct storage *storage;
    char file[STORAGE_FILE_NAME_BYTES]; /* the key in storage->by_name */
    uint64_t version, generation;       /* in the record; 0: there is none */
    uint64_t asked;                     /* the highest version whose record has been submitted */
    uint64_t ended;                     /* the name was unpublished, and has no record up to this version */
    uint64_t claimed, claimed_version;  /* its latest claim: of the stored object with this generation; 0: it has ended */
    unsigned refs;                      /* claims, and work that is under way */
};

/* Storing one object. */
struct store_work {
    struct work work; /* first */
    struct storage *storage;
    struct stored *stored;
    struct object *object; /* held and pinned */
    int dir;
    _Atomic bool cancelled;
    /* Of the object, which does not change: */
    Rdt__Pb__ObjectRecord record; /* borrows from it */
    const struct layout *layout;
    struct layout *own_layout; /* NULL: layout is the object's */
    const uint8_t **bases;     /* [n_places] */
    /* Of the thread: */
    bool began, synced;
    struct stored_plan plan;
    struct byte_sum *sum; /* of the present tensor */
    uint64_t *sums;       /* [layout->count] */
    int fd;
    uint32_t at;      /* of plan.order */
    uint64_t from;    /* byte of that tensor */
    uint64_t file_at; /* where the next byte goes */
    uint8_t *buffer;  /* for tensors with holes */
    enum rdt_status status;
    struct rdt_error err;
};

/* Comparing one file with its checksums. */
struct check_work {
    struct work work; /* first */
    struct storage *storage;
    struct stored *stored; /* NULL: it has ended */
    struct object *object; /* held and pinned; NULL: nobody waits for this check but a scrub */
    uint64_t generation;
    const char *suffix; /* of the name of its file */
    bool at_rest;       /* for a scrub: reads from the disk, where the page cache can be dropped */
    _Atomic bool cancelled;
    /* Of the thread: */
    int fd; /* -1: it is opened by the file's name */
    bool began;
    struct stored_file file;
    struct byte_sum *sum;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    uint32_t tensor;
    uint64_t from; /* byte of that tensor */
    uint64_t bytes;
    struct {                    /* after the file was found to be damaged: */
        bool renamed;           /* it has its other name */
        uint64_t damaged_bytes; /* of all files that are set aside */
    } aside;
    enum rdt_status status;
    struct rdt_error err;
};

/* ---- storage_write.c, on a thread ---- */

void run_store(struct work *work); /* of a store_work */

/* Writes the content to a file of that name, whole or not at all. */
enum rdt_status storage_write_file(int dir, const char *name, const void *content, size_t bytes, struct rdt_error *err);

/* Removes the file. RDT_OK if it is not there. */
enum rdt_status storage_remove_file(int dir, const char *name, struct rdt_error *err);

/* Returns the bytes of the files *.damaged, of which the newest few stay for whoever looks for the reason; removes the others,
 * because nobody is charged for them. */
uint64_t storage_prune_damaged(int dir);

/* ---- stored.c ---- */

struct stored *stored_get(const struct storage *storage, uint64_t generation); /* NULL: it is not stored */

/* With the bytes charged to the owner, whose account, or one of a client of theirs, this is. object NULL: it has ended. Returns
 * NULL: no memory. stored_queue or stored_set_durable comes next. */
struct stored *stored_new(struct storage *storage, uint64_t generation, struct account *account, struct object *object,
                          uint64_t bytes);
void stored_queue(struct stored *stored); /* QUEUED: it will be written, and who waits for its removal is answered */
void stored_set_writing(struct stored *stored);
void stored_set_durable(struct stored *stored);
void stored_leave_object(struct stored *stored); /* which ends, or is stored no more; does nothing without one */
void stored_free(struct stored *stored); /* it has no claims and no waiters; its charge and its account are the caller's */

/* Calls barrier->on_done when the removals that have begun before are over. */
void stored_submit_barrier(struct storage *storage, struct storage_barrier *barrier);
void stored_settle(struct stored *stored); /* tells its waiters if nothing is left to do, and removes an unneeded file */
void stored_fail_waiters(struct stored *stored, const struct rdt_error *err);

/* ---- storage_check.c ---- */

/* Compares the bytes of an open file with its checksums, at once. DAMAGED; SYSTEM, NO_MEMORY. */
enum rdt_status storage_compare(int fd, const struct stored_file *file, struct rdt_error *err);

/* Begins to check the bytes of an object that is served from its file (object_table.check). */
enum rdt_status storage_check(void *arg, struct object *object, struct rdt_error *err);

/* Notes the damage if the keeper has brought the object back, with the descriptor of the file that has this name now. */
void storage_restore_damage(struct storage *storage, const char *name);

/* ---- storage_spill.c ---- */

/* Whether its object has regions of its own that are not in a file, and that storage_spill may free. */
bool stored_has_memory(const struct stored *stored);

/* Its memory goes, and it lies in its file. false: it stays, which is logged. */
bool stored_move_to_file(struct storage *storage, struct stored *stored);

/* ---- storage_cache.c ---- */

void storage_serve_cache(struct storage *storage); /* from now on the cache has its objects written */

/* ---- storage_names.c ---- */

/* Something has happened to a name (struct names_observer). */
void storage_name_changed(void *arg, struct name *name);

/* Adds a claim for each name under which the object is published and that has no such record. false: no memory. */
bool stored_claim_names(struct stored *stored);

/* The object is durable: the records of its claims are written. */
void stored_write_claims(struct stored *stored);   /* in slices */
void stored_drop_claims(struct stored *stored);    /* none is being written; they are freed in slices */
void storage_free_claims(struct storage *storage); /* those that are left, at once */

/* Notes the record that was found for a name of the object. false: no memory. */
bool stored_name_restore(struct storage *storage, const char *file, uint64_t version, struct stored *stored);

/* ---- storage_restore.c ---- */

/* Restores the objects and names of the directory that the journal did not have. SYSTEM, NO_MEMORY. */
enum rdt_status storage_restore(struct storage *storage, struct rdt_error *err);

/* ---- storage.c ---- */

void storage_init(struct storage *storage); /* so that storage_fini may follow */

/* storage_store for the cache, without names. AGAIN: the file may have *bytes_p, more than `room`. */
enum rdt_status storage_store_evictable(struct storage *storage, struct object *object, uint64_t room, uint64_t *bytes_p);

/* The object goes on without a file. */
void storage_discard(struct storage *storage, struct object *object);

/* Opens the directory, creating it if it does not exist, and starts the threads. Until storage_serve nothing is written. Errors
 * as persist_start. Does nothing without a directory. */
enum rdt_status storage_open(struct storage *storage, uv_loop_t *loop, struct rdt_error *err);

/* What was there is restored. */
void storage_serve(struct storage *storage);

#endif
