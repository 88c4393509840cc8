/* SPDX-License-Identifier: Apache-2.0 */
/* See doctor.h. What only the vendor's driver knows, such as free memory, rdtctl asks (client/ctl/doctor/gpus.c): the loop must
 * not wait for a driver. */
#include <inttypes.h>

#include "daemon/view/doctor/doctor.h"

/* Whose memory cannot be imported. Its tensors are copied, which is right and costs time and memory. */
static void check_imports(struct doctor *doctor)
{
    list_each (const struct client, client, &doctor->rpc->clients.all, link) {
        const struct client_refusal *refused = client->rpc.refused;

        if (refused && call_may_see(doctor->call, &client->account->owner))
            doctor_find(doctor, FINDING_WARN,
                        "Allocate in the pool (torch_pool), or as expandable segments: rdt-gpu(7), PUT AND FETCH.",
                        "Memory of client %" PRIu64 " (%s, process %d) on devices cannot be mapped, for %" PRIu64
                        " s now, so its tensors are copied: %s.",
                        client->id, client->name, (int)client->pid, (uv_hrtime() - refused->since_ns) / 1000000000,
                        refused->why);
    }
}

void doctor_devices(struct doctor *doctor)
{
    size_t before = doctor->n;
    unsigned devices = 0;
    const char *why_unpinned;

    list_each (const struct memory_kind, kind, plugins_memory_kinds(doctor->rpc->plugins), link) {
        for (unsigned i = 0; i < kind->n_devices; i++) {
            struct rdt_device now = memory_device_now(&kind->devices[i]);
            devices++;
            if (now.why_not && now.why_not[0])
                doctor_find(doctor, FINDING_FAIL, "Look into the kernel's log and the vendor's tools for the device's state.",
                            "Device %s (%s) cannot be used: %s.", kind->devices[i].uuid, kind->devices[i].name, now.why_not);
        }
        why_unpinned = atomic_load(&kind->why_unpinned);
        if (why_unpinned)
            doctor_find(doctor, FINDING_WARN,
                        "Look at the limit of locked memory (LimitMEMLOCK) and at free memory, then restart.",
                        "Host memory could not be pinned for %s memory, so copies to and from it are slower: %s.", kind->name,
                        why_unpinned);
        if (!kind->available && kind->n_devices > 0)
            doctor_find(doctor, FINDING_WARN, "Remove the cause, or the plug-in from backend_dir if it is not wanted.",
                        "Memory kind %s cannot be used: %s.", kind->name, kind->why_not);
    }
    check_imports(doctor);
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "No device is unusable, and no memory there was refused; %u devices are known.",
                    devices);
}

/* Without a transport for them the bytes go through host memory, which is slower than RDMA. */
void doctor_device_transports(struct doctor *doctor)
{
    struct plugins *plugins = doctor->rpc->plugins;
    size_t before = doctor->n;
    bool devices = false;

    list_each (const struct memory_kind, kind, plugins_memory_kinds(plugins), link)
        devices = devices || kind->n_devices > 0;
    list_each (const struct transport, transport, plugins_transports(plugins), link)
        if (devices && doctor->rpc->peers && transport->available && transport->not_moved[0])
            doctor_find(
                doctor, FINDING_WARN,
                "Between nodes it goes through host memory, which is right and slower than RDMA. rdt-gpu(7), BETWEEN NODES, "
                "says which UCX moves it.",
                "Transport %s: %s.", transport->name, transport->not_moved);
    if (doctor->n == before)
        doctor_find(doctor, FINDING_OK, "", "%s",
                    !devices             ? "There are no devices whose memory a transport could move."
                    : doctor->rpc->peers ? "Each transport moves the memory of devices that it could move."
                                         : "This node has no peers, so no memory of devices moves to other nodes.");
}
