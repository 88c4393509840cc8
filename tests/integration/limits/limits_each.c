/* SPDX-License-Identifier: Apache-2.0 */
/* Every key that sets a limit, in one table. What fits is granted. One more is refused before anything is done, in a
 * sentence that names the key. Nobody else is affected, `rdtctl limits` shows it, what is given back can be used again, and
 * nothing is left when its clients have ended. A caller that may wait for room waits until there is room or its deadline
 * has come. */
#include "tests/integration/limits/limits.h"

#include "tests/support/fakes/fake_device.h"
#include "tests/support/program.h"

TestSuite(limits_each, .timeout = 120);

#define STRANGER 12345
#define FIT 3u
#define META_BYTES 60000u

enum deed { ALLOC, ALLOC_DEVICE, PUT, PUT_META, FETCH, WAIT, HOLD, PUBLISH, GROUP, CONNECT };

static const struct row {
    const char *key, *value; /* with it FIT of the deed fit */
    const char *what;        /* its name in rdtctl limits; NULL: it is not counted for one client or owner */
    enum deed deed;
    bool waits;             /* a deed that is given a time waits for room */
    enum rdt_status status; /* 0: LIMIT */
} rows[] = {
    {"client_max_bytes", "3MiB", "bytes", ALLOC, true, 0},
    {"client_max_objects", "3", "objects", PUT, true, 0},
    {"client_max_regions", "3", "regions", ALLOC, true, 0},
    {"client_max_fds", "5", "fds", ALLOC, true, 0}, /* two are its connection's */
    {"client_max_transfers", "3", "transfers", FETCH, false, 0},
    {"client_max_waiters", "3", "waiters", WAIT, false, 0},
    {"client_max_heap", "190000", "heap", PUT_META, false, 0},
    {"client_max_device_bytes", "3MiB", "device_bytes", ALLOC_DEVICE, true, 0},
    {"client_max_holds", "3", "holds", HOLD, false, 0},
    {"owner_max_bytes", "3MiB", "bytes", ALLOC, true, 0},
    {"owner_max_objects", "3", "objects", PUT, true, 0},
    {"owner_max_regions", "3", "regions", ALLOC, true, 0},
    {"owner_max_fds", "9", "fds", ALLOC, true, 0}, /* the watcher's, too */
    {"owner_max_transfers", "3", "transfers", FETCH, false, 0},
    {"owner_max_waiters", "3", "waiters", WAIT, false, 0},
    {"owner_max_heap", "190000", "heap", PUT_META, false, 0},
    {"owner_max_device_bytes", "3MiB", "device_bytes", ALLOC_DEVICE, true, 0},
    {"owner_max_holds", "3", "holds", HOLD, false, 0},
    {"owner_max_sessions", "6", "sessions", CONNECT, false, 0},
    {"owner_max_groups", "3", "groups", GROUP, false, 0},
    {"owner_max_names", "3", "names", PUBLISH, false, 0},
    {"max_clients", "6", NULL, CONNECT, false, 0},
    {"max_objects", "3", NULL, PUT, true, 0},
    {"memory_limit", "3MiB", NULL, ALLOC, true, RDT_NO_MEMORY},
    {"device_limit", "3MiB", NULL, ALLOC_DEVICE, true, 0},
};

static const struct row *row;
static struct raw mine[2]; /* two clients of this user */
static struct raw strangers[2];
static struct raw doors[FIT + 2]; /* CONNECT's */
static uint64_t made[FIT + 2];    /* request, region or handle: whatever undoes it */
static char said[256];

static bool is_owners(void)
{
    return strncmp(row->key, "client_", 7) != 0;
}

/* A client's limit is filled by that client; an owner's by both of its. */
static struct raw *who(unsigned i)
{
    return &mine[is_owners() ? i % 2 : 0];
}

/* ---- the deeds ---- */

static Rdt__Pb__Ref *base(void)
{
    static Rdt__Pb__Ref ref;

    rdt__pb__ref__init(&ref);
    ref.id = (ProtobufCBinaryData){4, (uint8_t *)"base"};
    ref.any_owner = true;
    return &ref;
}

static uint64_t send_put(struct raw *raw, const char *id, int64_t timeout_ns)
{
    static uint8_t metadata[META_BYTES];

    Rdt__Pb__Put put =
        MESSAGE(put, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id}, .timeout_ns = timeout_ns);
    if (row->deed == PUT_META)
        put.metadata = (ProtobufCBinaryData){sizeof metadata, metadata};
    return raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
}

