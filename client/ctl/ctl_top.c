/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl top: clients, transfers and links by rate, refreshed on a terminal, else once. A rate is the difference of two
 * samples of the daemon's counters. */
#include <curses.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_progress.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

#define COLUMNS 7
#define INTERVAL_NS INT64_C(1000000000)

enum section { CLIENTS, TRANSFERS, LINKS, SECTIONS };
enum order { BY_RATE, BY_TOTAL, BY_NAME };

struct item { /* a row of any section, and the counters by which the next sample finds its rates */
    char key[64], name[80], what[96];
    uint64_t in_bytes, out_bytes, requests;
    double in_rate, out_rate, request_rate; /* per second */
    int64_t ns;     /* of a transfer: how long it has taken; of a link: the round trip; of a client: its age */
    uint64_t bytes; /* of a transfer: of its object */
    bool ended;     /* a transfer that ended since the last sample */
};

struct sample {
    struct item *items[SECTIONS];
    size_t n[SECTIONS];
    uint64_t newest; /* the highest number of a transfer */
    int64_t at_ns;
    char state[16], version[32];
    uint64_t objects, memory_bytes, limit_bytes;
};

static void sample_fini(struct sample *sample)
{
    for (int section = 0; section < SECTIONS; section++)
        free(sample->items[section]);
    *sample = (struct sample){0};
}

/* ---- a sample ---- */

static const struct item *find(const struct sample *sample, enum section section, const char *key)
{
    for (size_t i = 0; i < sample->n[section]; i++)
        if (strcmp(sample->items[section][i].key, key) == 0)
            return &sample->items[section][i];
    return NULL;
}

/* Computes the rates of an item whose counters are filled in. Without an earlier sample of it, it began since then. */
static void add_rates(struct item *item, const struct sample *sample, const struct sample *before, enum section section)
{
    const struct item *old = find(before, section, item->key);
    double s = (double)(sample->at_ns - before->at_ns) / 1e9;

    if (before->at_ns == 0 || s <= 0)
        return;
    item->in_rate = (double)(item->in_bytes - (old && old->in_bytes <= item->in_bytes ? old->in_bytes : 0)) / s;
    item->out_rate = (double)(item->out_bytes - (old && old->out_bytes <= item->out_bytes ? old->out_bytes : 0)) / s;
    item->request_rate = (double)(item->requests - (old && old->requests <= item->requests ? old->requests : 0)) / s;
}

static void fill_client(struct item *item, const Rdt__Pb__ClientInfo *client)
{
    (void)snprintf(item->key, sizeof item->key, "%" PRIu64, client->client);
    ctl_plain(client->name, item->name, sizeof item->name);
    (void)snprintf(item->what, sizeof item->what, "pid %" PRId32 ", uid %" PRIu32, client->pid, client->uid);
    item->in_bytes = client->fetched_bytes;
    item->out_bytes = client->put_bytes;
    item->requests = client->requests_total;
    item->ns = client->age_ns;
}

static void fill_transfer(struct item *item, const Rdt__Pb__TransferInfo *transfer)
{
    char id[64], peer[32], path[32];

    (void)snprintf(item->key, sizeof item->key, "%s %" PRIu64, transfer->direction, transfer->transfer);
    ctl_id_of(transfer->ref, id, sizeof id);
    ctl_plain(id, item->name, sizeof item->name);
    (void)snprintf(item->what, sizeof item->what, "%s%s%s %s", ctl_plain(transfer->path, path, sizeof path),
                   *transfer->path ? ", " : "", transfer->direction, ctl_plain(transfer->peer, peer, sizeof peer));
    item->in_bytes = transfer->bytes_done;
    item->bytes = transfer->bytes;
    item->ended = transfer->elapsed_ns > 0;
    item->ns = item->ended ? transfer->elapsed_ns : transfer->age_ns;
}

static void fill_link(struct item *item, const Rdt__Pb__PeerInfo *peer)
{
    size_t used = 0;

    (void)snprintf(item->key, sizeof item->key, "%.33s", peer->uuid);
    ctl_plain(peer->name, item->name, sizeof item->name);
    for (size_t i = 0; i < peer->n_transports && used < sizeof item->what; i++)
        used += (size_t)snprintf(item->what + used, sizeof item->what - used, "%s%.20s", i ? "," : "", peer->transports[i]);
    if (strcmp(peer->state, "up") != 0)
        (void)snprintf(item->what, sizeof item->what, "%.16s", peer->state);
    item->in_bytes = peer->bytes_in;
    item->out_bytes = peer->bytes_out;
    item->ns = peer->rtt_ns;
}

