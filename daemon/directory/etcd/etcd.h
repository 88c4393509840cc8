/* SPDX-License-Identifier: Apache-2.0 */
/* rdtd-etcd: talks to etcd for rdtd, so that rdtd needs neither an HTTP client nor JSON, and nothing that etcd does or sends
 * can stop rdtd. rdtd starts it, and configures it over a socket pair (proto/rdt_etcd.proto); it ends when that socket is
 * closed.
 *
 * One loop, one thread. All requests go to one endpoint at a time, by etcd's JSON gateway. The table in membership.c has
 * exactly these moves:
 *
 *      +----------- from each of the other phases, any failure: the next endpoint, with growing pauses --------+
 *      v                                                                                                       |
 *   WAITING --> AUTHENTICATING --> LEASING --> LISTING --> WATCHING --> REGISTERING --> UP --------------------+
 *      |                              ^           ^           |              |           |
 *      +--- there is no user ---------+           +-----------+--------------+-----------+
 *                                                   changes of the watch were compacted;
 *                                                   from UP also because there are bad keys
 *
 * While UP, the lease is renewed three times in its time to live. Now and then the node's key is written again, and must come
 * back through the watch: this detects a watch that is silent, and a member that is frozen or cut off.
 *
 * Promises: whatever happens, rdtd keeps the last good list, and is told why there is no newer one. A node whose lease has
 * expired stays in the list for the time to live of another lease, so that nodes that were cut off together find one another
 * again. An answer that is malformed, too large, or older than an earlier one fails the request and changes nothing; entries
 * that make no sense are left out and counted. If every endpoint answers with an older state for three times to live of a
 * lease, etcd was restored from a backup or rebuilt, and that state becomes valid.
 *
 * The files, from the top down; each calls only those on lower lines:
 *
 *   main.c                      the loop, and the socket to rdtd
 *   membership.c                reaching the phase UP, and staying there
 *   facts.c, http.c             the content of the keys; requests
 *   value.c, tell.c             the form of keys and values; messages to rdtd
 *
 * Refuses: to delete any key but the node's own, to fall back from TLS, to follow redirections, and to use a proxy. */
#ifndef RDTD_ETCD_H
#define RDTD_ETCD_H

#include <curl/curl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/wire_limits.h"
#include "rdt_etcd.pb-c.h"

#define ANSWER_BYTES_MAX (8u << 20) /* of one answer, and of one line of a watch */
#define VALUE_BYTES_MAX 1024u       /* of a key or a value of rdtd's */
#define NODES_MAX 4096u
#define QUEUE_BYTES_MAX (64u << 20) /* if the daemon leaves more than this unread, the program ends, and is started again */
#define PAGE_KEYS 256u
#define TOKEN_BYTES 4096 /* a JWT that is signed with a key of 4,096 bits has about 800 */
#define REQUEST_MS 2000  /* the deadline of a request, after which a frozen member is noticed */

struct etcd;

/* ---- http.c: requests ---- */

struct answer {
    bool ok;      /* etcd has carried out the request */
    int code;     /* the gRPC code of etcd's error; 0: there is no answer */
    json_t *json; /* ok: an object */
    char error[256];
};

struct request {
    struct request *next;
    struct etcd *etcd;
    CURL *easy;
    struct curl_slist *headers;
    char *body, *received;
    size_t n_received, room;
    int64_t revision; /* of etcd, when the request was sent; -1: the answer may have an earlier one */
    bool too_large;
    void (*on_done)(struct etcd *, struct answer *);
    void (*on_line)(struct etcd *, json_t *); /* of a stream, else NULL; its argument is NULL if a line is not a JSON object */
    char curl_error[CURL_ERROR_SIZE];
};

enum request_kind { REQUEST_KEYS, REQUEST_LEASE, REQUEST_STREAM };

/* Sends POST PATH. take_body is taken in any case. on_done is called later, once, unless the requests are dropped. false: no
 * memory. */
bool request_send(struct etcd *etcd, const char *path, enum request_kind kind, json_t *take_body,
                  void (*on_done)(struct etcd *, struct answer *));
