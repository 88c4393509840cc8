/* SPDX-License-Identifier: Apache-2.0 */
/* The failures of groups, as NCCL and the driver tell them and the core learns of them. */
#include <stdio.h>

#include "backends/nccl/lane.h"

#define WHY_BYTES 320

void lane_fail(struct lane *lane, struct party *party, const char *why)
{
    bool report;

    (void)pthread_mutex_lock(&lane->mutex);
    report = !party->closing && party->state != PARTY_FAILED;
    party->state = PARTY_FAILED;
    (void)pthread_mutex_unlock(&lane->mutex);
    if (report)
        lane->nccl->host.group_failed(party->ctx, RDT_TRANSPORT, why);
}

void lane_fail_nccl(struct lane *lane, struct party *party, const char *what, int error)
{
    const char *last = api_of(lane)->ncclGetLastError(party->comm);
    char why[WHY_BYTES];

    (void)snprintf(why, sizeof why, "%s: %s%s%.200s", what, api_of(lane)->ncclGetErrorString(error),
                   last && last[0] ? ": " : "", last ? last : "");
    for (char *at = why; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    lane_fail(lane, party, why);
}

void lane_fail_cuda(struct lane *lane, struct party *party, const char *what, CUresult result)
{
    struct rdt_error err;

    (void)cuda_failed(lane->nccl->driver, result, &err, what);
    lane_fail(lane, party, err.msg);
}

int lane_query_comm(struct lane *lane, struct party *party, const char *what)
{
    int state = NCCL_SUCCESS, error = api_of(lane)->ncclCommGetAsyncError(party->comm, &state);

    if (error == NCCL_SUCCESS)
        error = state;
    if (error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
        lane_fail_nccl(lane, party, what, error);
    return error;
}
