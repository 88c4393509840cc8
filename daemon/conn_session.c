/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_session.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/process/process.h"
#include "daemon/base/text.h"
#include "daemon/conn_identity.h"

/* ---- the process ---- */

/* Opens the process that the session had. Its number may belong to another process by now, so the pidfd is opened before the
 * start time is compared. */
static void find_process(struct conn *conn, const struct session_image *image)
{
    uint64_t started;

    if (image->started == 0 || image->pid <= 0)
        return;
    conn->pidfd = (int)syscall(SYS_pidfd_open, (pid_t)image->pid, 0);
    if (conn->pidfd < 0) {
        conn->session.process_ended = errno == ESRCH;
        return;
    }
    (void)fcntl(conn->pidfd, F_SETFD, FD_CLOEXEC);
    started = process_started((pid_t)image->pid);
    conn->session.process_ended = started != 0 && started != image->started;
    if (started == image->started)
        return;
    (void)close(conn->pidfd);
    conn->pidfd = -1;
}

/* ---- tokens ---- */

static bool hash_token(const void *token, size_t bytes, uint8_t hash_p[32])
{
    unsigned n = 0;

    return EVP_Digest(token, bytes, hash_p, &n, EVP_sha256(), NULL) == 1 && n == 32;
}

/* false: no memory, or two sessions have it, as a wild daemon may write. */
static bool list_token(struct conn *conn)
{
    return !map_get(&conn->conns->tokens, conn->session.token_hash, sizeof conn->session.token_hash) &&
           map_put(&conn->conns->tokens, conn->session.token_hash, sizeof conn->session.token_hash, conn);
}

static void unlist_token(struct conn *conn)
{
    if (map_get(&conn->conns->tokens, conn->session.token_hash, sizeof conn->session.token_hash) == conn)
        (void)map_remove(&conn->conns->tokens, conn->session.token_hash, sizeof conn->session.token_hash);
}

bool conn_session_begin(struct conn *conn, uint8_t token_p[SESSION_TOKEN_BYTES])
{
    struct client *client = &conn->client;
    struct recovery *recovery = conn->rpc->recovery;
    struct session_image image;

    if (!recovery_session_ids(recovery) || getrandom(token_p, SESSION_TOKEN_BYTES, 0) != SESSION_TOKEN_BYTES ||
        !hash_token(token_p, SESSION_TOKEN_BYTES, conn->session.token_hash) || !list_token(conn))
        return false;
    image.started = process_started(client->pid);
    memcpy(image.token_sha256, conn->session.token_hash, sizeof conn->session.token_hash);
    memcpy(client->session.id, conn->session.token_hash, sizeof client->session.id);
    if (recovery_keep_session(recovery, client, &image))
        return true;
    unlist_token(conn);
    return false;
}

void conn_session_end(struct conn *conn)
{
    if (conn->client.session.state == CLIENT_SESSION_WAITING) {
        conn->rpc->clients.n_waiting--;
        client_move_session(&conn->client, CLIENT_SESSION_LAPSED);
    }
    unlist_token(conn); /* a session that found no memory while it was restored has a token, but no record */
    if (!conn->client.session.lasting)
        return;
    deadline_unset(conn->rpc->deadlines, &conn->session.grace);
    recovery_end_session(conn->rpc->recovery, &conn->client);
}

struct conn *conn_session_find(const struct conns *conns, const void *token, size_t bytes, const struct owner *owner)
{
    uint8_t hash[32];
    struct conn *conn;

    if (bytes != SESSION_TOKEN_BYTES || !hash_token(token, bytes, hash))
        return NULL;
    conn = map_get(&conns->tokens, hash, sizeof hash);
    return conn && owner_equal(&conn->client.account->owner, owner) ? conn : NULL;
}

/* ---- the return of a client ---- */

enum rdt_status conn_session_move(struct conn *waiting, struct conn *from, struct rdt_error *err)
{
    int sock = fcntl(from->sock, F_DUPFD_CLOEXEC, 0);
    int pidfd = waiting->pidfd < 0 && from->pidfd >= 0 ? fcntl(from->pidfd, F_DUPFD_CLOEXEC, 0) : -1;

    if (sock < 0)
        return rdt_error_sys(err, errno, "no descriptor for the session's socket");
    deadline_unset(waiting->rpc->deadlines, &waiting->session.grace);
    waiting->rpc->clients.n_waiting--;
    waiting->rpc->counts->resumed_sessions++;
    client_move_session(&waiting->client, CLIENT_SESSION_RETURNED);
    waiting->client.pid = from->client.pid;
    from->session.moved = true;
    conn_attach(waiting, sock, pidfd);
    return RDT_OK;
}

/* ---- the sessions of an earlier daemon ---- */

struct client *conn_session_restore(void *arg, const struct session_image *image)
{
    struct conns *conns = arg;
    struct conn *conn = conn_new(conns);
    struct client *client;

    if (!conn)
        return NULL;
    client = &conn->client;
    client_init(client, image->id);
    ids_above(&conns->ids, image->id); /* the journal says so, too, but it may be wrong */
    client->account = account_get_client(conns->rpc->objects->accounts, &image->owner, image->id);
    memcpy(conn->session.token_hash, image->token_sha256, sizeof conn->session.token_hash);
    memcpy(client->session.id, conn->session.token_hash, sizeof client->session.id);
    if (!client->account || !list_token(conn)) {
        account_unref(client->account);
        free(conn);
        return NULL;
    }
    account_add(client->account, USAGE_SESSIONS, 1);
    account_add(client->account, USAGE_FDS, CONN_FDS);
    conn->greeting.counted = true;
    client->pid = (pid_t)image->pid;
    client->gid = (gid_t)image->gid;
    client->admin = image->owner.uid == 0 || image->owner.uid == geteuid();
    client->tensor_runs = image->tensor_runs;
    text_copy(client->name, sizeof client->name, image->name);
    find_process(conn, image);
    conn_list(conn);
    client_move_session(client, CLIENT_SESSION_WAITING);
    conns->rpc->clients.n_waiting++;
    conn_serve(conn);
    return client;
}

static void on_grace_over(struct deadline *deadline)
{
    struct conn *conn = container_of(deadline, struct conn, session.grace);

    conn_close(conn, "it did not come back within restart_grace after the daemon's restart");
}

void conn_sessions_wait(struct conns *conns)
{
    list_each_safe (struct conn, conn, &conns->all, link) {
        if (conn->sock >= 0 || conn->sm.state == CONN_CLOSING)
            continue;
        conn->session.grace.on_passed = on_grace_over;
        if (conn->session.process_ended)
            conn_close(conn, "its process ended while no daemon ran");
        else if (conn->pidfd < 0 &&
                 !deadline_set(conns->rpc->deadlines, &conn->session.grace, (int64_t)conns->rpc->options->restart_grace_ns))
            conn_close(conn, "there is no memory to wait for it");
    }
}
