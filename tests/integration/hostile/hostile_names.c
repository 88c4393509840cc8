/* SPDX-License-Identifier: Apache-2.0 */
/* Names whose other home is a node that the test plays: what it says about an earlier question is no answer to the present
 * one. */
#include <pthread.h>

#include "client/rdt_many.h"
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

/* ---- many names ---- */

#define MANY RDT_MAX_NAME_LIST

static const char *many_names[MANY];
static char many_texts[MANY][16], many_packed[MANY * 16];

static void begin_lists(bool lists)
{
    rogue_peer_lists = lists;
    begin_home();
    for (unsigned i = 0; i < MANY; i++) {
        (void)snprintf(many_texts[i], sizeof many_texts[i], "layer-%u", i);
        many_names[i] = many_texts[i];
    }
}

static void *publish_all(void *arg)
{
    struct rdt_ref refs[MANY];
    enum rdt_status *status_p = arg;

    for (unsigned i = 0; i < MANY; i++)
        refs[i] = object;
    *status_p = rdt_publish_many(bystander, many_names, refs, MANY, NULL, NULL, NULL);
    return NULL;
}

static void end_all(unsigned n)
{
    must_ok(rdt_unpublish_prefix(bystander, "layer-", NULL, &err));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_NAME, n)); /* each END */
}

/* The n-th list that the daemon sends, which has all names. */
static Rdt__Pb__NameList *heard_list(unsigned n, Rdt__Pb__NameAct act)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_NAME_LIST, n));
    must(rogue_peer.came[RDT_PEER_NAME_LIST].n == n);
    Rdt__Pb__NameList *list = rdt__pb__name_list__unpack(NULL, rogue_peer.came[RDT_PEER_NAME_LIST].bytes,
                                                         rogue_peer.came[RDT_PEER_NAME_LIST].payload);
    must(list && list->like->act == act && list->n_name_bytes == MANY && list->n_epoch == MANY && list->n_version == MANY &&
         list->n_question == MANY);
    return list;
}

/* A list of the first n names, which is sent as it is, or each name as a message of its own. questions NULL: without. */
static void say_list(Rdt__Pb__NameAct act, unsigned first, unsigned n, const uint64_t *questions, bool together)
{
    Rdt__Pb__Requester owner = MESSAGE(requester, .uid = getuid());
    bool refused = act == RDT__PB__NAME_ACT__NAME_ACT_REFUSED;
    Rdt__Pb__Name like = MESSAGE(name, .act = act, .owner = &owner, .published = refused, .address = (char *)"127.0.0.1:2");
    Rdt__Pb__NameList list = MESSAGE(name_list, .like = &like);
    uint64_t epoch[MANY], version[MANY], question[MANY];
    uint32_t bytes[MANY];
    size_t used = 0;

    like.node = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)(refused ? winner : node.uuid_bytes)};
    for (unsigned i = 0; i < n; i++) {
        bytes[i] = (uint32_t)strlen(many_texts[first + i]);
        memcpy(many_packed + used, many_texts[first + i], bytes[i]);
        epoch[i] = refused ? 2 : 1;
        version[i] = refused ? 7 : 0;
        question[i] = questions ? questions[first + i] : 0;
        like.name = (ProtobufCBinaryData){bytes[i], (uint8_t *)many_packed + used};
        like.epoch = epoch[i];
        like.version = version[i];
        like.question = question[i];
        used += bytes[i];
        if (!together)
            rogue_peer_send(&rogue_peer, RDT_PEER_NAME, &like.base);
    }
    list.names = (ProtobufCBinaryData){used, (uint8_t *)many_packed};
    list.name_bytes = bytes;
    list.epoch = epoch;
    list.version = version;
    list.question = question;
    list.n_name_bytes = list.n_epoch = list.n_version = list.n_question = n;
    if (together)
        rogue_peer_send(&rogue_peer, RDT_PEER_NAME_LIST, &list.base);
    rogue_peer_flush(&rogue_peer);
}

Test(hostile_names, names_that_are_claimed_together_travel_in_one_message)
{
    enum rdt_status status = RDT_INTERNAL;
    Rdt__Pb__NameList *asked, *told;
    pthread_t thread;

    begin_lists(true);
    must(pthread_create(&thread, NULL, publish_all, &status) == 0);
    asked = heard_list(1, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY / 2, asked->question, true); /* the answers need not be together */
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, MANY / 2, MANY / 2, asked->question, false);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    told = heard_list(2, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    for (unsigned i = 0; i < MANY; i++)
        must(told->version[i] == 1 && asked->version[i] == 0 && told->question[i] > asked->question[i]);
    must(rogue_peer.came[RDT_PEER_NAME].n == 0);
    rdt__pb__name_list__free_unpacked(asked, NULL);
    rdt__pb__name_list__free_unpacked(told, NULL);
    end_all(MANY);
    end_home();
}

