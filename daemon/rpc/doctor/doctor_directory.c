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
        const char *key = directory_source_key((enum directory_source)i);
        unsigned n = 0;

        for (const struct node_entry *entry = provider->nodes; entry; entry = entry->next)
            n++;
        any |= provider->active;
        if (!provider->active)
            continue;
        if (provider->error[0] == '\0')
            doctor_find(doctor, FINDING_OK, "", "The option %s names %u nodes.", key, n);
        else if (provider->confirmed_ns == 0)
            doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then reads it by itself.",
                        "The option %s has named no node yet: %s.", key, provider->error);
        else
            doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then reads it by itself.",
                        "The option %s cannot be read, so its %u nodes are those of %" PRIu64 " s ago: %s.", key, n,
                        (uv_hrtime() - provider->confirmed_ns) / 1000000000, provider->error);
    }
    if (!any)
        doctor_find(doctor, FINDING_OK, "", "None of nodes, nodes_dns and etcd_endpoints lists other nodes.");
}

void doctor_etcd(struct doctor *doctor)
{
    const struct directory *directory = doctor->rpc->directory;
    const Rdt__Pb__EtcdInfo *etcd = &directory->etcd_info;
    const struct directory_provider *provider = &directory->providers[DIRECTORY_ETCD];

    if (!provider->active)
        doctor_find(doctor, FINDING_OK, "", "etcd_endpoints is not set, so etcd is not used.");
    else if (!etcd->up)
        doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then continues by itself.",
                    "This node is not registered in etcd now: %s.",
                    provider->error[0] != '\0' ? provider->error : "it is being connected");
    else if (provider->error[0] != '\0')
        doctor_find(doctor, FINDING_WARN, "Correct what the sentence names; the daemon then notices by itself.",
                    "This node is registered at %s, but: %s.", etcd->endpoint, provider->error);
    else
        doctor_find(doctor, FINDING_OK, "",
                    "This node is registered at %s (revision %" PRId64 "; %" PRIu64 " of %" PRIu64 " requests failed, %" PRIu64
                    " leases expired).",
                    etcd->endpoint, etcd->revision, etcd->failures, etcd->requests, etcd->leases_lost);
}
