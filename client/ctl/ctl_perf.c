/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl perf: measures how fast objects come from another node. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "perf/perf.h"

#define SMALL_BYTES 4096u   /* rides in a message of the peer link */
#define MIDDLE_BYTES 65536u /* goes by a transport */
#define LARGE_BYTES (UINT64_C(64) << 20)
#define MAX_COUNT 1000u
#define LARGE_SHARE 4u /* a large object is fetched that many times less often than a small one */
#define MAX_PATHS 16u
#define FETCH_TIMEOUT_NS (INT64_C(60) * 1000000000)

enum size { SMALL, MIDDLE, LARGE, SIZES };

struct path {
    char name[33];
    char why_not[256];
    char over[80];            /* in the transport's own words: what carries the bytes, and whether it encrypts them */
    int64_t median_ns[SIZES]; /* 0: not measured */
};

struct perf {
    struct ctl *ctl;
    int sock;
    uint64_t bytes[SIZES];
    struct rdt_ref refs[SIZES];
    void *target; /* [bytes[LARGE]] of rdt_alloc: receives by every path, the socket's too */
    uint64_t count;
    int64_t *times;
    struct path paths[MAX_PATHS];
    unsigned n_paths;
    struct ctl_progress progress;
    unsigned steps_done, steps;
};

/* ---- one measurement ---- */

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static enum rdt_status by_socket(struct perf *perf, enum size size, struct rdt_error *err)
{
    char line[64];

    (void)snprintf(line, sizeof line, "SEND %" PRIu64 "\n", perf->bytes[size]);
    enum rdt_status status = perf_write(perf->sock, line, strlen(line), err);
    return status == RDT_OK ? perf_read(perf->sock, perf->target, perf->bytes[size], err) : status;
}

/* transport NULL: as the daemon chooses. */
static enum rdt_status by_fetch(struct perf *perf, enum size size, const char *transport, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_tensor target = {
        .dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)perf->bytes[size]}, .data = perf->target};
    const struct rdt_tensor *targets = &target;
    rdt_object *object;
    enum rdt_status status;

    options.timeout_ns = FETCH_TIMEOUT_NS;
    options.transport = transport;
    options.targets = &targets;
    options.target_counts = (size_t[]){1};
    status = rdt_fetch(perf->ctl->rdt, &perf->refs[size], 1, &options, &object, err);
    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

/* Fetches one time to warm up, then `count` times. is_socket: path->name is the plain socket. */
static enum rdt_status measure(struct perf *perf, struct path *path, enum size size, bool is_socket, const char *transport,
                               struct rdt_error *err)
{
    uint64_t count = size == LARGE ? (perf->count + LARGE_SHARE - 1) / LARGE_SHARE : perf->count;
    enum rdt_status status = RDT_OK;

    for (uint64_t i = 0; i <= count && status == RDT_OK; i++) {
        int64_t started_ns = ctl_now_ns();

        status = is_socket ? by_socket(perf, size, err) : by_fetch(perf, size, transport, err);
        if (i > 0)
            perf->times[i - 1] = ctl_now_ns() - started_ns;
        ctl_progress_update(&perf->progress, perf->steps_done * 100 + i * 100 / (count + 1), perf->steps * 100);
    }
    perf->steps_done++;
    if (status != RDT_OK)
        return status;
    qsort(perf->times, count, sizeof *perf->times, compare);
    path->median_ns[size] = perf->times[count / 2];
    return RDT_OK;
}

/* ---- all paths ---- */

static struct path *add_path(struct perf *perf, const char *name)
{
    struct path *path = &perf->paths[perf->n_paths < MAX_PATHS - 1 ? perf->n_paths++ : MAX_PATHS - 1];

    *path = (struct path){0};
    (void)snprintf(path->name, sizeof path->name, "%s", name);
    return path;
}

static bool is_that_node(const struct perf *perf, const struct rdt_node_row *row)
{
    char hex[33];

    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", perf->refs[SMALL].node[i]);
    return strcmp(row->uuid, hex) == 0;
}

static bool add_transports(void *arg, const struct rdt_node_row *row)
{
    struct perf *perf = arg;

    if (!is_that_node(perf, row))
        return true;
    for (size_t i = 0; i < row->n_transports; i++) {
        struct path *path = add_path(perf, row->transports[i].name);

        if (!row->transports[i].usable)
            (void)snprintf(path->why_not, sizeof path->why_not, "%s", row->transports[i].why);
    }
    return false;
}

