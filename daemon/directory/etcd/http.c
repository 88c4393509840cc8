/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to etcd's JSON gateway, by libcurl. The callers interpret the answers; this file only checks that an answer is
 * complete, small enough, JSON, and not older than an earlier one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"

static void request_free(struct request *request)
{
    if (request->easy)
        curl_easy_cleanup(request->easy);
    curl_slist_free_all(request->headers);
    free(request->body);
    free(request->received);
    free(request);
}

/* Passes on the lines that are complete. A callback may drop all requests, including this one; then returns false. */
static bool take_lines(struct request *request)
{
    struct etcd *etcd = request->etcd;
    unsigned drops = etcd->drops;
    char *end;

    while (request->n_received > 0 && (end = memchr(request->received, '\n', request->n_received))) {
        json_t *json = json_loadb(request->received, (size_t)(end - request->received), JSON_REJECT_DUPLICATES, NULL);
        size_t used = (size_t)(end - request->received) + 1;

        memmove(request->received, request->received + used, request->n_received - used);
        request->n_received -= used;
        request->on_line(etcd, json_is_object(json) ? json : NULL);
        json_decref(json);
        if (etcd->drops != drops)
            return false;
    }
    return true;
}

/* libcurl must not lose its handle within this callback, so lines are taken in requests_read(). */
static size_t on_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct request *request = arg;

    if (request->n_received + n > ANSWER_BYTES_MAX) {
        request->too_large = true;
        return 0;
    }
    if (request->n_received + n > request->room) {
        size_t room = 2 * (request->n_received + n);
        char *grown = realloc(request->received, room);
        if (!grown)
            return 0;
        request->received = grown;
        request->room = room;
    }
    memcpy(request->received + request->n_received, bytes, n);
    request->n_received += n;
    return n;
}

static void set_tls(CURL *easy, const Rdt__Pb__EtcdConfig *config)
{
    if (config->ca[0] != '\0')
        curl_easy_setopt(easy, CURLOPT_CAINFO, config->ca);
    if (config->cert[0] != '\0') {
        curl_easy_setopt(easy, CURLOPT_SSLCERT, config->cert);
        curl_easy_setopt(easy, CURLOPT_SSLKEY, config->key);
    }
}

static bool prepare(struct request *request, const char *path, enum request_kind kind)
{
    struct etcd *etcd = request->etcd;
    CURL *easy = request->easy;
    char url[400], header[sizeof "Authorization: " + TOKEN_BYTES];

    (void)snprintf(url, sizeof url, "%s/v3/%s", etcd->endpoint, path);
    request->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!request->headers || !curl_slist_append(request->headers, "Expect:"))
        return false;
    if (etcd->token) {
        (void)snprintf(header, sizeof header, "Authorization: %s", etcd->token);
        if (!curl_slist_append(request->headers, header))
            return false;
    }
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->body);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->curl_error);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)REQUEST_MS);
    if (kind != REQUEST_STREAM)
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)REQUEST_MS);
    set_tls(easy, etcd->config);
    return curl_multi_add_handle(etcd->multi, easy) == CURLM_OK;
}

bool request_send(struct etcd *etcd, const char *path, enum request_kind kind, json_t *take_body,
                  void (*on_done)(struct etcd *, struct answer *))
{
    struct request *request = calloc(1, sizeof *request);

    if (!request) {
        json_decref(take_body);
        return false;
    }
    request->etcd = etcd;
    request->on_done = on_done;
    request->revision = kind == REQUEST_KEYS ? etcd->state.revision : -1;
    request->body = take_body ? json_dumps(take_body, JSON_COMPACT) : NULL;
    json_decref(take_body);
    request->easy = request->body ? curl_easy_init() : NULL;
    if (!request->easy || !prepare(request, path, kind)) {
        request_free(request);
        return false;
    }
    etcd->state.requests++;
    request->next = etcd->requests;
    etcd->requests = request;
    return true;
}

static void unlink_request(struct etcd *etcd, const struct request *request)
{
    struct request **at = &etcd->requests;

    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    curl_multi_remove_handle(etcd->multi, request->easy);
}

void requests_drop(struct etcd *etcd)
{
    etcd->drops++;
    while (etcd->requests) {
        struct request *request = etcd->requests;
        unlink_request(etcd, request);
        request_free(request);
    }
}

/* Whether the answer is from the known cluster, and not older than an earlier one. */
static bool is_recent(struct etcd *etcd, const struct request *request, struct answer *answer)
{
    const json_t *header = json_object_get(answer->json, "header");
    const char *cluster = json_string_value(json_object_get(header, "cluster_id"));
    int64_t revision = value_int(header, "revision");

    if (request->revision < 0)
        return true;
    if (!cluster || strlen(cluster) >= sizeof etcd->cluster.id || revision <= 0) {
        (void)snprintf(answer->error, sizeof answer->error, "the answer has no header of etcd");
        return false;
    }
    if (!revision_is_valid(revision)) {
        (void)snprintf(answer->error, sizeof answer->error, "its revision %lld is no number that etcd counts to",
                       (long long)revision);
        return false;
    }
    if (etcd->cluster.id[0] == '\0')
        (void)snprintf(etcd->cluster.id, sizeof etcd->cluster.id, "%s", cluster);
    if (strcmp(etcd->cluster.id, cluster) != 0 || revision < request->revision) {
        if (etcd->cluster.rewound_ms == 0)
            etcd->cluster.rewound_ms = now_ms();
        (void)snprintf(answer->error, sizeof answer->error, "%s",
                       revision < request->revision ? "it answers with an older state than was seen before"
                                                    : "it answers for another cluster than before");
        return false;
    }
    if (revision > etcd->state.revision)
        etcd->state.revision = revision;
    return true;
}

static void understand(struct etcd *etcd, const struct request *request, CURLcode result, struct answer *answer)
{
    const char *why;
    long http = 0;

    curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &http);
    if (result != CURLE_OK) {
        (void)snprintf(answer->error, sizeof answer->error, "%s",
                       request->too_large               ? "the answer is too large"
                       : request->curl_error[0] != '\0' ? request->curl_error
                                                        : curl_easy_strerror(result));
        return;
    }
    answer->json = json_loadb(request->received ? request->received : "", request->n_received, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(answer->json)) {
        (void)snprintf(answer->error, sizeof answer->error, "the answer (HTTP status %ld) is not JSON", http);
        return;
    }
    if (http != 200) {
        why = json_string_value(json_object_get(answer->json, "error"));
        answer->code = (int)value_int(answer->json, "code");
        (void)snprintf(answer->error, sizeof answer->error, "HTTP status %ld: %.150s", http, why ? why : "no reason is given");
        return;
    }
    answer->ok = is_recent(etcd, request, answer);
}

void requests_read(struct etcd *etcd)
{
    CURLMsg *message;
    int left;

    for (struct request *request = etcd->requests; request; request = request->next)
        if (request->on_line && !take_lines(request))
            break; /* they are all gone */
    while ((message = curl_multi_info_read(etcd->multi, &left))) {
        struct request *request = NULL;
        struct answer answer = {0};

        if (message->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &request);
        if (request->on_line && message->data.result == CURLE_OK)
            (void)snprintf(answer.error, sizeof answer.error, "etcd closed it");
        else
            understand(etcd, request, message->data.result, &answer);
        unlink_request(etcd, request);
        etcd->state.failures += !answer.ok;
        request->on_done(etcd, &answer); /* which may drop the others */
        json_decref(answer.json);
        request_free(request);
    }
}
