/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at the node table. */
#include <inttypes.h>

#include "daemon/rpc/doctor/doctor.h"

void doctor_directory(struct doctor *doctor)
{
    const struct directory *directory = doctor->rpc->directory;
    bool any = false;

    for (unsigned i = 0; i < DIRECTORY_SOURCES; i++) {
        const struct directory_provider *provider = &directory->providers[i];
        const char *key = i == DIRECTORY_FILE ? "nodes" : "nodes_dns";
        unsigned n = 0;

        for (const struct node_entry *entry = provider->nodes; entry; entry = entry->next)
            n++;
        any |= provider->active;
        if (!provider->active)
            continue;
        if (provider->error[0] == '\0')
            doctor_find(doctor, FINDING_OK, "", "The option %s names %u nodes.", key, n);
        else if (provider->confirmed_ns == 0)
            doctor_find(doctor, FINDING_WARN, "Mend what the sentence names; the daemon then reads it by itself.",
                        "The option %s has named no node yet: %s.", key, provider->error);
        else
            doctor_find(doctor, FINDING_WARN, "Mend what the sentence names; the daemon then reads it by itself.",
                        "The option %s cannot be read, so its %u nodes are those of %" PRIu64 " s ago: %s.", key, n,
                        (uv_hrtime() - provider->confirmed_ns) / 1000000000, provider->error);
    }
    if (!any)
        doctor_find(doctor, FINDING_OK, "", "Neither nodes nor nodes_dns lists other nodes.");
}
