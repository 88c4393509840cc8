/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "nccl": how groups end, and what they leave behind. */
#include <sched.h>
#include <sys/socket.h>

#include "tests/unit/backends/nccl_fixture.h"

TestSuite(nccl_ends, .timeout = 120);

Test(nccl_ends, closing_ends_what_was_never_matched_and_what_waits_behind_it)
{
    enum { CHUNKS = 200 };
    struct posted *in[CHUNKS];
    struct end end[2];

    begin();
    form(end);
    uint8_t *memory = buffer(1, CHUNKS * 4096);
    for (unsigned i = 0; i < CHUNKS; i++)
        in[i] = post(&end[1], 0, false, memory + i * 4096, 4096, 3, i);
    close_group(&end[1]);
    for (unsigned i = 0; i < CHUNKS; i++)
        expect(in[i], RDT_CANCELLED);
    close_group(&end[0]);
    form(end); /* the GPU serves the next group */
    in[0] = post(&end[1], 0, false, memory, 4096, 4, 0);
    in[1] = post(&end[0], 1, true, buffer(0, 4096), 4096, 4, 0);
    expect(in[0], RDT_OK);
    expect(in[1], RDT_OK);
    for (unsigned i = 0; i < 2; i++)
        close_group(&end[i]);
    finish();
}

Test(nccl_ends, lost_rank_is_told_once_and_what_it_owes_ends_when_the_group_is_closed)
{
    struct end end[2];

    begin();
    form(end);
    struct posted *in = post(&end[1], 0, false, buffer(1, MIB), MIB, 3, 0);
    close_group(&end[0]);
    must(wait_for(&end[1].failed));
    must(end[1].why[0]);
    must(!in->done);
    must_refuse(RDT_TRANSPORT, "taken down", ops->post_recv(ops->group_conn(end[1].group, 0), &(struct posted){0}.op, &err));
    close_group(&end[1]);
    expect(in, RDT_CANCELLED);
    finish();
}

/* How many group calls are in streams. */
static unsigned fake_calls(void)
{
    unsigned (*calls)(void);

    *(void **)(void *)&calls = dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "fake_nccl_calls");
    must(calls);
    return calls();
}

/* An abort waits for everything that runs on the GPU, so for the other group, which nobody has closed yet. */
Test(nccl_ends, two_groups_of_one_gpu_whose_peers_are_dead_can_be_closed)
{
    struct end end[2][2];
    struct posted *in[2];

    must(setenv("FAKE_NCCL_ABORT_WAITS", "1", 1) == 0);
    begin();
    if (gpu_is_real())
        cr_skip_test("only the fake says what is in its streams");
    form(end[0]);
    form(end[1]);
    uint8_t *memory = buffer(1, 2 * MIB);
    for (unsigned i = 0; i < 2; i++)
        in[i] = post(&end[i][1], 0, false, memory + i * MIB, MIB, 3 + i, 0); /* nobody sends */
    while (fake_calls() < 2)                                                 /* both are in the stream */
        (void)sched_yield();
    ops->group_close(end[0][1].group);
    close_group(&end[1][1]);
    must(wait_for(&end[0][1].closed));
    ops->group_destroy(end[0][1].group);
    for (unsigned i = 0; i < 2; i++) {
        expect(in[i], RDT_CANCELLED);
        close_group(&end[i][0]);
    }
    finish();
}

static void hold_aborts(bool hold)
{
    void (*hold_them)(bool);

    *(void **)(void *)&hold_them = dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "fake_nccl_hold_aborts");
    must(hold_them);
    hold_them(hold);
}

/* An abort that does not return costs its group and one thread: the other groups of the GPU form, move bytes and are told of
 * their operations as before. */
Test(nccl_ends, abort_that_does_not_return_stops_no_other_group)
{
    struct end doomed[2], end[2], later[2];

    begin();
    if (gpu_is_real())
        cr_skip_test("only the fake does not return when a test wants it");
    form(doomed);
    form(end);
    uint8_t *from = buffer(0, MIB);
    uint8_t *to = buffer(1, MIB);
    gpu_fill(from, MIB, 5);
    hold_aborts(true);
    ops->group_close(doomed[1].group);
    form(later); /* by the same threads, behind the close */
    struct posted *in = post(&end[1], 0, false, to, MIB, 4, 0);
    struct posted *out = post(&end[0], 1, true, from, MIB, 4, 0);
    expect(in, RDT_OK);
    expect(out, RDT_OK);
    gpu_use(1);
    must(gpu_holds(to, MIB, 5));
    must(!doomed[1].closed);
    hold_aborts(false);
    must(wait_for(&doomed[1].closed));
    ops->group_destroy(doomed[1].group);
    close_group(&doomed[0]);
    for (unsigned i = 0; i < 2; i++) {
        close_group(&end[i]);
        close_group(&later[i]);
    }
    finish();
}

Test(nccl_ends, group_that_never_connects_can_be_closed)
{
    struct end end;
    uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES] = {0};
    const void *blobs[2] = {blob, blob};
    size_t bytes[2] = {0, 0};

    begin();
    create(&end, 0);
    close_group(&end); /* never offered */
    create(&end, 0);
    must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
    must_ok(ops->group_connect(end.group, blobs, bytes, &err)); /* the other rank never connects */
    close_group(&end);
    create(&end, 1);
    bytes[0] = 5;
    must_refuse(RDT_PROTOCOL, "rank 0", ops->group_connect(end.group, blobs, bytes, &err));
    close_group(&end);
    must(!end.ready && !end.failed);
    finish();
}

/* Returns the number of listening sockets of this process, Unix sockets aside. */
static unsigned listeners(void)
{
    unsigned n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        int domain = 0, listens = 0;
        socklen_t bytes = sizeof(int);

        n += getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_UNIX &&
             getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens;
    }
    return n;
}

Test(nccl_ends, groups_that_never_connect_leave_no_port_open)
{
    enum { GROUPS = 5 };
    static uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES];
    const void *blobs[2] = {blob, blob};
    size_t bytes[2] = {0, 0};
    struct end end;

    begin();
    unsigned before = listeners();
    for (unsigned i = 0; i < GROUPS; i++) {
        create(&end, 0);
        must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
        must(listeners() > before); /* the bootstrap socket */
        if (i % 2)
            must_ok(ops->group_connect(end.group, blobs, bytes, &err)); /* the other rank never connects */
        close_group(&end);
        wait_until(5 * SEC, listeners() == before);
    }
    create(&end, 0);
    must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
    ops->group_destroy(end.group); /* another part of the group could not be created */
    wait_until(5 * SEC, listeners() == before);
    finish();
}

Test(nccl_ends, port_of_a_group_is_closed_when_all_ranks_have_come)
{
    struct end end[2];

    begin();
    if (gpu_is_real())
        cr_skip_test("NCCL's own ports for data stay open");
    unsigned before = listeners();
    form(end);
    wait_until(5 * SEC, listeners() == before);
    for (unsigned i = 0; i < 2; i++)
        close_group(&end[i]);
    finish();
}
