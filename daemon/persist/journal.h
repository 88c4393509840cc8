/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: a file of shared memory with one record for everything that must survive this process.
 *
 * A record is written before the request that caused it is answered, and is removed when the thing that it describes ends.
 * Records do not move, and there is no compaction: a removed record leaves its slot to the next one of its size. Pages without
 * a record go back to the kernel, and an extent without a record serves any size again. A record is valid once its commit word
 * is written, which happens last. So a daemon that is killed in between leaves either a whole record or none.
 *
 *   file     header (a page), then extents up to header->end
 *   extent   64 KiB, or more for one large slot: its slots' size, then the slots; since version 3 also a free extent of any
 *            length, which has no slots
 *   slot     commit word, kind, key, checksum, flags and three numbers that may change while the record lives, payload
 *
 * A checksum shows whether a record is whole. A faulty daemon may have written the file, so nothing in it is trusted:
 * journal_open checks every extent, and journal_next returns whole records only.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_JOURNAL_H
#define DAEMON_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#define JOURNAL_VERSION 4u
#define JOURNAL_OLDEST 1u /* the oldest version that can be read; it is then written as JOURNAL_VERSION */
#define JOURNAL_NUMBERS 3u
/* The file has this length from the beginning, without pages. It never grows, so accesses never reach beyond its end. */
#define JOURNAL_FILE_BYTES (UINT64_C(16) << 30)
#define JOURNAL_MAX_BYTES (32u << 20) /* of one payload */

/* The part of the header that belongs to the daemon, which changes it in place. */
struct journal_state {
    uint8_t node_uuid[16];
    uint64_t generations;   /* the first generation of the daemon that writes this journal */
    uint64_t names_version; /* at least the highest version that any name ever had */
    uint32_t n_attempts;    /* consecutive starts that have begun to read this journal; 0: the last one has read all of it */
    /* Since version 2: no daemon has ever used ids from these on, with or without a record. */
    uint64_t next_region, next_hold, next_session;
    uint64_t oldest_generation; /* of the first daemon that wrote this journal */
    uint64_t reading;           /* since version 3: the record that this start is restoring (journal_offset); 0: none */
};

struct journal_slot {
    uint32_t commit; /* JOURNAL_COMMITTED; anything else: the slot is free */
    uint32_t kind;
    uint64_t key;
    uint64_t checksum;                 /* of kind, key, bytes and payload */
    uint32_t bytes;                    /* of the payload */
    uint32_t flags;                    /* like numbers; always 0 in version 1 */
    uint64_t numbers[JOURNAL_NUMBERS]; /* not in the checksum; written by one store each */
    uint8_t payload[];
};

struct journal;

/* Creates an empty journal. NO_MEMORY, SYSTEM. */
enum rdt_status journal_create(struct journal **journal_p, struct rdt_error *err);

/* Opens the journal of an earlier daemon. take_fd is taken on success, and closed otherwise. UNSUPPORTED: its version cannot be
 * read. INVALID: it is not a journal, or it is damaged. SYSTEM, NO_MEMORY. */
enum rdt_status journal_open(int take_fd, struct journal **journal_p, struct rdt_error *err);

void journal_close(struct journal *journal); /* the file stays with whoever has its descriptor; NULL is allowed */

int journal_fd(const struct journal *journal); /* borrowed */
struct journal_state *journal_state(struct journal *journal);

/* What a record with such a payload takes of the file. */
uint64_t journal_record_bytes(size_t bytes);

/* Whether journal_begin would succeed. last: the last eighth of the file counts, too. */
bool journal_has_room(const struct journal *journal, size_t bytes, bool last);

/* Adds a record in two steps: journal_begin returns a slot, whose payload, [bytes], the caller writes; journal_commit makes the
 * record valid. No other record may be added or removed in between. numbers: [JOURNAL_NUMBERS]. NULL: the record is too large,
 * or there is no memory. */
struct journal_slot *journal_begin(struct journal *journal, size_t bytes);
void journal_commit(struct journal *journal, struct journal_slot *slot, uint32_t kind, uint64_t key, uint32_t flags,
                    const uint64_t *numbers);
void journal_remove(struct journal *journal, struct journal_slot *slot);
void journal_set_number(struct journal_slot *slot, unsigned i, uint64_t number);
void journal_set_flags(struct journal_slot *slot, uint32_t flags);

/* Where the record is in the file, and the record that is there; NULL: there is none. */
uint64_t journal_offset(const struct journal *journal, const struct journal_slot *slot);
struct journal_slot *journal_at(const struct journal *journal, uint64_t offset);

/* Iterates over the records that are whole. *cursor starts at 0. NULL: the end. A record may be removed when it has been
 * returned. A damaged record is freed and counted. */
struct journal_slot *journal_next(struct journal *journal, uint64_t *cursor);
uint64_t journal_damaged(const struct journal *journal);

/* The bytes of the file that have been used. */
uint64_t journal_file_bytes(const struct journal *journal);

#endif
