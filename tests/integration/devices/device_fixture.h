/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests of memory on devices: a node with two fake devices, and two clients that map device memory,
 * put and fetch. Only those tests include this header. */
#ifndef TESTS_DEVICE_FIXTURE_H
#define TESTS_DEVICE_FIXTURE_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fakes/fake_device.h"
#include "tests/support/program.h"
#include "tests/support/tensors.h"

#define KIB ((size_t)1024)
#define BYTES (256 * KIB)

static struct test_node node;
static struct fake_devices gpu;
static rdt *a, *b; /* both map fake memory */

static inline void begin_with(const char *const *settings)
{
    fake_device_init(&gpu, "one", settings);
    node_start(&node, &(struct node_options){.flags = gpu.flags});
    node_connect(&node, &a);
    node_connect(&node, &b);
    fake_device_use(a);
    fake_device_use(b);
}

static inline void begin(void)
{
    begin_with(NULL);
}

static inline void end(const char *const *declared)
{
    rdt_close(a);
    rdt_close(b);
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 0);
    must(atomic_load(&gpu.control->allocated[0]) == 0 && atomic_load(&gpu.control->allocated[1]) == 0);
    must(atomic_load(&gpu.control->handles) == 0);
    must_say(fake_device_mappings() == 0, "%u mappings are left", fake_device_mappings());
    node_end(&node, declared);
    fake_device_fini(&gpu);
}

static inline struct rdt_ref put_tensors(rdt *conn, const struct rdt_tensor *tensors, size_t n, uint32_t flags)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = flags};
    struct rdt_ref ref = put_as(conn, tensors, n, &options);

    return ref;
}

/* Allocates memory on the device, fills it with the pattern and puts it. */
static inline struct rdt_ref put_on(rdt *conn, const char *device, size_t bytes, uint32_t seed, void **addr_p)
{
    void *addr = fake_device_alloc(conn, device, bytes);
    struct rdt_tensor tensor = bytes_at(addr, bytes);

    fill_pattern(addr, bytes, seed);
    if (addr_p)
        *addr_p = addr;
    return put_tensors(conn, &tensor, 1, 0);
}

/* Fetches the object and expects the pattern, the path and the place. */
static inline void expect(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *device, size_t bytes,
                          uint32_t seed, const char *path, const char *in, const char *on)
{
    rdt_object *object;

    must_ok(fetch_to(conn, ref, memory, device, &object, &err));
    must_go_by(path, object);
    must_lie(object, 0, in, on);
    must(holds_pattern(tensor_of(object, 0).data, bytes, seed));
    rdt_release(object);
}

static inline void expect_output(const char *word, const char *operand, const char *text)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, word, operand, NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, text), "`rdtctl %s` says nothing of '%s': %s%s", word, text,
             program.out, program.err);
    program_free(&program);
}

#endif
