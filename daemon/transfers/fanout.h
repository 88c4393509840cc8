/* SPDX-License-Identifier: Apache-2.0 */
/* Fan-out: which node each reader of a snapshot reads from. This file only decides. It knows no link, no message and no
 * clock; the replica directory (replica_directory.c) and the simulation (tests/simulation/) ask it and act.
 *
 * Each node that wants a large snapshot has a place, and reads the whole of it from one source: the owner's node, or the
 * node of another place, which passes on each chunk as soon as it has it. Thus nodes of equal speed form one chain:
 *
 *     owner --> A --> B --> C --> D          the last node is done after bytes / bandwidth + 3 chunks / bandwidth
 *
 * A tree of nodes that each feed two others would halve the bandwidth of every reader below it, whereas one more node in the
 * chain costs the time of one chunk. Chunks are therefore small beside the object (fanout_chunk_bytes).
 *
 *   - A new reader gets the source with the least cost: the bytes that the source sends to others already, and one chunk for
 *     each node between it and the owner.
 *   - A slow node is a leaf. Its source finds out (fanout_pace), because only the source knows that it had bytes which the
 *     reader did not take: a node behind a slow one takes bytes slowly too, but is not to blame. A node that receives many
 *     objects takes each slowly, so the source asks it, and it is slow only if it receives little over all its transfers. The
 *     verdict is about the node, and holds for all objects that it receives. The reader is judged twice:
 *       LAGS   it took several chunks in succession at less than a third of the rate at which it could have had them. Nobody
 *              reads from it any more, until it is whole. Its readers ask again, and when they have come to its source, so
 *              does the node itself: it would keep a part of their bandwidth, and its source may be the one to blame. It goes
 *              to the end of the chain. This comes after about 5 chunks of a slow node, and costs a node that was not slow
 *              little.
 *       SLOW   the same for half a second. It counts for later objects, too (FANOUT_SLOW_NS), and other slow nodes may
 *              read from it, so slow nodes form a chain of their own.
 *     A node whose processors are shared stands still for a while, but takes chunks quickly in between: it does not lag.
 *   - The owner has all bytes, so it knows at what rate a reader could have had them only from earlier sends, or from another
 *     reader. If it does not know, it has others read from it for a while, one after the other (fanout_compare).
 *   - A reader whose source died or froze asks again and says how many bytes it has (fanout_left). It gets a source anew, never
 *     one that reads from it, and goes on from there. The readers behind it notice nothing. The source that was left lags:
 *     if it only stood still, it comes back at the end of the chain.
 *
 * So a node costs another one at most: its death the time until its reader notices it, its slowness the time until its
 * source notices it, and both only once, because a node that was left is no source again. Slow nodes in one chain are found
 * one after the other: the next one shows when it could have bytes quickly. */
#ifndef DAEMON_FANOUT_H
#define DAEMON_FANOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/list.h"

/* How long a node that was slow counts as slow: then it may show that it has recovered. */
#define FANOUT_SLOW_NS UINT64_C(60000000000)

/* A node with a replica says every FANOUT_BEAT_NS that it lives, to each node that reads from it. A reader to which it neither
 * says that nor sends bytes for FANOUT_SILENCE_NS leaves it. It costs little to leave one that only stood still. */
#define FANOUT_BEAT_NS INT64_C(100000000)
#define FANOUT_SILENCE_NS (3 * FANOUT_BEAT_NS)

/* A chain of FANOUT_CHUNKS / 16 nodes takes about 1.05 times as long as one node, if the chunks are not smaller than
 * FANOUT_CHUNK_MIN: below it the work for each chunk costs more than the pipeline gains. */
#define FANOUT_CHUNKS 16384u
#define FANOUT_CHUNK_MIN (UINT64_C(256) << 10)

/* Chunks after which a send shows at what rate its reader takes bytes: the first ones go into buffers of the kernel. */
#define FANOUT_RATE_CHUNKS 32u

enum fanout_verdict { FANOUT_FAIR, FANOUT_LAGS, FANOUT_SLOW };

/* Why a reader was asked to ask again: its source lags, it lags itself, or it is compared with the first reader. */
enum fanout_asked { FANOUT_NOT_ASKED, FANOUT_ASKED_SOURCE, FANOUT_ASKED_READER, FANOUT_ASKED_COMPARE };

/* A place is compared with the first reader once at most:
 *
 *   NOT_COMPARED ── fanout_compare has it ask again ──► COMPARE_NEXT ── fanout_choose puts it at the owner ──► COMPARED */
enum fanout_comparison { FANOUT_NOT_COMPARED, FANOUT_COMPARE_NEXT, FANOUT_COMPARED };

struct fanout { /* of one object */
    uint64_t bytes;
    struct list places;            /* struct fanout_place.link, in order of arrival */
    struct list direct;            /* struct fanout_place.by_source: places that read from the owner's node */
    uint64_t chunk_bytes;          /* of the pipeline */
    struct fanout_place *compared; /* it reads from the owner only to be compared with the first reader; NULL: none */
    uint64_t compare_until;        /* bytes that the first reader has then; 0: nobody has been compared */
    unsigned n_compared;
};

