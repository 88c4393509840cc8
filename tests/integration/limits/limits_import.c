/* SPDX-License-Identifier: Apache-2.0 */
/* Imported memory and the worker pool that opens it: the daemon does not open what it refuses, and a client that has left
 * delays nobody who waits for room, even while the pool is blocked in its import. */
#include <poll.h>

#include "tests/integration/limits/limits.h"

#include "tests/support/fakes/fake_device.h"

TestSuite(limits_import, .timeout = 120);

static struct fake_devices gpu;
static struct fake_memory_own own;

static void begin_with_device(const char *const *flags)
{
    fake_device_init(&gpu, "one", flags);
    fake_device_malloc(&own, 1, 4096);
    begin(gpu.flags);
}

static void end_with_device(void)
{
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 0 && atomic_load(&gpu.control->handles) == 0);
    end(NULL);
    fake_device_free(&own);
    fake_device_fini(&gpu);
}

static uint64_t send_import(struct raw *raw)
{
    Rdt__Pb__Import import = MESSAGE(import, .memory = (char *)"fake", .device = (char *)"FAKE-0",
                                     .kind = RDT__PB__REGION_KIND__REGION_KIND_LEGACY_IPC, .bytes = 4096,
                                     .handle = (ProtobufCBinaryData){sizeof own.handle, (uint8_t *)&own.handle});
    return raw_send(raw, RDT_MSG_IMPORT, &import.base, NULL, 0);
}

static void expect_region(struct raw *raw, uint64_t id)
{
    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__region_reply__descriptor), NULL);
    frame_close_fds(&raw->frame);
}

Test(limits_import, import_beyond_the_limit_of_waiters_is_not_opened)
{
    struct raw raw;
    char text[256];

    begin_with_device((const char *const[]){"--client-max-waiters=1", NULL});
    greeted(&raw);
    Rdt__Pb__Ref nobody = MESSAGE(ref, .id = (ProtobufCBinaryData){6, (uint8_t *)"nobody"});
    Rdt__Pb__Wait wait = MESSAGE(wait, .ref = &nobody, .timeout_ns = -1);
    Rdt__Pb__CancelRequest cancel = MESSAGE(cancel_request, .request_id = raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0));
    (void)send_import(&raw);
    must_be(RDT_LIMIT, raw_error(&raw, text));
    must_say(strstr(text, "client_max_waiters") && atomic_load(&gpu.control->opened[0]) == 0, "%s, and %u were opened", text,
             atomic_load(&gpu.control->opened[0]));
    (void)raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    must_be(RDT_CANCELLED, raw_error(&raw, text));
    must(raw_next(&raw));
    expect_region(&raw, send_import(&raw));
    must(atomic_load(&gpu.control->opened[0]) == 1);
    raw_close(&raw);
    end_with_device();
}

/* ---- the pool stands still ---- */

static uint64_t send_put(struct raw *raw)
{
    Rdt__Pb__Put put = MESSAGE(put, .timeout_ns = -1);
    return raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
}

static int wait_and_say_much(struct actor *self, void *arg)
{
    static uint8_t data[400 * 1024];
    struct raw raw;

    greeted(&raw);
    (void)send_put(&raw);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){sizeof data, data});
    (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0); /* which the pool is to read */
    actor_step(self);
    (void)poll(NULL, 0, -1); /* until it is killed */
    return 0;
}

static size_t n_clients(void)
{
    Rdt__Pb__ListReply *reply = list(&watcher, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    size_t n = reply->n_clients;

    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return n;
}

Test(limits_import, client_that_has_left_is_passed_over)
{
    struct raw waiting;
    struct actor actor;

    begin((const char *const[]){"--max-objects=1", NULL});
    struct rdt_ref first = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), NULL);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace");
    actor_start(&actor, wait_and_say_much, NULL);
    actor_await(&actor);
    wait_until(LONG, used(0, "waiters") == 1 && used(0, "heap") > 400 * 1024);
    for (unsigned i = 0; i < 20; i++)
        must_ok(rdt_ping(other, LONG, &err)); /* all that it said has come */
    greeted(&waiting);
    uint64_t id = send_put(&waiting);
    wait_until(LONG, used(0, "waiters") == 2);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, n_clients() == 4);
    must_ok(rdt_free(conn, &first, false, &err));
    protobuf_c_message_free_unpacked(raw_reply(&waiting, id, &rdt__pb__put_reply__descriptor), NULL);
    node_release_workers(&node);
    raw_close(&waiting);
    end(NULL);
}
