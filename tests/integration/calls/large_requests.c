/* SPDX-License-Identifier: Apache-2.0 */
/* Large requests, which a worker thread reads: they stay in order with their client's other requests and are refused like
 * others. A client that leaves or stops reading meanwhile delays nobody else. */
#include <signal.h>

#include "tests/integration/hostile/protocol_fixture.h"

#define TENSORS 60000u
#define METADATA (4u << 20)

static uint8_t *metadata;

TestSuite(large_requests, .timeout = 120);

/* Tensors of one byte each in one region, or without elements; the arrays are the test's for good. */
static Rdt__Pb__Put *large_put(char *id, const Rdt__Pb__RegionUse *use, uint32_t count)
{
    static uint32_t dtype[TENSORS], ndim[TENSORS], region[TENSORS];
    static uint64_t shape[TENSORS], offset[TENSORS];
    static Rdt__Pb__TensorList tensors;
    static Rdt__Pb__RegionUse *uses[1];
    static Rdt__Pb__Put put;

    if (!metadata) {
        metadata = malloc(METADATA);
        fill_pattern(metadata, METADATA, 9);
    }
    for (uint32_t i = 0; i < count; i++) {
        dtype[i] = RDT_U8;
        ndim[i] = 1;
        region[i] = 0;
        offset[i] = use ? i : 0;
        shape[i] = use ? 1 : 0;
    }
    rdt__pb__tensor_list__init(&tensors);
    rdt__pb__put__init(&put);
    tensors.n_dtype = tensors.n_ndim = tensors.n_shape = tensors.n_region_index = tensors.n_offset = count;
    tensors.dtype = dtype;
    tensors.ndim = ndim;
    tensors.shape = shape;
    tensors.region_index = region;
    tensors.offset = offset;
    uses[0] = (Rdt__Pb__RegionUse *)use;
    put.n_regions = use ? 1 : 0;
    put.regions = uses;
    put.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id};
    put.tensors = &tensors;
    put.metadata = (ProtobufCBinaryData){METADATA, metadata};
    put.visibility = RDT__PB__VISIBILITY__VISIBILITY_ALL;
    return &put;
}

static uint64_t send_free(struct raw *raw, char *id)
{
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id}, .any_owner = true);
    Rdt__Pb__Free message = MESSAGE(free, .ref = &ref);
    return raw_send(raw, RDT_MSG_FREE, &message.base, NULL, 0);
}

static void replies(struct raw *raw, uint64_t id, const ProtobufCMessageDescriptor *type)
{
    protobuf_c_message_free_unpacked(raw_reply(raw, id, type), NULL);
}

/* ---- the object is what was put ---- */

static void is_whole(const char *id, bool with_bytes)
{
    struct rdt_ref ref;
    size_t bytes;

    must_ok(rdt_ref_from_id(id, strlen(id), &ref, &err));
    rdt_object *object = fetch_one(bystander, &ref, RDT_FETCH_AUTO);
    cr_assert_eq(rdt_object_count(object), TENSORS);
    cr_assert_eq(tensor_of(object, TENSORS - 1).shape[0], (int64_t)with_bytes);
    cr_assert(holds_pattern(rdt_object_metadata(object, &bytes), METADATA, 9));
    cr_assert_eq(bytes, METADATA);
    rdt_release(object);
}

Test(large_requests, put_is_whole_and_keeps_its_place)
{
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    use.region = raw_alloc(&raw, TENSORS, NULL, &use.generation);
    for (unsigned i = 0; i < 3; i++) {
        Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
        uint64_t empty = raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"empty", NULL, TENSORS)->base, NULL, 0), again, pong,
                 gone;

        /* All of them are on their way before the first is answered: only in their order are they answered well. */
        pong = raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
        gone = send_free(&raw, (char *)"empty");
        again = raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"empty", &use, TENSORS)->base, NULL, 0);
        replies(&raw, empty, &rdt__pb__put_reply__descriptor);
        replies(&raw, pong, &rdt__pb__ping__descriptor);
        replies(&raw, gone, &rdt__pb__empty__descriptor);
        replies(&raw, again, &rdt__pb__put_reply__descriptor);
        is_whole("empty", true);
        replies(&raw, send_free(&raw, (char *)"empty"), &rdt__pb__empty__descriptor);
    }
    replies(&raw, raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"kept", NULL, TENSORS)->base, NULL, 0),
            &rdt__pb__put_reply__descriptor);
    is_whole("kept", false);
    raw_close(&raw);
    end();
}

/* ---- refusals ---- */

