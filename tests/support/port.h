/* SPDX-License-Identifier: Apache-2.0 */
/* Ports for daemons that tests start, and start again, at one address. */
#ifndef TESTS_SUPPORT_PORT_H
#define TESTS_SUPPORT_PORT_H

#include <stdint.h>

/* A port of the address ("127.0.0.1") at which nobody listens now, and which no other test of this machine is given while
 * this process lives: many run at once, and each stops and starts its daemons. */
uint16_t port_take(const char *address);

#endif
