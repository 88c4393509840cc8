/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_share.h"

static struct account_share *share_of(const struct conn *conn)
{
    return &account_person(conn->client.account)->share;
}

/* What one person gets of a turn. */
static uint64_t person_ns(const struct conns *conns)
{
    uint64_t ns = conns->shares.n_persons > 0 ? ALL_TURN_NS / conns->shares.n_persons : PERSON_TURN_NS;

    return ns > PERSON_TURN_NS ? PERSON_TURN_NS : ns < LEAST_TURN_NS ? LEAST_TURN_NS : ns;
}

uint64_t share_conn_ns(const struct conns *conns)
{
    uint64_t ns = person_ns(conns);

    return ns < CONN_TURN_NS ? ns : CONN_TURN_NS;
}

static bool has_room(struct conns *conns, struct account_share *share)
{
    if (share->turn != conns->shares.turn)
        share->used_ns = 0;
    share->turn = conns->shares.turn;
    return share->used_ns < person_ns(conns);
}

static bool all_have_room(struct conns *conns)
{
    if (conns->shares.used_turn != conns->shares.turn)
        conns->shares.used_ns = 0;
    conns->shares.used_turn = conns->shares.turn;
    return conns->shares.used_ns < ALL_TURN_NS;
}

static void take_turn(struct conn *conn, bool readable)
{
    struct account_share *share = share_of(conn);
    uint64_t since_ns = uv_hrtime(), ns;

    conn->conns->shares.take_turn(conn, readable);
    ns = uv_hrtime() - since_ns;
    share->used_ns += ns;
    conn->conns->shares.used_ns += ns;
}

static void on_shares(uv_idle_t *shares)
{
    struct conns *conns = shares->data;
    uint64_t until_ns = uv_hrtime() + ALL_TURN_NS;

    for (unsigned n = conns->shares.n_persons; n > 0 && uv_hrtime() < until_ns; n--) {
        struct account_share *share = container_of(list_first(&conns->shares.persons), struct account_share, link);
        while (!list_empty(&share->waiting) && has_room(conns, share)) {
            struct conn *conn = container_of(list_first(&share->waiting), struct conn, turn.waiting);
            list_remove(&conn->turn.waiting);
            take_turn(conn, conn->turn.readable);
        }
        list_remove(&share->link);
        if (list_empty(&share->waiting))
            conns->shares.n_persons--;
        else
            list_append(&conns->shares.persons, &share->link);
    }
    if (list_empty(&conns->shares.persons))
        (void)uv_idle_stop(shares);
}

static void wait_for_turn(struct conn *conn, struct account_share *share)
{
    struct conns *conns = conn->conns;

    (void)uv_idle_stop(&conn->turn.idle);
    if (list_empty(&conn->turn.waiting))
        list_append(&share->waiting, &conn->turn.waiting);
    if (list_empty(&share->link)) {
        list_append(&conns->shares.persons, &share->link);
        conns->shares.n_persons++;
    }
    (void)uv_idle_start(&conns->shares.idle, on_shares);
}

void share_turn(struct conn *conn, bool readable)
{
    struct account_share *share = share_of(conn);

    if (list_empty(&conn->turn.waiting))
        conn->turn.readable = false;
    conn->turn.readable |= readable;
    if (!conn->conns->on_empty &&
        (!list_empty(&share->waiting) || !has_room(conn->conns, share) || !all_have_room(conn->conns)))
        wait_for_turn(conn, share);
    else
        take_turn(conn, conn->turn.readable);
}

void shares_init(struct conns *conns, void (*take_turn_of)(struct conn *conn, bool readable))
{
    conns->shares.take_turn = take_turn_of;
    list_init(&conns->shares.persons);
    (void)uv_idle_init(conns->rpc->loop, &conns->shares.idle);
    conns->shares.idle.data = conns;
}

void shares_close(struct conns *conns)
{
    list_drain (struct account_share, share, &conns->shares.persons, link) {
        list_remove(&share->link);
        list_drain (struct conn, conn, &share->waiting, turn.waiting) {
            list_remove(&conn->turn.waiting);
            conn->client.conn.want_turn(&conn->client);
        }
    }
    conns->shares.n_persons = 0;
    uv_close((uv_handle_t *)&conns->shares.idle, NULL);
}
