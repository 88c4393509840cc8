/* SPDX-License-Identifier: Apache-2.0 */
/* The transactions by which a node gets a name in etcd, and what rdtd is answered.
 *
 * A node gets a name that has no key, that its owner has ended, or whose owner has no key PREFIX/nodes/UUID any more, because
 * its lease has expired; the last is compared in the same transaction as the name, so of two nodes one gets it. The epoch grows
 * then. What a node writes is compared with the revision that it knows, so a node that was away is refused.
 *
 *   REGISTER --> [unchanged since my revision, or no such key] put --> GRANTED
 *                 else: read it --> mine, or ended: [unchanged] put --> GRANTED
 *                                   another node's: [unchanged, and that node is gone] put --> GRANTED
 *                                   else --> REFUSED, with who has it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"

#define TRIES 8u /* attempts of one claim, if the key changes repeatedly */

static json_t *key_of_node(const struct etcd *etcd, const char *node)
{
    char key[VALUE_BYTES_MAX];
    int n = snprintf(key, sizeof key, "%.200s/nodes/%s", etcd->config->prefix, node);

    return value_base64(key, (size_t)n);
}

static json_t *put_of(const struct etcd *etcd, const Rdt__Pb__Name *name, const struct place *place)
{
    json_t *value = json_pack("{ss ss sI sI sb}", "node", place->node, "address", place->address, "epoch",
                              (json_int_t)place->epoch, "version", (json_int_t)place->version, "held", (int)place->held);
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_t *put = json_pack("{s{so so so}}", "request_put", "key", key_of_name(etcd, name), "value",
                            text ? value_base64(text, strlen(text)) : NULL, "lease",
                            value_of_int(etcd->leases[place->held ? LEASE_HELD : LEASE_ENDED].id));

    json_decref(value);
    free(text);
    return put;
}

static void on_txn(struct etcd *etcd, struct request *request, struct answer *answer);

/* A request about a name, and the value that the transaction writes if it succeeds. */
struct step {
    Rdt__Pb__EtcdName *message;
    struct place writes;
    struct place known; /* held by another node, if `taking` */
    bool taking;
    unsigned tries;
};

static void step_free(void *arg)
{
    struct step *step = arg;

    rdt__pb__etcd_name__free_unpacked(step->message, NULL);
    free(step);
}

/* revision 0: the key must not exist. */
static void send_step(struct etcd *etcd, struct step *step, int64_t revision)
{
    const Rdt__Pb__Name *name = step->message->name;
    json_t *compare = json_pack("[{so ss ss so}]", "key", key_of_name(etcd, name), "target", revision > 0 ? "MOD" : "CREATE",
                                "result", "EQUAL", revision > 0 ? "mod_revision" : "create_revision", value_of_int(revision));

    if (step->taking)
        (void)json_array_append_new(compare, json_pack("{so ss ss ss}", "key", key_of_node(etcd, step->known.node), "target",
                                                       "CREATE", "result", "EQUAL", "create_revision", "0"));
    if (!request_send(etcd, "kv/txn", REQUEST_KEYS,
                      json_pack("{so s[o] s[{s{so}}]}", "compare", compare, "success", put_of(etcd, name, &step->writes),
                                "failure", "request_range", "key", key_of_name(etcd, name)),
                      on_txn, step, step_free))
        session_fail(etcd, "no memory for a request");
}

static void done(struct etcd *etcd, const struct step *step, bool granted, const struct place *place, int64_t revision)
{
    if (step->message->name->act == RDT__PB__NAME_ACT__NAME_ACT_REGISTER)
        tell_name(etcd, step->message->name,
                  granted ? RDT__PB__NAME_ACT__NAME_ACT_GRANTED : RDT__PB__NAME_ACT__NAME_ACT_REFUSED, place, revision);
}

