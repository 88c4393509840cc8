/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl status: shows the state of the daemon. */
#include <inttypes.h>
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_table.h"
#include "proto/plain_text.h"
#include "rdt.pb-c.h"

static int print(struct ctl *ctl, const ProtobufCMessage *reply)
{
    const Rdt__Pb__StatusReply *s = (const Rdt__Pb__StatusReply *)reply;
    char a[CTL_HUMAN_BYTES], b[CTL_HUMAN_BYTES], c[CTL_HUMAN_BYTES], text[64];

    ctl_line("rdtd %s, %s for %s, pid %d", s->version, s->state, ctl_human_duration(s->uptime_ns, a), s->pid);
    ctl_line("node       %s", s->node);
    ctl_line("boot id    %s", s->boot_id);
    ctl_line("address    %s", *s->address ? s->address : "none: no other node can fetch from this one (see listen)");
    ctl_line("socket     %s", s->socket);
    ctl_line("clients    %" PRIu32, s->clients);
    ctl_line("objects    %" PRIu64, s->objects);
    ctl_line("memory     %s of %s in %" PRIu64 " region%s%s", ctl_human_bytes(s->memory_bytes, a),
             ctl_human_bytes(s->memory_limit_bytes, b), s->regions, s->regions == 1 ? "" : "s",
             s->memory_bytes > s->memory_limit_bytes ? "; nobody gets new memory until it is below memory_limit" : "");
    ctl_line("free pool  %s shared (reused %" PRIu64 " of %" PRIu64 " times), %s per client (reused %" PRIu64 " times)",
             ctl_human_bytes(s->pool_bytes, a), s->pool_hits, s->pool_hits + s->pool_misses,
             ctl_human_bytes(s->cached_bytes, b), s->cache_hits);
    if (s->orphaned_bytes)
        ctl_line("orphaned   %s of freed memory that processes still keep (rdtctl regions --orphaned)",
                 ctl_human_bytes(s->orphaned_bytes, a));
    if (s->freeing_bytes)
        ctl_line("freeing    %s of memory that is going back to the system", ctl_human_bytes(s->freeing_bytes, a));
    if (s->keeper_up || s->kept_objects || s->kept_sessions)
        ctl_line("keeper     %s: %" PRIu64 " object%s (%s of memory), %" PRIu64 " name%s and %" PRIu64
                 " session%s would survive a restart; restored at the start: %" PRIu64 "; not kept, or lost: %" PRIu64,
                 s->keeper_up ? "up" : "DOWN", s->kept_objects, text_plural(s->kept_objects), ctl_human_bytes(s->kept_bytes, a),
                 s->kept_names, text_plural(s->kept_names), s->kept_sessions, text_plural(s->kept_sessions),
                 s->restored_objects, s->unkept_objects);
    else
        ctl_line("keeper     none: sessions, and objects that are not stored, end with the daemon (see rdtd-keeper(8))");
    if (*s->storage_dir)
        ctl_line("storage    %" PRIu64 " object%s (%s) and %" PRIu64 " name%s in %s; restored at the start: %" PRIu64
                 "; could not be stored: %" PRIu64 "; bad files: %" PRIu64 "; damaged ones: %" PRIu64 " (%s set aside)",
                 s->stored_objects, text_plural(s->stored_objects), ctl_human_bytes(s->stored_bytes, a), s->stored_names,
                 text_plural(s->stored_names), s->storage_dir, s->storage_restored, s->stores_failed, s->storage_bad_files,
                 s->storage_damaged, ctl_human_bytes(s->storage_damaged_bytes, b));
    if (s->restored_sessions)
        ctl_line("sessions   %" PRIu64 " were restored at the start: %" PRIu64 " clients have come back, %" PRIu64
                 " are awaited",
                 s->restored_sessions, s->resumed_sessions, s->waiting_sessions);
    ctl_line("peers      %" PRIu32 " up of %" PRIu32 " known", s->peers_up, s->peers_known);
    ctl_line("transfers  %" PRIu32 " active, %" PRIu64 " done, %" PRIu64 " failed, %" PRIu64 " cancelled, %" PRIu64
             " timed out",
             s->transfers_active, s->transfers_done, s->transfers_failed, s->transfers_cancelled, s->transfers_timed_out);
    ctl_line("fetches    %" PRIu64 " joined a transfer under way, %" PRIu64 " served by replicas, %" PRIu64
             " by a slower transport than usual",
             s->fetches_joined, s->fetches_from_replicas, s->fell_back);
    ctl_line("busy polls %" PRIu64 ", of which %" PRIu64 " found no message", s->busy_polls, s->busy_polls_missed);
    ctl_line("replicas   %" PRIu64 " of other nodes' snapshots (%s); %" PRIu64 " arrived whole, %" PRIu64 " with wrong bytes",
             s->replicas, ctl_human_bytes(s->replica_bytes, a), s->replicas_checked, s->replicas_damaged);
    if (s->replicas_by_delta || s->deltas_failed)
        ctl_line("deltas     %" PRIu64 " replicas were made of earlier ones, which spared %s; %" PRIu64 " deltas failed",
                 s->replicas_by_delta, ctl_human_bytes(s->delta_bytes_spared, a), s->deltas_failed);
    ctl_line("fan-out    %" PRIu64 " pulls of readers sent to a replica, %" PRIu64 " of them more than once; %" PRIu64
             " reports of slow readers",
             s->redirected, s->redirected_again, s->slow_readers);
    ctl_line("bytes      %s in, %s out, %s within the node", ctl_human_bytes(s->bytes_in, a), ctl_human_bytes(s->bytes_out, b),
             ctl_human_bytes(s->bytes_local, c));
    if (s->log_lines_dropped)
        ctl_line("log        %" PRIu64 " lines were dropped, because the daemon's standard error did not take them",
                 s->log_lines_dropped);
    printf("backends  ");
    for (size_t i = 0; i < s->n_backends; i++)
        printf(" %s", ctl_plain(s->backends[i], text, sizeof text));
    printf("%s\n", s->n_backends ? "" : " none");
    return CTL_OK;
}

int ctl_status(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    return code == CTL_GO ? ctl_show(ctl, RDT_MSG_STATUS, &request.base, print) : code;
}
