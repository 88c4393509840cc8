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

static void ask(struct serve *out)
{
    Rdt__Pb__PullParked question = RDT__PB__PULL_PARKED__INIT;

    out->pace.ask = false;
    question.transfer = out->number;
    question.over_ns = out->pace.over_ns;
    (void)peer_session_send(out->session, RDT_PEER_PULL_PARKED, &question.base, NULL);
}

static void take_verdict(struct serve *out, enum fanout_verdict verdict, uint64_t sent)
{
    if (verdict != FANOUT_FAIR) {
        serve_shares(out, false);
        out->record.reader = verdict == FANOUT_SLOW ? "slow" : "lags";
    }
    if (out->replica && verdict != FANOUT_FAIR)
        replica_reader_is_slow(out->replica, out->session, verdict);
    else if (!out->replica && (verdict != FANOUT_FAIR || out->transfers->usual_rate == 0))
        replica_directory_reader_took(&out->transfers->directory, out->object->generation, out->session, sent, verdict);
}

static uint64_t sent_of(const struct serve *out)
{
    return out->chunks_done < out->plan->n ? out->plan->chunks[out->chunks_done].offset : out->stream_bytes;
}

void serve_watch_pace(struct serve *out)
{
    const struct transfers *transfers = out->transfers;
    bool filling = out->replica && out->replica->filling;
    struct fanout_seen seen = {.sharing = transfers->n_sharing + !out->shares};
    enum fanout_verdict verdict = FANOUT_FAIR;

    if (list_empty(&out->by_pace)) /* The plan may have no chunks. */
        return;
    seen.chunk_bytes = out->plan->chunks[0].bytes;
    seen.usual = filling ? 0 : usual_rate(out);
    seen.at = (struct fanout_window){.since_ns = uv_hrtime(),
                                     .had = filling ? out->replica->filling->record.bytes_done : out->stream_bytes,
                                     .sent = sent_of(out),
                                     .received = transfers->intake.bytes,
                                     .sent_all = transfers->counts->bytes_out};
    if (seen.usual > 0 || filling)
        verdict = fanout_pace(&out->pace, &seen);
    if (out->pace.ask)
        ask(out);
    take_verdict(out, verdict, seen.at.sent);
}

void serve_take_answer(struct serve *out, const Rdt__Pb__PullCredit *answer)
{
    if (!list_empty(&out->by_pace))
        take_verdict(out, fanout_answered(&out->pace, answer->over_ns, answer->received), sent_of(out));
}
