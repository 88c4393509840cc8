/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher on one node and an engine on another, which follows its versions, while one of these two processes, or the daemon
 * of either node, is killed at any moment, between and within prepare and commit. The engine never has a mixture of two
 * versions after a commit, never goes back, and always goes on. $ROUNDS sets how often something is killed. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "client/rdt_follow.h"
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/keeper.h"

TestSuite(follow_kills, .timeout = 3600);

#define ROUNDS 24u
#define WORDS (1u << 15) /* of each version: 256 KiB, more than what travels in answers */

static struct shared {           /* by all processes of the test */
    _Atomic uint64_t value;      /* of the version that was published last; each version has words of one value */
    _Atomic uint64_t commits[2]; /* of single objects, and of versions in parts */
    _Atomic uint64_t mixtures, steps_back;
} * shared;

static struct test_keeper keepers[2];
static struct actor publisher, engine;

/* ---- the publisher ---- */

static void publish_single(rdt *conn, uint64_t *words, uint64_t value)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_tensor tensor = VECTOR(RDT_U64, WORDS, words);
    struct rdt_ref ref;

    for (unsigned i = 0; i < WORDS; i++)
        words[i] = value;
    if (rdt_put(conn, &tensor, 1, &options, &ref, NULL) != RDT_OK)
        return;
    (void)rdt_publish(conn, "single", &ref, NULL, NULL, NULL);
    (void)rdt_free(conn, &ref, false, NULL);
}

/* In two parts, each with one half of the words. */
static void publish_parts(rdt *conn, uint64_t *words, uint64_t value)
{
    const int64_t global[] = {WORDS};
    struct rdt_ref name, refs[2] = {0};
    rdt_request *requests[2] = {NULL, NULL};

    must_ok(rdt_ref_from_name("parts", 0, NULL, &name, &err));
    for (uint32_t rank = 0; rank < 2; rank++) {
        int64_t start[] = {rank * (WORDS / 2)};
        struct rdt_shard shard = {"w", global, start};
        struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = &shard};
        struct rdt_tensor tensor = VECTOR(RDT_U64, WORDS / 2, words);
        if (rdt_put(conn, &tensor, 1, &options, &refs[rank], NULL) == RDT_OK)
            (void)rdt_publish_part_start(conn, &name, value, rank, 2, &refs[rank], NULL, SEC, &requests[rank], NULL);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (requests[rank])
            (void)rdt_wait(conn, &requests[rank], 1, 1, SEC, NULL, NULL, NULL);
        rdt_request_destroy(requests[rank]);
        if (refs[rank].id_bytes > 0)
            (void)rdt_drop(conn, &refs[rank], NULL);
    }
}

static int publish_on_and_on(struct actor *self, void *arg)
{
    uint64_t *words = calloc(WORDS, sizeof *words);
    rdt *conn = NULL;

    (void)arg;
    wait_until(LONG, rdt_connect(&(struct rdt_connect_options){.struct_size = sizeof(struct rdt_connect_options),
                                                               .socket = c.node[0].socket},
                                 &conn, NULL) == RDT_OK);
    actor_step(self);
    for (;;) {
        uint64_t value = ++shared->value;

        publish_single(conn, words, value);
        publish_parts(conn, words, value);
    }
}

/* ---- the engine ---- */

struct reader {
    rdt_follower *follower;
    rdt_plan *plan; /* NULL: of single objects */
    uint64_t *words, last;
};

static void begin_reader(struct reader *reader, rdt *conn, const char *id)
{
    struct rdt_ref name = name_on(0, id, 0);
    const int64_t count[] = {WORDS};

    reader->words = calloc(WORDS, sizeof *reader->words);
    must_ok(rdt_follow(conn, &name, NULL, &reader->follower, &err));
    if (strcmp(id, "single") == 0)
        return;
    struct rdt_want want = {.key = "w", .ndim = 1, .count = count, .dtype = RDT_U64, .data = reader->words};
    must_ok(rdt_plan_create(conn, &name, &want, 1, NULL, &reader->plan, &err));
}

