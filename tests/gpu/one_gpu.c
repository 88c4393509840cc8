/* SPDX-License-Identifier: Apache-2.0 */
/* Tests for which one GPU is enough: NCCL's own send and receive to the same rank, with the functions and in the way that
 * the plug-in uses them, and two daemons on one GPU, where the installed NCCL allows that. On FAKES, which say nothing
 * about NCCL or a GPU; with RDT_TEST_GPU set (make test-gpu) on the machine's own.
 *
 * The leak checker of gcc 12: see cuda_nodes.c.
 * lsan: use_tls=0
 */

#ifdef RDT_WITHOUT_CUDA
#include <criterion/criterion.h>

Test(one_gpu, memory)
{
    cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
}
#else
#include <stdlib.h>

#include "backends/nccl/nccl_api.h"
#include "tests/gpu/nodes_fixture.h"

TestSuite(one_gpu, .timeout = 200);

static const struct nccl_api *api;

static int state_of(nccl_comm comm)
{
    int state = NCCL_SUCCESS, error = api->ncclCommGetAsyncError(comm, &state);

    return error == NCCL_SUCCESS ? state : error;
}

/* A call that may go on by itself: until NCCL has done it. */
static void await_nccl(nccl_comm comm, int error, const char *what)
{
    must_say(error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS, "%s: %s", what, api->ncclGetErrorString(error));
    wait_until(LONG, state_of(comm) != NCCL_IN_PROGRESS);
    error = state_of(comm);
    must_say(error == NCCL_SUCCESS, "%s: %s: %s", what, api->ncclGetErrorString(error), api->ncclGetLastError(comm));
}

/* Of both kinds of memory: what a client has from cudaMalloc, and chunks as the daemon's own. */
Test(one_gpu, nccl_sends_to_itself_and_receives_in_one_group_call)
{
    enum { TENSORS = 2 };
    static const size_t bytes[TENSORS] = {BYTES, 4 * MIB};
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    void *from[TENSORS], *to[TENSORS], *stream;
    nccl_comm comm = NULL;
    struct nccl_id id;
    const char *why;

    if (!nccl_or_skip())
        return;
    if (!gpu_is_real())
        fake_nccl_load();
    must_say(gpu_there(&why), "%s", why);
    gpu_use(0);
    must_ok(nccl_api_open(&api, &err));
    from[0] = gpu_alloc(bytes[0]);
    to[0] = gpu_alloc(bytes[0]);
    from[1] = gpu_alloc_chunks(2 * MIB, 2, true);
    to[1] = gpu_alloc_chunks(2 * MIB, 2, true);
    for (unsigned i = 0; i < TENSORS; i++) {
        gpu_fill(from[i], bytes[i], i + 1);
        gpu_fill(to[i], bytes[i], 9);
    }
    stream = gpu_stream_create();
    must(api->ncclGetUniqueId(&id) == NCCL_SUCCESS);
    int error = api->ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    await_nccl(comm, error, "ncclCommInitRankConfig");
    must(api->ncclGroupStart() == NCCL_SUCCESS);
    for (unsigned i = 0; i < TENSORS; i++) {
        int sent = api->ncclSend(from[i], bytes[i], NCCL_BYTES, 0, comm, stream);
        int received = api->ncclRecv(to[i], bytes[i], NCCL_BYTES, 0, comm, stream);
        must_say((sent == NCCL_SUCCESS || sent == NCCL_IN_PROGRESS) &&
                     (received == NCCL_SUCCESS || received == NCCL_IN_PROGRESS),
                 "tensor %u: %d, %d", i, sent, received);
    }
    await_nccl(comm, api->ncclGroupEnd(), "ncclGroupEnd");
    gpu_stream_wait(stream);
    for (unsigned i = 0; i < TENSORS; i++)
        must_say(gpu_holds(to[i], bytes[i], i + 1), "tensor %u", i);
    must(api->ncclCommAbort(comm) == NCCL_SUCCESS);
    gpu_stream_destroy(stream);
    gpu_free(from[0]);
    gpu_free(to[0]);
    gpu_free_chunks(from[1], 2 * MIB, 2);
    gpu_free_chunks(to[1], 2 * MIB, 2);
}

Test(one_gpu, two_daemons_move_by_nccl)
{
    void *addr;

    if (!nccl_or_skip())
        return;
    begin(true, NULL);
    if (!form_or_skip(gpu_uuid(0)))
        return;
    struct rdt_ref ref = put_on_gpu(BYTES, 6, &addr);
    struct rdt_fetch_options options = to("cuda", gpu_uuid(0));
    options.group = "g";
    options.least_path = "direct";
    for (unsigned i = 0; i < 5; i++)
        expect(&ref, &options, BYTES, 6, "nccl");
    drop(&ref, addr);
    must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    end(NULL);
}

Test(one_gpu, refusal_is_told_in_nccls_words_and_everything_else_goes_on)
{
    void *addr;

    if (gpu_is_real())
        cr_skip_test("whether this machine's NCCL refuses is not for a test to say");
    (void)setenv("FAKE_NCCL_REFUSES", "1", 1);
    begin(true, NULL);
    must_refuse(RDT_TRANSPORT, "Duplicate GPU", form(gpu_uuid(0), &err));
    struct rdt_ref ref = put_on_gpu(BYTES, 6, &addr);
    struct rdt_fetch_options options = to("cuda", gpu_uuid(0));
    expect(&ref, &options, BYTES, 6, "stream/staged");
    drop(&ref, addr);
    end(refused);
}
#endif
