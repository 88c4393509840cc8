/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions of NVIDIA's driver that a test itself needs, found by dlsym: those of the fake if fake_gpu_load was
 * called before, else those of the machine's driver. A call that the driver refuses fails the test. Addresses are those of
 * the device; only gpu_write and gpu_read touch its memory. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool gpu_is_real(void);             /* RDT_TEST_GPU is set: the machine's own, not the fakes */
bool gpu_there(const char **why_p); /* false: no driver, or no GPU */
unsigned gpu_count(void);
const char *gpu_uuid(unsigned gpu); /* static storage */

void gpu_use(unsigned gpu);  /* makes its primary context this thread's */
size_t gpu_free_bytes(void); /* of the one in use */

void *gpu_alloc(size_t bytes);       /* cuMemAlloc; shares a block with others unless it is a multiple of 2 MiB */
void *gpu_alloc_whole(size_t bytes); /* the same of whole blocks, which can be shared by a legacy handle */
void gpu_free(void *addr);
void gpu_ipc_handle(void *addr, char handle[64]); /* its legacy handle */
/* cuMemCreate, in chunks of so many bytes (a multiple of 2 MiB) that are mapped next to one another; exportable: by fd. */
void *gpu_alloc_chunks(size_t chunk_bytes, unsigned n, bool exportable);
void gpu_free_chunks(void *addr, size_t chunk_bytes, unsigned n);

void gpu_pin(void *host, size_t bytes); /* so that copies need no other memory */
void gpu_unpin(void *host);
void gpu_write(void *to, const void *from, size_t bytes); /* and waits */
void gpu_read(void *to, const void *from, size_t bytes);
void gpu_fill(void *to, size_t bytes, uint32_t seed); /* check.h's pattern */
bool gpu_holds(const void *from, size_t bytes, uint32_t seed);

/* A stream that is blocked until the gate is opened; work that is queued behind it has not run before. */
struct gpu_gate;
void *gpu_stream_create_blocking(void); /* the default stream waits for it */
void *gpu_stream_create(void);
void gpu_stream_wait(void *stream);
void gpu_stream_destroy(void *stream);
struct gpu_gate *gpu_hold(void *stream);
void gpu_open(struct gpu_gate *gate); /* and frees it, later */
void gpu_capture(void *stream);       /* begins to capture it into a graph, in the strictest mode */
bool gpu_end_capture(void *stream);   /* whether no call has spoilt the capture */
void gpu_events_early(void); /* of the fake driver: events of this process occur before the work in front of them is done */
/* Of the fake driver: that function fails in this process (fake_refuse). */
void gpu_refuse(const char *function, int result);
bool gpu_refuses_in_host_function(void *stream); /* whether a call inside a host function of the stream fails; waits for it */
void gpu_copy_in_stream(void *to, const void *from, size_t bytes, void *stream);

#endif