static uint64_t send_alloc(struct raw *raw, bool device, int64_t timeout_ns)
{
    Rdt__Pb__Alloc alloc = MESSAGE(alloc, .bytes = MIB, .timeout_ns = timeout_ns, .memory = (char *)(device ? "fake" : "host"));
    return raw_send(raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
}

static uint64_t send_fetch(struct raw *raw, uint64_t handle)
{
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};

    item.handle = handle;
    item.ref = base(); /* nobody puts it */
    Rdt__Pb__Fetch fetch = MESSAGE(fetch, .n_items = 1, .items = items, .timeout_ns = -1);
    return raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
}

static uint64_t send_wait_or_hold(struct raw *raw)
{
    Rdt__Pb__Wait wait = RDT__PB__WAIT__INIT;
    Rdt__Pb__Hold keep = RDT__PB__HOLD__INIT;

    wait.ref = keep.ref = base();
    wait.timeout_ns = keep.timeout_ns = -1;
    return row->deed == WAIT ? raw_send(raw, RDT_MSG_WAIT, &wait.base, NULL, 0)
                             : raw_send(raw, RDT_MSG_HOLD, &keep.base, NULL, 0);
}

static uint64_t send_group(struct raw *raw, const char *name)
{
    Rdt__Pb__GroupMember a = RDT__PB__GROUP_MEMBER__INIT, b = a, *members[] = {&a, &b};

    a.client = (char *)"first";
    b.client = (char *)"second";
    Rdt__Pb__GroupCreate create = MESSAGE(group_create, .name = (char *)(uintptr_t)name, .transport = (char *)"grouped",
                                          .n_members = 2, .members = members);
    return raw_send(raw, RDT_MSG_GROUP_CREATE, &create.base, NULL, 0);
}

static uint64_t send_connect(struct raw *raw, const char *name)
{
    raw_connect(raw, "s"); /* another user may not come by the whole path */
    Rdt__Pb__Hello hello = MESSAGE(hello, .protocol_min = RDT_PROTOCOL_MIN, .protocol_max = RDT_PROTOCOL_MAX,
                                   .client_name = (char *)(uintptr_t)name);
    return raw_send(raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
}

static const char *name_of(unsigned i)
{
    static const char *const names[] = {"n0", "n1", "n2", "n3", "n4"};

    return names[i];
}

static uint64_t send_deed(struct raw *raw, unsigned i, int64_t timeout_ns)
{
    Rdt__Pb__Publish publish = RDT__PB__PUBLISH__INIT;

    switch (row->deed) {
    case ALLOC:
    case ALLOC_DEVICE:
        return send_alloc(raw, row->deed == ALLOC_DEVICE, timeout_ns);
    case PUT:
    case PUT_META:
        return send_put(raw, name_of(i), timeout_ns);
    case FETCH:
        return send_fetch(raw, i + 1);
    case WAIT:
    case HOLD:
        return send_wait_or_hold(raw);
    case PUBLISH:
        publish.name = (ProtobufCBinaryData){2, (uint8_t *)(uintptr_t)name_of(i)};
        publish.ref = base();
        return raw_send(raw, RDT_MSG_PUBLISH, &publish.base, NULL, 0);
    case GROUP:
        return send_group(raw, name_of(i));
    default:
        return send_connect(&doors[i], name_of(i));
    }
}

/* Returns the result of the request: OK, or the error, with its sentence in `said`. A request that is answered at its end
 * counts as OK while it has no answer. */
static enum rdt_status outcome(struct raw *raw, uint64_t id, unsigned i)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    bool silent = row->deed == FETCH || row->deed == WAIT;
    uint64_t last = silent ? raw_send(raw, RDT_MSG_PING, &ping.base, NULL, 0) : id;
    enum rdt_status status = RDT_OK;

    made[i] = id;
    for (bool done = false; !done;) {
        must_say(raw_next(raw), "%s: the daemon has closed", row->key);
        done = raw->frame.request_id == last || (raw->frame.flags & FRAME_ERROR);
        if (raw->frame.flags & FRAME_ERROR) {
            Rdt__Pb__ErrorReply *error = rdt__pb__error_reply__unpack(NULL, raw->frame.length, raw->frame.payload);
            status = (enum rdt_status)error->status;
            (void)snprintf(said, sizeof said, "%s", error->message);
            rdt__pb__error_reply__free_unpacked(error, NULL);
            done = !silent;
            last = silent ? last : id;
        } else if (raw->frame.type == RDT_EVENT_FETCH_DONE) {
            Rdt__Pb__FetchDone *event = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
            status = (enum rdt_status)event->status;
            (void)snprintf(said, sizeof said, "%s", event->message);
            rdt__pb__fetch_done__free_unpacked(event, NULL);
        } else if (raw->frame.type == RDT_MSG_ALLOC) {
            Rdt__Pb__RegionReply *reply = rdt__pb__region_reply__unpack(NULL, raw->frame.length, raw->frame.payload);
            made[i] = reply->region;
            rdt__pb__region_reply__free_unpacked(reply, NULL);
            frame_close_fds(&raw->frame);
        }
    }
    return status;
}

