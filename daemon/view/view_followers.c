/* SPDX-License-Identifier: Apache-2.0 */
/* FOLLOWERS: the followers of names that the caller may see, its own first. */
#include "daemon/view/view.h"
#include "wire_ref.h"

#define MOST_ROWS FOLLOWERS_OF_CLIENT /* in one answer: all of the caller's own fit */
#define MOST_LOOKED 4096u             /* followers that are looked at for it */

static char *packed_text(struct arena *arena, const char *text)
{
    return arena_text(arena, text, strlen(text) + 1);
}

static bool add(Rdt__Pb__FollowersReply *reply, struct arena *arena, const struct follower *follower)
{
    Rdt__Pb__FollowerInfo *info = arena_message(arena, &rdt__pb__follower_info__descriptor);
    char name[3 * RDT_MAX_ID_BYTES + 1], ref[RDT_REF_TEXT_BYTES];
    const struct owner *user = &follower->client->account->owner;
    struct follower_view view;

    follower_view(follower, &view);
    wire_ref_id_text(view.name->id, view.name->id_bytes, name);
    rdt_ref_to_text(view.name, ref);
    if (!info || !(info->name = packed_text(arena, name)) || !(info->ref = packed_text(arena, ref)))
        return false;
    info->client = follower->client->id;
    info->client_name = (char *)follower->client->name;
    info->follower = follower->number;
    info->tenant = (char *)user->tenant;
    info->uid = user->uid;
    info->committed = view.committed;
    info->prepared = view.prepared;
    info->newest = view.newest;
    info->lag = view.lag;
    info->lag_ns = view.lag_ns;
    info->state = (char *)view.state;
    info->failure = (char *)view.failure;
    info->bytes = view.bytes;
    reply->followers[reply->n_followers++] = info;
    return true;
}

enum rdt_status rpc_followers(struct call *call, const void *request, struct rdt_error *err)
{
    Rdt__Pb__FollowersReply reply = RDT__PB__FOLLOWERS_REPLY__INIT;
    struct arena *arena = call->request.arena;
    unsigned n_looked = 0;
    bool whole = (reply.followers = arena_alloc(arena, MOST_ROWS * sizeof *reply.followers));

    list_each (const struct follower, follower, &call->client->followers, by_client)
        whole = whole && reply.n_followers < MOST_ROWS && add(&reply, arena, follower);
    list_each (const struct follower, follower, &call->rpc->transfers->held.follows->followers, link) {
        if (!whole || ++n_looked > MOST_LOOKED)
            break;
        if (follower->client == call->client || !call_may_see(call, &follower->client->account->owner))
            continue;
        if (reply.n_followers < MOST_ROWS)
            whole = add(&reply, arena, follower);
        else
            reply.more++;
    }
    if (!whole)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list of followers");
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
