/* Whether it pays to look for the other end's next message before going to sleep until it comes. Who sleeps is woken some ten microseconds
 * after the message came, on an idle processor much later; who looks has taken processor time in vain if none came. Both ends of a
 * socket use this, each for itself.
 *
 *   asleep -- so many waits in a row were short --> looking, for max_ns in each wait
 *   looking -- the message came meanwhile: one credit more, up to 8
 *           -- it came a little later: one less
 *           -- it came late: half of them --> none are left: asleep, and next time it takes twice as many waits
 *   either -- a pause, or somebody else needs the processor --> asleep, and it begins anew
 *
 * Hence messages that come now and then are never looked for. Nor are any where the process has only one processor: the other end could do
 * nothing meanwhile. The clock is the caller's, monotonic; no lock.
 */
#ifndef PROTO_POLL_RULE_H
#define PROTO_POLL_RULE_H

#include <stdbool.h>
#include <stdint.h>

struct poll_rule {
    int64_t max_ns;             /* 0: never */
    int64_t began_ns, ended_ns; /* the wait under way; the end of the one before */
    int64_t not_before_ns;      /* others need the processor */
    int64_t stay_ns;            /* away, that was for; twice as long if they do so again soon */
    unsigned credit;            /* looking; 0: asleep */
    unsigned n_short, need;     /* asleep: short waits in a row, and how many it takes */
    uint64_t n_found, n_vain;   /* waits that it looked in */
};

void poll_rule_init(struct poll_rule *rule, int64_t max_ns);

/* A wait begins. How long to look first; 0: sleep at once. */
int64_t poll_rule_begin(struct poll_rule *rule, int64_t now_ns);

/* A message ended it. Waits that end otherwise are not told. */
void poll_rule_end(struct poll_rule *rule, int64_t now_ns);

/* Others need the processor, poll_rule_yield said so: sleep. */
void poll_rule_crowded(struct poll_rule *rule, int64_t now_ns);

/* Between two looks: the other end may be waiting for this very processor. false: whoever had it kept it for long; one who sleeps
 * would have got it back earlier. Any thread; *now_ns_p: CLOCK_MONOTONIC. */
bool poll_rule_yield(int64_t *now_ns_p);

#endif
