/* SPDX-License-Identifier: Apache-2.0 */
/* What is limited. The rows define the accounts, the options client_max_X and owner_max_X, what rdtctl
 * shows, and the tests. */
#ifndef DAEMON_USAGE_H
#define DAEMON_USAGE_H

/* X(NAME, name, its plural in a sentence). A limit of 0 in the options is derived when the daemon starts
 * (account_limits_derive). */
#define USAGE_MAP(X)                                                                                                    \
    X(BYTES, bytes, "bytes of memory")      /* allocated, fetched into, in the arena, made in imported memory */        \
    X(OBJECTS, objects, "objects")          /* put and not gone */                                                      \
    X(REGIONS, regions, "regions")          /* allocated, imported, fetched into */                                     \
    X(FDS, fds, "file descriptors")         /* that the daemon keeps open for it */                                     \
    X(TRANSFERS, transfers, "fetches")      /* of its own, and of other nodes in its name, that have not ended */       \
    X(WAITERS, waiters, "waiting requests") /* answered later: for a put, an end, another node, room */                 \
    X(NAMES, names, "published names")      /* */                                                                       \
    X(HEAP, heap, "bytes of bookkeeping")   /* metadata, lists of tensors, requests, messages under way */              \
    X(SESSIONS, sessions, "sessions")       /* or waiting for their client */                                           \
    X(DEVICE_BYTES, device_bytes, "bytes of device memory") /* allocated, fetched into, on all devices together */      \
    X(GROUPS, groups, "groups")                             /* that this node knows, whoever created them */            \
    X(ORPHANS, orphans, "regions that have ended and that a process keeps open or mapped") /* see region_orphans.h */   \
    X(HOLDS, holds, "holds") /* without bytes: what a fetch brought is charged as what it is */                         \
    X(STORED_BYTES, stored_bytes, "bytes of stored objects") /* of their files, from the request to the removal */      \
    X(MAPPINGS, mappings, "mappings in the daemon")          /* of its regions, in the daemon's address space */        \
    X(MAPPED_BYTES, mapped_bytes,                                                                                       \
      "bytes of the daemon's address space")                     /* which these mappings take, with pages or without */ \
    X(FOLLOWED_BYTES, followed_bytes, "bytes of followed names") /* of versions that are kept for followers (daemon/follows) */

enum usage {
#define X(NAME, name, what) USAGE_##NAME,
    USAGE_MAP(X)
#undef X
        USAGE_COUNT
};

#endif
