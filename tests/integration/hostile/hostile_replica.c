/* SPDX-License-Identifier: Apache-2.0 */
/* A forced free of an object that another node has as a replica. The call returns when that node can no longer serve the
 * replica and not before, however the link between the two ends. */
#include <errno.h>
#include <pthread.h>

#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/rogue_peer.h"

TestSuite(hostile_replica, .timeout = 120);

#define BYTES (256 * 1024)

static const char *const meant[] = {"is lost", "rogue_peer", "is down", "second hello", NULL};
static struct rogue_peer rogue_peer;
static rdt *owner;
static struct rdt_ref ref;
static int64_t confirmed_ns; /* the link's latest sign of life that the rogue_peer can be sure of is no older */

static void join(void)
{
    rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
}

/* Asks for the object, to keep a replica. Returns PullMeta.replica_note of the answer. */
static uint64_t be_noted(uint64_t transfer)
{
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__Ref wire = MESSAGE(ref, .id = (ProtobufCBinaryData){strlen(ref.id), (uint8_t *)ref.id}, .any_owner = true,
                                .generation = ref.generation);
    Rdt__Pb__Pull pull =
        MESSAGE(pull, .transfer = transfer, .ref = &wire, .requester = &requester, .timeout_ns = -1, .keep_replica = true);

    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, &pull.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, rogue_peer.came[RDT_PEER_PULL_META].n + 1));
    Rdt__Pb__PullMeta *meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                                         rogue_peer.came[RDT_PEER_PULL_META].payload);
    must_say(meta->status == RDT_OK && meta->replica_noted, "%s", meta->message);
    uint64_t note = meta->replica_note;
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    return note;
}

/* The rogue_peer's copy is noted, and the link confirmed. */
static void begin_kept(const char *const *flags)
{
    static uint8_t data[BYTES];

    begin(&(struct node_options){.listen = "127.0.0.1:0", .flags = flags});
    owner = node_client(&node, "owner");
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .visibility = RDT_VISIBLE_TO_ALL};
    must_ok(rdt_put(owner, &VECTOR(RDT_U8, BYTES, data), 1, &options, &ref, &err));
    join();
    (void)be_noted(1);
    confirmed_ns = now_ns();
    rogue_peer_flush(&rogue_peer);
}

static void end_kept(void)
{
    others_are_well();
    rogue_peer_close(&rogue_peer);
    rdt_close(owner);
    rdt_close(bystander);
    node_end(&node, meant);
}

/* The daemon gives the link up. What it says of that the rogue_peer need never get. */
static void have_it_given_up(void)
{
    rogue_peer_say(&rogue_peer, RDT_PEER_HELLO, 0, NULL, 0, false);
    while (rogue_peer.sock >= 0)
        rogue_peer_listen(&rogue_peer, 1000);
}

static void free_returns_at_once(void)
{
    int64_t since = now_ns();

    must_ok(rdt_free(owner, &ref, true, &err));
    must_be_within(since, 20 * SEC);
}

Test(hostile_replica, holder_may_serve_until_peer_timeout)
{
    begin_kept((const char *const[]){"--peer-timeout=2s", NULL});
    have_it_given_up();
    must_ok(rdt_free(owner, &ref, true, &err));
    must_say(now_ns() - confirmed_ns >= 2 * SEC / 4 * 3, "after %lld ms", (long long)((now_ns() - confirmed_ns) / MSEC));
    end_kept();
}

Test(hostile_replica, holder_that_ends_the_link_serves_nothing)
{
    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    rogue_peer_close(&rogue_peer);
    free_returns_at_once();
    join();
    end_kept();
}

Test(hostile_replica, holder_that_returns_serves_nothing_without_asking)
{
    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    have_it_given_up();
    rogue_peer_close(&rogue_peer);
    join();
    rogue_peer_flush(&rogue_peer);
    free_returns_at_once();
    end_kept();
}

static void *free_it(void *arg)
{
    static struct rdt_error why;

    *(enum rdt_status *)arg = rdt_free(owner, &ref, true, &why);
    return NULL;
}

/* The holder has been told and does not answer, then its link breaks: the caller of free waits on. */
Test(hostile_replica, silent_holder_is_waited_for_until_it_returns)
{
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;

    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    pthread_create(&thread, NULL, free_it, &status);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_REPLICAS, 1));
    have_it_given_up();
    others_are_well();
    must(pthread_tryjoin_np(thread, NULL) == EBUSY);
    rogue_peer_close(&rogue_peer);
    join();
    rogue_peer_flush(&rogue_peer);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    end_kept();
}

static void say_dropped(uint64_t next_note)
{
    Rdt__Pb__Replicas replicas = MESSAGE(replicas, .dropped = &ref.generation, .n_dropped = 1, .next_note = next_note);

    rogue_peer_send(&rogue_peer, RDT_PEER_REPLICAS, &replicas.base);
    rogue_peer_flush(&rogue_peer);
}

/* Two readers of a node ask at once. It drops what the first got before it has read the answer to the second, of which it then
 * keeps a replica. */
Test(hostile_replica, drop_before_a_later_answer_is_read_is_not_the_end)
{
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;

    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    uint64_t second = be_noted(2);
    must(second > 1);
    say_dropped(second);
    pthread_create(&thread, NULL, free_it, &status);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_REPLICAS, 1));
    others_are_well();
    must(pthread_tryjoin_np(thread, NULL) == EBUSY);
    Rdt__Pb__Replicas replicas = MESSAGE(replicas, .invalidated = &ref.generation, .n_invalidated = 1);
    rogue_peer_send(&rogue_peer, RDT_PEER_REPLICAS, &replicas.base);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    end_kept();
}

Test(hostile_replica, what_was_dropped_after_all_answers_is_not_waited_for)
{
    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    say_dropped(be_noted(2) + 1);
    free_returns_at_once();
    must(rogue_peer.came[RDT_PEER_REPLICAS].n == 0);
    end_kept();
}

/* Older nodes do not say what they have read. */
Test(hostile_replica, older_node_that_dropped_is_not_waited_for)
{
    begin_kept((const char *const[]){"--peer-timeout=60s", NULL});
    (void)be_noted(2);
    say_dropped(0);
    free_returns_at_once();
    end_kept();
}
