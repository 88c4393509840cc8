/* SPDX-License-Identifier: Apache-2.0 */
/* Names that can be found from any node: where each name of the cluster is published.
 *
 * Every name has up to three homes: the nodes of the table that a rendezvous hash over uuid, owner and name ranks first. The
 * node where the name is published has the authoritative entry, and registers it with the homes; a home knows only {name,
 * owner, epoch, version, node}. A reader's node asks the homes and then that node, where the reader waits as for any name of
 * another node.
 *
 *   publisher's node          home                        reader's node
 *     | REGISTER ------------> |  no other node has it      |
 *     | <------------- GRANTED |  epoch, last version       |
 *     |   or <-------- REFUSED |  the node that has it      |
 *     |                        | <-------------------- SEEK |
 *     |                        | FOUND -------------------> |  at once, or when the name is registered
 *     |                        | MISSING -----------------> |  nobody has registered it yet
 *     | REGISTER (each 10 s)-> |                            |
 *     | END -----------------> |  keeps epoch and version   |
 *
 * A claim is this node's registration of a name that is published here:
 *
 *                    more homes grant it than know any other node,
 *                    and none knows one that has published it
 *      CLAIMING -----------------------------------------> HELD <-------------------------.
 *          |                                                |                             |
 *          |  otherwise                                     |  another node took it over  |  asked again, and the other
 *          |                                                |  while this one was away    |  node has given it up
 *          +--------------------> LOST <--------------------+                             |
 *                                  `------------------------------------------------------'
 *
 * The homes are told again of a HELD claim, and asked again for a LOST one that is still wanted: each round of answers decides
 * anew, and may find the same. A name that an earlier daemon had published is HELD at once.
 *
 * Who asks a home that does not share the owner's tenant is told NOT_SHARED, and it counts as away. For a tenant that this node
 * does not share, no other node is asked.
 *
 * A home gives a name to who asks first. It gives it to another node only when the first has ended it, or has been away for
 * NAMES_STALE_NS; the epoch then grows, and a node with a lower epoch is refused. If two nodes hold a name at different homes,
 * because these could not talk or were asked at once, the one that most homes know wins, of equal ones the one with the higher
 * epoch, and then the one with the lowest uuid.
 *
 * A version of many parts claims its name with the first part, and keeps the claim until it is complete or has failed.
 *
 * A home forgets everything when it is restarted, and the nodes of the names register them again when they meet it. Until then
 * it grants them to others, so a node that has published nothing under a name does not get it while any home knows a node that
 * has. A node that was started less than NAMES_MEET_NS ago first meets the nodes of its table.
 *
 * Promises: only the first publish of a name waits for homes, for at most NAMES_CLAIM_NS, beside NAMES_MEET_NS. Homes that are
 * away do not stop a publish: the next registration makes up for their answers. A reader that cannot ask any home uses the last
 * place that it knows.
 *
 * Refuses: to know who may read a name. The publisher's node decides that.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_DIRECTORY_NAMES_H
#define DAEMON_DIRECTORY_NAMES_H

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/config/options.h"
#include "daemon/objects/names.h"
#include "daemon/peers/peer.h"

#define NAMES_HOMES 3u
#define NAMES_STALE_NS UINT64_C(30000000000)
#define NAMES_REGISTER_NS INT64_C(10000000000)
#define NAMES_CLAIM_NS INT64_C(2000000000)
#define NAMES_MEET_NS UINT64_C(2000000000) /* from the start on */
/* The most records of a home. A record of a name that no node has is dropped in favour of others; when all are in use, further
 * names are found only through homes that have room. */
#define NAMES_RECORDS_MAX 262144u

struct names_telling { /* those who wait for homes go on in slices */
    struct list seeks; /* struct name_seek.by_telling: its readers are told where it is, or that no home knows it */
    struct slice tell;
    struct list decided; /* struct claim_waiter.link: these publishers try again */
    struct slice retry;
    uint64_t n_questions; /* that the homes were asked: the number of the last REGISTER or SEEK */
};

