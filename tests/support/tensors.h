/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for tests: a line creates one, and they are compared element by element, without the code under test. */
#ifndef TESTS_SUPPORT_TENSORS_H
#define TESTS_SUPPORT_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "client/rdt.h"
#include "tests/support/check.h"

/* Their shapes live as long as the block they stand in: not for an array that is filled by a loop. */
#define VECTOR(type, n, address) \
    ((struct rdt_tensor){.dtype = (type), .ndim = 1, .shape = (const int64_t[]){(int64_t)(n)}, .data = (address)})
#define MATRIX(type, rows, columns, address) \
    ((struct rdt_tensor){.dtype = (type), .ndim = 2, .shape = (const int64_t[]){(rows), (columns)}, .data = (address)})

/* Bytes in a row; the shape lives until the thread has asked for 64 more. */
struct rdt_tensor bytes_at(void *addr, size_t bytes);

int64_t elements_of(const struct rdt_tensor *tensor);

/* Element number i in row-major order of the indices. */
void *element_of(const struct rdt_tensor *tensor, int64_t i);

/* Same dtype, shape and bytes of every element, however they lie. */
bool tensors_equal(const struct rdt_tensor *a, const struct rdt_tensor *b);
bool is_row_major(const struct rdt_tensor *tensor);

/* Same as the box of `whole`. */
bool equals_slice(const struct rdt_tensor *part, const struct rdt_tensor *whole, const struct rdt_slice *slice);

/* In one line, each failing the test when it is refused. id NULL: generated. */
struct rdt_ref put_one(rdt *conn, const struct rdt_tensor *tensor, const char *id);
struct rdt_ref put_shown(rdt *conn, const struct rdt_tensor *tensor, const char *id, enum rdt_visibility visibility);
/* A snapshot with one of the two rows of "x", the part of rank 0 or 1; each row has that many bytes, 64 KiB at most. */
struct rdt_ref put_half(rdt *conn, uint32_t rank, size_t bytes);
rdt_object *fetch_one(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode);
/* object_p NULL: what it fetched is released. */
enum rdt_status try_fetch(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode, int64_t timeout_ns,
                          rdt_object **object_p, struct rdt_error *err);
/* To that kind of memory and device; NULL: wherever it comes to lie. */
enum rdt_status fetch_to(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *device, rdt_object **object_p,
                         struct rdt_error *err);
rdt_request *start_one(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns);
/* The calls of librdt that must succeed, with their options. */
struct rdt_ref put_as(rdt *conn, const struct rdt_tensor *tensors, size_t n, const struct rdt_put_options *options);
rdt_object *fetch_as(rdt *conn, const struct rdt_ref *ref, const struct rdt_fetch_options *options);
rdt_request *start_as(rdt *conn, const struct rdt_ref *ref, const struct rdt_fetch_options *options);
struct rdt_stat stat_of(rdt *conn, const struct rdt_ref *ref);
rdt_object *await_object(rdt *conn, rdt_request *request); /* the request remains */
struct rdt_tensor tensor_of(const rdt_object *object, size_t i);
void must_lie(const rdt_object *object, size_t i, const char *memory, const char *device);
struct rdt_object_info info_of(const rdt_object *object);
struct rdt_ref ref_named(const char *id);
void *alloc_memory(rdt *conn, size_t bytes);
#define must_go_by(expected, object) \
    must_say(strcmp(info_of(object).path, expected) == 0, "path %s instead of %s", info_of(object).path, expected)

/* A small generator of its own: the same numbers everywhere. */
uint32_t next_random(uint64_t *state);

#endif
