/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for many objects and names on one node: each has a status of its own. */
#include "client/rdt_many.h"
#include "tests/integration/calls/names.h"

TestSuite(many, .timeout = 120);

#define MANY 20000u /* more than one message has */

static struct rdt_ref id_ref(const char *word, unsigned i)
{
    struct rdt_ref ref = {0};
    char id[64];

    (void)snprintf(id, sizeof id, "%s-%u", word, i);
    must_ok(rdt_ref_from_id(id, strlen(id), &ref, &err));
    return ref;
}

/* ---- exists ---- */

Test(many, exists_tells_objects_names_and_what_has_ended)
{
    enum rdt_status statuses[7];
    struct rdt_ref refs[7], gone;
    uint8_t byte = 1;

    begin(NULL);
    refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "here-0");
    refs[1] = id_ref("here", 0);
    refs[2] = id_ref("missing", 0);
    (void)publish_pattern(trainer, "weights", 1);
    refs[3] = name_ref("weights", 0);
    refs[4] = name_ref("weights", 1);
    refs[5] = name_ref("nothing", 0);
    gone = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_free(trainer, &gone, false, &err));
    refs[6] = gone;
    must_ok(rdt_exists(sampler, refs, 7, statuses, &err));
    cr_assert_eq(statuses[0], RDT_OK);
    cr_assert_eq(statuses[1], RDT_OK);
    cr_assert_eq(statuses[2], RDT_NOT_PUT);
    cr_assert_eq(statuses[3], RDT_OK);
    cr_assert_eq(statuses[4], RDT_NOT_PUT, "there is no version above 1");
    cr_assert_eq(statuses[5], RDT_NOT_PUT);
    cr_assert_eq(statuses[6], RDT_FREED);
    must_ok(rdt_exists(sampler, NULL, 0, NULL, &err));
    unpublish(trainer, "weights");
    must_ok(rdt_exists(sampler, &refs[4], 1, statuses, &err));
    cr_assert_eq(statuses[0], RDT_FREED);
    end();
}

Test(many, exists_of_more_than_one_message_is_in_order)
{
    enum rdt_status *statuses = calloc(MANY, sizeof *statuses);
    struct rdt_ref *refs = calloc(MANY, sizeof *refs);
    uint8_t byte = 1;

    begin(NULL);
    for (unsigned i = 0; i < MANY; i++) {
        char id[32];
        refs[i] = id_ref("object", i);
        (void)snprintf(id, sizeof id, "object-%u", i);
        if (i % 1000 == 7)
            (void)put_one(trainer, &VECTOR(RDT_U8, 1, &byte), id);
    }
    must_ok(rdt_exists(sampler, refs, MANY, statuses, &err));
    for (unsigned i = 0; i < MANY; i++)
        cr_assert_eq(statuses[i], i % 1000 == 7 ? RDT_OK : RDT_NOT_PUT, "object %u: %s", i, rdt_status_name(statuses[i]));
    refs[3].id_bytes = 0;
    must_refuse(RDT_INVALID, "ref 3", rdt_exists(sampler, refs, MANY, statuses, &err));
    free(refs);
    free(statuses);
    end();
}

struct hidden {
    struct rdt_ref refs[4];
};

static int ask_as_stranger(struct actor *self, void *arg)
{
    const struct hidden *hidden = arg;
    enum rdt_status statuses[4];
    rdt *conn;

    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    node_connect(&node, &conn);
    must_ok(rdt_exists(conn, hidden->refs, 4, statuses, &err));
    must(statuses[0] == RDT_NOT_PUT && statuses[1] == RDT_NOT_PUT);
    must(statuses[2] == RDT_OK && statuses[3] == RDT_OK);
    rdt_close(conn);
    return 0;
}