/* Whether a transfer that has ended did so after the earlier sample: it is new, or was seen under way. */
static bool ended_since(const struct item *item, uint64_t number, const struct sample *before)
{
    const struct item *old = find(before, TRANSFERS, item->key);

    return before->at_ns > 0 && (old ? !old->ended : number > before->newest);
}

/* Adds the rows of one page. False: no memory. */
static bool add_page(struct sample *sample, const struct sample *before, enum section section, const Rdt__Pb__ListReply *page)
{
    size_t n = section == CLIENTS ? page->n_clients : section == TRANSFERS ? page->n_transfers : page->n_peers;
    struct item *items = realloc(sample->items[section], (sample->n[section] + n + 1) * sizeof *items);

    if (!items)
        return false;
    sample->items[section] = items;
    for (size_t i = 0; i < n; i++) {
        struct item item = {0};
        if (section == CLIENTS) {
            fill_client(&item, page->clients[i]);
        } else if (section == TRANSFERS) {
            uint64_t number = page->transfers[i]->transfer;
            fill_transfer(&item, page->transfers[i]);
            sample->newest = number > sample->newest ? number : sample->newest;
            if (item.ended && !ended_since(&item, number, before))
                continue;
        } else {
            fill_link(&item, page->peers[i]);
        }
        add_rates(&item, sample, before, section);
        if (section == TRANSFERS && item.ended && item.ns > 0)
            item.in_rate = (double)item.in_bytes * 1e9 / (double)item.ns;
        items[sample->n[section]++] = item;
    }
    return true;
}

static enum rdt_status take_section(struct ctl *ctl, enum section section, struct sample *sample, const struct sample *before,
                                    struct rdt_error *err)
{
    static const Rdt__Pb__ListKind kinds[SECTIONS] = {
        RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, RDT__PB__LIST_KIND__LIST_KIND_PEERS};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    enum rdt_status status;

    request.kind = kinds[section];
    do {
        Rdt__Pb__ListReply *page;
        status = ctl_page(ctl, CTL_DEFAULT_TIMEOUT_NS, &request, &page, err);
        if (status != RDT_OK)
            return status;
        if (!add_page(sample, before, section, page))
            status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the table");
        ctl_reply_free(&page->base);
    } while (status == RDT_OK && request.after != 0);
    return status;
}

static enum rdt_status take(struct ctl *ctl, struct sample *sample, const struct sample *before, struct rdt_error *err)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    const Rdt__Pb__StatusReply *daemon;
    ProtobufCMessage *reply;
    enum rdt_status status = ctl_call_within(ctl, CTL_DEFAULT_TIMEOUT_NS, RDT_MSG_STATUS, &request.base, &reply, err);

    if (status != RDT_OK)
        return status;
    daemon = (const Rdt__Pb__StatusReply *)reply;
    sample->at_ns = ctl_now_ns();
    ctl_plain(daemon->state, sample->state, sizeof sample->state);
    ctl_plain(daemon->version, sample->version, sizeof sample->version);
    sample->objects = daemon->objects;
    sample->memory_bytes = daemon->memory_bytes;
    sample->limit_bytes = daemon->memory_limit_bytes;
    ctl_reply_free(reply);
    for (int section = 0; section < SECTIONS && status == RDT_OK; section++)
        status = take_section(ctl, (enum section)section, sample, before, err);
    return status;
}

/* ---- showing it ---- */

static int compare(const void *left, const void *right, void *arg)
{
    const struct item *a = left, *b = right;
    enum order order = *(const enum order *)arg;
    double x = order == BY_RATE ? a->in_rate + a->out_rate : (double)a->in_bytes + (double)a->out_bytes;
    double y = order == BY_RATE ? b->in_rate + b->out_rate : (double)b->in_bytes + (double)b->out_bytes;

    if (order != BY_NAME && x != y)
        return x < y ? 1 : -1;
    if (order == BY_RATE && a->request_rate != b->request_rate)
        return a->request_rate < b->request_rate ? 1 : -1;
    return strcmp(a->name, b->name) ? strcmp(a->name, b->name) : strcmp(a->key, b->key);
}