void requests_drop(struct etcd *etcd); /* all, without callbacks */
void requests_read(struct etcd *etcd); /* calls on_done of those that have ended */

/* ---- value.c: how keys, values and numbers are written ---- */

json_t *value_base64(const void *bytes, size_t n); /* NULL: no memory */

/* Decodes a string of base64 and returns its length. -1: it is not base64, or longer than size bytes. */
int value_bytes(const json_t *text, uint8_t *out_p, size_t size);
/* Reads a number from 0 on; etcd writes 64 bits as strings. 0: there is none. -1: it is no such number. */
int64_t value_int(const json_t *object, const char *name);
static inline bool revision_is_valid(int64_t revision)
{
    return revision >= 0 && rdt_number_is_valid((uint64_t)revision);
}
json_t *value_of_int(int64_t number);
bool value_hex(const char *text, uint8_t out_p[16]); /* 32 digits */
void value_to_hex(const uint8_t bytes[16], char text_p[33]);

/* ---- membership.c ---- */

enum phase { WAITING, AUTHENTICATING, LEASING, LISTING, WATCHING, REGISTERING, UP }; /* see the drawing above */

void membership_begin(struct etcd *etcd);
void membership_tick(struct etcd *etcd); /* does everything that is due */
void membership_fail(struct etcd *etcd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void membership_leave(struct etcd *etcd);
int64_t membership_due_ms(const struct etcd *etcd); /* from now until membership_tick has something to do */

/* ---- facts.c: the content of the keys ---- */

struct known_node {
    uint8_t uuid[16];
    char address[65];
    int64_t mod_revision;
    unsigned generation; /* of the last list that named it */
    int64_t gone_ms;     /* when etcd ceased to name it; 0: etcd names it */
};

void facts_begin(struct etcd *etcd); /* of a list */
void facts_end(struct etcd *etcd);

/* The registered node was deleted, or written; foreign: another daemon has written it. NULL for the keys of a list. */
typedef void (*own_key_changed)(struct etcd *etcd, int64_t mod_revision, bool deleted, bool foreign);
void facts_take(struct etcd *etcd, const json_t *kv, bool deleted, own_key_changed on_own_key);

void facts_tick(struct etcd *etcd);
void facts_send(struct etcd *etcd); /* the nodes, if they have changed */

/* ---- main.c ---- */

struct known_nodes {
    struct known_node nodes[NODES_MAX];
    unsigned n_nodes, generation;
    bool changed, full;
    int64_t sent_ms;
};

struct lease { /* of the node's key */
    int64_t ttl_ms;
    int64_t id; /* 0: it must be granted */
    int64_t due_ms;
    bool busy;
};

struct own_key { /* the node's own, and the proof that the watch sees it written */
    bool register_due;
    int64_t proof_ms, proof_until_ms; /* 0: none */
    int64_t revision, proven_revision;
};

struct cluster { /* how far its list was read */
    int64_t list_revision, watch_revision, listed_ms;
    char *next_key; /* of the next page of the list */
    size_t next_key_bytes;
    char id[32];
    int64_t rewound_ms; /* since when answers are older than earlier ones; 0: they are not */
};

struct etcd {
    CURLM *multi;
    struct request *requests;
    unsigned drops; /* times that all were dropped */
    Rdt__Pb__EtcdConfig *config;
    Rdt__Pb__EtcdInfo state;
    bool state_changed, leaving, done;
    char endpoint[256], error[512], own_error[256], bad_error[256];

    struct frame_reader reader;
    struct frame_writer writer;

    enum phase phase;
    unsigned at_endpoint, tried; /* tried: since one was up */
    int64_t retry_ms, up_ms, pause_ms;
    char *token; /* of a user; NULL: none */
    struct lease lease;
    struct own_key own_key;
    struct cluster cluster;
    struct known_nodes known;
};

/* ---- tell.c ---- */

int64_t now_ms(void);
bool tell(struct etcd *etcd, enum _Rdt__Pb__EtcdMessage type, const ProtobufCMessage *message); /* rdtd */

#endif
