/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches by copy into memory that was touched before, beside the fastest copy that a program could make itself: glibc's
 * memcpy or streaming stores, on one thread or on as many as the daemon may use. The fastest is the one with the highest
 * median in this run. Fetches are made eight at a time (fewer if they are large), and one at a time.
 *
 *     copy ROUNDS RDTD_SOCKET THREADS BYTES LABEL
 */
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_client.h"

#define MAX_ROUNDS 200u
#define MAX_THREADS 16u
#define ROUND_NS 3000000 /* a side of a round copies at least so long, or once */
#define IN_FLIGHT 8
#define ALL_IN_FLIGHT ((size_t)64 << 20) /* bytes of all of them, at most; one of any size */

typedef void copier(uint8_t *to, const uint8_t *from, size_t bytes);

static void copy_memcpy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Whole pages at aligned addresses: sizes are powers of two. */
#ifdef __x86_64__
__attribute__((target("avx2"))) static void copy_stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 128) {
        __m256i a = _mm256_load_si256((const __m256i *)(const void *)(from + at));
        __m256i b = _mm256_load_si256((const __m256i *)(const void *)(from + at + 32));
        __m256i c = _mm256_load_si256((const __m256i *)(const void *)(from + at + 64));
        __m256i d = _mm256_load_si256((const __m256i *)(const void *)(from + at + 96));

        _mm256_stream_si256((__m256i *)(void *)(to + at), a);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(to + at + 96), d);
    }
    _mm_sfence();
}

