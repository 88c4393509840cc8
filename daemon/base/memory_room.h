/* How much memory the kernel lets this process touch: what the machine has available, and what the limits of its control groups
 * (versions 1 and 2) leave. The kernel kills a process that touches more, so pages are asked for here before they are touched. The last
 * sixteenth of a group's limit is left for the daemon's own heap, tables and sockets.
 *
 * Memory that a thread is about to touch counts as in use. Any thread. */
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
    uint64_t known_bytes, known_ns; /* so much may be taken without another look, for a while after known_ns */
};

void memory_room_init(struct memory_room *room);
void memory_room_fini(struct memory_room *room);

/* Call it before so many bytes are touched, and memory_room_taken after that or if they are not touched. may_wait: the thread may sleep
 * until others have taken theirs. NO_MEMORY: the bytes do not fit; the sentence names the control group and the remedy. */
enum rdt_status memory_room_take(struct memory_room *room, uint64_t bytes, bool may_wait, struct rdt_error *err);
void memory_room_taken(struct memory_room *room, uint64_t bytes);

/* ---- control groups ----
 * `groups` is "/proc/self/cgroup", and the groups lie below `mount`, "/sys/fs/cgroup". */

/* The least limit of the process's groups; UINT64_MAX: there is none. */
uint64_t memory_group_limit_bytes(const char *groups, const char *mount);

/* How many more bytes fit into all of the groups, and the name of the group that has the least room; UINT64_MAX: there is no limit. File
 * cache counts as room only if fewer than `wanted` bytes are left without it. */
uint64_t memory_group_room_bytes(const char *groups, const char *mount, uint64_t wanted, char name_p[128]);

#endif
