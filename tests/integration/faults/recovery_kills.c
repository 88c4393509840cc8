/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with a keeper is killed at any moment of the random work of several clients, many times. Their sessions go on at
 * the next daemon, and a model in each client says what must be there: every byte, id, version and hold. */
#include <stdatomic.h>

#include "tests/integration/faults/recovery.h"

TestSuite(recovery_kills, .timeout = SUITE_SECONDS(3600));

enum { WORKERS = 3, OBJECTS = 12, HOLDS = 6, KEEPS = 4, MEMORIES = 3, NAMES = 2, KEYS = 2 };

struct made { /* what an object contains; its metadata, so that every reader can check it */
    size_t bytes;
    uint32_t seed;
};

static struct shared {
    atomic_bool pause, stop;
    atomic_uint paused, steps;
    atomic_uint named[WORKERS][OBJECTS]; /* seeds of the latest objects with an id */
    atomic_uint objects[WORKERS];        /* while paused: those that only this worker's model has */
} * shared;

struct worker {
    unsigned number;
    uint64_t random;
    uint32_t seed;
    rdt *conn;
    struct object_of_mine {
        bool there, detached, named;
        struct rdt_ref ref;
        struct made made;
    } objects[OBJECTS];
    struct {
        rdt_object *object;
        struct made made;
    } holds[HOLDS];
    struct {
        rdt_request *request; /* of rdt_hold; its object was freed by its producer, and nobody else has it */
        struct rdt_ref ref;
        struct made made;
    } keeps[KEEPS];
    struct {
        uint8_t *memory; /* of rdt_alloc */
        bool used;       /* by an object that lies there */
        struct rdt_ref ref;
        struct made made;
    } memories[MEMORIES];
    struct {
        uint64_t version;
        struct made made;
        bool leased;
    } names[NAMES];
    struct {
        bool there;
        struct made made;
    } keys[KEYS]; /* ids whose detached objects are replaced again and again */
};

/* The daemon may be killed before it has greeted a new client. */
static void connect_worker(struct worker *worker)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = node.socket, .name = "worker"};
    wait_until(LONG, rdt_connect(&options, &worker->conn, NULL) == RDT_OK);
}

static unsigned draw(struct worker *worker, unsigned below)
{
    return (unsigned)(next_random(&worker->random) % below);
}

static struct made draw_made(struct worker *worker)
{
    static const size_t sizes[] = {10, 5 * KIB, 100 * KIB, MIB};

    return (struct made){.bytes = sizes[draw(worker, 4)], .seed = ++worker->seed};
}

static struct rdt_ref put(struct worker *worker, const char *id, const struct made *made, uint32_t flags)
{
    char *memory = malloc(made->bytes);

    fill_pattern(memory, made->bytes, made->seed);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = id,
                                      .id_bytes = id ? strlen(id) : 0,
                                      .metadata = made,
                                      .metadata_bytes = sizeof *made,
                                      .flags = flags};
    struct rdt_ref ref = put_as(worker->conn, &VECTOR(RDT_U8, made->bytes, memory), 1, &options);
    free(memory);
    return ref;
}

static void must_contain(rdt_object *object, const struct made *made)
{
    struct rdt_tensor tensor = tensor_of(object, 0);
    size_t metadata_bytes;
    const struct made *theirs = rdt_object_metadata(object, &metadata_bytes);

    must(metadata_bytes == sizeof *made && memcmp(theirs, made, sizeof *made) == 0);
    must_say((size_t)elements_of(&tensor) == made->bytes && holds_pattern(tensor.data, made->bytes, made->seed),
             "object %u has other bytes", made->seed);
}

/* ---- the steps ---- */

