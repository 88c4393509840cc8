/* SPDX-License-Identifier: Apache-2.0 */
/* The fetches of one transfer are answered in slices of the loop, however many have joined it: its memory stays until the last
 * has its answer, and each may end by itself meanwhile. Nothing here measures time: N answers need more than one slice on any
 * machine. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/transfers/transfer_impl.h"

enum { N = 20000 };

static uv_loop_t loop;
static struct deadlines deadlines;
static struct accounts accounts;
static struct client many, one; /* `many` has all fetches but the last */
static struct transfers *transfers;
static unsigned n_done, n_errors, n_to_one, n_idle;

static void on_send(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id, const ProtobufCMessage *message,
                    const int *fds, unsigned n_fds)
{
    const Rdt__Pb__FetchDone *done = (const Rdt__Pb__FetchDone *)message;

    cr_assert(type == RDT_EVENT_FETCH_DONE && request_id == done->handle && n_fds == 0);
    *(done->status == RDT_OK ? &n_done : &n_errors) += 1;
    n_to_one += client == &one;
}

static void on_idle(struct transfers *of)
{
    n_idle++;
}

static void setup(void)
{
    const struct owner me = {.uid = 1000};

    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    accounts_init(&accounts);
    client_init(&many, 1);
    client_init(&one, 2);
    many.account = account_get(&accounts, &me);
    one.account = account_get(&accounts, &me);
    many.conn.send = one.conn.send = on_send;
    transfers = calloc(1, sizeof *transfers);
    transfers->counts = calloc(1, sizeof *transfers->counts);
    transfers_init(transfers);
    transfers->deadlines = &deadlines;
    transfers_set_on_idle(transfers, on_idle);
    n_done = n_errors = n_to_one = n_idle = 0;
}

static void teardown(void)
{
    cr_assert(transfers_active(transfers) == 0 && n_idle == 1, "a transfer is left");
    cr_assert_eq(many.account->used[USAGE_TRANSFERS], 0u, "a fetch is counted");
    transfers_fini(transfers);
    free(transfers->counts);
    free(transfers);
    client_fini(&many, UINT64_MAX);
    client_fini(&one, UINT64_MAX);
    account_unref(many.account);
    account_unref(one.account);
    accounts_fini(&accounts);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(answers, .init = setup, .fini = teardown, .timeout = 60);

static struct fetch *join(struct transfer *transfer, struct client *client, uint64_t handle)
{
    struct fetch *fetch = calloc(1, sizeof *fetch);

    cr_assert_eq(account_take(client->account, USAGE_TRANSFERS, 1, NULL), RDT_OK);
    fetch->client = client;
    fetch->handle = handle;
    fetch->transfer = transfer;
    cr_assert(map_put_u64(&client->transfers.fetches, handle, fetch));
    list_append(&transfer->fetches, &fetch->by_transfer);
    transfer->n_fetches++;
    return fetch;
}

static struct transfer *begin(void)
{
    const struct rdt_ref ref = {.id = "joined", .id_bytes = 6};
    struct transfer *transfer = transfer_new(transfers, &transfer_local_kind, &many, many.account, &ref);

    for (uint64_t handle = 1; handle < N; handle++)
        (void)join(transfer, &many, handle);
    (void)join(transfer, &one, N);
    return transfer;
}

static void run_until_idle(void)
{
    while (n_idle == 0)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* One fetch is cancelled, one meets its deadline, and one client ends, all while answers are given. */
Test(answers, are_given_in_slices_and_fetches_end_meanwhile)
{
    struct transfer *transfer = begin();
    const struct rdt_error cancelled = {.status = RDT_CANCELLED};
    uint64_t id = transfer->id;

    transfer_deliver_meta(transfer);
    transfer_end(transfer);
    cr_assert(n_done > 0 && n_done < N && n_errors == 0, "%u of %u were answered in one turn", n_done, N);
    cr_assert(transfers_active(transfers) == 1 && !transfers_find(transfers, id));
    fetch_fail(map_get_u64(&many.transfers.fetches, N - 1), &cancelled);
    cr_assert_eq(n_errors, 1u);
    cr_assert(fetch_answer_now(map_get_u64(&many.transfers.fetches, N - 2)), "its answer is ready");
    cr_assert(transfers_client_gone(transfers, &one, UINT64_MAX));
    run_until_idle();
    cr_assert(n_done == N - 2 && n_errors == 1 && n_to_one == 0);
}

Test(answers, failure_ends_the_transfer_at_once_and_its_fetches_in_slices)
{
    struct transfer *transfer = begin();
    uint64_t id = transfer->id;

    transfer_fail(transfer, RDT_PEER_LOST, "the node is lost");
    cr_assert(n_errors > 0 && n_errors < N, "%u of %u were answered in one turn", n_errors, N);
    cr_assert(transfers_active(transfers) == 1 && !transfers_find(transfers, id));
    cr_assert_eq(transfers_history(transfers, 0)->status, RDT_PEER_LOST);
    run_until_idle();
    cr_assert(n_errors == N && n_done == 0 && n_to_one == 1);
}

Test(answers, end_with_the_clients)
{
    struct transfer *transfer = begin();

    transfer_deliver_meta(transfer);
    transfer_end(transfer);
    unsigned n_sent = n_done;
    cr_assert(transfers_client_gone(transfers, &many, UINT64_MAX));
    cr_assert(transfers_client_gone(transfers, &one, UINT64_MAX));
    cr_assert_eq(n_idle, 1u);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert(n_done == n_sent && n_errors == 0);
}