/* A transport knows what carries its bytes when it has moved some. */
static bool add_routes(void *arg, const struct rdt_node_row *row)
{
    struct perf *perf = arg;

    for (size_t i = 0; i < row->n_transports; i++)
        for (unsigned k = 0; k < perf->n_paths; k++)
            if (is_that_node(perf, row) && strcmp(perf->paths[k].name, row->transports[i].name) == 0)
                (void)snprintf(perf->paths[k].over, sizeof perf->paths[k].over, "%s", row->transports[i].path);
    return true;
}

static enum rdt_status put_there(struct perf *perf, enum size size, struct rdt_error *err)
{
    char line[PERF_LINE_BYTES];
    enum rdt_status status;

    (void)snprintf(line, sizeof line, "PUT %" PRIu64 "\n", perf->bytes[size]);
    status = perf_write(perf->sock, line, strlen(line), err);
    if (status == RDT_OK)
        status = perf_read_line(perf->sock, line, err);
    if (status == RDT_OK && strncmp(line, "REF ", 4) == 0)
        return rdt_ref_from_text(line + 4, &perf->refs[size], err);
    if (status == RDT_OK)
        return rdt_error_set(err, RDT_PROTOCOL, "the other end cannot put %" PRIu64 " bytes: %.300s", perf->bytes[size],
                             strncmp(line, "ERROR ", 6) == 0 ? line + 6 : "it is not rdtctl perf");
    return status;
}

static enum rdt_status measure_all(struct perf *perf, struct rdt_error *err)
{
    static const enum size sizes[] = {MIDDLE, LARGE};
    struct path *socket = add_path(perf, "plain socket"), *inlined = add_path(perf, "peer link");
    enum rdt_status status = RDT_OK;
    unsigned first = perf->n_paths;

    for (enum size size = SMALL; size < SIZES && status == RDT_OK; size++)
        status = put_there(perf, size, err);
    if (status == RDT_OK)
        status = by_fetch(perf, SMALL, NULL, err); /* the link is up afterwards */
    if (status == RDT_OK)
        status = rdt_each_node(perf->ctl->rdt, add_transports, perf, err);
    (void)snprintf(socket->over, sizeof socket->over, "tcp, not encrypted");
    (void)snprintf(inlined->over, sizeof inlined->over, "tcp, TLS");
    perf->steps = SIZES + 1 + 2 * (perf->n_paths - first);
    for (enum size size = SMALL; size < SIZES && status == RDT_OK; size++)
        status = measure(perf, socket, size, true, NULL, err);
    if (status == RDT_OK)
        status = measure(perf, inlined, SMALL, false, NULL, err);
    for (unsigned i = first; i < perf->n_paths && status == RDT_OK; i++) {
        struct path *path = &perf->paths[i];
        struct rdt_error why;

        for (unsigned k = 0; k < 2 && path->why_not[0] == '\0'; k++)
            if (measure(perf, path, sizes[k], false, path->name, &why) != RDT_OK)
                (void)snprintf(path->why_not, sizeof path->why_not, "%.255s", why.msg);
    }
    return status == RDT_OK ? rdt_each_node(perf->ctl->rdt, add_routes, perf, err) : status;
}

/* ---- the report ---- */

static void add_time(struct ctl_table *table, int64_t ns)
{
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "%s", ns > 0 ? ctl_human_duration(ns, text) : "");
}

static int print_table(const struct perf *perf)
{
    static const struct ctl_column columns[] = {{"PATH", false},        {"4 KiB", true},     {"64 KiB", true},
                                                {"BANDWIDTH", true},    {"OF SOCKET", true}, {"OVER", false},
                                                {"NOT MEASURED", false}};
    struct ctl_table table;
    char text[CTL_HUMAN_BYTES];
    bool ok;

    ctl_table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (unsigned i = 0; i < perf->n_paths; i++) {
        const struct path *path = &perf->paths[i];
        int64_t ns = path->median_ns[LARGE];

        ctl_table_add(&table, "%s", path->name);
        add_time(&table, path->median_ns[SMALL]);
        add_time(&table, path->median_ns[MIDDLE]);
        ctl_table_add(&table, "%s", ns > 0 ? ctl_human_rate(perf->bytes[LARGE], ns, text) : "");
        if (ns > 0)
            ctl_table_add(&table, "%.0f %%", 100.0 * (double)perf->paths[0].median_ns[LARGE] / (double)ns);
        else
            ctl_table_add(&table, "%s", "");
        ctl_table_add(&table, "%s", path->over);
        ctl_table_add(&table, "%s", path->why_not);
    }
    ok = ctl_table_print(&table, "", stdout);
    ctl_table_fini(&table);
    return ok ? CTL_OK : CTL_FAILED;
}