/* Prepares and commits one version, if there is one in time. What was copied must be of one version, and newer. */
static void read_one(struct reader *reader)
{
    struct rdt_tensor target = VECTOR(RDT_U64, WORDS, reader->words);
    struct rdt_commit_options options = {.struct_size = sizeof options, .plan = reader->plan};
    struct rdt_error err;
    enum rdt_status status = rdt_follower_prepare(reader->follower, 20 * MSEC, NULL, &err);

    must_say(status == RDT_OK || status == RDT_TIMED_OUT || status == RDT_SHUTTING_DOWN, "prepare: %s: %s",
             rdt_status_name(status), err.msg);
    if (status != RDT_OK)
        return;
    if (!reader->plan) {
        options.targets = &target;
        options.n_targets = 1;
    }
    status = rdt_follower_commit(reader->follower, &options, NULL, &err);
    must_say(status == RDT_OK, "commit: %s: %s", rdt_status_name(status), err.msg);
    for (unsigned i = 1; i < WORDS; i++)
        if (reader->words[i] != reader->words[0]) {
            shared->mixtures++;
            break;
        }
    shared->steps_back += reader->words[0] <= reader->last;
    reader->last = reader->words[0];
    shared->commits[reader->plan != NULL]++;
}

static int read_on_and_on(struct actor *self, void *arg)
{
    struct reader readers[2] = {0};
    rdt *conn = NULL;

    (void)arg;
    wait_until(LONG, rdt_connect(&(struct rdt_connect_options){.struct_size = sizeof(struct rdt_connect_options),
                                                               .socket = c.node[1].socket},
                                 &conn, NULL) == RDT_OK);
    begin_reader(&readers[0], conn, "single");
    begin_reader(&readers[1], conn, "parts");
    actor_step(self);
    for (;;)
        for (unsigned i = 0; i < 2; i++)
            read_one(&readers[i]);
}

/* ---- the kills ---- */

static void start(struct actor *actor, int (*fn)(struct actor *self, void *arg))
{
    actor_start(actor, fn, NULL);
    actor_await(actor);
}

static void begin(void)
{
    static char flag[2][200];
    static const char *flags[2][4];
    struct cluster_options options = {.stream = true, .no_ucx = true, .same_socket = true};

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED);
    for (unsigned i = 0; i < 2; i++) {
        keeper_start(&keepers[i]);
        (void)snprintf(flag[i], sizeof flag[i], "--keeper=%s", keepers[i].socket);
        flags[i][0] = flag[i];
        flags[i][1] = "--backoff-max=200ms";
        flags[i][2] = "--hold-grace=2s";
        options.flags_of[i] = flags[i];
    }
    cluster_start(&c, 2, &options);
    start(&publisher, publish_on_and_on);
    start(&engine, read_on_and_on);
}

static void end(void)
{
    actor_kill(&publisher, SIGKILL);
    actor_kill(&engine, SIGKILL);
    rdt *conn = on(0);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref name = name_on(0, i ? "parts" : "single", 0);
        must_ok(rdt_unpublish(conn, &name, &err));
    }
    rdt_close(conn);
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0 && node_now(&c.node[i]).clients == 0);
    for (unsigned i = 0; i < 2; i++)
        node_stop(&c.node[i]);
    for (unsigned i = 0; i < 2; i++)
        keeper_stop(&keepers[i], SIGTERM);
}

static void kill_one(unsigned which)
{
    switch (which) {
    case 0:
        actor_kill(&publisher, SIGKILL);
        start(&publisher, publish_on_and_on);
        break;
    case 1:
        actor_kill(&engine, SIGKILL);
        start(&engine, read_on_and_on);
        break;
    default:
        node_kill(&c.node[which - 2], SIGKILL);
        cluster_restart(&c, which - 2);
    }
}

Test(follow_kills, nobodys_end_leaves_a_mixture)
{
    unsigned rounds = getenv("ROUNDS") ? (unsigned)atoi(getenv("ROUNDS")) : ROUNDS;
    uint64_t random = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : (uint64_t)now_ns();

    printf("%u rounds, SEED=%llu\n", rounds, (unsigned long long)random);
    begin();
    for (unsigned i = 0; i < rounds; i++) {
        struct timespec moment = {.tv_nsec = (long)(next_random(&random) % 20000000)};
        uint64_t before[2];

        (void)nanosleep(&moment, NULL); /* another moment in each round: nothing is awaited by it */
        kill_one(i % 4);
        for (unsigned k = 0; k < 2; k++)
            before[k] = shared->commits[k];
        for (unsigned k = 0; k < 2; k++)
            wait_until(LONG, shared->commits[k] > before[k]);
        must_say(shared->mixtures == 0, "round %u: a mixture of two versions", i);
        must_say(shared->steps_back == 0, "round %u: the engine has gone back", i);
    }
    printf("%llu versions, commits %llu and %llu\n", (unsigned long long)shared->value, (unsigned long long)shared->commits[0],
           (unsigned long long)shared->commits[1]);
    end();
}
