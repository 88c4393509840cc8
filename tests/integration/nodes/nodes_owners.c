/* SPDX-License-Identifier: Apache-2.0 */
/* Which objects a client of another node may use, by uid and tenant, including objects that are not put yet. */
#include <criterion/criterion.h>
#include <grp.h>

#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(nodes_owners, .timeout = 240);

struct visit {
    const struct test_node *node;
    uid_t uid;
    struct rdt_ref ref;
    enum rdt_status expected;
    const char *says;
    bool free_it;
};

static int fetch_as_user(struct actor *self, void *arg)
{
    const struct visit *visit = arg;
    rdt_object *object;

    must(setgroups(0, NULL) == 0 && setresgid(visit->uid, visit->uid, visit->uid) == 0);
    must(setresuid(visit->uid, visit->uid, visit->uid) == 0);
    rdt *conn = node_client(visit->node, "visitor");
    if (visit->free_it)
        must_refuse(visit->expected, visit->says, rdt_free(conn, &visit->ref, true, &err));
    else if (visit->expected == RDT_OK)
        fetch_pattern(conn, &visit->ref, 100000, 1, NULL);
    else
        must_refuse(visit->expected, visit->says, try_fetch(conn, &visit->ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    return 0;
}

static void visit_as(const struct visit *visit)
{
    struct actor actor;

    actor_start(&actor, fetch_as_user, (void *)(uintptr_t)visit);
    actor_wait(&actor);
}

Test(nodes_owners, uid_of_requester_counts)
{
    open_the_way();
    begin(2);
    struct rdt_ref mine = put_for(owner, RDT_VISIBLE_TO_OWNER);
    struct rdt_ref all = put_for(owner, RDT_VISIBLE_TO_ALL);
    visit_as(&(struct visit){.node = &c.node[1], .uid = 1001, .ref = mine, .expected = RDT_DENIED, .says = "uid 1001"});
    visit_as(&(struct visit){.node = &c.node[1], .uid = 1001, .ref = all, .expected = RDT_OK});
    visit_as(&(struct visit){
        .node = &c.node[1], .uid = 1001, .ref = all, .expected = RDT_DENIED, .says = "belongs to uid 0", .free_it = true});
    fetch_pattern(reader, &mine, 100000, 1, "ucx");
    must_ok(rdt_free(owner, &mine, false, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    end(NULL);
}

Test(nodes_owners, parked_name_is_of_requesters_uid)
{
    begin(2);
    struct rdt_ref ref = ref_on(&c.node[0], "named"); /* no owner in it: the asker's own, at the owner too */
    rdt_request *request = start_one(reader, &ref, LONG);
    await_transfer(&c.node[0], "out", "parked");
    struct rdt_ref put = put_pattern(owner, "named", 10, 1);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

Test(nodes_owners, tenant_not_shared_is_denied)
{
    static const char *const tenant[] = {"--tenant=lab", NULL};
    struct rdt_stat stat;
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, tenant}, .no_meeting = true});
    struct rdt_ref all = put_for(owner, RDT_VISIBLE_TO_ALL);
    struct rdt_ref tenants = put_for(owner, RDT_VISIBLE_TO_TENANT);
    must_refuse(RDT_DENIED, "share_tenants", try_fetch(reader, &all, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_DENIED, "\"lab\"", rdt_stat(reader, &tenants, &stat, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    must_ok(rdt_free(owner, &tenants, false, &err));
    end(NULL);
}

Test(nodes_owners, shared_tenant_is_believed)
{
    static const char *const tenant[] = {"--tenant=lab", NULL}, *const shares[] = {"--share-tenants=shop,lab", NULL};
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {shares, tenant}, .no_meeting = true});
    struct rdt_ref all = put_for(owner, RDT_VISIBLE_TO_ALL);
    struct rdt_ref tenants = put_for(owner, RDT_VISIBLE_TO_TENANT); /* the unnamed one */
    fetch_pattern(reader, &all, 100000, 1, "ucx");
    must_be(RDT_DENIED, try_fetch(reader, &tenants, RDT_FETCH_AUTO, LONG, &object, &err));
    must_ok(rdt_free(owner, &all, false, &err));
    must_ok(rdt_free(owner, &tenants, false, &err));
    end(NULL);
}
