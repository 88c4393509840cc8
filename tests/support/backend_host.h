/* SPDX-License-Identifier: Apache-2.0 */
/* A host for one transport plug-in, small enough for a test: it loads the .so, opens an instance, and lets a test
 * wait for what the plug-in reports. Everything that takes time has a deadline; no function fails a test itself.
 */
#ifndef TESTS_SUPPORT_BACKEND_HOST_H
#define TESTS_SUPPORT_BACKEND_HOST_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backends/rdt_backend.h"

struct config_pair { /* a list of them ends with a NULL key */
    const char *key, *value;
};

struct backend_host {
    struct rdt_host table;
    void *library;
    struct rdt_backend *backend;         /* copies, as rdtd makes them: what the plug-in's version lacks is NULL */
    const struct rdt_transport_ops *ops; /* backend->transport */
    struct rdt_backend own_backend;
    struct rdt_memory_ops own_memory;
    struct rdt_transport_ops own_transport;
    void *transport;
    const struct config_pair *config; /* borrowed until close */
    bool opening;
    unsigned n_errors;       /* lines logged as error */
    unsigned n_lines;        /* lines logged as error, warn or info while it was open */
    unsigned n_closed_twice; /* connections: conn_closed came again */
};

struct host_conn {
    struct backend_host *host;
    void *handle;
    unsigned n_failed, n_closed;
    unsigned n_open_ops;    /* posted and not ended */
    unsigned open_at_close; /* n_open_ops when conn_closed came */
    enum rdt_status status; /* of conn_failed */
    char msg[160];
};

struct host_op {
    struct rdt_op op;
    struct host_conn *conn;
    unsigned n_done;
    bool posting, ended_in_post;
    pthread_t poster;
    enum rdt_status status;
    char msg[160];
};

struct host_copy {
    struct rdt_memory_copy copy;
    unsigned n_done;
    enum rdt_status status;
    char msg[160];
};
bool host_copy_wait(struct host_copy *copy, int ms); /* false: it has not ended */

#define HAS_OP(ops, member) ((ops)->member != NULL)

/* For the plug-in at path: $RDT_BACKEND_CONFIG ("key=value,key=value") comes before `config`, then what the plug-in
 * declares, then a trusted network on the loopback interface. */
enum rdt_status backend_host_load(struct backend_host *host, const char *path, struct rdt_error *err);
enum rdt_status backend_host_open(struct backend_host *host, const struct config_pair *config, struct rdt_error *err);
void backend_host_close(struct backend_host *host); /* the library stays loaded: not every vendor's can leave */

enum rdt_status host_conn_create(struct backend_host *host, struct host_conn *conn, struct rdt_error *err);
enum rdt_status host_conn_join(struct host_conn *a, struct host_conn *b, struct rdt_error *err); /* offers both ways */
bool host_conn_wait_failed(struct host_conn *conn, int ms);
bool host_conn_disconnect(struct host_conn *conn, int ms); /* and waits for conn_closed; false: it did not come */
void host_conn_destroy(struct host_conn *conn);

/* One rank of a group, in a host of its own. */
#define HOST_GROUP_MAX 4
struct host_group {
    struct backend_host *host;
    void *handle;
    uint32_t rank, size;
    unsigned n_ready, n_failed, n_closed;
    unsigned open_at_close;                 /* operations that had not ended when group_closed came */
    struct host_conn conns[HOST_GROUP_MAX]; /* once the group is ready: to other ranks */
    char msg[160];
};
enum rdt_status host_group_create(struct backend_host *host, struct host_group *group, uint32_t rank, uint32_t size,
                                  struct rdt_error *err);
bool host_group_wait_ready(struct host_group *group, int ms);
bool host_group_wait_failed(struct host_group *group, int ms);
void host_group_take_conns(struct host_group *group); /* it is ready */
void host_group_close(struct host_group *group);
bool host_group_wait_closed(struct host_group *group, int ms);

enum post { POST_SEND, POST_RECV, POST_READ };
enum rdt_status host_op_post(struct host_conn *conn, struct host_op *op, enum post post, struct rdt_error *err);
void host_op_fill(struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr, uint64_t bytes);
bool host_op_wait(struct host_op *op, int ms); /* false: it has not ended */
bool host_op_ended(struct host_op *op);
void host_op_cancel(struct host_op *op);

/* Bytes that differ by seed and position. */
void pattern_fill(void *addr, uint64_t bytes, uint32_t seed);
bool pattern_holds(const void *addr, uint64_t bytes, uint32_t seed);

/* A buffer with a margin on both sides; all of it is the canary at first. */
#define GUARD_BYTES ((size_t)4096)
#define CANARY 0xc5
struct guarded {
    uint8_t *base, *addr;
    uint64_t bytes;
};
bool guarded_create(struct guarded *guarded, uint64_t bytes);
bool guarded_margins_hold(const struct guarded *guarded);
bool guarded_untouched(const struct guarded *guarded);
void guarded_destroy(struct guarded *guarded);

unsigned count_fds(void);
int patience_ms(int ms); /* more under a sanitizer */

#endif