static int print_json(const struct perf *perf)
{
    static const char *const names[] = {"small_ns", "middle_ns", "large_ns"};
    json_t *rows = json_array();

    for (unsigned i = 0; i < perf->n_paths; i++) {
        const struct path *path = &perf->paths[i];
        json_t *row = json_pack("{s:s, s:o, s:o}", "path", path->name, "over", ctl_json_text(path->over), "why_not",
                                ctl_json_text(path->why_not));

        for (enum size size = SMALL; size < SIZES; size++)
            if (path->median_ns[size] > 0)
                json_object_set_new(row, names[size], json_integer(path->median_ns[size]));
        json_array_append_new(rows, row);
    }
    return ctl_print_json(json_pack("{s:I, s:I, s:I, s:I, s:o}", "count", (json_int_t)perf->count, "small_bytes",
                                    (json_int_t)perf->bytes[SMALL], "middle_bytes", (json_int_t)perf->bytes[MIDDLE],
                                    "large_bytes", (json_int_t)perf->bytes[LARGE], "paths", rows));
}

static int measure_node(struct perf *perf, const char *address)
{
    struct rdt_error err = {0};
    int code;

    if (ctl_connect(perf->ctl, &err))
        return ctl_fail(perf->ctl, &err);
    perf->sock = perf_open(address, false, &err);
    perf->times = calloc(perf->count, sizeof *perf->times);
    if (perf->sock < 0)
        return ctl_fail(perf->ctl, &err);
    if (!perf->times) {
        rdt_error_set(&err, RDT_NO_MEMORY, "no memory for %" PRIu64 " results", perf->count);
        return ctl_fail(perf->ctl, &err);
    }
    if (rdt_alloc(perf->ctl->rdt, perf->bytes[LARGE], &perf->target, &err))
        return ctl_fail(perf->ctl, &err);
    memset(perf->target, 0, perf->bytes[LARGE]);
    ctl_progress_start(&perf->progress, "measuring", perf->ctl->quiet);
    code = measure_all(perf, &err) == RDT_OK ? CTL_OK : CTL_FAILED;
    ctl_progress_end(&perf->progress);
    if (code != CTL_OK)
        return ctl_fail(perf->ctl, &err);
    return perf->ctl->json ? print_json(perf) : print_table(perf);
}

int ctl_perf(struct ctl *ctl, int argc, char **argv)
{
    struct perf perf = {.ctl = ctl, .sock = -1, .bytes = {SMALL_BYTES, MIDDLE_BYTES, LARGE_BYTES}, .count = 40};
    bool serve = false;
    const struct ctl_option options[] = {
        {0, "serve", CTL_FLAG, NULL, "be the other end: listen at ADDRESS", &serve},
        {'c', "count", CTL_NUMBER, "N", "fetches of each small size (40); large objects: a quarter", &perf.count},
        {'b', "bytes", CTL_NUMBER, "BYTES", "size of the large object (67108864)", &perf.bytes[LARGE]},
        {0},
    };
    char **words;
    int code = ctl_parse(ctl, options, argc, argv, 1, 1, &words, NULL);

    if (code != CTL_GO)
        return code;
    if (perf.count == 0 || perf.count > MAX_COUNT)
        return ctl_usage_error(ctl, "--count must be 1 to %u", MAX_COUNT);
    if (perf.bytes[LARGE] < MIDDLE_BYTES || perf.bytes[LARGE] > PERF_MAX_BYTES)
        return ctl_usage_error(ctl, "--bytes must be %u to %" PRIu64, MIDDLE_BYTES, PERF_MAX_BYTES);
    if (serve)
        return perf_serve(ctl, words[0]);
    code = measure_node(&perf, words[0]);
    if (perf.sock >= 0)
        (void)close(perf.sock);
    free(perf.times);
    return code;
}
