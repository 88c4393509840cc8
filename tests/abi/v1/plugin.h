/* A plug-in of version 1 of the interface: host memory, and a two-sided transport by a directory that both nodes see. It stands for
 * every plug-in that somebody built when the header beside it was the installed one: compiled against that copy alone, and loaded by
 * the daemon of today (tests/abi/frozen.c). Neither is ever edited.
 */
#ifndef TESTS_ABI_V1_PLUGIN_H
#define TESTS_ABI_V1_PLUGIN_H

#include "rdt_backend.h"

extern const struct rdt_memory_ops frozen_memory;
extern const struct rdt_transport_ops frozen_transport;

/* Fills err, which may be NULL; returns status. */
enum rdt_status frozen_error(struct rdt_error *err, enum rdt_status status, int sys_errno, const char *what);

#endif
