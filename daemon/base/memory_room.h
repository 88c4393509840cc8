/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes of memory this process may still touch: what the machine has available, and what the limits of its control
 * groups (versions 1 and 2) leave. The kernel kills a process that touches more, so whoever is about to touch pages asks
 * here first. The last sixteenth of a group's limit is reserved for the daemon's own heap, tables and sockets: heap may have
 * half of that (memory_room_fits_heap).
 *
 * Bytes count as used from memory_room_take on. All functions may be called from any thread. */
#ifndef DAEMON_MEMORY_ROOM_H
#define DAEMON_MEMORY_ROOM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "rdt_status.h"

struct memory_room {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t taking_bytes;          /* between memory_room_take and memory_room_taken */
    uint64_t known_bytes, known_ns; /* these bytes may be taken without reading the limits, for a while after known_ns */
    uint64_t heap_bytes, heap_ns;   /* the same for heap; loop thread */
};

void memory_room_init(struct memory_room *room);
void memory_room_fini(struct memory_room *room);

/* Call memory_room_take before `bytes` bytes are touched, and memory_room_taken when they have been touched or will not be.
 * may_wait: the thread may sleep until other threads have touched theirs. NO_MEMORY: the bytes do not fit; the sentence names
 * the control group and the remedy. */
enum rdt_status memory_room_take(struct memory_room *room, uint64_t bytes, bool may_wait, struct rdt_error *err);
void memory_room_taken(struct memory_room *room, uint64_t bytes);

/* Whether the heap may grow by that much, which the caller then does at once. arg: struct memory_room.
 * NO_MEMORY: as above. */
enum rdt_status memory_room_fits_heap(void *arg, uint64_t bytes, struct rdt_error *err);

/* ---- control groups ----
 * `groups` is "/proc/self/cgroup", and the groups lie below `mount`, "/sys/fs/cgroup". */

/* The least limit of the process's groups; UINT64_MAX: there is none. */
uint64_t memory_group_limit_bytes(const char *groups, const char *mount);

/* Returns how many more bytes fit into all of the groups while 1/`reserve` of each stays free, and the name of the group
 * with the least room; UINT64_MAX: there is no limit. The file cache counts as room only if fewer than `wanted` bytes are
 * free without it. */
uint64_t memory_group_room_bytes(const char *groups, const char *mount, uint64_t wanted, unsigned reserve, char name_p[128]);

#endif
