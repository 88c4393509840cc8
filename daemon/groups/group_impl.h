/* What the files of groups share. Nobody else includes it. */
#ifndef DAEMON_GROUP_IMPL_H
#define DAEMON_GROUP_IMPL_H

#include "daemon/groups/group.h"

#define GROUPS_MAX 1024u

/* ---- group.c: one node's view ---- */

struct group *group_new(struct groups *groups, const struct owner *owner, const char *name, struct transport *transport,
                        uint32_t n_members, struct rdt_error *err);
void group_set_state(struct group *group, enum group_state state);

/* The ranks of its members. INVALID: one is in it twice. */
enum rdt_status group_make_ranks(struct group *group, struct rdt_error *err);

/* This node's ranks: created, with their offers in rank->blob; none where there is only one rank. */
enum rdt_status group_open(struct group *group, struct rdt_error *err);

/* All offers are there: connects; group_serves() follows, or group_failed_here(). */
enum rdt_status group_connect(struct group *group, struct rdt_error *err);
void group_serve(struct group *group); /* with no rank to connect */
void group_forget_blobs(struct group *group);

/* FORMING or READY: CLOSING, or DOWN where there is nothing to close; group_went_down() follows, maybe at once. */
void group_fall(struct group *group, const char *why);

/* ENDING, from any state; group_closed_here() follows, maybe at once. */
void group_begin_end(struct group *group);

void group_tell_waiters(struct list *waiters, const struct rdt_error *err);

/* Frees it; who waits hears so. */
void group_go(struct group *group);

/* ---- group_form.c: the coordinator ---- */

void group_begin(struct group *group);   /* a new epoch, when all nodes are there */
void group_propose(struct group *group); /* FORMING: they may be */
void group_check_ready(struct group *group);
bool group_all_up(const struct group *group);
struct group_member *group_missing(const struct group *group); /* whose link is not up, or NULL */
enum rdt_status group_on_accept(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);

/* What both sides check and send. */
bool group_is_name(const char *text, size_t most);
enum rdt_status group_check_new(const struct groups *groups, const struct owner *owner, const char *name,
                                const char *transport_name, size_t n_members, struct transport **transport_p,
                                struct rdt_error *err);
enum rdt_status group_check_clients(const struct group *group, struct rdt_error *err); /* this node's members are connected */
enum rdt_status group_check_devices(const struct group *group, struct rdt_error *err); /* this node has its members' */
void group_drop_orphan(struct groups *groups, const struct owner *owner, const char *name);
size_t group_list_offers(const struct group *group, bool here_only, Rdt__Pb__GroupOffer *offers, Rdt__Pb__GroupOffer **list);
enum rdt_status group_take_offers(struct group *group, const struct peer *from, Rdt__Pb__GroupOffer **offers, size_t n,
                                  struct rdt_error *err); /* from NULL: anybody's */
void group_connect_here(struct group *group);

/* ---- group_join.c: the other nodes ---- */

void group_form_here(struct group *group, uint32_t epoch);
enum rdt_status group_on_propose(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);
enum rdt_status group_on_commit(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err);

/* ---- group_talk.c ---- */

int64_t group_patience_ns(const struct group *group);
void group_set_deadline(struct group *group, int64_t ns);
enum rdt_status group_send(const struct group *group, struct peer *peer, enum rdt_peer_message type,
                           const ProtobufCMessage *message);
void group_send_word(struct groups *groups, struct peer *peer, enum rdt_peer_message type, const uint8_t token[16],
                     uint32_t epoch, enum rdt_status status, const char *why, bool again);
void group_tell(struct group *group, enum rdt_peer_message type, enum rdt_status status, const char *why, bool again); /* all */
struct group_node *group_node_of(const struct group *group, const struct peer *peer);

/* Of the epoch that is being formed; NULL: the message is about an earlier one. */
struct group *group_forming_now(struct groups *groups, const ProtobufCBinaryData *token, uint32_t epoch);

void group_served(struct group *group);                                               /* connected here */
void group_failed_here(struct group *group, enum rdt_status status, const char *why); /* the plug-in says */
void group_went_down(struct group *group);                                            /* CLOSING is over */
void group_closed_here(struct group *group);                                          /* ENDING: nothing is left here */

/* An epoch has come to nothing, or is over: tells the others. */
void group_fail(struct group *group, enum rdt_status status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
