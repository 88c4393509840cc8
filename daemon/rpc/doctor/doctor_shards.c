/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of many parts: those that wait for parts, and those that have lost some. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/rpc/doctor/doctor.h"

#define WAITS_LONG_NS UINT64_C(10000000000) /* ranks of one step publish within seconds of each other */

struct looking {
    struct doctor *doctor;
    unsigned n_waiting, n_found;
};

static void look(void *arg, const struct shard_state *state)
{
    struct looking *looking = arg;
    struct doctor *doctor = looking->doctor;
    char remedy[320];

    if (!call_may_see(doctor->call, state->owner))
        return;
    looking->n_waiting += !state->complete;
    if (state->complete && state->ranks[0] != '\0') {
        looking->n_found++;
        doctor_find(doctor, FINDING_WARN, "Publish the next version, and give every node with parts a keeper.",
                    "The newest version of \"%.*s\", step %" PRIu64 ", has lost the parts of ranks %s: readers of them fail.",
                    state->id_bytes, state->id, state->step, state->ranks);
    } else if (!state->complete && state->age_ns > WAITS_LONG_NS) {
        looking->n_found++;
        (void)snprintf(remedy, sizeof remedy,
                       "Find out what these ranks do: they may be late, have ended, or publish another step or name. "
                       "`rdtctl shards %.*s` shows what is there.",
                       state->id_bytes < 64 ? state->id_bytes : 64, state->id);
        doctor_find(doctor, FINDING_WARN, remedy,
                    "Step %" PRIu64 " of \"%.*s\" has waited %" PRIu64 " s and has %u of %u parts: %s of ranks %s.",
                    state->step, state->id_bytes, state->id, state->age_ns / 1000000000u, state->n_parts, state->of,
                    state->n_parts < state->of ? "it lacks those" : "no answer has come from the nodes with those",
                    state->ranks);
    }
}

void doctor_shards(struct doctor *doctor)
{
    struct looking looking = {.doctor = doctor};

    shards_each(&doctor->rpc->shards, look, &looking);
    if (looking.n_found == 0)
        doctor_find(doctor, FINDING_OK, "", "No version of many parts has waited for long or lost parts; %u wait for parts.",
                    looking.n_waiting);
}