static void add_rate(struct ctl_table *table, double rate)
{
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "%s", rate > 0 ? ctl_human_rate((uint64_t)rate, 1000000000, text) : "0");
}

static bool print_section(const struct sample *sample, enum section section, FILE *out)
{
    static const struct ctl_column columns[SECTIONS][COLUMNS] = {
        {{"CLIENT", true},
         {"NAME", false},
         {"FETCHED", true},
         {"PUT", true},
         {"REQUESTS/S", true},
         {"AGE", true},
         {"WHO", false}},
        {{"TRANSFER", true},
         {"OBJECT", false},
         {"RATE", true},
         {"DONE", true},
         {"BYTES", true},
         {"TOOK", true},
         {"WAY", false}},
        {{"LINK", false},
         {"IN", true},
         {"OUT", true},
         {"IN TOTAL", true},
         {"OUT TOTAL", true},
         {"RTT", true},
         {"TRANSPORTS", false}},
    };
    static const char *const nothing[SECTIONS] = {"no clients", "no transfers", "no links to other nodes"};
    struct ctl_table table;
    char text[CTL_HUMAN_BYTES];
    bool printed;

    ctl_table_init(&table, columns[section], COLUMNS);
    for (size_t i = 0; i < sample->n[section]; i++) {
        const struct item *item = &sample->items[section][i];
        if (section != LINKS)
            ctl_table_add(&table, "%s", strrchr(item->key, ' ') ? strrchr(item->key, ' ') + 1 : item->key);
        ctl_table_add(&table, "%s", item->name);
        add_rate(&table, item->in_rate);
        if (section != TRANSFERS)
            add_rate(&table, item->out_rate);
        if (section == CLIENTS) {
            ctl_table_add(&table, "%.1f", item->request_rate);
        } else if (section == TRANSFERS) {
            ctl_table_add(&table, "%.0f%%", item->bytes ? (double)item->in_bytes * 100 / (double)item->bytes : 0.0);
            ctl_table_add(&table, "%s", ctl_human_bytes(item->bytes, text));
        } else {
            ctl_table_add(&table, "%s", ctl_human_bytes(item->in_bytes, text));
            ctl_table_add(&table, "%s", ctl_human_bytes(item->out_bytes, text));
        }
        ctl_table_add(&table, "%s", ctl_human_duration(item->ns, text));
        ctl_table_add(&table, "%s", item->what);
    }
    printed = ctl_table_print(&table, nothing[section], out);
    ctl_table_fini(&table);
    return printed;
}

static bool print(struct sample *sample, enum order order, const char *keys, FILE *out)
{
    char used[CTL_HUMAN_BYTES], limit[CTL_HUMAN_BYTES];
    bool printed = true;

    fprintf(out, "rdtd %s, %s: %zu client%s, %" PRIu64 " object%s, %s of %s%s\n", sample->version, sample->state,
            sample->n[CLIENTS], sample->n[CLIENTS] == 1 ? "" : "s", sample->objects, sample->objects == 1 ? "" : "s",
            ctl_human_bytes(sample->memory_bytes, used), ctl_human_bytes(sample->limit_bytes, limit), keys);
    for (int section = 0; section < SECTIONS; section++) {
        if (sample->n[section])
            qsort_r(sample->items[section], sample->n[section], sizeof(struct item), compare, &order);
        fputc('\n', out);
        printed &= print_section(sample, (enum section)section, out);
    }
    return printed;
}

static json_t *json_section(const struct sample *sample, enum section section)
{
    json_t *rows = json_array();

    for (size_t i = 0; i < sample->n[section]; i++) {
        const struct item *item = &sample->items[section][i];
        json_array_append_new(rows, json_pack("{s:o, s:o, s:f, s:f, s:f, s:I, s:I}", "key", ctl_json_text(item->key), "name",
                                              ctl_json_text(item->name), "in_bytes_per_s", item->in_rate, "out_bytes_per_s",
                                              item->out_rate, "requests_per_s", item->request_rate, "in_bytes",
                                              (json_int_t)item->in_bytes, "out_bytes", (json_int_t)item->out_bytes));
    }
    return rows;
}

