/* SPDX-License-Identifier: Apache-2.0 */
/* Loaned regions that another node still reads or holds when their producer has freed the object and puts again. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/integration/nodes/pair.h"

#define KIB ((size_t)1024)
#define BYTES (40 * 64 * KIB)

TestSuite(loans_nodes, .timeout = 120);

static uint32_t put_flags;

static struct rdt_ref put_ordinary(uint32_t seed)
{
    uint8_t *data = malloc(BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = put_flags};

    fill_pattern(data, BYTES, seed);
    struct rdt_ref ref = put_as(owner, &VECTOR(RDT_U8, BYTES, data), 1, &options);
    free(data);
    return ref;
}

/* Chunks of 64 KiB, so that little data takes many. */
static void begin(const char *sided)
{
    char set[64];
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", "--pool-idle=2s", set, NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    begin_pair(2, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
}

/* Regions that are back by then are filled again. */
static void put_others(void)
{
    for (uint32_t i = 100; i < 106; i++) {
        struct rdt_ref ref = put_ordinary(i);
        must_ok(rdt_free(owner, &ref, false, &err));
        must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    }
}

static void reads_what_was_put(const char *sided)
{
    begin(sided);
    put_others(); /* what is loaned has been loaned before */
    struct rdt_ref ref = put_ordinary(1);
    for (unsigned i = 0; i < 2; i++)
        cluster_faults(&c, i, "delay_ms=50\n");
    rdt_request *request = start_one(reader, &ref, LONG);
    await_transfer(&c.node[0], "out", "sending");
    must_ok(rdt_free(owner, &ref, false, &err));
    put_others();
    for (unsigned i = 0; i < 2; i++)
        cluster_faults(&c, i, "");
    rdt_object *object = await_object(reader, request);
    cr_assert(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    rdt_request_destroy(request);
    end(NULL);
}

Test(loans_nodes, region_is_not_filled_again_while_another_node_reads_it)
{
    for (unsigned i = 0; i < 2; i++) {
        put_flags = i == 0 ? 0 : RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED;
        reads_what_was_put("one");
        reads_what_was_put("two");
    }
}

Test(loans_nodes, region_is_not_filled_again_while_another_node_holds_it)
{
    struct rdt_ref ref;
    rdt_request *hold;

    for (unsigned i = 0; i < 2; i++) {
        put_flags = i == 0 ? 0 : RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED;
        begin("both");
        put_others();
        ref = put_ordinary(1);
        must_ok(rdt_hold(reader, &ref, LONG, &hold, &err));
        must_ok(rdt_free(owner, &ref, false, &err));
        put_others();
        fetch_pattern(reader, &ref, BYTES, 1, NULL);
        rdt_request_destroy(hold);
        end(NULL);
    }
}
