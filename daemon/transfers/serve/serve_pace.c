/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the reader of a snapshot takes bytes more slowly than it could have them. Only its source can find this out
 * (fanout.h); the owner's node, which may be this one, then gives the reader and its own readers other places. */
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

/* What a reader could take, in bytes for each second, as this node knows from other sends, from how the replica came, or from
 * another reader of the same object. 0: not known. */
static uint64_t usual_rate(const struct serve *out)
{
    uint64_t now_ns = uv_hrtime(), usual = out->transfers->usual_rate;

    if (out->replica)
        return out->replica->rate > usual ? out->replica->rate : usual;
    list_each (const struct serve, other, &out->transfers->paced, by_pace) {
        uint64_t took_ns = now_ns - other->record.began_ns, rate;
        if (other == out || other->object != out->object || took_ns == 0 ||
            other->record.bytes_done < FANOUT_RATE_CHUNKS * out->plan->chunks[0].bytes)
            continue;
        rate = (uint64_t)((double)other->record.bytes_done * 1e9 / (double)took_ns);
        usual = rate > usual ? rate : usual;
    }
    return usual;
}

/* The readers that share this node's bandwidth, without those that were found to take little of it. */
static unsigned count_readers(const struct serve *out)
{
    unsigned n = 0;

    if (!out->replica)
        return out->transfers->n_sharing;
    list_for_each (node, &out->replica->pulls)
        n += container_of(node, struct serve, by_replica)->pace.told == FANOUT_FAIR;
    return n;
}

void serve_watch_pace(struct serve *out)
{
    struct transfers *transfers = out->transfers;
    const struct chunk_plan *plan = out->plan;
    bool filling = out->replica && out->replica->filling;
    uint64_t have = filling ? out->replica->filling->record.bytes_done : out->stream_bytes;
    uint64_t sent = out->chunks_done < plan->n ? plan->chunks[out->chunks_done].offset : out->stream_bytes;
    enum fanout_verdict verdict = FANOUT_FAIR;
    uint64_t usual;

    if (list_empty(&out->by_pace))
        return;
    usual = filling ? 0 : usual_rate(out);
    if (usual > 0 || filling)
        verdict = fanout_pace(&out->pace, uv_hrtime(), have, sent, usual, count_readers(out), plan->chunks[0].bytes);
    if (verdict != FANOUT_FAIR) {
        serve_shares(out, false);
        out->record.reader = verdict == FANOUT_SLOW ? "slow" : "lags";
    }
    if (out->replica && verdict != FANOUT_FAIR)
        replica_reader_is_slow(out->replica, out->session, verdict);
    else if (!out->replica && (verdict != FANOUT_FAIR || transfers->usual_rate == 0))
        replica_directory_reader_took(&transfers->directory, out->object->generation, out->session, sent, verdict);
}
