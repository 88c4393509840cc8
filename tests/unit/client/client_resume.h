/* SPDX-License-Identifier: Apache-2.0 */
/* A fake daemon whose sessions outlast it. */
#ifndef TESTS_CLIENT_RESUME_H
#define TESTS_CLIENT_RESUME_H

#include <string.h>

#include "tests/support/fakes/fake_daemon.h"

#define GRACE_NS LONG_NS

/* Answers HELLO: the first daemon's has no token, and it is given one. */
static inline void greet(struct fake *fake, uint8_t boot, bool resumed, int64_t grace_ns)
{
    static uint8_t token[16] = "0123456789abcde";
    uint8_t boot_id[16] = {boot};

    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__Hello *hello = FAKE_MESSAGE(fake, Hello);
    MUST(hello->session_token.len == (boot == 1 ? 0 : sizeof token));
    MUST(boot == 1 || memcmp(hello->session_token.data, token, sizeof token) == 0);
    MUST(strcmp(hello->client_name, "client_resume") == 0);
    fake_free(hello);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .boot_id = (ProtobufCBinaryData){sizeof boot_id, boot_id},
                                        .session_id = 42, .session_token = (ProtobufCBinaryData){sizeof token, token},
                                        .restart_grace_ns = grace_ns, .resumed = resumed, .inline_max_bytes = 1024);
    fake_welcome(fake, reply);
}

/* Starts the fake, and connects to it. */
static inline rdt *start(struct fake *fake, void (*script)(struct fake *), void *arg)
{
    rdt *conn;

    fake_start_raw(fake, script, arg);
    struct rdt_connect_options options = {
        .struct_size = sizeof options, .socket = fake->path, .timeout_ns = LONG_NS, .name = "client_resume"};
    MUST(rdt_connect(&options, &conn, NULL) == RDT_OK);
    return conn;
}

/* Takes RESUME; the caller frees it. */
static inline Rdt__Pb__Resume *take_resume(struct fake *fake)
{
    MUST(fake_take_any(fake));
    MUST(fake->frame.type == RDT_MSG_RESUME);
    return FAKE_MESSAGE(fake, Resume);
}

/* Answers RESUME: nothing is missing. */
static inline void go_on(struct fake *fake)
{
    Rdt__Pb__ResumeReply reply = RDT__PB__RESUME_REPLY__INIT;

    fake_reply(fake, &reply.base);
}

/* The next daemon of the session, which has everything. */
static inline void come_again(struct fake *fake, uint8_t boot)
{
    fake_again(fake);
    greet(fake, boot, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
}

#endif
