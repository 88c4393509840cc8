/* SPDX-License-Identifier: Apache-2.0 */
/* A fake rdtd for tests of librdt: one socket, one connection, and a script that a thread of the test's process runs on it.
 * It has no objects and no memory and says only what the script says. A script that receives something unexpected ends the
 * process. */
#ifndef SUPPORT_FAKE_DAEMON_H
#define SUPPORT_FAKE_DAEMON_H

#include <protobuf-c/protobuf-c.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/rdt.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "tests/support/message.h"

/* In a script, and in any thread that is not the test's own: Criterion's asserts work only there. */
#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

struct fake {
    char dir[64], path[96];
    int listener, sock;
    pthread_t thread;
    void (*script)(struct fake *fake);
    void *arg; /* the script's */
    struct frame_reader reader;
    struct frame frame; /* the last one that was taken */
    sem_t step;         /* for tests that must order themselves and the script */
};

/* Listens; the script runs when a client has connected and said hello, unless `raw`: then from the connection on. */
void fake_start(struct fake *fake, void (*script)(struct fake *fake), void *arg);
void fake_start_raw(struct fake *fake, void (*script)(struct fake *fake), void *arg);

/* For raw scripts that have taken HELLO: answers it with the reply, whose protocol and uuids are filled in unless they are
 * there. */
void fake_welcome(struct fake *fake, Rdt__Pb__HelloReply reply);

/* ---- the death of a daemon, for raw scripts ---- */

/* Closes the connection, and takes the next one. */
void fake_again(struct fake *fake);

/* Closes the connection and the listener, as a daemon that has died, and listens again at the same path. */
void fake_die(struct fake *fake);
void fake_rise(struct fake *fake);

/* Connects to it. */
rdt *fake_connect(const struct fake *fake);

/* Waits for the script's end. */
void fake_stop(struct fake *fake);

/* Both at once: starts it and connects; closes the connection and stops it. */
rdt *fake_client(struct fake *fake, void (*script)(struct fake *fake), void *arg);
void fake_end(struct fake *fake, rdt *conn);

/* ---- for scripts ---- */

/* The next frame, which must have this type; fake->frame holds it until the next take. Answers on the way what is
 * not the awaited type and only gives back (RELEASE, RELEASE_REGION, CANCEL, CANCEL_REQUEST, FREE) or asks for
 * nothing (PING). */
void fake_take(struct fake *fake, enum rdt_message type);

/* The next frame of any type; false: the client has closed. */
bool fake_take_any(struct fake *fake);

/* Answers whatever comes, with PING's echo or Empty, until the client closes. */
void fake_serve(struct fake *fake);

/* Answers the frame taken last. */
void fake_reply(struct fake *fake, const ProtobufCMessage *message);
void fake_reply_fd(struct fake *fake, const ProtobufCMessage *message, int fd); /* borrowed */
void fake_reply_put(struct fake *fake); /* the object has the id "made" and generation 3 */
void fake_error(struct fake *fake, enum rdt_status status, const char *message);
void fake_empty(struct fake *fake);

void fake_send(struct fake *fake, uint16_t type, uint8_t flags, uint64_t id, const ProtobufCMessage *message, const int *fds,
               unsigned n_fds); /* fds are borrowed */
void fake_event(struct fake *fake, const Rdt__Pb__FetchDone *done, const int *fds, unsigned n_fds);

/* The payload of the frame taken last; ends the process if it is no such message. */
#define FAKE_MESSAGE(fake, type) ((Rdt__Pb__##type *)fake_message(fake, &FAKE_DESCRIPTOR_##type))
#define FAKE_DESCRIPTOR_Put rdt__pb__put__descriptor
#define FAKE_DESCRIPTOR_Fetch rdt__pb__fetch__descriptor
#define FAKE_DESCRIPTOR_Cancel rdt__pb__cancel__descriptor
#define FAKE_DESCRIPTOR_Release rdt__pb__release__descriptor
#define FAKE_DESCRIPTOR_ReleaseRegion rdt__pb__release_region__descriptor
#define FAKE_DESCRIPTOR_Alloc rdt__pb__alloc__descriptor
#define FAKE_DESCRIPTOR_Import rdt__pb__import__descriptor
#define FAKE_DESCRIPTOR_Free rdt__pb__free__descriptor
#define FAKE_DESCRIPTOR_WaitFreed rdt__pb__wait_freed__descriptor
#define FAKE_DESCRIPTOR_Hello rdt__pb__hello__descriptor
#define FAKE_DESCRIPTOR_Resume rdt__pb__resume__descriptor
#define FAKE_DESCRIPTOR_Wait rdt__pb__wait__descriptor
#define FAKE_DESCRIPTOR_Watch rdt__pb__watch__descriptor
#define FAKE_DESCRIPTOR_Ready rdt__pb__ready__descriptor
ProtobufCMessage *fake_message(struct fake *fake, const ProtobufCMessageDescriptor *descriptor); /* fake_free ends it */
void fake_free(void *message);

/* A memfd of so many bytes, byte i being i % 251. */
int fake_memfd(size_t bytes);

unsigned fake_count_fds(void);

struct rdt_ref fake_ref(const char *id);

/* The handle of the only item of the FETCH taken last. */
uint64_t fake_only_handle(struct fake *fake);

/* FETCH_DONE of an object with one tensor of so many bytes in region 7, whose memfd goes along. */
void fake_send_object(struct fake *fake, uint64_t handle, uint64_t hold, uint64_t bytes);

/* For tests with Criterion and an `err`. */
#define assert_status(expected, call)                                                                \
    do {                                                                                             \
        enum rdt_status status_ = (call);                                                            \
        cr_assert_eq(status_, expected, "%s: %s instead of %s: %s", #call, rdt_status_name(status_), \
                     rdt_status_name(expected), err.msg);                                            \
    } while (0)

/* The same; the error's sentence must contain the words. */
#define assert_refused(expected, words, call)                                                \
    do {                                                                                     \
        assert_status(expected, call);                                                       \
        cr_assert(strstr(err.msg, words), "%s: '%s' is not in '%s'", #call, words, err.msg); \
    } while (0)

/* Times for tests: generous, for sanitizers on a busy machine. */
#define MS INT64_C(1000000)
#define LONG_NS (20 * INT64_C(1000000000))
int64_t fake_now_ns(void);

#endif