static enum rdt_status try_deed(unsigned i)
{
    uint64_t id = send_deed(who(i), i, 0);
    enum rdt_status status = outcome(row->deed == CONNECT ? &doors[i] : who(i), id, i);

    if (row->deed == CONNECT && status != RDT_OK)
        raw_close(&doors[i]);
    return status;
}

/* Asks to take number i back; the request. */
static uint64_t send_undo(unsigned i)
{
    Rdt__Pb__Free drop = RDT__PB__FREE__INIT;
    Rdt__Pb__Unpublish unpublish = RDT__PB__UNPUBLISH__INIT;
    Rdt__Pb__Ref *ref = base();
    struct raw *raw = who(i);

    ref->id = (ProtobufCBinaryData){2, (uint8_t *)(uintptr_t)name_of(i)};
    Rdt__Pb__ReleaseRegion release = MESSAGE(release_region, .region = made[i]);
    drop.ref = unpublish.name = ref;
    ref->is_name = row->deed == PUBLISH;
    Rdt__Pb__Cancel cancel = MESSAGE(cancel, .handle = i + 1);
    Rdt__Pb__CancelRequest cancel_request = MESSAGE(cancel_request, .request_id = made[i]);
    Rdt__Pb__GroupDestroy destroy = MESSAGE(group_destroy, .name = (char *)(uintptr_t)name_of(i));
    switch (row->deed) {
    case ALLOC:
    case ALLOC_DEVICE:
        return raw_send(raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0);
    case PUT:
    case PUT_META:
        return raw_send(raw, RDT_MSG_FREE, &drop.base, NULL, 0);
    case FETCH:
        return raw_send(raw, RDT_MSG_CANCEL, &cancel.base, NULL, 0);
    case PUBLISH:
        return raw_send(raw, RDT_MSG_UNPUBLISH, &unpublish.base, NULL, 0);
    case GROUP:
        return raw_send(raw, RDT_MSG_GROUP_DESTROY, &destroy.base, NULL, 0);
    default:
        return raw_send(raw, RDT_MSG_CANCEL_REQUEST, &cancel_request.base, NULL, 0);
    }
}

/* And awaits it. */
static void undo(unsigned i)
{
    struct raw *raw = who(i);

    if (row->deed == CONNECT) {
        raw_close(&doors[i]);
        return;
    }
    uint64_t id = send_undo(i);
    do
        must(raw_next(raw));
    while (raw->frame.request_id != id);
    must_say(!(raw->frame.flags & FRAME_ERROR), "%s: it could not be taken back", row->key);
}

/* ---- using the limits ---- */

/* All numbers of that client, or of its owner. */
static void count(uint64_t client, uint64_t *used_p, size_t *n_p)
{
    Rdt__Pb__ListReply *reply =
        list(&watcher, client ? RDT__PB__LIST_KIND__LIST_KIND_CLIENTS : RDT__PB__LIST_KIND__LIST_KIND_OWNERS);

    *n_p = 0;
    for (size_t i = 0; i < reply->n_clients; i++)
        if (reply->clients[i]->client == client)
            for (size_t k = 0; k < reply->clients[i]->n_usage && *n_p < 16; k++)
                used_p[(*n_p)++] = reply->clients[i]->usage[k]->used;
    for (size_t i = 0; i < reply->n_owners; i++)
        if (reply->owners[i]->uid == geteuid())
            for (size_t k = 0; k < reply->owners[i]->n_usage && *n_p < 16; k++)
                used_p[(*n_p)++] = reply->owners[i]->usage[k]->used;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
}

static bool still(uint64_t client, const uint64_t *before, size_t n_before)
{
    uint64_t now[16];
    size_t n;

    count(client, now, &n);
    return n == n_before && memcmp(now, before, n * sizeof *now) == 0;
}

