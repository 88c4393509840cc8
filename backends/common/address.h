/* Numeric addresses and the interfaces that bear them, for transports that listen. */
#ifndef BACKENDS_ADDRESS_H
#define BACKENDS_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/* IPv4 or IPv6, no names; the port is 0. */
bool address_parse(const char *text, struct sockaddr_storage *address_p);

bool address_is_wildcard(const char *text); /* 0.0.0.0 or :: */

/* False: neither IPv4 nor IPv6, or of no use to a peer. */
bool address_text(const struct sockaddr *address, char text_p[INET6_ADDRSTRLEN]);

/* Of a list with commas between. */
bool address_in_list(const char *list, const char *word);

/* The first address of an interface of the list, or of any but the loopback if the list is empty; IPv4 before IPv6. */
bool address_of_interfaces(const char *interfaces, char text_p[INET6_ADDRSTRLEN]);

#endif
