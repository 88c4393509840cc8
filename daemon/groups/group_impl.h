/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this room share. Private. The upper ones first: an object uses symbols of lower rows only, and group.c
 * calls upward by groups->course.
 *
 *   group_messages > group_join, group_restore
 *   group_form                  the coordinator
 *   group_end
 *   group                       one node's view
 *   group_keep, group_words
 */
#ifndef DAEMON_GROUP_IMPL_H
#define DAEMON_GROUP_IMPL_H

#include "daemon/config/limits.h"
#include "daemon/groups/group.h"

#define GROUPS_MAX LIMITS_GROUPS

/* The reactions of group_messages.c to events on this node. */
struct group_course {
    void (*on_connected)(struct group *group);                                       /* connected on this node */
    void (*on_failed)(struct group *group, enum rdt_status status, const char *why); /* the plug-in reported it */
    void (*on_down)(struct group *group);                                            /* after CLOSING */
    void (*on_closed)(struct group *group); /* ENDING: nothing of it is open on this node */
    void (*on_deadline)(struct deadline *deadline);
};

/* ---- group.c: one node's view ---- */

/* Returns the group if it is being formed in this epoch. NULL: the message is about an earlier epoch. */
struct group *group_forming_now(struct groups *groups, const ProtobufCBinaryData *token, uint32_t epoch);

struct group *group_new(struct groups *groups, const struct owner *owner, const char *name, struct transport *transport,
                        uint32_t n_members, struct rdt_error *err);
void group_set_state(struct group *group, enum group_state state);

/* Computes the ranks of the members. INVALID: a member is listed twice. */
enum rdt_status group_make_ranks(struct group *group, struct rdt_error *err);

/* Creates this node's ranks in the plug-in and stores their offers in rank->blob. A group of one rank has
 * nothing to create. */
enum rdt_status group_open(struct group *group, struct rdt_error *err);

/* Connects this node's ranks when all offers have come. on_connected or on_failed follows. */
enum rdt_status group_connect(struct group *group, struct rdt_error *err);
void group_set_connected(struct group *group); /* connected at once, because there is no rank to connect */
/* Moves from FORMING or READY to CLOSING, or to DOWN if there is nothing to close. on_down follows,
 * possibly at once. */
void group_take_down(struct group *group, const char *why);

/* Moves to ENDING from any state. on_closed follows, possibly at once. */
void group_begin_end(struct group *group);

void group_notify_waiters(struct list *waiters, const struct rdt_error *err);

/* Calls the waiters and frees the group. */
void group_free(struct group *group);

/* ---- group_form.c: the coordinator ---- */

void group_begin(struct group *group);   /* begins a new epoch if the links to all nodes are up */
void group_propose(struct group *group); /* FORMING: sends the proposal if the links to all nodes are up */
void group_check_ready(struct group *group);
enum rdt_status group_on_accept(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);

/* Checks and messages of the coordinator and the other nodes. */
bool group_is_name(const char *text, size_t most);
bool group_member_fits(const Rdt__Pb__GroupMember *from);
void group_member_take(struct group_member *member, const Rdt__Pb__GroupMember *from); /* one that fits */
enum rdt_status group_check_new(const struct groups *groups, const struct owner *owner, const char *name,
                                const char *transport_name, size_t n_members, struct transport **transport_p,
                                struct rdt_error *err);
enum rdt_status group_check_clients(const struct group *group,
                                    struct rdt_error *err); /* that this node's members are connected */
enum rdt_status group_check_devices(const struct group *group,
                                    struct rdt_error *err); /* that this node has its members' devices */
void group_drop_orphan(struct groups *groups, const struct owner *owner, const char *name);
Rdt__Pb__GroupOffer **group_list_offers(const struct group *group, bool here_only, struct arena *arena, size_t *n_p);
enum rdt_status group_take_offers(struct group *group, const struct peer *from, Rdt__Pb__GroupOffer **offers, size_t n,
                                  struct rdt_error *err); /* from NULL: offers of any node */
void group_connect_here(struct group *group);

/* ---- group_keep.c: groups that survive the coordinator's daemon ---- */

void group_keep(struct group *group);       /* it is formed: records it, if this node coordinates it */
void group_keep_epoch(struct group *group); /* before the epoch is proposed */
void group_unkeep(struct group *group);     /* it ends */
bool group_find_peers(struct group *group); /* of a restored group; false: not of all members */

/* ---- group_join.c: the other nodes ---- */

void group_form_here(struct group *group, uint32_t epoch);
enum rdt_status group_on_propose(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);
enum rdt_status group_on_commit(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);

/* ---- group_end.c ---- */

/* Ends an epoch that failed, and notifies the other nodes. */
void group_fail(struct group *group, enum rdt_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

void group_check_end(struct group *group); /* frees it if it has ended here and elsewhere */

/* Whether waiters on this node must wait until the coordinator reports that the group has ended on all nodes. */
bool group_waits_for_coordinator(const struct group *group);

/* ---- group_words.c ---- */

int64_t group_patience_ns(const struct group *group);
void group_set_deadline(struct group *group, int64_t ns);
enum rdt_status group_send(const struct group *group, struct peer *peer, enum rdt_peer_message type,
                           const ProtobufCMessage *message);
void group_send_word(struct groups *groups, struct peer *peer, enum rdt_peer_message type, const uint8_t token[16],
                     uint32_t epoch, enum rdt_status status, const char *why, bool again);
void group_send_word_all(struct group *group, enum rdt_peer_message type, enum rdt_status status, const char *why,
                         bool again); /* all */
struct group_node *group_node_of(const struct group *group, const struct peer *peer);
struct group_member *group_missing(const struct group *group); /* a member whose node's link is not up, or NULL */

#endif