/* The line of `rdtctl limits` says that it is full. */
static void must_be_shown(uint64_t client)
{
    char whose[32];
    struct program ctl;
    const char *share;
    unsigned percent = 0;

    (void)snprintf(whose, sizeof whose, client ? "client %llu (" : "owner %llu ",
                   client ? (unsigned long long)client : (unsigned long long)geteuid());
    program_run(&ctl, (const char *[]){"rdtctl", "--socket", node.socket, "limits", NULL}, NULL);
    must_say(ctl.status == 0, "%s", ctl.err);
    for (char *save = NULL, *line = strtok_r(ctl.out, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char what[24];
        (void)snprintf(what, sizeof what, " %s ", row->what);
        if (strncmp(line, whose, strlen(whose)) != 0 || !strstr(line, what) || !strchr(line, '%'))
            continue;
        for (share = strchr(line, '%'); share > line && share[-1] != ' '; share--)
            ;
        (void)sscanf(share, "%u%%", &percent);
        must_say(!strstr(row->value, "MiB") || strstr(line, "MiB"), "bytes without a unit: %s", line);
    }
    must_say(percent >= 90, "rdtctl limits says that %s is full to %u%%", row->key, percent);
    program_free(&ctl);
}

/* ---- one row ---- */

static uint64_t first_session(void)
{
    Rdt__Pb__ListReply *reply = list(&watcher, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    uint64_t found = 0;

    for (size_t i = 0; i < reply->n_clients; i++)
        if (strcmp(reply->clients[i]->name, "first") == 0)
            found = reply->clients[i]->client;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return found;
}

static void come(struct raw *raw, const char *name)
{
    uint64_t id = send_connect(raw, name);

    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__hello_reply__descriptor), NULL);
}

/* As another user, and the same there: the kernel notes who connects. */
static void must_not_disturb_others(void)
{
    must(seteuid(STRANGER) == 0);
    come(&strangers[0], "first");
    come(&strangers[1], "second");
    must(seteuid(0) == 0);
    must_say(outcome(&strangers[0], send_deed(&strangers[0], FIT, 0), FIT + 1) == RDT_OK, "%s, of another user: %s", row->key,
             said);
    raw_close(&strangers[0]);
    raw_close(&strangers[1]);
    if (!is_owners())
        must_say(outcome(&mine[1], send_deed(&mine[1], FIT + 1, 0), FIT + 1) == RDT_OK, "%s, of another client: %s", row->key,
                 said);
}

static void expect_refusal(enum rdt_status status, enum rdt_status expected)
{
    must_say(status == expected, "%s: %s instead of %s: %s", row->key, rdt_status_name(status), rdt_status_name(expected),
             said);
    must_say(strstr(said, row->key), "the sentence does not name %s: %s", row->key, said);
}

static void wait_for_room(void)
{
    int64_t since = now_ns();
    enum rdt_status status = outcome(who(0), send_deed(who(0), FIT, 100 * MSEC), FIT);

    expect_refusal(status, RDT_TIMED_OUT);
    must_say(now_ns() - since >= 100 * MSEC, "%s: it did not wait for its time", row->key);
    must_be_within(since, 2 * SEC);
    uint64_t id = send_deed(who(0), FIT, LONG);
    wait_until(LONG, used(0, "waiters") == 1);
    (void)send_undo(1); /* of the owner's other client, if it is the owner's limit */
    must_say(outcome(who(0), id, FIT) == RDT_OK, "%s: %s", row->key, said);
    made[1] = made[FIT]; /* for the test that takes it back */
}

static void fill(void)
{
    for (unsigned i = 0; i < FIT; i++)
        must_say(try_deed(i) == RDT_OK, "%s: number %u: %s", row->key, i, said);
}

static void refuse(uint64_t client)
{
    uint64_t before[16];
    size_t n;

    count(client, before, &n);
    must(n > 8);
    for (unsigned i = 0; i < 2; i++)
        expect_refusal(try_deed(FIT), row->status ? row->status : RDT_LIMIT);
    wait_until(LONG, still(client, before, n));
}

