/* Which way the bytes go: one function of the source's memory, the target's memory, what both ends offer, and what
 * the caller wishes. It touches nothing. What it decided, and why it rejected the rest, stays with the transfer for
 * `rdtctl explain`.
 */
#ifndef DAEMON_PATH_H
#define DAEMON_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "rdt.pb-c.h"
#include "rdt_status.h"

#define PATH_MAX_CANDIDATES 12

enum path_kind { PATH_SAME, PATH_SHARE, PATH_COW, PATH_COPY, PATH_INLINE, PATH_TRANSPORT };

struct path_candidate {
    enum path_kind kind;
    char name[65]; /* "local/share", "inline", "ucx" */
    bool possible; /* false: rejected, and why */
    bool unfit;    /* ruled out by what the caller wishes, or by the memory: not even a mended network would help */
    bool strange;  /* a transport that does not move this memory at all */
    bool nowhere;  /* a transport that neither node offers, such as ucx where no network is trusted */
    bool one_sided;
    bool staged_source, staged_target; /* through host memory at the owner's end, and at this one */
    uint32_t speed;   /* higher is better, but a staged path comes after every path that is not */
    char reason[192]; /* a sentence for people */
};

struct path_decision {
    unsigned refs; /* of a decision that records share (transfer_record.c) */
    unsigned n;
    int chosen;      /* index, -1: none */
    int passed_over; /* the best transport that is faster than the chosen one but cannot be used now; -1: none */
    struct path_candidate candidates[PATH_MAX_CANDIDATES]; /* best first; rejected ones after those that are possible */
};

/* What one transport could do between the two nodes. */
struct path_offer {
    const char *name;
    uint32_t speed;
    const char *here_why_not;                 /* NULL: available on this node */
    const char *there_why_not;                /* NULL: offered by the other node */
    const char *here_version, *there_version; /* must be equal */
    bool moves_source, moves_target;          /* its memory kinds */
    bool stages_source, stages_target;        /* at that end it moves host memory, through which other memory can be staged */
    bool one_sided, two_sided;                /* what the connection can do */
    bool connected;                           /* false: the connection is being (re)built */
    char refusal[160];                        /* neither one- nor two-sided: what the connection says of itself; "": nothing */
    const char *group;                        /* by this group; NULL: by a connection */
    const char *group_why_not;                /* NULL: it is there */
};

struct path_query {
    bool same_node;
    /* same node */
    bool same_client;         /* the reader has the very region */
    bool from_copy;           /* it is another node's object, and this node has a copy */
    bool has_target;          /* bytes must land in given memory */
    const char *elsewhere;    /* NULL, or why it cannot stay where it is: what the reader wants, or can map */
    const char *copy_why_not; /* NULL, or why nothing copies it there */
    bool too_many_regions;    /* more than one frame can carry */
    const char *show_why_not; /* NULL: its regions may be shown whole to the reader */
    const char *cow_why_not;  /* NULL: a private mapping of it shows the same as long as it is held */
    Rdt__Pb__FetchMode mode;
    bool has_inline; /* all bytes can ride in the reply. Same node: they lie in the daemon's arena */
    /* other node */
    const char *source_memory, *target_memory;
    bool source_contiguous;
    const struct path_offer *offers; /* [n_offers] */
    unsigned n_offers;
    /* wishes */
    const char *transport; /* only this one; "" any */
    const char *preferred; /* the producer's; "" none */
    const char *least;     /* nothing slower than this; "" any */
};

/* RDT_OK: decision->chosen says which. RDT_NO_PATH (the sentence lists every rejection), RDT_INVALID (unknown name in a
 * wish). decision_p is filled in either case. */
enum rdt_status path_choose(const struct path_query *query, struct path_decision *decision_p, struct rdt_error *err);

#endif
