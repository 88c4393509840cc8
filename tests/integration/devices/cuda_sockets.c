/* SPDX-License-Identifier: Apache-2.0 */
/* Eight GPUs on two sockets: which memory and which processors serve them. The fake driver says to which NUMA node a GPU
 * belongs, and a mount hides the machine's own nodes: each has one processor. Where the kernel has one node only, memory is
 * bound to that, and binding to the second one is in vain, which must not matter.
 *
 * The leak checker of gcc 12 crashes on thread-local memory that loaded libraries (the driver, NVML, NCCL) have in threads
 * that are alive at the end: lsan: use_tls=0
 */
#ifdef RDT_WITHOUT_CUDA
#include <criterion/criterion.h>

Test(cuda_sockets, memory)
{
    cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
}
#else
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/gpu/nodes_fixture.h"

TestSuite(cuda_sockets, .timeout = 200);

#define NODES "/sys/devices/system/node"
#define FIRST 0u /* a GPU of the first socket */
#define LAST 7u  /* and one of the second */

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[400];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "we");
    must(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void begin_on_two_sockets(void)
{
    static char trace[300];
    char dir[200], node[220];

    if (gpu_is_real())
        cr_skip_test("a real driver knows its own nodes, and does not count its calls");
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
        cr_skip_test("this takes two processors");
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        cr_skip_test("hiding the NUMA nodes takes the right to mount");
    (void)snprintf(dir, sizeof dir, "%s/sockets-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    must(mkdir(dir, 0755) == 0 && mount("none", dir, "tmpfs", 0, NULL) == 0); /* ends with this process */
    write_text(dir, "online", "0-1\n");
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(node, sizeof node, "%s/node%u", dir, i);
        must(mkdir(node, 0755) == 0);
        write_text(node, "cpulist", i == 0 ? "0\n" : "1\n");
    }
    (void)snprintf(trace, sizeof trace, "%s/calls", dir);
    must(mount(dir, NODES, NULL, MS_BIND, NULL) == 0);
    must(setenv("FAKE_CUDA_TRACE", trace, 1) == 0 && setenv("FAKE_CUDA_GPUS", "8", 1) == 0);
    must(setenv("FAKE_CUDA_SOCKETS", "2", 1) == 0);
    begin_with(false, NULL, (const char *const[]){"--pool-idle=4s", NULL});
}

/* The line of a file of /proc of the daemon (or of a thread of it) that has both texts; static storage, "" if there is none. */
static const char *proc_line(int pid, int thread, const char *file, const char *one, const char *two)
{
    static char line[4096];
    char path[100];

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/%s", pid, thread, file);
    FILE *lines = fopen(path, "re");
    must(lines);
    while (fgets(line, sizeof line, lines))
        if (strstr(line, one) && strstr(line, two))
            break;
        else
            line[0] = '\0';
    (void)fclose(lines);
    return line;
}

/* The thread of the owner's daemon that copies within that GPU has only that processor. */
static void expect_processor(unsigned of_gpu, const char *processor)
{
    int pid = c.node[OWNER].pid, threads[4];
    struct rdt_fetch_options within = to("cuda", gpu_uuid(of_gpu));
    struct rdt_ref ref;
    void *addr;

    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(of_gpu), BYTES, &addr, &err));
    struct rdt_tensor one = bytes_at(addr, BYTES);
    must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, NULL, &ref, &err));
    within.mode = RDT_FETCH_COPY;
    fake_gpu_trace_clear();
    rdt_release(fetch_as(conn[OWNER], &ref, &within));
    must(fake_gpu_threads(pid, "cuMemcpyAsync", threads, 4) == 1);
    const char *allowed = proc_line(pid, threads[0], "status", "Cpus_allowed_list:", processor);
    must_say(allowed[0], "the thread of GPU %u may run on: %s", of_gpu,
             proc_line(pid, threads[0], "status", "Cpus_allowed_list:", ""));
    drop(&ref, addr);
}

Test(cuda_sockets, threads_run_on_their_gpus_socket)
{
    begin_on_two_sockets();
    expect_processor(FIRST, "\t0\n");
    expect_processor(LAST, "\t1\n");
    end(NULL);
}

static void fetch_to_gpu(const struct rdt_ref *ref, unsigned to_gpu)
{
    struct rdt_fetch_options options = to("cuda", gpu_uuid(to_gpu));

    expect(ref, &options, BYTES, 3, "stream/staged");
}

/* The second GPU takes no stage that the first one has left in the pool, although it has the size. */
Test(cuda_sockets, stages_lie_on_their_gpus_socket)
{
    int reader;

    begin_on_two_sockets();
    reader = c.node[READER].pid;
    struct rdt_ref ref = put_pattern(conn[OWNER], NULL, BYTES, 3);
    must(!proc_line(reader, reader, "numa_maps", "prefer", "memfd:rdtd")[0]);
    fetch_to_gpu(&ref, FIRST);
    must(proc_line(reader, reader, "numa_maps", " prefer:0 ", "memfd:rdtd")[0]);
    must(fake_gpu_calls(reader, 0, "cuMemHostRegister") == 1);
    fetch_to_gpu(&ref, LAST);
    must(fake_gpu_calls(reader, 0, "cuMemHostRegister") == 2);
    drop(&ref, NULL);
    end(NULL);
}
#endif