static void run_row(void)
{
    for (unsigned i = 0; i < 2; i++)
        come(&mine[i], i == 0 ? "first" : "second");
    wait_until(LONG, used(0, "sessions") == 2); /* those that waited for the daemon have left */
    uint64_t client = is_owners() ? 0 : first_session();
    if (row->deed == HOLD || row->deed == PUBLISH)
        must(outcome(&mine[0], send_put(&mine[0], "base", 0), 0) == RDT_OK);
    fill();
    refuse(client);
    if (row->what && row->deed != CONNECT)
        must_be_shown(client);
    if (row->what && row->deed != HOLD && row->deed != PUBLISH && row->deed != CONNECT) /* these want an object of their own */
        must_not_disturb_others();
    undo(2);
    if (row->deed == CONNECT)
        wait_until(LONG, used(0, "sessions") == 2 + FIT - 1);
    must_say(try_deed(2) == RDT_OK, "%s: nothing came free: %s", row->key, said);
    expect_refusal(try_deed(FIT), row->status ? row->status : RDT_LIMIT);
    if (row->waits)
        wait_for_room();
    for (unsigned i = 0; i < FIT && (row->deed == PUBLISH || row->deed == GROUP); i++) /* these outlive who made them */
        undo(i);
    for (unsigned i = 0; row->deed == CONNECT && i < FIT; i++)
        raw_close(&doors[i]);
    raw_close(&mine[0]);
    raw_close(&mine[1]);
    wait_until(LONG, nothing_is_used() && used(0, "device_bytes") == 0 && used(0, "groups") == 0);
}

static void run_rows(const char *prefix)
{
    struct fake_devices gpu;
    char flag[64], grouped[200];
    unsigned n = 0;

    (void)snprintf(grouped, sizeof grouped, "--backend=%s", build_path("tests/rdt_grouped.so"));
    for (row = rows; row < rows + sizeof(rows) / sizeof *rows; row++) {
        const char *flags[12] = {flag, grouped, "--chunk=1MiB"};
        if (strncmp(row->key, prefix, strlen(prefix)) != 0)
            continue;
        (void)snprintf(flag, sizeof flag, "--set=%s.%s=%s", *row->key == 'c' || *row->key == 'o' ? "limits" : "daemon",
                       row->key, row->value);
        fake_device_init(&gpu, "one", (const char *[]){"devices=1", NULL});
        for (unsigned i = 0; gpu.flags[i]; i++)
            flags[3 + i] = gpu.flags[i];
        node_start(&node, &(struct node_options){.flags = flags, .trusted_network = true});
        must(chdir(node.dir) == 0);
        come(&watcher, "watcher");
        run_row();
        raw_close(&watcher);
        node_end(&node, (const char *[]){row->key, NULL});
        fake_device_fini(&gpu);
        n++;
    }
    must(n > 0);
}

Test(limits_each, clients)
{
    need_root();
    run_rows("client_");
}

Test(limits_each, owners)
{
    need_root();
    run_rows("owner_");
}

Test(limits_each, daemons)
{
    need_root();
    run_rows("max_");
    run_rows("memory_");
    run_rows("device_");
}

/* Every limit of the configuration has a row in the table. */
Test(limits_each, none_is_forgotten)
{
    struct program rdtd;
    bool limits = false;

    program_run(&rdtd, (const char *[]){"rdtd", "--dump-config", NULL}, NULL);
    must(rdtd.status == 0);
    for (char *save = NULL, *line = strtok_r(rdtd.out, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        /* filled by what a client leaves: region_orphans::user_with_too_many_gets_no_new_regions_until_they_end */
        bool known = strncmp(line, "owner_max_orphans", 17) == 0;
        /* storage::user_at_the_limit_of_stored_bytes_is_refused_until_a_file_is_gone */
        known |= strncmp(line, "owner_max_stored_bytes", 22) == 0;
        /* shards_many::more_tensors_than_version_max_tensors_are_refused */
        known |= strncmp(line, "version_max_tensors", 19) == 0;
        /* follow::next_version_waits_where_two_do_not_fit */
        known |= strncmp(line, "owner_max_followed_bytes", 24) == 0;
        known |= strstr(line, "_max_mapp") != NULL; /* unmapped::refused_mapping_names_each_limit */
        if (line[0] == '[')
            limits = strcmp(line, "[limits]") == 0;
        if (line[0] == '#' || line[0] == '[' || !strchr(line, '=') || !(limits || strncmp(line, "max_", 4) == 0))
            continue;
        for (size_t i = 0; i < sizeof(rows) / sizeof *rows; i++)
            known |= strncmp(line, rows[i].key, strcspn(line, " =")) == 0 && strlen(rows[i].key) == strcspn(line, " =");
        must_say(known, "no row for %s", line);
    }
    program_free(&rdtd);
}