static enum rdt_status snapshot(struct ctl *ctl, int64_t interval_ns, enum order order, int *code_p, struct rdt_error *err)
{
    struct sample first = {0}, second = {0};
    enum rdt_status status = take(ctl, &first, &(struct sample){0}, err);

    if (status == RDT_OK) {
        (void)poll(NULL, 0, (int)(interval_ns / 1000000));
        status = take(ctl, &second, &first, err);
    }
    if (status == RDT_OK && ctl->json)
        *code_p = ctl_print_json(json_pack("{s:o, s:o, s:o}", "clients", json_section(&second, CLIENTS), "transfers",
                                           json_section(&second, TRANSFERS), "links", json_section(&second, LINKS)));
    else if (status == RDT_OK && !print(&second, order, "", stdout))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the table");
    sample_fini(&first);
    sample_fini(&second);
    return status;
}

/* ---- on a terminal ---- */

static bool draw(struct sample *sample, enum order order)
{
    static const char *const keys[] = {"   [sorted by rate; t total, n name, q quit]",
                                       "   [sorted by total; r rate, n name, q quit]",
                                       "   [sorted by name; r rate, t total, q quit]"};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    bool printed = out && print(sample, order, keys[order], out);

    if (out && fclose(out) != 0)
        printed = false;
    erase();
    if (printed) {
        int y = 0;
        for (char *line = text, *end; *line && y < LINES; line = end, y++) {
            end = strchrnul(line, '\n');
            (void)mvaddnstr(y, 0, line, (int)(end - line) < COLS ? (int)(end - line) : COLS);
            end += *end == '\n';
        }
    }
    refresh();
    free(text);
    return printed;
}

static enum rdt_status watch(struct ctl *ctl, int64_t interval_ns, enum order order, struct rdt_error *err)
{
    struct sample samples[2] = {0};
    enum rdt_status status = take(ctl, &samples[0], &samples[1], err);
    int64_t due_ns = ctl_now_ns() + interval_ns / 4; /* the first rates come soon */
    unsigned now = 0;
    int key = 0;

    while (status == RDT_OK && key != 'q' && key != 'Q') {
        int64_t left_ns = due_ns - ctl_now_ns();
        if (left_ns <= 0) {
            now ^= 1;
            sample_fini(&samples[now]);
            status = take(ctl, &samples[now], &samples[now ^ 1], err);
            due_ns = ctl_now_ns() + interval_ns;
            left_ns = interval_ns;
        }
        if (status == RDT_OK && !draw(&samples[now], order))
            status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the screen");
        timeout((int)(left_ns / 1000000) + 1);
        key = status == RDT_OK ? getch() : 'q';
        order = key == 'r' ? BY_RATE : key == 't' ? BY_TOTAL : key == 'n' ? BY_NAME : order;
    }
    sample_fini(&samples[0]);
    sample_fini(&samples[1]);
    return status;
}

int ctl_top(struct ctl *ctl, int argc, char **argv)
{
    int64_t interval_ns = INTERVAL_NS;
    int order = BY_RATE;
    const struct ctl_option options[] = {
        {'i', "interval", CTL_DURATION, "TIME", "between two samples (1s)", &interval_ns},
        {'s', "sort", CTL_CHOICE, "rate|total|name", "the order of rows (rate)", &order},
        {0},
    };
    struct rdt_error err = {0};
    enum rdt_status status;
    SCREEN *screen = NULL;
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (interval_ns < 10000000 || interval_ns > INT64_C(3600000000000))
        return ctl_usage_error(ctl, "--interval must be 10ms to an hour");
    code = CTL_OK;
    if (ctl_connect(ctl, &err))
        return ctl_fail(ctl, &err);
    if (!ctl->json && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO))
        screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        status = snapshot(ctl, interval_ns, (enum order)order, &code, &err);
    } else {
        (void)cbreak();
        (void)noecho();
        (void)curs_set(0);
        status = watch(ctl, interval_ns, (enum order)order, &err);
        (void)endwin();
        delscreen(screen);
    }
    return status == RDT_OK ? code : ctl_fail(ctl, &err);
}
