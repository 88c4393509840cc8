/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl status: shows the state of the daemon. */
#include <inttypes.h>
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static void print(const Rdt__Pb__StatusReply *s)
{
    char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES], c[CTL_HUMAN_BYTES], text[256];

    printf("rdtd %s, ", ctl_plain(s->version, text, sizeof text));
    printf("%s for %s, pid %d\n", ctl_plain(s->state, text, sizeof text), ctl_human_duration(s->uptime_ns, a), s->pid);
    printf("node       %s\n", ctl_plain(s->node, text, sizeof text));
    printf("boot id    %s\n", ctl_plain(s->boot_id, text, sizeof text));
    printf("address    %s\n",
           *s->address ? ctl_plain(s->address, text, sizeof text) : "none: no other node can fetch from this one (see listen)");
    printf("socket     %s\n", ctl_plain(s->socket, text, sizeof text));
    printf("clients    %" PRIu32 "\n", s->clients);
    printf("objects    %" PRIu64 "\n", s->objects);
    printf("memory     %s of %s in %" PRIu64 " region%s\n", ctl_human_bytes(s->memory_bytes, a),
           ctl_human_bytes(s->memory_limit_bytes, b), s->regions, s->regions == 1 ? "" : "s");
    printf("free pool  %s shared (reused %" PRIu64 " of %" PRIu64 " times), %s per client (reused %" PRIu64 " times)\n",
           ctl_human_bytes(s->pool_bytes, a), s->pool_hits, s->pool_hits + s->pool_misses, ctl_human_bytes(s->cached_bytes, b),
           s->cache_hits);
    if (s->orphaned_bytes)
        printf("orphaned   %s of freed memory that a client still keeps open or mapped\n",
               ctl_human_bytes(s->orphaned_bytes, a));
    if (s->keeper_up || s->kept_objects || s->kept_sessions)
        printf("keeper     %s: %" PRIu64 " objects (%s of memory), %" PRIu64 " names and %" PRIu64
               " sessions would survive a restart; %" PRIu64 " objects were restored at the start, %" PRIu64
               " are not kept or were lost\n",
               s->keeper_up ? "up" : "DOWN", s->kept_objects, ctl_human_bytes(s->kept_bytes, a), s->kept_names,
               s->kept_sessions, s->restored_objects, s->unkept_objects);
    else
        printf("keeper     none: sessions, and objects that are not stored, end with the daemon (see rdtd-keeper(8))\n");
    if (*s->storage_dir)
        printf("storage    %" PRIu64 " objects (%s) and %" PRIu64 " names in %s; %" PRIu64
               " objects were restored at the start, %" PRIu64 " could not be stored, %" PRIu64 " bad files\n",
               s->stored_objects, ctl_human_bytes(s->stored_bytes, a), s->stored_names,
               ctl_plain(s->storage_dir, text, sizeof text), s->storage_restored, s->stores_failed, s->storage_bad_files);
    if (s->restored_sessions)
        printf("sessions   %" PRIu64 " were restored at the start: %" PRIu64 " clients have come back, %" PRIu64
               " are awaited\n",
               s->restored_sessions, s->resumed_sessions, s->waiting_sessions);
    printf("peers      %" PRIu32 " up of %" PRIu32 " known\n", s->peers_up, s->peers_known);
    printf("transfers  %" PRIu32 " active, %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " cancelled, %" PRIu64
           " timed out\n",
           s->transfers_active, s->transfers_done, s->transfers_failed, s->transfers_cancelled, s->transfers_timed_out);
    printf("fetches    %" PRIu64 " joined a transfer under way, %" PRIu64 " served by replicas, %" PRIu64
           " by a slower transport than usual\n",
           s->fetches_joined, s->fetches_from_replicas, s->fell_back);
    printf("busy polls %" PRIu64 ", of which %" PRIu64 " found no message\n", s->busy_polls, s->busy_polls_missed);
    printf("replicas   %" PRIu64 " of other nodes' snapshots (%s)\n", s->replicas, ctl_human_bytes(s->replica_bytes, a));
    printf("fan-out    %" PRIu64 " pulls of readers sent to a replica, %" PRIu64 " of them more than once; %" PRIu64
           " reports of slow readers\n",
           s->redirected, s->redirected_again, s->slow_readers);
    printf("bytes      %s in, %s out, %s within the node\n", ctl_human_bytes(s->bytes_in, a), ctl_human_bytes(s->bytes_out, b),
           ctl_human_bytes(s->bytes_local, c));
    printf("backends  ");
    for (size_t i = 0; i < s->n_backends; i++)
        printf(" %s", ctl_plain(s->backends[i], text, sizeof text));
    printf("%s\n", s->n_backends ? "" : " none");
}

int ctl_status(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (ctl_call(ctl, RDT_MSG_STATUS, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json) {
        code = ctl_print_json(ctl_json(reply));
    } else {
        print((const Rdt__Pb__StatusReply *)reply);
        code = CTL_OK;
    }
    ctl_reply_free(reply);
    return code;
}
