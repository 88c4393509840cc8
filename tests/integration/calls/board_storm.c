/* Readers that fetch what stays with them again and again, while it is freed, by force or not, and put anew: what they read is always what was put. */
#include <poll.h>

#include "tests/integration/calls/board.h"

TestSuite(board_storm, .timeout = SUITE_SECONDS(120));

#define READERS 3
#define OBJECTS 8
#define ROUNDS 400

static const size_t sizes[] = {LITTLE, SHARED, 4 * KIB, 300 * KIB};

static size_t size_of(unsigned i)
{
    return sizes[i % (sizeof sizes / sizeof *sizes)];
}


static void name_of(char id[16], unsigned i)
{
    (void)snprintf(id, 16, "storm%u", i);
}

/* The first four bytes say which version it is, the rest follows from them. */
static void fill(uint8_t *bytes, size_t n, uint32_t version)
{
    memcpy(bytes, &version, sizeof version);
    fill_pattern(bytes + sizeof version, n - sizeof version, version);
}

static bool is_whole(const rdt_object *object, size_t n)
{
    struct rdt_tensor tensor = tensor_of(object, 0);
    const uint8_t *bytes = tensor.data;
    uint32_t version;

    memcpy(&version, bytes, sizeof version);
    return elements_of(&tensor) == (int64_t)n && holds_pattern(bytes + sizeof version, n - sizeof version, version);
}

/* Until the other says that it is over. */
static int read_on(struct actor *self, void *arg)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_COW, RDT_FETCH_COW, RDT_FETCH_SHARE};
    uint64_t random = 77 + (uint64_t)*(unsigned *)arg;
    rdt_object *objects[4] = {NULL};
    unsigned n_read = 0;
    rdt *conn = node_client(&node, "reader");

    actor_step(self);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = next_random(&random) % OBJECTS, at = next_random(&random) % 4;
        enum rdt_fetch_mode mode = modes[i % 4];
        struct rdt_ref ref;
        char id[16];
        enum rdt_status status;

        rdt_release(objects[at]);
        objects[at] = NULL;
        name_of(id, i);
        ref = ref_named(id);
        for (unsigned again = 0; again < 4; again++) {
            struct rdt_error err = {0};

            status = try_fetch(conn, &ref, mode, LONG, &objects[at], &err);
            if (status == RDT_FREED)
                break;
            must_say(status == RDT_OK, "%s: %s", rdt_status_name(status), err.msg);
            must(is_whole(objects[at], size_of(i)));
            n_read++;
            if (info_of(objects[at]).writable && mode == RDT_FETCH_COW)
                memset(tensor_of(objects[at], 0).data, 0xee, size_of(i));
            if (again < 3) {
                rdt_release(objects[at]);
                objects[at] = NULL;
            }
        }
    }
    for (unsigned at = 0; at < 4; at++)
        rdt_release(objects[at]);
    must(n_read > 0);
    rdt_close(conn);
    return 0;
}

/* From its own memory, which ends with it and is zeros then. */
static bool is_live(unsigned i)
{
    return i >= OBJECTS / 2;
}

static struct rdt_ref put_version(unsigned i, uint32_t version)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *bytes = is_live(i) ? alloc_memory(producer, size_of(i)) : malloc(size_of(i));
    struct rdt_ref ref;
    char id[16];

    name_of(id, i);
    fill(bytes, size_of(i), version);
    options.flags = is_live(i) ? 0 : RDT_PUT_SNAPSHOT;
    options.id = id;
    options.id_bytes = strlen(id);
    must_ok(rdt_put(producer, &VECTOR(RDT_U8, size_of(i), bytes), 1, &options, &ref, &err));
    if (is_live(i))
        must_ok(rdt_dealloc(producer, bytes, &err));
    else
        free(bytes);
    return ref;
}

static bool runs(const struct actor *actor)
{
    struct pollfd fd = {.fd = actor->pidfd, .events = POLLIN};

    return poll(&fd, 1, 0) == 0;
}

Test(board_storm, what_is_read_is_what_was_put)
{
    struct actor readers[READERS];
    unsigned numbers[READERS];
    struct rdt_ref refs[OBJECTS];
    uint64_t random = 5;
    uint32_t version = 0;

    node_start(&node, &(struct node_options){.flags = NULL});
    for (unsigned i = 0; i < READERS; i++) {
        numbers[i] = i;
        actor_start(&readers[i], read_on, &numbers[i]);
    }
    producer = node_client(&node, "producer");
    for (unsigned i = 0; i < OBJECTS; i++)
        refs[i] = put_version(i, version++);
    for (unsigned i = 0; i < READERS; i++)
        actor_await(&readers[i]);
    for (unsigned i = 0; i < READERS; i++) {
        while (runs(&readers[i])) {
            unsigned k = next_random(&random) % OBJECTS;

            must_ok(rdt_free(producer, &refs[k], true, &err)); /* then its id is free at once, whoever reads it yet */
            refs[k] = put_version(k, version++);
        }
        actor_wait(&readers[i]);
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(producer, &refs[i], false, &err));
    rdt_close(producer);
    node_end(&node, NULL);
}