struct directory_names {
    const struct options *options;
    const struct node *node;
    struct peers *peers; /* NULL: no other node can be asked */
    struct names *names;
    struct deadlines *deadlines;
    void *arg;
    /* Whether the peer may act for this owner. */
    bool (*check_requester)(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err);
    struct map records, claims, seeks; /* owner and name -> struct name_record, name_claim, name_seek */
    struct list sought, to_ask;        /* struct name_seek: readers wait for it; that one is asked next, in slices */
    struct slice asking;
    struct names_telling telling;
    uint8_t ask_only[16]; /* all of to_ask: only this node, which has come up; zero: every home */
    struct list idle;     /* struct name_record.idle: names that no node has, longest first */
    struct list claimed;  /* struct name_claim.link: the one that was registered longest ago is first */
    struct list dirty;    /* struct name_claim.by_dirty: their version has changed */
    uint64_t started_ns;
    uint64_t retell_ns; /* what the homes were told before this time is told again */
    struct deadline tick, flush;
    size_t sweep;                  /* cursor of records: where the next tick looks for some to forget */
    struct log_rare impossible;    /* messages with impossible numbers */
    struct log_rare refused_lines; /* names that another node has: users can publish on two nodes in turn */
    struct names_observer observer;
    uint64_t n_found, n_missing, n_refused, n_by_memory; /* outcomes of look-ups; refused: publishes of another node's name */
};

/* A publish that waits for the homes. Embedded; on_decided is called once, when the publish may be tried again. */
struct claim_waiter {
    struct list link;
    bool decided; /* on_decided was called: it does not wait again for nodes that do not answer */
    void (*on_decided)(struct claim_waiter *waiter);
};

/* A reader that waits for the node of a name. Embedded. */
struct name_seeker {
    struct list link;
    struct name_seek *seek; /* NULL: it does not wait */
    /* Called once, and the seeker does not wait any more. */
    void (*on_found)(struct name_seeker *seeker, const uint8_t node[16], const char *address);
    /* No home that answers knows such a name. The seeker continues to wait. node: the one that has claimed the name, and may
     * have published it since; NULL: none. May be NULL. */
    void (*on_missing)(struct name_seeker *seeker, const uint8_t node[16], const char *address);
};

/* The fields up to check_requester must be set. Names that are published already are claimed. */
void directory_names_start(struct directory_names *all);
void directory_names_close(struct directory_names *all);

/* From now on other nodes are not told about changes of this node's names. */
void directory_names_mute(struct directory_names *all);

/* Whether names are looked up at other nodes: by the option names, and if there is a node table at all. */
bool directory_names_active(const struct directory_names *all);

/* Before a publish. OK: this node may publish the name. AGAIN: the homes are being asked, and waiter->on_decided follows.
 * EXISTS: another node has the name; err names it. NO_MEMORY. */
enum rdt_status directory_names_claim(struct directory_names *all, const struct owner *owner, const uint8_t *id,
                                      size_t id_bytes, struct claim_waiter *waiter, struct rdt_error *err);
void claim_waiter_remove(struct claim_waiter *waiter); /* does nothing if it does not wait */

/* Keeps a name that was claimed, although nothing is published yet, until directory_names_unuse. false: it is not claimed,
 * because names are not looked up at other nodes. */
bool directory_names_use(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes);
void directory_names_unuse(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes);

/* EXISTS, as directory_names_claim, if another node has taken the name over meanwhile. Asks nobody. */
enum rdt_status directory_names_check(const struct directory_names *all, const struct owner *owner, const uint8_t *id,
                                      size_t id_bytes, struct rdt_error *err);

/* A name has a new version, or has ended (struct names_observer). */
void directory_names_changed(struct directory_names *all, const struct name *name);

/* Where the name is, as far as this node knows without asking. AGAIN: ask by directory_names_seek. NOT_FOUND: there is nobody
 * to ask. A name that is held here is NOT_FOUND, too. */
enum rdt_status directory_names_find(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                     uint8_t node_p[16], char address_p[65]);

/* Asks the homes, again and again until seeker->on_found. No callback comes inside the call. NO_MEMORY. */
enum rdt_status directory_names_seek(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                     struct name_seeker *seeker, struct rdt_error *err);
void name_seeker_remove(struct name_seeker *seeker); /* does nothing if it does not wait */

/* Describes in text_p which homes of the name cannot be asked, as a clause "; the node n2 ... "; "" if all can. */
void directory_names_explain(const struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                             char *text_p, size_t size);

/* Whether a ref of a name leaves its node open. */
bool ref_is_unplaced(const struct rdt_ref *ref);

void directory_names_peer_up(struct directory_names *all, struct peer *peer);
enum rdt_status directory_names_on_message(struct directory_names *all, struct peer *peer, const Rdt__Pb__Name *message,
                                           struct rdt_error *err);

#endif