static bool can_stream(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define copy_stream copy_memcpy
static bool can_stream(void)
{
    return false;
}
#endif

/* ---- threads that wait in a barrier, which is quicker than to start them ---- */

struct crew {
    pthread_barrier_t begin, end;
    unsigned n;
    copier *copy;
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

struct member {
    struct crew *crew;
    unsigned index;
};

static void copy_share(const struct crew *crew, unsigned index)
{
    size_t share = crew->bytes / crew->n / 4096 * 4096, at = share * index;

    crew->copy(crew->to + at, crew->from + at, index + 1 == crew->n ? crew->bytes - at : share);
}

static void *member_main(void *arg)
{
    const struct member *member = arg;

    for (;;) {
        (void)pthread_barrier_wait(&member->crew->begin);
        copy_share(member->crew, member->index);
        (void)pthread_barrier_wait(&member->crew->end);
    }
    return NULL;
}

static void crew_start(struct crew *crew, unsigned n)
{
    static struct member members[MAX_THREADS];

    crew->n = n;
    (void)pthread_barrier_init(&crew->begin, NULL, n);
    (void)pthread_barrier_init(&crew->end, NULL, n);
    for (unsigned i = 1; i < n; i++) {
        pthread_t thread;

        members[i] = (struct member){crew, i};
        if (pthread_create(&thread, NULL, member_main, &members[i]) != 0)
            bench_die("no thread");
    }
}

static void crew_copy(struct crew *crew, copier *copy)
{
    crew->copy = copy;
    (void)pthread_barrier_wait(&crew->begin);
    copy_share(crew, 0);
    (void)pthread_barrier_wait(&crew->end);
}

/* ---- both sides ---- */

struct copies {
    rdt *owner, *reader;
    struct rdt_ref ref;
    struct rdt_tensor target;
    uint8_t *from, *to; /* memfds, like the daemon's */
    size_t bytes;
    struct crew crew;
};

enum { OURS, OURS_ONE, MEMCPY_1, STREAM_1, MEMCPY_N, STREAM_N, WAYS };
static const char *const way_names[WAYS] = {
    "", "", "memcpy", "streaming stores", "memcpy, threads:", "streaming stores, threads:"};

/* All of them into the same target, as a reference copies to the same place. */
static void fetch_together(struct copies *copies, size_t n)
{
    const struct rdt_tensor *target = &copies->target;
    rdt_request *requests[IN_FLIGHT];
    const size_t one = 1;

    for (size_t i = 0; i < n; i++) {
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .mode = RDT_FETCH_COPY,
                                            .timeout_ns = BENCH_TIMEOUT_NS,
                                            .targets = &target,
                                            .target_counts = &one};
        must_ok(rdt_fetch_start(copies->reader, &copies->ref, 1, &options, &requests[i], &err));
    }
    must_ok(rdt_wait(copies->reader, requests, n, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
    for (size_t i = 0; i < n; i++)
        rdt_request_destroy(requests[i]);
}

/* Returns how many copies were made. */
static size_t copy_some(struct copies *copies, int way)
{
    size_t n = ALL_IN_FLIGHT / copies->bytes;

    switch (way) {
    case OURS:
        n = n < 1 ? 1 : n < IN_FLIGHT ? n : IN_FLIGHT;
        fetch_together(copies, n);
        return n;
    case OURS_ONE:
        rdt_release(bench_fetch(copies->reader, &copies->ref, RDT_FETCH_COPY, &copies->target, 1, "local/copy"));
        return 1;
    case MEMCPY_1:
        copy_memcpy(copies->to, copies->from, copies->bytes);
        return 1;
    case STREAM_1:
        copy_stream(copies->to, copies->from, copies->bytes);
        return 1;
    default:
        crew_copy(&copies->crew, way == MEMCPY_N ? copy_memcpy : copy_stream);
        return 1;
    }
}

/* GB/s */
static double measure(struct copies *copies, int way)
{
    int64_t since = bench_now_ns(), took;
    size_t n = 0;

    do {
        n += copy_some(copies, way);
        took = bench_now_ns() - since;
    } while (took < ROUND_NS);
    return (double)n * (double)copies->bytes / (double)took;
}

static uint8_t *map_memfd(size_t bytes, int fill)
{
    int fd = memfd_create("copy", MFD_CLOEXEC);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        bench_die("no memory of %zu bytes", bytes);
    memset(memory, fill, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    static double speeds[WAYS][MAX_ROUNDS], sorted[MAX_ROUNDS];
    struct copies copies = {.owner = NULL};
    struct rdt_tensor source;
    double best_speed = 0;
    char note[160], one[32];
    int best = MEMCPY_1;

    if (argc != 6)
        bench_die("usage: copy ROUNDS SOCKET THREADS BYTES LABEL");
    unsigned rounds = (unsigned)bench_number(argv[1]);
    unsigned threads = (unsigned)bench_number(argv[3]);
    int64_t bytes = (int64_t)bench_number(argv[4]);
    if (rounds == 0 || rounds > MAX_ROUNDS || threads == 0 || threads > MAX_THREADS)
        bench_die("1 to %u rounds, 1 to %u threads", MAX_ROUNDS, MAX_THREADS);
    copies.bytes = (size_t)bytes;
    copies.owner = bench_connect(argv[2], "bench-owner");
    copies.reader = bench_connect(argv[2], "bench");
    bench_tensor(copies.owner, &bytes, 1, &source);
    bench_tensor(copies.reader, &bytes, 0, &copies.target);
    bench_put(copies.owner, &source, 1, &copies.ref);
    copies.from = map_memfd(copies.bytes, 1);
    copies.to = map_memfd(copies.bytes, 0);
    copies.crew = (struct crew){.to = copies.to, .from = copies.from, .bytes = copies.bytes};
    crew_start(&copies.crew, threads);
    (void)copy_some(&copies, OURS_ONE);
    for (unsigned round = 0; round < rounds; round++)
        for (int way = OURS; way < (threads > 1 ? WAYS : MEMCPY_N); way++)
            if ((way != STREAM_1 && way != STREAM_N) || can_stream())
                speeds[way][round] = measure(&copies, way);
    for (int way = MEMCPY_1; way < WAYS; way++) {
        memcpy(sorted, speeds[way], sizeof sorted);
        double median = bench_median(sorted, rounds);
        if (median > best_speed) {
            best_speed = median;
            best = way;
        }
    }
    (void)snprintf(one, sizeof one, "%s_one_in_flight", argv[5]);
    for (unsigned round = 0; round < rounds; round++) {
        bench_row("copy_", argv[5], "GB/s", "higher", "0.9", speeds[OURS][round], speeds[best][round]);
        bench_row("copy_", one, "GB/s", "higher", "null", speeds[OURS_ONE][round], speeds[best][round]);
    }
    (void)snprintf(note, sizeof note, "reference: %s", way_names[best]);
    if (best >= MEMCPY_N)
        (void)snprintf(note + strlen(note), sizeof note - strlen(note), " %u", threads);
    bench_note("copy_", argv[5], note);
    rdt_close(copies.reader);
    rdt_close(copies.owner);
    return 0;
}
