/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/loop_meter.h"

static void on_prepare(uv_prepare_t *prepare)
{
    struct loop_meter *meter = prepare->data;
    uint64_t now = uv_hrtime(), idle_ns = uv_metrics_idle_time(prepare->loop);
    uint64_t turn_ns = now - meter->last_ns, waited_ns = idle_ns - meter->last_idle_ns;

    histogram_add(&meter->busy, turn_ns > waited_ns ? turn_ns - waited_ns : 0);
    meter->last_ns = now;
    meter->last_idle_ns = idle_ns;
}

void loop_meter_start(struct loop_meter *meter, uv_loop_t *loop)
{
    *meter = (struct loop_meter){.last_ns = uv_hrtime()};
    (void)uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
    (void)uv_prepare_init(loop, &meter->prepare);
    meter->prepare.data = meter;
    (void)uv_prepare_start(&meter->prepare, on_prepare);
    uv_unref((uv_handle_t *)&meter->prepare);
}

void loop_meter_close(struct loop_meter *meter)
{
    uv_close((uv_handle_t *)&meter->prepare, NULL);
}