/* The key differs from what was expected: kv is its present content; NULL: there is no such key. */
static void understand_key(struct etcd *etcd, struct request *request, struct step *step, const json_t *kv)
{
    int64_t revision = kv ? value_int(kv, "mod_revision") : 0;
    bool ends = step->message->name->act == RDT__PB__NAME_ACT__NAME_ACT_END, mine;
    struct place known;

    if (!kv) {
        if (ends)
            return;
    } else if (!parse_place(kv, &known)) {
        done(etcd, step, false, NULL, 0);
        return;
    } else {
        mine = strcmp(known.node, step->writes.node) == 0;
        if ((ends && !mine) || ++step->tries > TRIES ||
            (!mine && !known.held && step->writes.epoch > 1 && (int64_t)step->message->name->epoch < known.epoch &&
             step->message->name->epoch > 0) ||
            (step->taking && !mine && known.held && strcmp(known.node, step->known.node) == 0)) {
            done(etcd, step, false, &known, revision);
            return;
        }
        step->taking = !mine && known.held;
        step->known = known;
        if (known.version > step->writes.version)
            step->writes.version = known.version;
        if (step->writes.epoch <= known.epoch)
            step->writes.epoch = known.epoch + !mine;
    }
    request->arg = NULL; /* the next request has it */
    send_step(etcd, step, revision);
}

static void on_txn(struct etcd *etcd, struct request *request, struct answer *answer)
{
    struct step *step = request->arg;
    const json_t *range;

    if (!answer->ok && answer->code == 5) { /* a lease has expired: a new one is granted, and rdtd asks again */
        session_lease_lost(etcd);
        return;
    }
    if (!answer->ok) {
        session_fail(etcd, "cannot write a name: %s", answer->error);
        return;
    }
    if (json_is_true(json_object_get(answer->json, "succeeded"))) {
        done(etcd, step, true, &step->writes, value_int(json_object_get(answer->json, "header"), "revision"));
        return;
    }
    range = json_object_get(json_array_get(json_object_get(answer->json, "responses"), 0), "response_range");
    understand_key(etcd, request, step, json_array_get(json_object_get(range, "kvs"), 0));
}

static void on_found(struct etcd *etcd, struct request *request, struct answer *answer)
{
    const struct step *step = request->arg;
    const json_t *kv = json_array_get(json_object_get(answer->json, "kvs"), 0);
    struct place place;

    if (!answer->ok)
        session_fail(etcd, "cannot read a name: %s", answer->error);
    else if (kv && parse_place(kv, &place) && place.held && place.version > 0)
        tell_name(etcd, step->message->name, RDT__PB__NAME_ACT__NAME_ACT_FOUND, &place, value_int(kv, "mod_revision"));
    else
        tell_name(etcd, step->message->name, RDT__PB__NAME_ACT__NAME_ACT_MISSING, NULL, 0);
}

void claim_ask(struct etcd *etcd, Rdt__Pb__EtcdName *take_message)
{
    const Rdt__Pb__Name *name = take_message ? take_message->name : NULL;
    struct step *step = calloc(1, sizeof *step);

    if (!step || !name || !name->owner || name->name.len == 0 || name->name.len > 128 || etcd->phase != UP) {
        free(step);
        if (take_message)
            rdt__pb__etcd_name__free_unpacked(take_message, NULL);
        return; /* rdtd asks again when this is up */
    }
    step->message = take_message;
    if (name->act == RDT__PB__NAME_ACT__NAME_ACT_SEEK) {
        if (!request_send(etcd, "kv/range", REQUEST_KEYS, json_pack("{so}", "key", key_of_name(etcd, name)), on_found, step,
                          step_free))
            session_fail(etcd, "no memory for a request");
        return;
    }
    value_to_hex(etcd->config->node.data, step->writes.node);
    (void)snprintf(step->writes.address, sizeof step->writes.address, "%s", etcd->config->address);
    step->writes.epoch = name->epoch > 0 ? (int64_t)name->epoch : 1;
    step->writes.version = (int64_t)name->version;
    step->writes.held = name->act != RDT__PB__NAME_ACT__NAME_ACT_END;
    send_step(etcd, step, take_message->revision);
}
