/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "nccl": bytes, the queue of a GPU, groups that are refused, and why the transport is not available. */
#include <ctype.h>

#include "tests/unit/backends/nccl_fixture.h"

TestSuite(nccl, .timeout = 120);

Test(nccl, chunks_of_both_directions_arrive_where_they_belong)
{
    enum { CHUNKS = 20 };
    struct posted *in[2][CHUNKS], *out[2][CHUNKS];
    const size_t chunk = 300000, all = chunk * CHUNKS;
    struct end end[2];
    uint8_t *from[2], *to[2];

    begin();
    form(end);
    for (unsigned i = 0; i < 2; i++) {
        from[i] = buffer(i, all);
        to[i] = buffer(i, all);
        gpu_fill(from[i], all, 40 + i);
    }
    for (unsigned way = 0; way < 2; way++) { /* from node `way` to the other one; receives first, as the core posts them */
        for (unsigned i = 0; i < CHUNKS; i++)
            in[way][i] = post(&end[1 - way], way, false, to[1 - way] + i * chunk, chunk, 7 + way, i);
        for (unsigned i = 0; i < CHUNKS; i++)
            out[way][i] = post(&end[way], 1 - way, true, from[way] + i * chunk, chunk, 7 + way, i);
    }
    for (unsigned way = 0; way < 2; way++)
        for (unsigned i = 0; i < CHUNKS; i++) {
            expect(in[way][i], RDT_OK);
            expect(out[way][i], RDT_OK);
        }
    for (unsigned i = 0; i < 2; i++) {
        gpu_use(i);
        must(gpu_holds(to[i], all, 41 - i));
        close_group(&end[i]);
    }
    finish();
}

Test(nccl, all_of_one_gpu_stands_in_one_queue_in_the_order_of_posting)
{
    struct end end[2], other[2];
    struct posted *first, *second, *sent[2];
    void *memory[2];

    begin();
    form(end);
    form(other);
    const char *queue = ops->queue(ops->group_conn(end[0].group, 1), "cuda", members[0].device);
    must(queue && strcmp(queue, members[0].device) == 0);
    must(strcmp(ops->queue(ops->group_conn(other[0].group, 1), "cuda", members[0].device), queue) == 0);
    must(!ops->queue(ops->group_conn(end[0].group, 1), "host", ""));
    for (unsigned i = 0; i < 2; i++)
        memory[i] = buffer(i, 2 * MIB);
    first = post(&end[1], 0, false, memory[1], MIB, 1, 0);
    second = post(&other[1], 0, false, (uint8_t *)memory[1] + MIB, MIB, 2, 0);
    sent[0] = post(&end[0], 1, true, memory[0], MIB, 1, 0);
    sent[1] = post(&other[0], 1, true, memory[0], MIB, 2, 0);
    must(wait_for(&second->done));
    unsigned turn = second->turn;
    must(wait_for(&first->done));
    must(first->turn < turn);
    expect(first, RDT_OK);
    expect(second, RDT_OK);
    expect(sent[0], RDT_OK);
    expect(sent[1], RDT_OK);
    for (unsigned i = 0; i < 2; i++) {
        close_group(&end[i]);
        close_group(&other[i]);
    }
    finish();
}

Test(nccl, members_without_a_gpu_or_with_a_strange_one_are_refused)
{
    struct rdt_group_member strange[] = {{{1}, ""}, {{2}, "GPU-0"}};
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, 2, strange, {9}};
    struct end end;

    begin();
    must_refuse(RDT_INVALID, "rank 0", ops->group_create(node[0], &desc, &end, &end.group, &err));
    desc.rank = 1;
    must_refuse(RDT_NOT_FOUND, members[1].device, ops->group_create(node[0], &desc, &end, &end.group, &err));
    finish();
}

Test(nccl, more_ranks_of_a_node_than_it_can_have_gpus_are_refused)
{
    enum { MANY = 1024 };
    static struct rdt_group_member crowd[MANY];
    static char names[MANY][16];
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, MANY, crowd, {9}};
    struct end end = {0};

    begin();
    crowd[0] = members[0];
    for (unsigned i = 1; i < MANY; i++) {
        (void)snprintf(names[i], sizeof names[i], "GPU-%u", i);
        crowd[i] = (struct rdt_group_member){{2}, names[i]};
    }
    must_refuse(RDT_LIMIT, "rank 65 is the 65th of one node", ops->group_create(node[0], &desc, &end, &end.group, &err));
    desc.size = 65; /* the largest number that is allowed on a node */
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    close_group(&end);
    for (unsigned i = 0; i < MANY; i++)
        crowd[i].node_uuid[1] = (uint8_t)(i / 8), crowd[i].node_uuid[2] = 1; /* a large cluster */
    desc.size = MANY;
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    close_group(&end);
    finish();
}

Test(nccl, gpu_is_known_however_its_name_is_spelt)
{
    char text[64];
    struct rdt_group_member loud[2];
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, 2, loud, {9}};
    struct end end = {0};

    begin();
    memcpy(loud, members, sizeof loud);
    for (size_t i = 0; i <= strlen(members[0].device); i++)
        text[i] = (char)toupper(members[0].device[i]);
    loud[0].device = text;
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    must(strcmp(ops->queue(ops->group_conn(end.group, 1), "cuda", text), members[0].device) == 0);
    close_group(&end);
    finish();
}

/* ---- the reasons why the transport is not available (without NCCL: gpu_missing) ---- */

Test(nccl, unavailable_without_a_driver)
{
    load();
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
        cr_skip_test("this machine has a driver");
    (void)dlopen(build_path("tests/fake_nccl/libnccl.so.2"), RTLD_LAZY | RTLD_LOCAL);
    if (!dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL))
        cr_skip_test("the fake NCCL cannot be loaded without the fake driver");
    must_refuse(RDT_UNSUPPORTED, "there is no NVIDIA driver", ops->open(&host, &node[0], &err));
}

static void load_fake_nccl_only(const char *driver)
{
    (void)dlopen(build_path(driver), RTLD_NOW | RTLD_LOCAL);
    (void)dlopen(build_path("tests/fake_nccl/libnccl.so.2"), RTLD_LAZY | RTLD_LOCAL);
}

Test(nccl, unavailable_with_a_stub_of_a_driver)
{
    load();
    if (getenv("RDT_TEST_GPU"))
        cr_skip_test("this is the machine's own driver");
    load_fake_nccl_only("tests/stub_cuda/libcuda.so.1");
    must_refuse(RDT_UNSUPPORTED, "stub", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_without_a_gpu)
{
    load();
    if (getenv("RDT_TEST_GPU"))
        cr_skip_test("this is the machine's own driver");
    setenv("FAKE_CUDA_GPUS", "0", 1);
    load_fake_nccl_only("tests/fake_cuda/libcuda.so.1");
    must_refuse(RDT_UNSUPPORTED, "no GPU", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_on_a_network_that_is_not_trusted)
{
    load();
    if (!getenv("RDT_TEST_GPU"))
        fake_nccl_load();
    trusted = "no";
    must_refuse(RDT_UNSUPPORTED, "trusted_network", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_without_peers)
{
    load();
    if (!getenv("RDT_TEST_GPU"))
        fake_nccl_load();
    peers = "no";
    must_refuse(RDT_UNSUPPORTED, "no port is opened: set listen, and key_file or peer_cert", ops->open(&host, &node[0], &err));
}
