/* SPDX-License-Identifier: Apache-2.0 */
/* Calls without a place for their result: each says which pointer is NULL. */
#include "client/rdt_delta.h"
#include "client/rdt_follow.h"
#include "client/rdt_info.h"
#include "client/rdt_many.h"
#include "tests/integration/calls/names.h"

TestSuite(results, .timeout = 120);

#define REFUSED(name, call) must_refuse(RDT_INVALID, name " is NULL", call)

Test(results, call_without_a_place_for_its_result_is_refused)
{
    struct rdt_ref name, id;
    uint8_t packed[RDT_REF_PACKED_BYTES], base[64] = {0}, next[64] = {1};
    size_t used;
    bool known;

    begin(NULL);
    name = name_ref("policy", 0);
    must_ok(rdt_ref_from_id("o", 1, &id, &err));
    REFUSED("rdt_p", rdt_connect(NULL, NULL, &err));
    REFUSED("info_p", rdt_node(trainer, NULL, &err));
    REFUSED("ref_p", rdt_ref_from_id("o", 1, NULL, &err));
    REFUSED("ref_p", rdt_ref_from_name("policy", 0, NULL, NULL, &err));
    REFUSED("ref_p", rdt_ref_from_text("o", NULL, &err));
    REFUSED("ref_p", rdt_ref_unpack(packed, rdt_ref_pack(&id, packed), NULL, &err));
    REFUSED("addr_p", rdt_alloc(trainer, 8, NULL, &err));
    REFUSED("known_p", rdt_known(trainer, &known, 1, NULL, NULL, NULL, &err));
    REFUSED("bytes_p", rdt_tensor_bytes(&VECTOR(RDT_U8, 1, packed), NULL, &err));
    REFUSED("ref_p", rdt_put(trainer, &VECTOR(RDT_U8, 1, packed), 1, NULL, NULL, &err));
    REFUSED("requests_p", rdt_fetch_start(trainer, &id, 1, NULL, NULL, &err));
    REFUSED("objects_p", rdt_fetch(trainer, &id, 1, NULL, NULL, &err));
    REFUSED("objects_p", rdt_fetch_each(trainer, &id, 1, NULL, NULL, NULL, &err));
    REFUSED("request_p", rdt_wait_put_start(trainer, &id, 0, NULL, &err));
    REFUSED("request_p", rdt_wait_freed_start(trainer, &id, 0, NULL, &err));
    REFUSED("request_p", rdt_broadcast_start(trainer, &id, "group", 0, NULL, &err));
    REFUSED("request_p", rdt_publish_part_start(trainer, &name, 1, 0, 1, &id, NULL, 0, NULL, &err));
    REFUSED("hold_p", rdt_hold_start(trainer, &id, 0, NULL, &err));
    REFUSED("hold_p", rdt_take_over_start(trainer, &id, 0, NULL, &err));
    REFUSED("hold_p", rdt_hold(trainer, &id, 0, NULL, &err));
    REFUSED("event_p", rdt_next_event(trainer, 0, NULL, &err));
    REFUSED("stat_p", rdt_stat(trainer, &id, NULL, &err));
    REFUSED("status_p", rdt_daemon_status(trainer, NULL, &err));
    REFUSED("text_p", rdt_metrics(trainer, RDT_METRICS_PROMETHEUS, NULL, &err));
    REFUSED("text_p", rdt_info_json(trainer, "ping", NULL, NULL, NULL, &err));
    REFUSED("count_p", rdt_devices(trainer, NULL, 0, NULL, &err));
    REFUSED("devices_p", rdt_devices(trainer, NULL, 1, &used, &err));
    REFUSED("count_p", rdt_group_list(trainer, NULL, 0, NULL, &err));
    REFUSED("groups_p", rdt_group_list(trainer, NULL, 1, &used, &err));
    REFUSED("manifest_p", rdt_manifest_fetch(trainer, &name, 0, NULL, &err));
    REFUSED("plan_p", rdt_plan_create(trainer, &name, NULL, 0, NULL, NULL, &err));
    REFUSED("publishing_p", rdt_publishing_begin(trainer, &name, 1, 0, 1, NULL, NULL, &err));
    REFUSED("follower_p", rdt_follow(trainer, &name, NULL, NULL, &err));
    REFUSED("info_p", rdt_follower_info(NULL, NULL, &err));
    REFUSED("refs_p", rdt_put_many(trainer, &(struct rdt_value){.count = 0}, 1, NULL, NULL, NULL, &err));
    REFUSED("statuses_p", rdt_exists(trainer, &id, 1, NULL, &err));
    REFUSED("refs_p", rdt_lookup(trainer, &(struct rdt_key){"o", 1}, 1, NULL, NULL, NULL, &err));
    REFUSED("out", rdt_delta_encode(base, next, 8, 8, NULL, 0, &used, &err));
    REFUSED("used_p", rdt_delta_encode(base, next, 8, 8, packed, sizeof packed, NULL, &err));
    REFUSED("used_p", rdt_delta_note(&id, &id, packed, sizeof packed, NULL, &err));
    must_ok(rdt_ping(trainer, LONG, &err));
    end();
}

Test(results, ended_request_gives_what_it_has_to_a_later_call)
{
    uint8_t byte = 7;
    struct rdt_ref held = {0};
    rdt_request *request = NULL;
    rdt_object *object = NULL;
    uint64_t version;

    begin(NULL);
    struct rdt_ref ref = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_fetch_start(sampler, &ref, 1, NULL, &request, &err));
    must_ok(rdt_wait(sampler, &request, 1, 1, LONG, NULL, NULL, &err));
    REFUSED("object_p", rdt_request_take_object(request, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    REFUSED("shard_p", rdt_object_shard(object, 0, NULL, &err));
    REFUSED("tensor_p", rdt_object_tensor(object, 0, NULL, &err));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_hold(sampler, &ref, LONG, &request, &err));
    REFUSED("ref_p", rdt_hold_ref(request, NULL, &err));
    must_refuse(RDT_INVALID, "is not of rdt_publish_part_start", rdt_part_version(request, &version, &err));
    must_ok(rdt_hold_ref(request, &held, &err));
    must(held.generation == ref.generation);
    rdt_request_destroy(request);
    must_ok(rdt_free(trainer, &ref, false, &err));
    end();
}