static void put_or_free(struct worker *worker)
{
    unsigned at = draw(worker, OBJECTS), kind = draw(worker, 4);
    struct object_of_mine *mine = &worker->objects[at];
    char id[32];

    if (mine->there) {
        must_ok(rdt_free(worker->conn, &mine->ref, false, &err));
        mine->there = false;
        return;
    }
    *mine = (struct object_of_mine){.there = true, .made = draw_made(worker), .named = draw(worker, 2)};
    mine->detached = kind == 3;
    (void)snprintf(id, sizeof id, "object %u", mine->made.seed); /* its readers keep an id in use after a free */
    if (mine->named)
        atomic_store(&shared->named[worker->number][at], mine->made.seed);
    mine->ref = put(worker, mine->named ? id : NULL, &mine->made,
                    kind == 1   ? RDT_PUT_SNAPSHOT
                    : kind == 3 ? RDT_PUT_DETACHED
                                : 0);
}

static void hold_or_release(struct worker *worker)
{
    unsigned at = draw(worker, HOLDS);
    struct object_of_mine *mine = &worker->objects[draw(worker, OBJECTS)];

    if (worker->holds[at].object) {
        must_contain(worker->holds[at].object, &worker->holds[at].made);
        rdt_release(worker->holds[at].object);
        worker->holds[at].object = NULL;
    } else if (mine->there) {
        worker->holds[at].object = fetch_one(worker->conn, &mine->ref, draw(worker, 3) ? RDT_FETCH_AUTO : RDT_FETCH_COPY);
        worker->holds[at].made = mine->made;
        must_contain(worker->holds[at].object, &mine->made);
    }
}

/* Another worker's object may be there or not; if it is, it is whole. */
static void look_at_others(struct worker *worker)
{
    struct made made;
    rdt_object *object;
    size_t metadata_bytes;
    char id[32];

    (void)snprintf(id, sizeof id, "object %u",
                   atomic_load(&shared->named[(worker->number + 1) % WORKERS][draw(worker, OBJECTS)]));
    struct rdt_ref ref = ref_named(id);
    if (try_fetch(worker->conn, &ref, RDT_FETCH_AUTO, MSEC, &object, NULL) != RDT_OK)
        return;
    memcpy(&made, rdt_object_metadata(object, &metadata_bytes), sizeof made);
    must_contain(object, &made);
    rdt_release(object);
}

static void keep_or_let_go(struct worker *worker)
{
    unsigned at = draw(worker, KEEPS);
    rdt_object *object;

    if (worker->keeps[at].request) {
        object = fetch_one(worker->conn, &worker->keeps[at].ref, RDT_FETCH_AUTO);
        must_contain(object, &worker->keeps[at].made);
        rdt_release(object);
        rdt_request_destroy(worker->keeps[at].request);
        worker->keeps[at].request = NULL;
        return;
    }
    worker->keeps[at].made = draw_made(worker);
    worker->keeps[at].ref = put(worker, NULL, &worker->keeps[at].made, draw(worker, 2) ? RDT_PUT_SNAPSHOT : 0);
    must_ok(rdt_hold(worker->conn, &worker->keeps[at].ref, LONG, &worker->keeps[at].request, &err));
    must_ok(rdt_free(worker->conn, &worker->keeps[at].ref, false, &err));
}

/* Memory of the daemon that stays mapped at its address, and objects that lie in it. */
static void use_memory(struct worker *worker)
{
    unsigned at = draw(worker, MEMORIES);
    struct rdt_put_options options = RDT_INIT(options);
    rdt_object *object;

    if (!worker->memories[at].memory) {
        worker->memories[at].made = draw_made(worker);
        worker->memories[at].memory = alloc_memory(worker->conn, worker->memories[at].made.bytes);
        fill_pattern(worker->memories[at].memory, worker->memories[at].made.bytes, worker->memories[at].made.seed);
    } else if (!worker->memories[at].used) {
        options.metadata = &worker->memories[at].made;
        options.metadata_bytes = sizeof worker->memories[at].made;
        must_ok(rdt_put(worker->conn, &VECTOR(RDT_U8, worker->memories[at].made.bytes, worker->memories[at].memory), 1,
                        &options, &worker->memories[at].ref, &err));
        worker->memories[at].used = true;
    } else {
        object = fetch_one(worker->conn, &worker->memories[at].ref, RDT_FETCH_AUTO);
        must_contain(object, &worker->memories[at].made);
        must(holds_pattern(worker->memories[at].memory, worker->memories[at].made.bytes, worker->memories[at].made.seed));
        rdt_release(object);
        must_ok(rdt_free(worker->conn, &worker->memories[at].ref, false, &err));
        must_ok(rdt_wait_freed(worker->conn, &worker->memories[at].ref, LONG, &err));
        must_ok(rdt_dealloc(worker->conn, worker->memories[at].memory, &err));
        worker->memories[at].memory = NULL;
        worker->memories[at].used = false;
    }
}

