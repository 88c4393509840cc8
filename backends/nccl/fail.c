/* SPDX-License-Identifier: Apache-2.0 */
/* The states of groups; and their failures, as NCCL and the driver tell them and the core learns of them. */
#include <stdio.h>

#include "backends/common/states.h"
#include "backends/nccl/worker.h"

#define WHY_BYTES 320

/* ---- states ---- */

/* The drawing is in nccl.h. */
void party_set_state(struct party *party, enum party_state to)
{
    static const struct sm_state states[] = {
        [PARTY_IDLE] = {"idle group", 1u << PARTY_WANTED},
        [PARTY_WANTED] = {"wanted group", 1u << PARTY_CONNECTING | 1u << PARTY_FAILED | 1u << PARTY_CLOSED},
        [PARTY_CONNECTING] = {"connecting group", 1u << PARTY_READY | 1u << PARTY_FAILED | 1u << PARTY_CLOSED},
        [PARTY_READY] = {"ready group", 1u << PARTY_FAILED | 1u << PARTY_CLOSED},
        [PARTY_FAILED] = {"failed group", 1u << PARTY_CLOSED},
        [PARTY_CLOSED] = {"closed group", 0},
    };

    states_check(&party->nccl->host, states, PARTY_CLOSED + 1, party->state, to);
    party->state = to;
}

/* ---- failures ---- */

void worker_fail(struct worker *worker, struct party *party, const char *why)
{
    bool report;

    (void)pthread_mutex_lock(&worker->mutex);
    report = !party->closing && party->state != PARTY_FAILED;
    if (party->state != PARTY_FAILED)
        party_set_state(party, PARTY_FAILED);
    (void)pthread_mutex_unlock(&worker->mutex);
    if (report)
        worker->nccl->host.group_failed(party->ctx, RDT_TRANSPORT, why);
}

void worker_fail_nccl(struct worker *worker, struct party *party, const char *what, int error)
{
    const char *last = api_of(worker)->ncclGetLastError(party->comm);
    char why[WHY_BYTES];

    (void)snprintf(why, sizeof why, "%s: %s%s%.200s", what, api_of(worker)->ncclGetErrorString(error),
                   last && last[0] ? ": " : "", last ? last : "");
    for (char *at = why; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    worker_fail(worker, party, why);
}

void worker_fail_cuda(struct worker *worker, struct party *party, const char *what, CUresult result)
{
    struct rdt_error err;

    (void)cuda_failed(worker->nccl->driver, result, &err, what);
    worker_fail(worker, party, err.msg);
}

int worker_query_comm(struct worker *worker, struct party *party, const char *what)
{
    int state = NCCL_SUCCESS, error = api_of(worker)->ncclCommGetAsyncError(party->comm, &state);

    if (error == NCCL_SUCCESS)
        error = state;
    if (error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
        worker_fail_nccl(worker, party, what, error);
    return error;
}
