/* SPDX-License-Identifier: Apache-2.0 */
/* A matrix "w" and a vector "bias" that trainers publish in parts, and readers of some of its columns. Only shards*.c include
 * this header. */
#ifndef TESTS_SHARDS_FIXTURE_H
#define TESTS_SHARDS_FIXTURE_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/rdt_info.h"
#include "client/rdt_plan.h"
#include "rdt.pb-c.h"
#include "tests/support/cluster.h"

#define ROWS 64
#define COLUMNS 96

static struct cluster c;

static const char *const told[] = {"did not become a version", "is down: ", "is lost: ", "refused", "not connected",
                                   "cannot connect",           NULL};

static inline rdt *on(unsigned node)
{
    rdt *conn = NULL;

    node_connect(&c.node[node], &conn);
    return conn;
}

/* Starts that many nodes; a client of the first one. */
static inline rdt *begin_shards(unsigned nodes)
{
    cluster_start(&c, nodes, &(struct cluster_options){.stream = true, .no_ucx = true});
    return on(0);
}

/* far NULL: there is one client only. */
static inline void end_shards(rdt *conn, rdt *far)
{
    rdt_close(conn);
    rdt_close(far);
    cluster_end(&c, told);
}

static inline struct rdt_ref name_on(unsigned node, const char *name, uint64_t after)
{
    struct rdt_ref near = ref_on(&c.node[node], "any"), ref = {0};

    must_ok(rdt_ref_from_name(name, after, &near, &ref, &err));
    return ref;
}

static inline float element(uint64_t step, int64_t row, int64_t column)
{
    return (float)(1000000 * (int64_t)step + row * COLUMNS + column);
}

/* Puts the rows, or columns, of rank of `of` of the matrix "w" of that step, and a vector "bias" of the first rank. */
static inline struct rdt_ref put_rank(rdt *conn, uint64_t step, uint32_t rank, uint32_t of, bool by_rows)
{
    int64_t rows = by_rows ? ROWS / of : ROWS, columns = by_rows ? COLUMNS : COLUMNS / of;
    int64_t shape[2] = {rows, columns}, global[2] = {ROWS, COLUMNS}, one[1] = {COLUMNS};
    int64_t start[2] = {by_rows ? rank * rows : 0, by_rows ? 0 : rank * columns}, zero[1] = {0};
    float *w = malloc((size_t)(rows * columns) * sizeof *w), bias[COLUMNS];
    struct rdt_tensor tensors[2] = {{.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = w},
                                    {.dtype = RDT_F32, .ndim = 1, .shape = one, .data = bias}};
    struct rdt_shard shards[2] = {{"w", global, start}, {"bias", one, zero}};

    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < columns; k++)
            w[r * columns + k] = element(step, start[0] + r, start[1] + k);
    for (int64_t k = 0; k < COLUMNS; k++)
        bias[k] = element(step, -1, k);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};
    struct rdt_ref ref = put_as(conn, tensors, rank == 0 ? 2 : 1, &options);
    free(w);
    return ref;
}

static inline rdt_request *start_part(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                      const struct rdt_ref *object)
{
    rdt_request *request = NULL;

    must_ok(rdt_publish_part_start(conn, name, step, rank, of, object, NULL, LONG, &request, &err));
    return request;
}

/* Publishes a step in `of` parts, in turns from the connections, and frees the publishers' holds. */
static inline uint64_t publish(rdt *const *conns, unsigned n, const struct rdt_ref *name, uint64_t step, uint32_t of,
                               bool by_rows)
{
    rdt_request *requests[16];
    struct rdt_ref refs[16];
    uint64_t version = 0, other;

    for (uint32_t rank = 0; rank < of; rank++) {
        refs[rank] = put_rank(conns[rank % n], step, rank, of, by_rows);
        requests[rank] = start_part(conns[rank % n], name, step, rank, of, &refs[rank]);
    }
    for (uint32_t rank = 0; rank < of; rank++) {
        must_ok(rdt_wait(conns[rank % n], &requests[rank], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_part_version(requests[rank], rank ? &other : &version, &err));
        must(rank == 0 || other == version);
        rdt_request_destroy(requests[rank]);
        must_ok(rdt_free(conns[rank % n], &refs[rank], false, &err));
    }
    return version;
}

/* A reader of columns [first, first + columns) of "w", and of "bias". */
struct view {
    rdt_plan *plan;
    int64_t first, columns;
    float w[ROWS * COLUMNS], bias[COLUMNS];
};

static inline void view_open(struct view *view, rdt *conn, const struct rdt_ref *name, int64_t first, int64_t columns,
                             enum rdt_plan_move move)
{
    int64_t start[2] = {0, first}, count[2] = {ROWS, columns}, one[1] = {COLUMNS};
    struct rdt_want wants[2] = {{"w", 2, start, count, RDT_F32, view->w, NULL},
                                {"bias", 1, NULL, one, RDT_F32, view->bias, NULL}};

    view->first = first;
    view->columns = columns;
    struct rdt_plan_options options = {.struct_size = sizeof options, .move = move};
    must_ok(rdt_plan_create(conn, name, wants, 2, &options, &view->plan, &err));
}

static inline void view_check(const struct view *view, uint64_t step)
{
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t k = 0; k < view->columns; k++)
            must(view->w[r * view->columns + k] == element(step, r, view->first + k));
    for (int64_t k = 0; k < COLUMNS; k++)
        must(view->bias[k] == element(step, -1, k));
}

static inline uint64_t objects_on(unsigned node)
{
    return node_now(&c.node[node]).objects;
}

/* Whether a finding of that check says so. */
static inline bool doctor_says(rdt *conn, const char *id, const char *text)
{
    Rdt__Pb__Doctor request = RDT__PB__DOCTOR__INIT;
    ProtobufCMessage *message;
    bool says = false;

    if (call(conn, RDT_MSG_DOCTOR, &request.base, LONG, &message, NULL) != RDT_OK)
        return false;
    const Rdt__Pb__DoctorReply *reply = (const Rdt__Pb__DoctorReply *)message;
    for (size_t i = 0; i < reply->n_checks; i++)
        says = says || (strcmp(reply->checks[i]->id, id) == 0 && strstr(reply->checks[i]->sentence, text));
    protobuf_c_message_free_unpacked(message, NULL);
    return says;
}

#endif
