/* SPDX-License-Identifier: Apache-2.0 */
/* How long the loop works between two waits for events. While it works, no client and no other node is served, so long turns
 * are what everybody feels as latency.
 *
 * Loop thread only. */
#ifndef DAEMON_LOOP_METER_H
#define DAEMON_LOOP_METER_H

#include <uv.h>

#include "daemon/base/histogram.h"

struct loop_meter {
    struct histogram busy;
    uv_prepare_t prepare;
    uint64_t last_ns, last_idle_ns;
};

/* Before the loop first runs. The handle does not keep the loop alive. */
void loop_meter_start(struct loop_meter *meter, uv_loop_t *loop);
void loop_meter_close(struct loop_meter *meter);

#endif