static void publish_or_look(struct worker *worker)
{
    struct rdt_publish_options options = RDT_INIT(options);
    unsigned at = draw(worker, NAMES);
    struct rdt_ref ref;
    uint64_t version;
    char name[16];

    (void)snprintf(name, sizeof name, "name %u %u", worker->number, at);
    if (worker->names[at].version == 0 || draw(worker, 2)) {
        options.lease = at == 1;
        worker->names[at].made = draw_made(worker);
        ref = put(worker, NULL, &worker->names[at].made, RDT_PUT_SNAPSHOT);
        must_ok(rdt_publish(worker->conn, name, &ref, &options, &version, &err));
        must_ok(rdt_free(worker->conn, &ref, false, &err));
        must_say(version > worker->names[at].version &&
                     (version == worker->names[at].version + 1 || options.lease || worker->names[at].version == 0),
                 "version %llu of %s follows %llu", (unsigned long long)version, name,
                 (unsigned long long)worker->names[at].version);
        worker->names[at].version = version;
        worker->names[at].leased = options.lease;
        return;
    }
    if (worker->names[at].made.bytes == 0)
        return; /* its lease has ended */
    ref = name_ref(name);
    rdt_object *object = fetch_one(worker->conn, &ref, RDT_FETCH_AUTO);
    must_contain(object, &worker->names[at].made);
    must(info_of(object).version == worker->names[at].version);
    rdt_release(object);
}

static void replace_or_look(struct worker *worker)
{
    static const uint32_t flags[] = {0, RDT_PUT_SNAPSHOT, RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED};
    unsigned at = draw(worker, KEYS), what = draw(worker, 8), hold = draw(worker, HOLDS);
    struct rdt_ref ref;
    char id[16];

    (void)snprintf(id, sizeof id, "key %u %u", worker->number, at);
    ref = ref_named(id);
    if (!worker->keys[at].there || what < 4) {
        worker->keys[at].made = draw_made(worker);
        (void)put(worker, id, &worker->keys[at].made, flags[draw(worker, 3)] | RDT_PUT_DETACHED | RDT_PUT_REPLACE);
        worker->keys[at].there = true;
    } else if (what == 4) {
        must_ok(rdt_free(worker->conn, &ref, false, &err));
        worker->keys[at].there = false;
    } else {
        rdt_object *object = fetch_one(worker->conn, &ref, RDT_FETCH_AUTO);
        must_contain(object, &worker->keys[at].made);
        if (worker->holds[hold].object) {
            rdt_release(object);
        } else { /* it stays when it is replaced */
            worker->holds[hold].object = object;
            worker->holds[hold].made = worker->keys[at].made;
        }
    }
}

static void connect_anew(struct worker *worker)
{
    for (unsigned i = 0; i < HOLDS; i++) {
        if (worker->holds[i].object)
            rdt_release(worker->holds[i].object);
        worker->holds[i].object = NULL;
    }
    for (unsigned i = 0; i < KEEPS; i++) {
        rdt_request_destroy(worker->keeps[i].request);
        worker->keeps[i].request = NULL;
    }
    for (unsigned i = 0; i < OBJECTS; i++) /* the end of a session takes a while; ids are free at once */
        worker->objects[i].there = worker->objects[i].there && worker->objects[i].detached;
    for (unsigned i = 0; i < NAMES; i++)
        if (worker->names[i].leased)
            worker->names[i].made.bytes = 0;
    memset(worker->memories, 0, sizeof worker->memories);
    rdt_close(worker->conn);
    connect_worker(worker);
}

