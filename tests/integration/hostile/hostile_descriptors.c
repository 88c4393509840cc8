/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of an object of thousands of regions, each of which the daemon opens for it, holds nobody up. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

TestSuite(hostile_descriptors, .timeout = SUITE_SECONDS(60));

#define REGIONS 2000u
#define SAME 16u /* fetches that share a transfer */

static struct test_node node;
static rdt *owner, *reader, *other;
static struct rdt_ref large, small;
static const int64_t one[] = {1};

static void begin(void)
{
    static struct rdt_tensor tensors[REGIONS];
    const struct rlimit files = {16384, 16384}; /* a reader takes a quarter of them */
    uint8_t byte = 1;

    must(setrlimit(RLIMIT_NOFILE, &files) == 0);
    node_start(&node, &(struct node_options){0});
    owner = node_client(&node, "owner");
    reader = node_client(&node, "reader");
    other = node_client(&node, "other");
    for (unsigned i = 0; i < REGIONS; i++) {
        uint8_t *memory = alloc_memory(owner, 4096);
        *memory = (uint8_t)i;
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = one, .data = memory};
    }
    large = put_as(owner, tensors, REGIONS, NULL);
    small = put_one(owner, &VECTOR(RDT_U8, 1, &byte), "small");
}

static void end(void)
{
    rdt_close(other);
    rdt_close(reader);
    rdt_close(owner);
    node_end(&node, NULL);
}

/* Waits for the next transfer that ends; whether it is the fetch of the small object. */
static bool small_ends(struct raw *raw)
{
    for (;;) {
        Rdt__Pb__Event *event;
        bool ended, is_small;

        must(raw_next(raw));
        event = rdt__pb__event__unpack(NULL, raw->frame.length, raw->frame.payload);
        must(event);
        ended = raw->frame.type == RDT_EVENT_WATCHED && strcmp(event->what, "ended") == 0;
        is_small = ended && strstr(event->transfer->ref, "/small");
        rdt__pb__event__free_unpacked(event, NULL);
        if (ended)
            return is_small;
    }
}

static void must_hold(rdt_request *request)
{
    rdt_object *object;

    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    for (unsigned i = 0; i < REGIONS; i++)
        must(*(const uint8_t *)tensor_of(object, i).data == (uint8_t)i);
    rdt_release(object);
    rdt_request_destroy(request);
}

/* Both have asked before the daemon looks. */
Test(hostile_descriptors, others_are_answered_while_thousands_are_opened)
{
    Rdt__Pb__Watch watch = MESSAGE(watch, .kinds = 1u << RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS);
    rdt_request *fetches[2];
    rdt_object *object;
    struct raw raw;

    begin();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    rdt__pb__empty__free_unpacked(
        (Rdt__Pb__Empty *)raw_reply(&raw, raw_send(&raw, RDT_MSG_WATCH, &watch.base, NULL, 0), &rdt__pb__empty__descriptor),
        NULL);
    node_freeze(&node);
    fetches[0] = start_one(reader, &large, LONG);
    fetches[1] = start_one(other, &small, LONG);
    node_thaw(&node);
    must_say(small_ends(&raw), "the fetch of one byte waited for %u descriptors", REGIONS);
    must(!small_ends(&raw));
    must_ok(rdt_wait(other, &fetches[1], 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(fetches[1], &object, &err));
    rdt_release(object);
    rdt_request_destroy(fetches[1]);
    must_hold(fetches[0]);
    raw_close(&raw);
    end();
}

/* The reader goes, or does not wait any more, while they are opened. */
Test(hostile_descriptors, a_reader_that_leaves_meanwhile_leaves_none)
{
    rdt_request *request;
    rdt *gone;

    begin();
    for (unsigned i = 0; i < 20; i++) {
        request = start_one(reader, &large, LONG);
        rdt_request_destroy(request);
        gone = node_client(&node, "gone");
        (void)start_one(gone, &large, LONG);
        rdt_close(gone);
    }
    must_hold(start_one(reader, &large, LONG));
    wait_until(LONG, stat_of(owner, &large).holds == 1);
    end();
}

/* The answers to all of them have more descriptors than the daemon may have open, which are to last for others, too. */
Test(hostile_descriptors, object_that_a_call_fetches_too_often_is_refused_before_any_is_opened)
{
    static rdt_request *requests[SAME];
    static struct rdt_ref refs[SAME];
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};

    begin();
    for (unsigned i = 0; i < SAME; i++)
        refs[i] = large;
    must_ok(rdt_fetch_start(reader, refs, SAME, &options, requests, &err));
    for (unsigned i = 0; i < SAME; i++) {
        must_refuse(RDT_LIMIT, "file descriptors", rdt_wait(reader, &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
    }
    must_hold(start_one(reader, &large, LONG));
    end();
}
