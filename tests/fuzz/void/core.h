/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by both forms of "void": void.c connects any two nodes, group.c connects nodes within groups. */
#ifndef FUZZ_VOID_CORE_H
#define FUZZ_VOID_CORE_H

#include <pthread.h>
#include <stdbool.h>

#include "backends/rdt_backend.h"

struct conn {
    struct transport *transport;
    void *ctx;
};

struct item { /* an operation that has been done, the end of a connection, or a group that is connected or closed */
    struct item *next;
    struct rdt_op *op;
    struct conn *closed;
    void (*tell_group)(void *group_ctx);
    void *group_ctx;
};

struct transport {
    struct rdt_host host;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct item *first, **last; /* [lock] */
    bool stopping;              /* [lock] */
};

extern const char *const void_memory_kinds[];

enum rdt_status void_say_item(struct transport *transport, struct item what, struct rdt_error *err);
enum rdt_status void_say(struct transport *transport, struct rdt_op *op, struct conn *closed, struct rdt_error *err);
enum rdt_status void_transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err);
void void_transport_close(void *arg);
const char *void_version(void *transport);
enum rdt_status void_register_memory(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                     void **registration_p, struct rdt_error *err);
void void_unregister_memory(void *transport, void *registration);
enum rdt_status void_connection_create(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                       struct rdt_error *err);
void void_connection_destroy(void *conn);
enum rdt_status void_offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err);
enum rdt_status void_connect_to(void *conn, const void *blob, size_t bytes, struct rdt_error *err);
uint32_t void_sides(void *conn, const char *memory_kind);
void void_disconnect(void *arg);
enum rdt_status void_post_write(void *conn, struct rdt_op *op, struct rdt_error *err);
enum rdt_status void_post_send(void *conn, struct rdt_op *op, struct rdt_error *err);
enum rdt_status void_pack_key(void *transport, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                              struct rdt_error *err);
void void_cancel(void *conn, struct rdt_op *op);

#endif
