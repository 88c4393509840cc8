/* SPDX-License-Identifier: Apache-2.0 */
/* The rule of busy polling: whether a thread should poll for the other end's next message before it sleeps. A sleeping
 * thread wakes some ten microseconds after the message has come, and much later on an idle processor; a polling
 * thread wastes processor time if no message comes. Both ends of a socket use this, independently.
 *
 *   sleeping -- `need` waits in a row were short --> polling, up to max_ns in each wait
 *   polling  -- the message came while it polled: one credit more, up to 8
 *            -- it came a little later:           one credit less
 *            -- it came late:                     half of the credits; with none left --> sleeping, and `need` doubles
 *   either   -- a pause, or another thread needs the processor --> sleeping, and everything starts anew
 *
 * So nothing polls for messages that come now and then, nor in a process with one processor, where the other end
 * could not run meanwhile. The clock is the caller's and monotonic. Not thread-safe.
 */
#ifndef PROTO_POLL_RULE_H
#define PROTO_POLL_RULE_H

#include <stdbool.h>
#include <stdint.h>

struct poll_rule {
    int64_t max_ns;             /* 0: never */
    int64_t began_ns, ended_ns; /* start of the current wait; end of the one before */
    int64_t not_before_ns;      /* sleep until then, because another thread needs the processor */
    int64_t stay_ns;            /* how long that pause was; it doubles if it recurs soon */
    unsigned credit;            /* polling; 0: sleeping */
    unsigned n_short, need;     /* sleeping: short waits in a row, and how many start the polling */
    uint64_t n_found, n_missed; /* waits in which polling found the message, or missed it */
};

void poll_rule_init(struct poll_rule *rule, int64_t max_ns);

/* Starts a wait. Returns how long to poll before sleeping; 0: sleep at once. */
int64_t poll_rule_begin(struct poll_rule *rule, int64_t now_ns);

/* A message has ended the wait. Waits that end otherwise are not reported. */
void poll_rule_end(struct poll_rule *rule, int64_t now_ns);

/* Another thread needs the processor, as poll_rule_yield has found: sleep. */
void poll_rule_crowded(struct poll_rule *rule, int64_t now_ns);

/* Called between two polls, since the other end may wait for this processor. false: another thread used the
 * processor for long, so that sleeping would have been better. From any thread; *now_ns_p: CLOCK_MONOTONIC. */
bool poll_rule_yield(int64_t *now_ns_p);

#endif
