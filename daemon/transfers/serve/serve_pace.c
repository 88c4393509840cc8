/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the reader of a snapshot takes bytes more slowly than it could have them. Only its source can find this out
 * (fanout.h); the owner's node, which may be this one, then gives the reader and its own readers other places. */
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

#define COMPARED 64u /* other serves that one is compared with */

/* What a reader could take, in bytes for each second, as this node knows from other sends, from how the replica came, or from
 * another reader of the same object that began at about the same time. 0: not known. */
static uint64_t usual_rate(const struct serve *serve)
{
    const struct list *all = &serve->transfers->load.paced, *node = serve->by_pace.next;
    uint64_t now_ns = uv_hrtime(), usual = serve->transfers->load.usual_rate;

    if (serve->replica)
        return serve->replica->rate > usual ? serve->replica->rate : usual;
    for (unsigned i = 0; i < COMPARED && node != &serve->by_pace; i++, node = node->next) {
        const struct serve *other = node != all ? container_of(node, struct serve, by_pace) : serve;
        uint64_t took_ns = now_ns - other->record.began_ns, rate;
        if (other == serve || other->object != serve->object || took_ns == 0 ||
            other->record.bytes_done < FANOUT_RATE_CHUNKS * serve->sending.plan->chunks[0].bytes)
            continue;
        rate = (uint64_t)((double)other->record.bytes_done * 1e9 / (double)took_ns);
        usual = rate > usual ? rate : usual;
    }
    return usual;
}

static void ask(struct serve *serve)
{
    Rdt__Pb__PullAlive question = RDT__PB__PULL_ALIVE__INIT;

    serve->pace.ask = false;
    question.transfer = serve->number;
    question.over_ns = serve->pace.over_ns;
    (void)serve_send(serve, RDT_PEER_PULL_ALIVE, &question.base, NULL);
}

static void take_verdict(struct serve *serve, enum fanout_verdict verdict, uint64_t sent)
{
    if (verdict != FANOUT_FAIR) {
        serve_shares(serve, false);
        serve->record.reader = verdict == FANOUT_SLOW ? "slow" : "lags";
    }
    if (serve->replica && verdict != FANOUT_FAIR)
        replica_reader_is_slow(serve->replica, serve->remote, verdict);
    else if (!serve->replica && (verdict != FANOUT_FAIR || serve->transfers->load.usual_rate == 0))
        replica_directory_reader_took(&serve->transfers->directory, serve->object->generation, serve->remote, sent, verdict);
}

static uint64_t sent_of(const struct serve *serve)
{
    return serve->sending.n_done < serve->sending.plan->n ? serve->sending.plan->chunks[serve->sending.n_done].offset
                                                          : serve->stream_bytes;
}

void serve_watch_pace(struct serve *serve)
{
    const struct transfers *transfers = serve->transfers;
    bool filling = serve->replica && serve->replica->filling;
    struct fanout_seen seen = {.sharing = transfers->load.n_sharing + !serve->shares};
    enum fanout_verdict verdict = FANOUT_FAIR;

    if (list_empty(&serve->by_pace)) /* The plan may have no chunks. */
        return;
    seen.chunk_bytes = serve->sending.plan->chunks[0].bytes;
    seen.usual = filling ? 0 : usual_rate(serve);
    seen.at = (struct fanout_window){.since_ns = uv_hrtime(),
                                     .had = filling ? serve->replica->filling->record.bytes_done : serve->stream_bytes,
                                     .sent = sent_of(serve),
                                     .received = transfers->load.intake.bytes,
                                     .sent_all = transfers->counts->bytes_out};
    if (seen.usual > 0 || filling)
        verdict = fanout_pace(&serve->pace, &seen);
    if (serve->pace.ask)
        ask(serve);
    take_verdict(serve, verdict, seen.at.sent);
}

void serve_take_answer(struct serve *serve, const Rdt__Pb__PullCredit *answer)
{
    if (!list_empty(&serve->by_pace))
        take_verdict(serve, fanout_answered(&serve->pace, answer->over_ns, answer->received), sent_of(serve));
}