struct fanout_place {            /* of one reader */
    struct list link;            /* in fanout->places */
    struct list by_source;       /* in source->readers or fanout->direct; unlinked: it receives nothing */
    struct fanout *fanout;       /* NULL: not joined */
    struct fanout_place *source; /* NULL: the owner's node, or none */
    struct list readers;         /* struct fanout_place.by_source */
    unsigned depth;              /* nodes between this one and the owner's */
    bool whole;                  /* it has all bytes */
    enum fanout_verdict pace;    /* not FAIR: a leaf; only readers that are SLOW may read from it */
    enum fanout_asked asked;     /* whether it was asked to ask again: then its source is not to blame when it does */
    bool spares_owner;           /* it has come back: the owner has sent those bytes before, and another node is as good */
    const struct fanout_place *avoids; /* the source where it lagged, as that may be the one to blame; only compared */
    unsigned n_left_whole;             /* sources with all bytes that stood still or ended */
    enum fanout_comparison comparison;
    bool below; /* used during one call */
};

/* Asks the node of the place to ask again; place->asked says why. */
typedef void fanout_ask_again(struct fanout_place *place, void *arg);

/* Whether the reader can read from the source now: their links and transports. */
typedef bool fanout_can_read(const struct fanout_place *reader, const struct fanout_place *source, void *arg);

void fanout_init(struct fanout *fanout, uint64_t bytes, uint64_t chunk_bytes);

/* The chunks in which a snapshot of that size travels; `most` is the configured size. */
uint64_t fanout_chunk_bytes(uint64_t bytes, uint64_t most);

/* The place reads from the owner's node until fanout_choose says otherwise. */
void fanout_join(struct fanout *fanout, struct fanout_place *place, bool slow);

/* The place ends. Its readers are entered as readers of the owner's node; they will ask again when they notice. */
void fanout_leave(struct fanout_place *place);

void fanout_set_whole(struct fanout_place *place);
void fanout_serve_here(struct fanout_place *place); /* it reads from the owner's node, whatever is best */

/* Chooses the source of a reader, new or come back, and enters it. NULL: the owner's node. Readers there that lag or are slow
 * are asked to ask again, unless this one is slow too. */
struct fanout_place *fanout_choose(struct fanout_place *reader, fanout_can_read *can_read, fanout_ask_again *ask_again,
                                   void *arg);

/* The reader has left its source, and asks again: fanout_choose comes next. Unless it was asked to, its source stood still or
 * ended, and lags from now on. If that is whole, this reader avoids it, and the others find out themselves; after the second
 * one it reads from the owner, or it would go to and fro between two that are frozen. */
void fanout_left(struct fanout_place *reader, fanout_ask_again *ask_again, void *arg);

/* The owner's node, which does not know yet what a reader could take from it, has sent so many bytes to this one. Has others
 * read from the owner for a while, one after the other, so that fanout_pace can judge both. */
void fanout_compare(struct fanout_place *first, uint64_t sent, fanout_ask_again *ask_again, void *arg);

/* The node of this place lags or is slow, as its source says. Its readers are asked to ask again, or, if nobody reads from it,
 * the node itself. */
void fanout_demote(struct fanout_place *place, enum fanout_verdict pace, fanout_ask_again *ask_again, void *arg);

/* ---- how a source finds out that a reader is slow ---- */

struct fanout_window { /* what had moved at one time */
    uint64_t since_ns;
    uint64_t had, sent;          /* bytes of the stream that the source has, and of those that it has sent to this reader */
    uint64_t received, sent_all; /* bytes of all transfers that the source's node has received, and sent */
};

struct fanout_pace {                            /* all zero at the beginning of a pull */
    struct fanout_window stretch, lags, window; /* the beginnings: of a few chunks, of slow stretches, of some time */
    unsigned n_slow;                            /* stretches in succession in which the reader was slow */
    enum fanout_verdict suspected;              /* the reader's node was asked what it received: not FAIR until it answers */
    bool ask;                                   /* ask it now: the caller does, and clears this */
    uint64_t asked_ns, over_ns, could;          /* when, over what time, and what it could have received in that */
    enum fanout_verdict told;
};

struct fanout_seen {
    struct fanout_window at; /* now */
    uint64_t usual;          /* what a reader could take, in bytes for each second; 0: as fast as bytes come to the source */
    unsigned sharing;        /* readers of all objects that share the source's bandwidth, with this one */
    uint64_t chunk_bytes;
};

/* Finds LAGS and SLOW once each: the reader has taken less than a third of its share, in a short and in a long time in which it
 * lacked nothing. A healthy node on a busy machine may lag for a moment. The source sees what it sends itself only, and a node
 * that receives many objects has a part of its link for each. So pace->ask is set then, and the verdict comes from
 * fanout_answered, or, if the node has not answered for FANOUT_SILENCE_NS, from here. */
enum fanout_verdict fanout_pace(struct fanout_pace *pace, const struct fanout_seen *now);

/* The reader's node says how much it has received in that time, over all its transfers. It is slow if that is less than a third
 * of what its source could have sent. */
enum fanout_verdict fanout_answered(struct fanout_pace *pace, uint64_t over_ns, uint64_t received);

#define FANOUT_MARKS 256u

struct fanout_intake { /* what a node receives, over all transfers; all zero at the beginning */
    uint64_t bytes;
    uint64_t n;
    struct fanout_mark {
        uint64_t at_ns, bytes;
    } marks[FANOUT_MARKS]; /* at least 4 ms apart, so that they cover a second */
};

void fanout_received(struct fanout_intake *intake, uint64_t now_ns, uint64_t bytes);

/* The bytes that were received in the last *over_ns. If that is longer than is known, *over_ns becomes shorter. */
uint64_t fanout_received_in(const struct fanout_intake *intake, uint64_t now_ns, uint64_t *over_ns);

#endif
