/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/log.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define REFUSED_MAX 32 /* connections above their owners' limits that may stay until they have been told the reason */

/* Returns a reference; NULL: the kernel does not report the user, or there is no memory. */
static struct account *owner_of(const struct conns *conns, int sock)
{
    struct owner owner = {0};
    struct ucred cred;
    socklen_t bytes = sizeof cred;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        return NULL;
    owner.uid = cred.uid;
    (void)snprintf(owner.tenant, sizeof owner.tenant, "%s", conns->rpc->options->tenant);
    return account_get(conns->rpc->objects->accounts, &owner);
}

/* NULL: out of memory. */
static struct account *new_account(struct conns *conns, const struct owner *owner)
{
    struct accounts *accounts = conns->rpc->objects->accounts;
    struct account *of_owner = account_get(accounts, owner);
    struct account *account = of_owner ? account_get_client(accounts, owner, ids_next(&conns->ids, of_owner)) : NULL;

    account_unref(of_owner);
    return account;
}

void conn_turn_away(const struct conns *conns, int take_sock)
{
    struct account *account = owner_of(conns, take_sock);

    owner_work_close_socket(conns->rpc->owner_work, take_sock, account ? account : &conns->rpc->objects->accounts->node);
    account_unref(account);
}

/* The last eighth of max_clients is for users who have few sessions, as that of every limit of the node (account.h). */
static void check_room(struct conn *conn)
{
    unsigned most = conn->rpc->options->max_clients;
    const struct account *person = account_person(conn->client.account);
    unsigned reserved = person->used[USAGE_SESSIONS] > most / 64 + 1 ? most / 8 : 0;
    char whose[ACCOUNT_WHOSE_BYTES];

    if (conn->rpc->clients.n >= most)
        (void)rdt_error_set(conn->greeting.refusal, RDT_LIMIT,
                            "this daemon already serves max_clients of %u: raise it, or end some", most);
    else if (conn->rpc->clients.n >= most - reserved)
        (void)rdt_error_set(conn->greeting.refusal, RDT_LIMIT,
                            "this daemon already serves max_clients of %u, less the eighth that is for users who have few%s: "
                            "raise it, or end some",
                            most, account_whose(conn->client.account, whose));
}

bool conn_identify(struct conn *conn)
{
    const struct options *options = conn->rpc->options;
    struct owner owner = {0};
    struct client *client = &conn->client;
    struct ucred cred = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t bytes = sizeof cred;
    unsigned overflow = conn->conns->overflow_uid;

    conn->greeting.refusal = calloc(1, sizeof *conn->greeting.refusal);
    if (!conn->greeting.refusal)
        return false;
    if (getsockopt(conn->sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        (void)rdt_error_sys(conn->greeting.refusal, errno, "the kernel does not report who this client is");
    client->pid = cred.pid;
    client->gid = cred.gid;
    owner.uid = cred.uid;
    (void)snprintf(owner.tenant, sizeof owner.tenant, "%s", options->tenant);
    client->account = new_account(conn->conns, &owner);
    if (!client->account)
        return false;
    conn->greeting.counted = account_take(client->account, USAGE_SESSIONS, 1, conn->greeting.refusal) == RDT_OK;
    if (!conn->greeting.counted && conn->conns->n_refused == REFUSED_MAX) {
        account_unref(client->account);
        return false;
    }
    conn->conns->n_refused += !conn->greeting.counted;
    account_add(client->account, USAGE_FDS, CONN_FDS);
    client->admin = cred.uid == 0 || cred.uid == geteuid();
    if (cred.uid == overflow && !options->allow_overflow_uid)
        (void)rdt_error_set(
            conn->greeting.refusal, RDT_DENIED,
            "uid %u is what the kernel shows for users that it cannot map: such clients are refused (allow_overflow_uid)",
            overflow);
    check_room(conn);
    if (conn->greeting.refusal->status == RDT_OK) {
        free(conn->greeting.refusal);
        conn->greeting.refusal = NULL;
    }
    bytes = sizeof conn->pidfd;
    if (getsockopt(conn->sock, SOL_SOCKET, SO_PEERPIDFD, &conn->pidfd, &bytes) != 0)
        conn->pidfd = cred.pid > 0 ? (int)syscall(SYS_pidfd_open, cred.pid, 0) : -1; /* kernels before 6.5 */
    if (conn->pidfd >= 0)
        (void)fcntl(conn->pidfd, F_SETFD, FD_CLOEXEC);
    return true;
}

void conn_refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err)
{
    char who[80];

    client_send_error(&conn->client, frame->type, frame->request_id, err);
    (void)snprintf(who, sizeof who, "client %llu (pid %d, uid %u)", (unsigned long long)conn->client.id, (int)conn->client.pid,
                   conn->client.account->owner.uid);
    log_warn_rarely(&conn->conns->refusals, who, err->msg);
    conn_stop_reading(conn);
    (void)deadline_set(conn->rpc->deadlines, &conn->greeting.deadline,
                       HELLO_TIMEOUT_NS); /* the client has this time to read the answer */
}
