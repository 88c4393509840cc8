/* SPDX-License-Identifier: Apache-2.0 */
/* A client of rdtd without librdt: it sends exactly what the test wants, byte by byte if necessary. Waits at most LONG. */
#ifndef TESTS_SUPPORT_RAW_H
#define TESTS_SUPPORT_RAW_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "tests/support/message.h"
#include "tests/support/rdtd.h"

struct raw {
    int sock;
    uint64_t last_id;
    struct frame_reader reader;
    struct frame frame; /* the last one that came; its payload and fds are the reader's until the next */
};

void raw_connect(struct raw *raw, const char *socket); /* says nothing yet */
void raw_hello(struct raw *raw);                       /* and checks the answer */
void raw_close(struct raw *raw);

/* Sends as many bytes as the socket takes within LONG; false: the daemon has closed the connection. */
bool raw_bytes(struct raw *raw, const void *bytes, size_t n);

/* A frame with the true length; fds are borrowed. Returns its id. */
uint64_t raw_send(struct raw *raw, uint16_t type, const ProtobufCMessage *message, const int *fds, unsigned n_fds);
bool raw_frame(struct raw *raw, uint32_t length, uint16_t type, uint8_t nfds, uint8_t flags, uint64_t id, const void *payload,
               size_t payload_bytes, const int *fds, unsigned n_fds);

/* The next frame into raw->frame; false: the daemon has closed. */
bool raw_next(struct raw *raw);

/* The next frame answers `id` well; the message, to be freed by protobuf_c_message_free_unpacked. */
ProtobufCMessage *raw_reply(struct raw *raw, uint64_t id, const ProtobufCMessageDescriptor *type);

/* The next frame is an error answer; its sentence into text_p. */
enum rdt_status raw_error(struct raw *raw, char text_p[256]);

/* Memory of its own: the region's number. fd_p NULL: its descriptor is closed. */
uint64_t raw_alloc(struct raw *raw, uint64_t bytes, int *fd_p, uint64_t *generation_p);

/* How much of it the clients of this user have, this one included: "waiters", "heap". */
uint64_t raw_used(struct raw *raw, const char *what);

/* Nothing more comes but the end of the connection. */
void raw_expect_closed(struct raw *raw);

#endif
