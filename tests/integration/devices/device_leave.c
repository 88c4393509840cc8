/* SPDX-License-Identifier: Apache-2.0 */
/* A memory kind that somebody unloads while a fetch is about to allocate on its devices. */
#include "tests/integration/devices/device_nodes_fixture.h"

TestSuite(device_leave, .timeout = 100);

#define HOST_BYTES (128 * 1024 * KIB) /* allocating its pages takes a while */

/* The fetch names a device, but allocates host memory first, so the kind has no memory in use yet. */
Test(device_leave, kind_that_a_fetch_is_about_to_use_is_not_unloaded)
{
    struct rdt_tensor tensors[2];

    begin();
    rdt *admin = node_client(&c.node[1], "admin");
    tensors[0] = bytes_at(alloc_memory(owner, HOST_BYTES), HOST_BYTES);
    tensors[1] = bytes_at(fake_device_alloc(owner, "HERE-0", BYTES), BYTES);
    fill_pattern(tensors[1].data, BYTES, 1);
    struct rdt_ref ref = put_as(owner, tensors, 2, NULL);
    struct node_status status = node_now(&c.node[1]);
    uint64_t before = status.memory_bytes;
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .timeout_ns = LONG, .memory = "fake", .device = "THERE-1", .host_stays = true};
    rdt_request *request = start_as(reader, &ref, &options);
    do
        status = node_now(&c.node[1]);
    while (status.memory_bytes < before + HOST_BYTES);
    must_refuse(RDT_BUSY, "memory kind fake is in use", rdt_backend_unload(admin, "fake", LONG, &err));
    rdt_object *object = await_object(reader, request);
    must(holds_pattern(tensor_of(object, 1).data, BYTES, 1));
    rdt_request_destroy(request);
    rdt_release(object);
    wait_until(LONG, rdt_backend_unload(admin, "fake", LONG, NULL) == RDT_OK);
    rdt_close(admin);
    end(NULL);
}