Test(many, exists_shows_nothing_that_others_hide)
{
    struct rdt_publish_options for_all = RDT_INIT(for_all);
    struct rdt_put_options shown = RDT_INIT(shown);
    struct hidden hidden;
    struct actor stranger;
    uint8_t byte = 1;

    need_root();
    begin(NULL);
    hidden.refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "hidden");
    hidden.refs[0].generation = 0;
    must_ok(rdt_publish(trainer, "hidden", &hidden.refs[0], NULL, NULL, &err));
    must_ok(rdt_ref_from_name("hidden", 0, &hidden.refs[0], &hidden.refs[1], &err));
    shown.visibility = RDT_VISIBLE_TO_ALL;
    hidden.refs[2] = put_as(trainer, &VECTOR(RDT_U8, 1, &byte), 1, &shown);
    for_all.visibility = RDT_VISIBLE_TO_ALL;
    for_all.name_ref = &hidden.refs[3];
    must_ok(rdt_publish(trainer, "shown", &hidden.refs[2], &for_all, NULL, &err));
    actor_start(&stranger, ask_as_stranger, &hidden);
    actor_wait(&stranger);
    unpublish(trainer, "hidden");
    unpublish(trainer, "shown");
    end();
}

/* ---- fetch, wait ---- */

Test(many, fetch_each_brings_what_there_is)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    enum rdt_status statuses[4];
    rdt_object *objects[4];
    struct rdt_ref refs[4];
    uint8_t bytes[2] = {5, 6};

    begin(NULL);
    refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[0]), NULL);
    refs[1] = id_ref("missing", 0);
    refs[2] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[1]), NULL);
    must_ok(rdt_free(trainer, &refs[2], false, &err));
    refs[3] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[1]), "last");
    options.timeout_ns = RDT_NO_WAIT;
    must_refuse(RDT_NOT_PUT, "missing", rdt_fetch_each(sampler, refs, 4, &options, objects, statuses, &err));
    cr_assert_eq(statuses[0], RDT_OK);
    cr_assert_eq(statuses[1], RDT_NOT_PUT);
    cr_assert_eq(statuses[2], RDT_FREED);
    cr_assert_eq(statuses[3], RDT_OK);
    cr_assert_eq(*(const uint8_t *)tensor_of(objects[0], 0).data, 5);
    cr_assert_eq(*(const uint8_t *)tensor_of(objects[3], 0).data, 6);
    cr_assert(!objects[1] && !objects[2]);
    rdt_release(objects[0]);
    rdt_release(objects[3]);
    options.verify = true;
    must_refuse(RDT_UNSUPPORTED, "checksum", rdt_fetch_each(sampler, &refs[3], 1, &options, objects, NULL, &err));
    cr_assert(!objects[0]);
    end();
}

Test(many, wait_each_goes_on_after_a_failure)
{
    enum rdt_status statuses[3];
    rdt_request *requests[3];
    struct rdt_ref ref;
    uint8_t byte = 1;

    begin(NULL);
    ref = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_free(trainer, &ref, false, &err));
    requests[0] = start_one(sampler, &ref, RDT_FOREVER);
    ref = id_ref("later", 0);
    requests[1] = start_one(sampler, &ref, RDT_FOREVER);
    ref = id_ref("never", 0);
    requests[2] = start_one(sampler, &ref, RDT_FOREVER);
    must_ok(rdt_wait_each(sampler, requests, 3, 1, LONG, statuses, &err));
    cr_assert_eq(statuses[0], RDT_FREED);
    cr_assert_eq(statuses[1], RDT_AGAIN);
    (void)put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "later-0");
    must_ok(rdt_wait_each(sampler, requests, 3, 2, LONG, statuses, &err));
    cr_assert_eq(statuses[1], RDT_OK);
    must_be(RDT_TIMED_OUT, rdt_wait_each(sampler, requests, 3, RDT_WAIT_ALL, MSEC, statuses, &err));
    cr_assert_eq(statuses[2], RDT_AGAIN);
    rdt_cancel(requests[2]);
    must_ok(rdt_wait_each(sampler, requests, 3, RDT_WAIT_ALL, LONG, statuses, &err));
    cr_assert_eq(statuses[2], RDT_CANCELLED);
    for (int i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    must_refuse(RDT_INVALID, "how_many", rdt_wait_each(sampler, requests, 0, 1, 0, NULL, &err));
    end();
}
