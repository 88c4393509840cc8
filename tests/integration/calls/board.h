/* One node, a producer of snapshots, and a reader whose fetches stay: it fetches what it fetched before. */
#ifndef TESTS_INTEGRATION_BOARD_H
#define TESTS_INTEGRATION_BOARD_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define SHARED (100 * KIB) /* too much for the arena: it is mapped */
#define LITTLE ((size_t)100) /* it comes in the message */

static struct test_node node;
static rdt *producer, *reader;

static inline void start_with(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    producer = node_client(&node, "producer");
    reader = node_client(&node, "reader");
}

static inline void start(void)
{
    start_with(NULL);
}

static inline void finish(void)
{
    if (producer)
        rdt_close(producer);
    if (reader)
        rdt_close(reader);
    node_end(&node, NULL);
}

static inline struct rdt_ref put_snapshot(rdt *conn, const char *id, size_t bytes, uint32_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    void *from = malloc(bytes);
    struct rdt_ref ref;

    fill_pattern(from, bytes, seed);
    options.flags = RDT_PUT_SNAPSHOT;
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, bytes, from), 1, &options, &ref, &err));
    free(from);
    return ref;
}

static inline bool is_right(const rdt_object *object, size_t bytes, uint32_t seed)
{
    struct rdt_tensor tensor = tensor_of(object, 0);

    return elements_of(&tensor) == (int64_t)bytes && holds_pattern(tensor.data, bytes, seed);
}

/* Fetches, looks, and lets go. */
static inline void read_once(const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(reader, ref, mode);

    must(is_right(object, bytes, seed));
    rdt_release(object);
}

/* Twice: from now on it stays. */
static inline void make_stay(const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, uint32_t seed)
{
    read_once(ref, mode, bytes, seed);
    read_once(ref, mode, bytes, seed);
}

/* The next fetch of it says nothing to the daemon. */
static inline bool stays(const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, uint32_t seed)
{
    rdt_object *object;
    enum rdt_status status;

    node_freeze(&node);
    status = try_fetch(reader, ref, mode, 100 * MSEC, &object, NULL);
    node_thaw(&node);
    if (status != RDT_OK) {
        must(status == RDT_TIMED_OUT);
        must_ok(rdt_ping(reader, LONG, &err)); /* what came too late is given back */
        return false;
    }
    must(is_right(object, bytes, seed) && info_of(object).bytes_moved == 0 && info_of(object).transfer == 0);
    rdt_release(object);
    return true;
}

static inline unsigned holds_on(const struct rdt_ref *ref)
{
    struct rdt_stat stat;

    must_ok(rdt_stat(producer, ref, &stat, &err));
    return stat.holds;
}

static inline struct node_status status_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status;
}

static inline bool is_read_only(void *addr)
{
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    bool refused = read(zeros, addr, 1) < 0 && errno == EFAULT;

    (void)close(zeros);
    return refused;
}

#endif