Test(hostile_names, home_that_knows_no_lists_is_asked_about_each_name)
{
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;

    begin_lists(false);
    must(pthread_create(&thread, NULL, publish_all, &status) == 0);
    (void)heard(MANY, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY, NULL, false);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    (void)heard(2 * MANY, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    must(rogue_peer.came[RDT_PEER_NAME_LIST].n == 0);
    end_all(3 * MANY);
    end_home();
}

Test(hostile_names, answers_to_earlier_claims_in_a_list_give_no_names)
{
    enum rdt_status status = RDT_INTERNAL;
    Rdt__Pb__NameList *asked, *told, *again;
    pthread_t thread;

    begin_lists(true);
    must(pthread_create(&thread, NULL, publish_all, &status) == 0);
    asked = heard_list(1, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY, asked->question, true);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    told = heard_list(2, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    end_all(MANY);
    must(pthread_create(&thread, NULL, publish_all, &status) == 0);
    again = heard_list(3, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY, told->question, true);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY - 1, again->question, true);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_REFUSED, MANY - 1, 1, again->question, true);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_EXISTS, status);
    rdt__pb__name_list__free_unpacked(asked, NULL);
    rdt__pb__name_list__free_unpacked(told, NULL);
    rdt__pb__name_list__free_unpacked(again, NULL);
    end_home();
}

/* It has answered for some of the names. */
Test(hostile_names, home_that_ends_amid_its_answers_holds_up_nothing)
{
    enum rdt_status status = RDT_INTERNAL;
    Rdt__Pb__NameList *asked;
    pthread_t thread;

    begin_lists(true);
    must(pthread_create(&thread, NULL, publish_all, &status) == 0);
    asked = heard_list(1, RDT__PB__NAME_ACT__NAME_ACT_REGISTER);
    say_list(RDT__PB__NAME_ACT__NAME_ACT_GRANTED, 0, MANY / 2, asked->question, true);
    rogue_peer_close(&rogue_peer);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    rdt__pb__name_list__free_unpacked(asked, NULL);
    must_ok(rdt_unpublish_prefix(bystander, "layer-", NULL, &err));
    open_rogue_peer();
    end_home();
}

Test(hostile_names, questions_of_a_list_are_answered_by_a_list)
{
    static const struct {
        Rdt__Pb__NameAct act, answer;
    } cases[] = {{RDT__PB__NAME_ACT__NAME_ACT_SEEK, RDT__PB__NAME_ACT__NAME_ACT_MISSING},
                 {RDT__PB__NAME_ACT__NAME_ACT_REGISTER, RDT__PB__NAME_ACT__NAME_ACT_GRANTED}};
    uint64_t questions[MANY];

    begin_lists(true);
    for (unsigned i = 0; i < MANY; i++)
        questions[i] = 1000 + i;
    for (unsigned i = 0; i < 2; i++) {
        say_list(cases[i].act, 0, MANY, questions, true);
        Rdt__Pb__NameList *list = heard_list(i + 1, cases[i].answer);
        for (unsigned k = 0; k < MANY; k++)
            must(list->question[k] == questions[k] && list->epoch[k] == i);
        rdt__pb__name_list__free_unpacked(list, NULL);
    }
    must(rogue_peer.came[RDT_PEER_NAME].n == 0);
    end_home();
}

/* No part of such a list is taken. */
Test(hostile_names, list_that_is_malformed_ends_the_link)
{
    Rdt__Pb__Requester owner = MESSAGE(requester, .uid = getuid());
    Rdt__Pb__Name like = MESSAGE(name, .owner = &owner), unowned = MESSAGE(name, .epoch = 0);
    static uint32_t ones[MANY + 1], huge[MANY] = {1, UINT32_MAX}, none[MANY] = {1, 0}, wide[MANY] = {1, RDT_MAX_ID_BYTES + 1};
    static uint64_t numbers[MANY + 1];
    static uint8_t bytes[2 * RDT_MAX_ID_BYTES];
    const struct {
        Rdt__Pb__Name *like;
        uint32_t *name_bytes;
        size_t n, n_epoch, n_version, n_question, bytes;
        const char *says;
    } bad[] = {
        {&like, ones, MANY + 1, MANY + 1, MANY + 1, MANY + 1, MANY + 1, "at most 16"},
        {NULL, ones, 2, 2, 2, 2, 2, "columns that are missing"},
        {&like, ones, 2, 1, 2, 2, 2, "differ in length"},
        {&like, ones, 2, 2, 3, 2, 2, "differ in length"},
        {&like, ones, 2, 2, 2, 0, 2, "differ in length"},
        {&like, ones, 0, 2, 2, 2, 2, "differ in length"},
        {&like, ones, 2, 2, 2, 2, 3, "have 3 bytes, and not 2"},
        {&like, huge, 2, 2, 2, 2, 2, "no name"},
        {&like, none, 2, 2, 2, 2, 1, "no name"},
        {&like, wide, 2, 2, 2, 2, RDT_MAX_ID_BYTES + 2, "no name"},
        {&unowned, ones, 2, 2, 2, 2, 2, "no owner"},
    };

    begin_lists(true);
    for (unsigned i = 0; i <= MANY; i++)
        ones[i] = 1;
    memset(bytes, 'm', sizeof bytes);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        Rdt__Pb__NameList list = MESSAGE(name_list, .like = bad[i].like, .name_bytes = bad[i].name_bytes, .epoch = numbers,
                                         .version = numbers, .question = numbers);
        list.n_name_bytes = bad[i].n;
        list.n_epoch = bad[i].n_epoch;
        list.n_version = bad[i].n_version;
        list.n_question = bad[i].n_question;
        list.names = (ProtobufCBinaryData){bad[i].bytes, bytes};
        rogue_peer_send(&rogue_peer, RDT_PEER_NAME_LIST, &list.base);
        shown_out(bad[i].says);
        rogue_peer_close(&rogue_peer);
        open_rogue_peer();
    }
    end_home();
}
