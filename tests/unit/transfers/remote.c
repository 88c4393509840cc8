/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/transfers/remote: one ping of a node is under way at a time, and none while there is no link. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/transfers/remote.h"
#include "daemon/transfers/transfer_impl.h"

TestSuite(remote, .timeout = 60);

/* What belongs to an ended link may ask for a ping until it has been stopped in a slice. Nothing on the next link may wait for
 * the answer. */
Test(remote, ping_without_a_link_is_not_awaited)
{
    struct transfers *transfers = calloc(1, sizeof *transfers);
    struct peer peer = {.state = PEER_BACKOFF};

    transfers_init(transfers);
    struct remote *remote = remote_get(transfers, &peer);
    remote_ping(remote);
    cr_assert(remote->ping.asked == 1 && !remote->ping.due);
    transfers_fini(transfers);
    free(transfers);
}