Test(large_requests, refused_as_small_ones_are)
{
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    uint8_t *broken = calloc(1, 1 << 20);
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    use.region = raw_alloc(&raw, 4096, NULL, &use.generation); /* too small for them */
    Rdt__Pb__Put *put = large_put((char *)"x", &use, TENSORS);
    (void)raw_send(&raw, RDT_MSG_PUT, &put->base, NULL, 0);
    refuses(&raw, RDT_INVALID, "tensor 59999 ends at byte 60000 of region");
    put->tensors->region_index[7] = 1;
    (void)raw_send(&raw, RDT_MSG_PUT, &put->base, NULL, 0);
    refuses(&raw, RDT_INVALID, "tensor 7 names region 1 of 1");
    put->tensors->dtype[3] = 12345;
    (void)raw_send(&raw, RDT_MSG_PUT, &put->base, NULL, 0);
    refuses(&raw, RDT_INVALID, "tensor 3: dtype 12345");
    use.generation++;
    (void)raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"x", &use, TENSORS)->base, NULL, 0);
    refuses(&raw, RDT_NOT_FOUND, "this client has no region");
    put = large_put((char *)"theirs", NULL, TENSORS);
    (void)raw_send(&raw, RDT_MSG_PUT, &put->base, NULL, 0);
    refuses(&raw, RDT_EXISTS, "theirs");
    ping_works(&raw);
    memset(broken, 0xff, 1 << 20);
    (void)raw_frame(&raw, 1 << 20, RDT_MSG_PUT, 0, 0, 5, broken, 1 << 20, NULL, 0);
    refuses(&raw, RDT_PROTOCOL, "PUT cannot be decoded");
    free(broken);
    raw_close(&raw);
    end();
}

/* ---- who goes meanwhile ---- */

Test(large_requests, client_that_goes_while_it_is_read_leaves_nothing)
{
    struct node_status status;

    begin(NULL);
    for (unsigned i = 0; i < 12; i++) {
        struct raw raw;
        greeted(&raw);
        (void)raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"gone", NULL, TENSORS)->base, NULL, 0);
        if (i % 2) /* and waits for the one of the client before, or for its own */
            (void)raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"too", NULL, TENSORS)->base, NULL, 0);
        raw_close(&raw);
    }
    others_are_well();
    wait_until(20 * SEC, (status = node_now(&node), status.clients == 1 && status.objects == 1));
    end();
}

static int put_and_free(struct actor *self, void *arg)
{
    struct raw raw;
    char id[32];

    greeted(&raw);
    (void)snprintf(id, sizeof id, "of-%d", (int)getpid());
    actor_await(self);
    for (unsigned i = 0; i < 3; i++) {
        replies(&raw, raw_send(&raw, RDT_MSG_PUT, &large_put(id, NULL, TENSORS)->base, NULL, 0),
                &rdt__pb__put_reply__descriptor);
        replies(&raw, send_free(&raw, id), &rdt__pb__empty__descriptor);
    }
    raw_close(&raw);
    return 0;
}

Test(large_requests, many_at_once_all_have_their_turn)
{
    struct actor actors[6];

    begin(NULL);
    for (unsigned i = 0; i < 6; i++)
        actor_start(&actors[i], put_and_free, NULL);
    for (unsigned i = 0; i < 6; i++)
        actor_step(&actors[i]);
    others_are_well();
    for (unsigned i = 0; i < 6; i++)
        actor_wait(&actors[i]);
    end();
}

/* The client's own large messages wait until it reads its answers; other clients' messages do not wait for them. */
Test(large_requests, client_that_does_not_read_holds_nobody_up)
{
    struct actor deaf;
    struct raw raw;

    begin(NULL);
    actor_start(&deaf, never_read, NULL);
    wait_until(20 * SEC, most_queued() > UNREAD_MAX);
    greeted(&raw);
    for (unsigned i = 0; i < 3; i++) {
        replies(&raw, raw_send(&raw, RDT_MSG_PUT, &large_put((char *)"x", NULL, TENSORS)->base, NULL, 0),
                &rdt__pb__put_reply__descriptor);
        replies(&raw, send_free(&raw, (char *)"x"), &rdt__pb__empty__descriptor);
    }
    actor_kill(&deaf, SIGKILL);
    raw_close(&raw);
    end();
}

/* The daemon ends while it reads. */
Test(large_requests, daemon_ends_cleanly_while_one_is_read)
{
    struct raw raw[3];

    begin(NULL);
    for (unsigned i = 0; i < 3; i++) {
        greeted(&raw[i]);
        (void)raw_send(&raw[i], RDT_MSG_PUT, &large_put((char *)"x", NULL, TENSORS)->base, NULL, 0);
    }
    others_are_well();
    rdt_close(bystander);
    node_stop(&node);
    for (unsigned i = 0; i < 3; i++)
        raw_close(&raw[i]);
    node_check_log(&node, declared);
}
