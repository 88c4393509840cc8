/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl perf: how fast objects come from another node, by each path, beside a plain TCP socket between the same two programs.
 *
 * One end serves (serve.c) and the other measures (../ctl_perf.c). They speak lines of text over one TCP connection,
 * which is also the plain socket that is measured. The objects are fetched as any other, from the daemon of the end that
 * serves.
 *
 *   measures                     serves
 *     | PUT bytes --------------->|  puts an object of that size, which everybody may fetch, until the connection ends
 *     |<------------------ REF ref|  or ERROR sentence
 *     | SEND bytes -------------->|
 *     |<-------- that many bytes  |
 */
#ifndef CLIENT_CTL_PERF_H
#define CLIENT_CTL_PERF_H

#include "client/ctl/ctl.h"

#define PERF_LINE_BYTES 1024u
#define PERF_MAX_BYTES (UINT64_C(4) << 30)
#define PERF_SILENCE_MS 60000 /* after which either end gives the connection up */

/* Resolves "HOST:PORT", "[ADDRESS]:PORT" or "PORT" and, if `listens`, listens there, else connects. The fd is the caller's; -1
 * with err. */
int perf_open(const char *address, bool listens, struct rdt_error *err);

/* Reads one line without its end; sends all bytes; reads all bytes. Each gives up after PERF_SILENCE_MS without progress.
 * Errors: DISCONNECTED, PROTOCOL (a line is too long), TIMED_OUT, SYSTEM. */
enum rdt_status perf_read_line(int fd, char line_p[PERF_LINE_BYTES], struct rdt_error *err);
enum rdt_status perf_write(int fd, const void *bytes, size_t n, struct rdt_error *err);
enum rdt_status perf_read(int fd, void *bytes, size_t n, struct rdt_error *err);

/* Serves one end after the other until it is interrupted or --timeout has passed. Returns an exit code. */
int perf_serve(struct ctl *ctl, const char *address);

#endif
