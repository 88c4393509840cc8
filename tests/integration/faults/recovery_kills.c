/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with a keeper is killed many times at random moments of random work; a model says which objects the next one
 * must have. */
#include <time.h>

#include "tests/integration/faults/recovery.h"

TestSuite(recovery_kills, .timeout = SUITE_SECONDS(240));

/* What the test knows of each object and name. A request that the daemon did not answer, because it was killed, leaves both
 * possible: `before`, or what it was to become. */
enum { OBJECTS_IN_USE = 40, NAMES = 4 };
struct state {
    bool there;
    size_t bytes;
    uint32_t seed;
    uint64_t version; /* of a name: at least this one */
};
static struct {
    struct state now, before;
    bool unsure;
    struct rdt_ref ref;
} model[OBJECTS_IN_USE + NAMES];

static void name_of(unsigned at, char *text_p, size_t size)
{
    (void)snprintf(text_p, size, "%s%u", at < OBJECTS_IN_USE ? "object" : "name", at);
}

/* Puts, and publishes under `name` if that is not NULL. */
static enum rdt_status try_put(rdt *conn, const char *id, const char *name, struct state *state, uint32_t flags,
                               struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options options = RDT_INIT(options);
    char *memory = malloc(state->bytes);
    enum rdt_status status;
    uint64_t version;

    fill_pattern(memory, state->bytes, state->seed);
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    options.metadata = id;
    options.metadata_bytes = id ? strlen(id) + 1 : 0;
    options.flags = flags;
    status = rdt_put(conn, &VECTOR(RDT_U8, state->bytes, memory), 1, &options, ref_p, err);
    free(memory);
    if (status != RDT_OK || !name)
        return status;
    status = rdt_publish(conn, name, ref_p, NULL, &version, err);
    must_say(status != RDT_OK || version > state->version, "version %llu is given twice", (unsigned long long)version);
    if (status == RDT_OK)
        state->version = version;
    return status;
}

/* One random request. false: the daemon is gone. */
static bool step(rdt *conn, uint64_t *random, uint32_t seed)
{
    unsigned at = next_random(random) % (OBJECTS_IN_USE + NAMES);
    struct state next = {
        .there = true, .seed = seed, .bytes = (size_t[]){10, 5 * KIB, 100 * KIB, 2 * MIB}[next_random(random) % 4]};
    uint32_t snapshot = next_random(random) % 2 ? RDT_PUT_SNAPSHOT : 0;
    struct rdt_error err = {0};
    enum rdt_status status;
    struct rdt_ref ref;
    char name[16];

    name_of(at, name, sizeof name);
    model[at].before = model[at].now;
    next.version = model[at].now.version;
    if (at >= OBJECTS_IN_USE) {
        status = try_put(conn, NULL, name, &next, RDT_PUT_SNAPSHOT, &ref, &err);
    } else if (model[at].now.there) {
        next = (struct state){0};
        status = rdt_free(conn, &model[at].ref, false, &err);
    } else {
        status = try_put(conn, name, NULL, &next, RDT_PUT_DETACHED | snapshot, &model[at].ref, &err);
    }
    must_say(status == RDT_OK || status == RDT_DISCONNECTED, "%s: %s", name, err.msg);
    model[at].now = next;
    model[at].unsure = status != RDT_OK;
    return status == RDT_OK;
}

static bool is_as(rdt *conn, unsigned at, const struct state *state)
{
    struct rdt_tensor tensor;
    struct rdt_ref ref;
    rdt_object *object;
    size_t metadata_bytes;
    enum rdt_status status;
    char name[16];
    bool same;

    name_of(at, name, sizeof name);
    ref = at < OBJECTS_IN_USE ? ref_named(name) : name_ref(name);
    status = try_fetch(conn, &ref, RDT_FETCH_AUTO, state->there ? LONG : MSEC, &object, NULL);
    if (status != RDT_OK || !state->there)
        return status == RDT_TIMED_OUT && !state->there;
    tensor = tensor_of(object, 0);
    same = (size_t)elements_of(&tensor) == state->bytes && holds_pattern(tensor.data, state->bytes, state->seed);
    if (at < OBJECTS_IN_USE)
        same = same && strcmp(rdt_object_metadata(object, &metadata_bytes), name) == 0;
    rdt_release(object);
    return same;
}

static void compare(rdt *conn)
{
    struct node_status status;
    unsigned there = 0;

    for (unsigned at = 0; at < OBJECTS_IN_USE + NAMES; at++) {
        struct rdt_stat stat;
        struct rdt_ref ref;
        char name[16];
        name_of(at, name, sizeof name);
        if (model[at].unsure) { /* find out which of both it is */
            bool found;
            ref = at < OBJECTS_IN_USE ? ref_named(name) : name_ref(name);
            found = rdt_stat(conn, &ref, &stat, NULL) == RDT_OK;
            if (at >= OBJECTS_IN_USE && found && model[at].before.there)
                model[at].now = is_as(conn, at, &model[at].now) ? model[at].now : model[at].before;
            else
                model[at].now = found == model[at].now.there ? model[at].now : model[at].before;
            if (found && at < OBJECTS_IN_USE)
                model[at].ref = ref;
            model[at].unsure = false;
        }
        if (model[at].now.there)
            must_say(is_as(conn, at, &model[at].now), "%s is not what was put", name);
        there += model[at].now.there;
    }
    node_status(&node, &status);
    must_say(status.objects == there, "%llu objects instead of %u", (unsigned long long)status.objects, there);
}

static int kill_soon(struct actor *self, void *arg)
{
    uint64_t *random = arg;
    struct timespec pause = {.tv_nsec = next_random(random) % 3000000};

    actor_await(self);
    nanosleep(&pause, NULL);
    kill(node.pid, SIGKILL);
    return 0;
}

/* Everything that was answered is there, what was not answered is there whole or not at all, and nothing else is there.
 * RDT_KILLS=1000 for a long run. */
Test(recovery_kills, random_work_while_the_daemon_is_killed_at_any_moment)
{
    unsigned kills = getenv("RDT_KILLS") ? (unsigned)atoi(getenv("RDT_KILLS")) : 30;
    uint64_t random = 42;
    uint32_t seed = 1;
    rdt *conn;

    begin();
    for (unsigned i = 0; i < kills; i++) {
        struct actor killer;
        bool planned = next_random(&random) % 8 == 0;
        if (!planned)
            actor_start(&killer, kill_soon, &random);
        conn = node_client(&node, "worker");
        compare(conn);
        if (!planned)
            actor_step(&killer);
        for (unsigned n = 0; (!planned || n < 20) && step(conn, &random, seed++); n++)
            ;
        rdt_close(conn);
        if (planned) {
            node_stop(&node);
        } else {
            actor_wait(&killer);
            node_kill(&node, SIGKILL);
        }
        start();
    }
    conn = node_client(&node, "worker");
    compare(conn);
    rdt_close(conn);
    end();
}
