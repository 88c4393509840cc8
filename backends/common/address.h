/* SPDX-License-Identifier: Apache-2.0 */
/* Numeric addresses and the network interfaces that have them, for transports that listen. */
#ifndef BACKENDS_ADDRESS_H
#define BACKENDS_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/* Parses a numeric IPv4 or IPv6 address; the port becomes 0. False: the text is neither; it is a name, for instance. */
bool address_parse(const char *text, struct sockaddr_storage *address_p);

/* Returns whether a socket that is bound to the address listens at every address of the node: 0.0.0.0 and ::,
 * however they are written, and ::ffff:0.0.0.0. */
bool address_is_wildcard(const char *text);

/* Writes an address as text. False: it is neither IPv4 nor IPv6, or no peer can reach it. */
bool address_text(const struct sockaddr *address, char text_p[INET6_ADDRSTRLEN]);

/* Returns whether the word is in a comma-separated list. */
bool address_in_list(const char *list, const char *word);

/* Writes the first address of an interface in the list, IPv4 before IPv6. An empty list stands for every
 * interface but the loopback. False: there is none. */
bool address_of_interfaces(const char *interfaces, char text_p[INET6_ADDRSTRLEN]);

#endif
