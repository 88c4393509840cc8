/* SPDX-License-Identifier: Apache-2.0 */
/* Other nodes that a call of a client asks, all at the same time, or 64 of them where they are more.
 *
 *              questions_add      questions_ask          the node answers: on_reply
 *   (nothing) ---------------> unasked ------> asked -------------------------------> (nothing)
 *                                 ^              |   it cannot be asked, or the time is over: on_failure
 *                                 +--------------+
 *                  on_reply adds it again, because there is more to ask
 *
 * A node that does not answer costs the others nothing, and the call no more than its time. */
#ifndef DAEMON_QUESTIONS_H
#define DAEMON_QUESTIONS_H

#include "daemon/calls/call.h"

#define QUESTION_REFS_MAX 4096u /* refs, or ids, of one question: the other node decodes it on its loop */

struct question { /* embedded by its user */
    struct list link;
    struct questions *of;
    struct rdt_ref at; /* the node that is asked; call_ask */
    struct call *call; /* NULL: it is not being asked */
};

struct questions_events {
    /* The request, in the arena; NULL: no memory. */
    const ProtobufCMessage *(*make)(struct question *question, struct arena *arena);
    void (*on_reply)(struct question *question, const ProtobufCMessage *reply, const struct peer *from);
    void (*on_failure)(struct question *question, const struct rdt_error *why); /* never OK */
    void (*go_on)(struct questions *questions); /* after either of these, unless it came inside questions_ask */
};

struct questions { /* embedded in what the call waits for */
    const struct questions_events *events;
    struct call *call;
    struct list unasked, asked; /* struct question.link */
    unsigned n_asked;
    struct deadline ends;
    bool over; /* that has passed */
};

void questions_init(struct questions *questions, const struct questions_events *events);

/* From now on nodes may be asked for the call, for timeout_ns (negative: for any time). false: no memory. */
bool questions_begin(struct questions *questions, struct call *call, int64_t timeout_ns);
void questions_end(struct questions *questions); /* nobody is asked any more; also if it has not begun */

void questions_add(struct questions *questions, struct question *question, const struct rdt_ref *at);

/* Asks as many nodes as possible. false: until_ns has passed, and there are more. true: go_on follows, unless
 * questions->n_asked is 0: then nobody is left. */
bool questions_ask(struct questions *questions, uint64_t until_ns);

#endif
