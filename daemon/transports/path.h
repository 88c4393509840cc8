/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of the path that the bytes of a transfer take: one pure function of the source's memory, the target's memory,
 * the offers of both nodes, and the reader's options. The transfer keeps the decision, with the reason for each rejection,
 * for `rdtctl explain`.
 */
#ifndef DAEMON_PATH_H
#define DAEMON_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "backends/rdt_backend.h"
#include "rdt.pb-c.h"
#include "rdt_status.h"

#define PATH_MAX_CANDIDATES 12

enum path_kind { PATH_SAME, PATH_SHARE, PATH_COW, PATH_COPY, PATH_INLINE, PATH_TRANSPORT };

/* Whether a path can be used, and if not, what stands against it most; what comes later outweighs what comes before. */
enum path_verdict {
    PATH_POSSIBLE,
    PATH_UNAVAILABLE, /* a transport that a node lacks, or whose connection is down or differs */
    PATH_NOT_OFFERED, /* a transport that neither node offers, such as ucx where no network is trusted */
    PATH_UNFIT,       /* rejected because of the reader's options or the memory: repairing the network would not help */
    PATH_WRONG_MEMORY /* it does not move this kind of memory at all */
};

/* How the bytes leave or reach the memory at one end. */
enum path_staging {
    PATH_DIRECT,
    PATH_STAGED,  /* through host memory, because the transport does not move that memory, or could not register it */
    PATH_GATHERED /* through host memory, because the tensors have holes, which the copy leaves out; only at the source */
};

struct path_candidate {
    enum path_kind kind;
    char name[65]; /* "local/share", "inline", "ucx" */
    enum path_verdict verdict;
    bool one_sided;
    enum path_staging source, target; /* at the owner's node, and at the reader's */
    uint32_t speed;                   /* higher is better; a staged path has nine tenths of it */
    char reason[192];                 /* why it was chosen or rejected: a sentence for people */
};

struct path_decision {
    unsigned refs; /* for transfer_record.c: how many records share the decision */
    unsigned n;
    int chosen;      /* the index of the candidate; -1: none */
    int passed_over; /* the best transport that is faster than the chosen one but cannot be used now; -1: none */
    struct path_candidate candidates[PATH_MAX_CANDIDATES]; /* the possible ones, best first; then the rejected ones */
};

/* What a transport does with the memory at one end of the path. */
struct path_end {
    bool moves;               /* whether it moves the memory kind */
    bool stages;              /* the bytes can go through host memory, which it moves */
    const char *unregistered; /* why it could not register this memory just now; NULL: it has not tried, or could */
};

/* What one transport can do between the two nodes. */
struct path_offer {
    const char *name;
    uint32_t speed;
    const char *here_why_not;                 /* NULL: available on this node */
    const char *there_why_not;                /* NULL: offered by the other node */
    const char *here_version, *there_version; /* must be equal */
    struct path_end source, target;
    uint32_t sides;            /* enum rdt_sides: what the connection can do */
    bool connected;            /* false: the connection is being built or rebuilt */
    char refusal[160];         /* why the connection is neither one- nor two-sided; "": it does not say */
    const char *group;         /* the group that moves the bytes; NULL: a connection does */
    const char *group_why_not; /* why no group can; NULL: one can, or none is needed */
};

/* An object whose bytes are on this node. */
struct path_local {
    bool same_client;         /* the reader has the object's regions already */
    bool from_replica;        /* the object is another node's, and this node has a replica */
    bool too_many_fds;        /* more than one frame can carry */
    const char *stay_why_not; /* why the bytes cannot be used where they are; NULL: they can */
    const char *copy_why_not; /* why nothing can copy them to where the reader wants them; NULL: it can be done */
    const char *show_why_not; /* why the reader may not see the whole regions; NULL: it may */
    const char *cow_why_not;  /* why the bytes could change under a private mapping; NULL: they cannot */
};

/* An object whose bytes are on another node. */
struct path_remote {
    const char *source_memory, *target_memory;
    bool source_contiguous;
    bool target_imported;            /* the target is memory that a client imported: the bytes arrive in memory of the daemon */
    const struct path_offer *offers; /* [n_offers] */
    unsigned n_offers;
};

struct path_query {
    bool same_node; /* `local` says where the bytes are; otherwise `remote` does */
    struct path_local local;
    struct path_remote remote;
    bool has_target; /* the bytes must land in memory that the reader gave */
    bool has_inline; /* all bytes can ride in the reply; on the same node: they are in the arena of small objects */
    Rdt__Pb__FetchMode mode;
    /* wishes */
    const char *transport; /* only this one; "": any */
    const char *preferred; /* the transport that the producer prefers; "": none */
    const char *least;     /* no path that is slower than this one; "": any */
};

/* Chooses the path. decision_p is filled in any case. RDT_NO_PATH (the message lists every rejection), RDT_INVALID (`least`
 * names no path). */
enum rdt_status path_choose(const struct path_query *query, struct path_decision *decision_p, struct rdt_error *err);

#endif