static void step(struct worker *worker)
{
    unsigned what = draw(worker, 100);

    if (what < 25)
        put_or_free(worker);
    else if (what < 35)
        replace_or_look(worker);
    else if (what < 60)
        hold_or_release(worker);
    else if (what < 65)
        look_at_others(worker);
    else if (what < 75)
        keep_or_let_go(worker);
    else if (what < 88)
        use_memory(worker);
    else if (what < 99)
        publish_or_look(worker);
    else if (draw(worker, 4) == 0)
        connect_anew(worker);
}

/* How many objects are there by this worker's model, when nobody holds what its producer has freed. */
static unsigned count_mine(struct worker *worker)
{
    struct rdt_stat stat;
    unsigned there = 0;

    for (unsigned i = 0; i < HOLDS; i++) {
        if (worker->holds[i].object) {
            must_contain(worker->holds[i].object, &worker->holds[i].made);
            rdt_release(worker->holds[i].object);
        }
        worker->holds[i].object = NULL;
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        if (worker->objects[i].there)
            must_ok(rdt_stat(worker->conn, &worker->objects[i].ref, &stat, &err));
        there += worker->objects[i].there;
    }
    for (unsigned i = 0; i < KEEPS; i++)
        there += worker->keeps[i].request != NULL;
    for (unsigned i = 0; i < MEMORIES; i++)
        there += worker->memories[i].used;
    for (unsigned i = 0; i < NAMES; i++)
        there += worker->names[i].made.bytes > 0;
    for (unsigned i = 0; i < KEYS; i++)
        there += worker->keys[i].there;
    return there;
}

static int work(struct actor *self, void *arg)
{
    struct worker *worker = arg;

    connect_worker(worker);
    while (!atomic_load(&shared->stop)) {
        if (!atomic_load(&shared->pause)) {
            step(worker);
            atomic_fetch_add(&shared->steps, 1);
            continue;
        }
        atomic_store(&shared->objects[worker->number], count_mine(worker));
        must_ok(rdt_ping(worker->conn, LONG, &err)); /* what was released has been handled */
        atomic_fetch_add(&shared->paused, 1);
        wait_until(LONG, !atomic_load(&shared->pause) || atomic_load(&shared->stop));
    }
    rdt_close(worker->conn);
    return 0;
}

/* ---- the kills ---- */

static void compare(void)
{
    struct node_status status;
    unsigned there = 0;

    atomic_store(&shared->paused, 0);
    atomic_store(&shared->pause, true);
    wait_until(LONG, atomic_load(&shared->paused) == WORKERS);
    for (unsigned i = 0; i < WORKERS; i++)
        there += atomic_load(&shared->objects[i]);
    wait_until(LONG, (status = node_now(&node), status.objects == there && status.clients == WORKERS));
    atomic_store(&shared->pause, false);
}

/* RDT_KILLS=1000 for a long run. */
Test(recovery_kills, sessions_go_on_while_the_daemon_is_killed_at_any_moment)
{
    unsigned kills = getenv("RDT_KILLS") ? (unsigned)atoi(getenv("RDT_KILLS")) : 30;
    uint64_t random = getenv("RDT_SEED") ? (uint64_t)atoll(getenv("RDT_SEED")) : 42;
    struct worker workers[WORKERS] = {0};
    struct actor actors[WORKERS];

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared != MAP_FAILED);
    begin();
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        workers[i].random = next_random(&random);
        workers[i].seed = (i + 1) << 24;
        actor_start(&actors[i], work, &workers[i]);
    }
    for (unsigned i = 0; i < kills; i++) {
        /* The other workers are in the middle of any step then. */
        unsigned steps = atomic_load(&shared->steps) + (unsigned)(next_random(&random) % 16);
        wait_until(LONG, atomic_load(&shared->steps) > steps);
        if (next_random(&random) % 8 == 0)
            node_stop(&node);
        else
            node_kill(&node, SIGKILL);
        start();
        if (i % 10 == 9)
            compare();
    }
    atomic_store(&shared->stop, true);
    for (unsigned i = 0; i < WORKERS; i++)
        actor_wait(&actors[i]);
    printf("%u steps, %u kills\n", atomic_load(&shared->steps), kills);
    end();
}
