/* SPDX-License-Identifier: Apache-2.0 */
/* Names whose other home is a node that the test plays: what it says about an earlier question is no answer to the present
 * one. */
#include <pthread.h>

#include "tests/integration/hostile/peer_fixture.h"

TestSuite(hostile_names, .timeout = 120);

static const char *const also[] = {"is lost",        "rogue_peer",      "is down", "protocol", "connection reset by peer",
                                   "cannot connect", "is published on", NULL};
static const uint8_t winner[16] = "another node...";
static const struct rdt_ref name = {.is_name = true, .any_owner = true, .id_bytes = 1, .id = "w"};
static struct rdt_ref object;

static void begin_home(void)
{
    char table[100], hex[33];

    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", rogue_peer_uuid[i]);
    (void)snprintf(table, sizeof table, "rogue 127.0.0.1:1 %s\n", hex);
    begin(&(struct node_options){
        .listen = "127.0.0.1:0", .nodes = table, .flags = (const char *const[]){"--peer-timeout=60s", NULL}});
    open_rogue_peer();
    object = put_one(bystander, &VECTOR(RDT_U8, 1, "x"), "object");
}

static void end_home(void)
{
    others_are_well();
    rogue_peer_close(&rogue_peer);
    rdt_close(bystander);
    node_end(&node, also);
}

/* The number of the n-th message about a name, which has that act. */
static uint64_t heard(unsigned n, Rdt__Pb__NameAct act)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_NAME, n));
    Rdt__Pb__Name *said =
        rdt__pb__name__unpack(NULL, rogue_peer.came[RDT_PEER_NAME].bytes, rogue_peer.came[RDT_PEER_NAME].payload);
    must(said->act == act && rogue_peer.came[RDT_PEER_NAME].n == n);
    uint64_t question = said->question;
    rdt__pb__name__free_unpacked(said, NULL);
    return question;
}

static void say(Rdt__Pb__NameAct act, uint64_t question)
{
    Rdt__Pb__Requester owner = MESSAGE(requester, .uid = getuid());
    bool refused = act == RDT__PB__NAME_ACT__NAME_ACT_REFUSED;
    Rdt__Pb__Name message = MESSAGE(name, .act = act, .name = {1, (uint8_t *)"w"}, .owner = &owner, .epoch = refused ? 2 : 1,
                                    .version = refused ? 7 : 0, .published = refused, .question = question);

    message.node = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)(refused ? winner : node.uuid_bytes)};
    message.address = (char *)"127.0.0.1:2";
    rogue_peer_send(&rogue_peer, RDT_PEER_NAME, &message.base);
    rogue_peer_flush(&rogue_peer);
}

static void *publish(void *arg)
{
    enum rdt_status *status_p = arg;

    *status_p = rdt_publish(bystander, "w", &object, NULL, NULL, NULL);
    return NULL;
}

/* Publishes, unpublishes and publishes again. Between the last two another node publishes the name. The answer to a question of
 * the first time comes behind the last question. Returns what the last publish returns. numbered: the home repeats the numbers
 * of the questions. */
static enum rdt_status publish_again(bool numbered)
{
    enum rdt_status status = RDT_INTERNAL;
    uint64_t early, late;
    pthread_t thread;

    must(pthread_create(&thread, NULL, publish, &status) == 0);
    say(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, heard(1, RDT__PB__NAME_ACT__NAME_ACT_REGISTER) * numbered);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    early = heard(2, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    must_ok(rdt_unpublish(bystander, &name, &err));
    (void)heard(3, RDT__PB__NAME_ACT__NAME_ACT_END);
    must(pthread_create(&thread, NULL, publish, &status) == 0);
    late = heard(4, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    must(!numbered || late > early);
    say(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, early * numbered);
    say(RDT__PB__NAME_ACT__NAME_ACT_REFUSED, late * numbered);
    must(pthread_join(thread, NULL) == 0);
    return status;
}

Test(hostile_names, answer_to_an_earlier_claim_gives_no_name)
{
    begin_home();
    must_be(RDT_EXISTS, publish_again(true));
    end_home();
}

Test(hostile_names, home_that_numbers_no_answers_is_believed)
{
    begin_home();
    must_be(RDT_OK, publish_again(false));
    must_ok(rdt_unpublish(bystander, &name, &err));
    end_home();
}
