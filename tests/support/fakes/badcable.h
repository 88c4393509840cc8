/* SPDX-License-Identifier: Apache-2.0 */
/* A bad cable between a node and the switch (netns.h): a process copies the frames from one end to the other, and loses,
 * delays, duplicates and reorders them as the test demands, in each direction separately. Random choices come from a seed.
 * It knows only frames and nothing of their content. It needs AF_PACKET and veth of the kernel.
 *
 *     struct badcable cable;
 *     badcable_put(&cable, &net, 0, seed);   badcable_set(&cable, BADCABLE_OUT, &(struct badcable_faults){.dead = true});
 *     ...   badcable_heal(&cable);   ...   badcable_take(&cable);
 *
 * Before any client connects, as every actor; taken off before the net is destroyed.
 */
#ifndef TESTS_SUPPORT_BADCABLE_H
#define TESTS_SUPPORT_BADCABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/support/actor.h"
#include "tests/support/netns.h"

enum badcable_way { BADCABLE_OUT /* what the node sends */, BADCABLE_IN, BADCABLE_WAYS };

struct badcable_faults {
    unsigned loss_pm, duplicate_pm, reorder_pm; /* per mille of the frames */
    unsigned delay_us, jitter_us;               /* each frame's: the delay and up to jitter more; the order stays */
    unsigned hold_us;                           /* reordered frames come this much later; 0: 3 ms */
    unsigned flap_ms;                           /* alternately dead and alive for so long, dead first; 0: not */
    bool dead;                                  /* nothing arrives, not even frames in flight */
};

struct badcable_counts {
    uint64_t passed, lost, doubled, disordered;
};

struct badcable_shared;

struct badcable {
    struct test_net *net;
    unsigned node;
    struct actor process;
    struct badcable_shared *shared;
};

/* A faultless one at first. */
void badcable_put(struct badcable *cable, struct test_net *net, unsigned node, uint64_t seed);

/* From now on. Both ways: BADCABLE_WAYS. */
void badcable_set(struct badcable *cable, enum badcable_way way, const struct badcable_faults *faults);
void badcable_heal(struct badcable *cable);

/* Since it was put, both ways together. */
struct badcable_counts badcable_counts(const struct badcable *cable);

/* The node is on the switch again as before. Fails the test if the process has ended before, or met frames that no cable
 * carries. */
void badcable_take(struct badcable *cable);

#endif
