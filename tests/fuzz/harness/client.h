/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the daemon in this process, which sends what it is told. */
#ifndef TESTS_FUZZ_HARNESS_CLIENT_H
#define TESTS_FUZZ_HARNESS_CLIENT_H

#include "proto/frame.h"
#include "proto/layout.h"
#include "proto/messages.h"
#include "proto/wire_ref.h"
#include "tests/fuzz/harness/fuzz.h"

#define FUZZ_KNOWN 16

struct fuzz_client {
    int sock; /* -1: closed, by whomever */
    uint64_t next_id;
    struct frame_reader reader;
    uint8_t node_uuid[16];
    char node_address[65];
    struct { /* what the daemon gave it, so that inputs can name it by small numbers */
        uint64_t number, generation;
    } regions[FUZZ_KNOWN];
    uint64_t holds[FUZZ_KNOWN];
    unsigned n_regions, n_holds;
};

/* The request's type number for six bits of an input: some numbers that no request has stand for the types above. */
uint16_t fuzz_request_type(unsigned bits);

void fuzz_client_open(struct fuzz_client *client); /* says hello too */
void fuzz_client_close(struct fuzz_client *client);

/* A well-formed request; returns its id. */
uint64_t fuzz_client_send(struct fuzz_client *client, uint16_t type, const ProtobufCMessage *message);

/* Reads until the answer with that id comes into *frame_p, borrowed until the next call; false: not in time, or the daemon
 * closed. */
bool fuzz_client_await(struct fuzz_client *client, uint64_t id, int timeout_ms, struct frame *frame_p);

/* The fds that may ride along, 0 to 3 of them: bit 0, 1, 2 and so on of `kinds`. */
enum {
    FUZZ_FD_SEALED = 1,
    FUZZ_FD_UNSEALED = 2,
    FUZZ_FD_PIPE = 4,
    FUZZ_FD_FOLDER = 8,
    FUZZ_FD_NULL = 16,
    FUZZ_FD_READ_ONLY = 32
};

/* Says this request, and waits for its answer, if it is of a kind that is answered soon. The payload may be any bytes; if it
 * is the request's message and `known` is set, small numbers of regions and holds in it become those that the daemon gave. */
void fuzz_client_say(struct fuzz_client *client, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, unsigned kinds,
                     bool known);

/* The same with `known`, for requests that another node answers. Waits only for requests that the daemon answers alone. */
void fuzz_client_tell(struct fuzz_client *client, uint16_t type, const uint8_t *payload, size_t n, unsigned kinds);

#endif
