/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_share.h"

static struct account_share *share_of(const struct conn *conn)
{
    return &account_owner(conn->client.account)->share;
}

/* What one owner gets of a turn. */
static uint64_t owner_ns(const struct conns *conns)
{
    uint64_t ns = conns->n_sharing > 0 ? ALL_TURN_NS / conns->n_sharing : OWNER_TURN_NS;

    return ns > OWNER_TURN_NS ? OWNER_TURN_NS : ns < LEAST_TURN_NS ? LEAST_TURN_NS : ns;
}

uint64_t share_conn_ns(const struct conns *conns)
{
    uint64_t ns = owner_ns(conns);

    return ns < CONN_TURN_NS ? ns : CONN_TURN_NS;
}

static bool has_room(struct conns *conns, struct account_share *share)
{
    if (share->turn != conns->turn)
        share->used_ns = 0;
    share->turn = conns->turn;
    return share->used_ns < owner_ns(conns);
}

static bool all_have_room(struct conns *conns)
{
    if (conns->used_turn != conns->turn)
        conns->used_ns = 0;
    conns->used_turn = conns->turn;
    return conns->used_ns < ALL_TURN_NS;
}

static void take_turn(struct conn *conn, bool readable)
{
    struct account_share *share = share_of(conn);
    uint64_t since_ns = uv_hrtime(), ns;

    conn->conns->take_turn(conn, readable);
    ns = uv_hrtime() - since_ns;
    share->used_ns += ns;
    conn->conns->used_ns += ns;
}

static void on_shares(uv_idle_t *shares)
{
    struct conns *conns = shares->data;
    uint64_t until_ns = uv_hrtime() + ALL_TURN_NS;

    for (unsigned n = conns->n_sharing; n > 0 && uv_hrtime() < until_ns; n--) {
        struct account_share *share = container_of(list_first(&conns->sharing), struct account_share, link);
        while (!list_empty(&share->waiting) && has_room(conns, share)) {
            struct conn *conn = container_of(list_first(&share->waiting), struct conn, waiting);
            list_remove(&conn->waiting);
            take_turn(conn, conn->readable);
        }
        list_remove(&share->link);
        if (list_empty(&share->waiting))
            conns->n_sharing--;
        else
            list_append(&conns->sharing, &share->link);
    }
    if (list_empty(&conns->sharing))
        (void)uv_idle_stop(shares);
}

static void wait_for_turn(struct conn *conn, struct account_share *share)
{
    struct conns *conns = conn->conns;

    (void)uv_idle_stop(&conn->turn);
    if (list_empty(&conn->waiting))
        list_append(&share->waiting, &conn->waiting);
    if (list_empty(&share->link)) {
        list_append(&conns->sharing, &share->link);
        conns->n_sharing++;
    }
    (void)uv_idle_start(&conns->shares, on_shares);
}

void share_turn(struct conn *conn, bool readable)
{
    struct account_share *share = share_of(conn);

    if (list_empty(&conn->waiting))
        conn->readable = false;
    conn->readable |= readable;
    if (!conn->conns->on_empty &&
        (!list_empty(&share->waiting) || !has_room(conn->conns, share) || !all_have_room(conn->conns)))
        wait_for_turn(conn, share);
    else
        take_turn(conn, conn->readable);
}

void shares_init(struct conns *conns, void (*take_turn_of)(struct conn *conn, bool readable))
{
    conns->take_turn = take_turn_of;
    list_init(&conns->sharing);
    (void)uv_idle_init(conns->rpc->loop, &conns->shares);
    conns->shares.data = conns;
}

void shares_close(struct conns *conns)
{
    list_drain (struct account_share, share, &conns->sharing, link) {
        list_remove(&share->link);
        list_drain (struct conn, conn, &share->waiting, waiting) {
            list_remove(&conn->waiting);
            conn->client.want_turn(&conn->client);
        }
    }
    conns->n_sharing = 0;
    uv_close((uv_handle_t *)&conns->shares, NULL);
}
