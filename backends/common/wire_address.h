/* SPDX-License-Identifier: Apache-2.0 */
/* The format of an address in an offer: twenty bytes, port and address big-endian. Header-only, so that the
 * fuzz targets can link the code that reads offers by itself. */
#ifndef BACKENDS_WIRE_ADDRESS_H
#define BACKENDS_WIRE_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

struct wire_address {
    uint8_t family; /* 4 or 6 */
    uint8_t reserved;
    uint8_t port[2];
    uint8_t address[16];
};
_Static_assert(sizeof(struct wire_address) == 20, "the struct has no padding");

/* Encodes an address of AF_INET or AF_INET6. */
static inline struct wire_address wire_address_of(const struct sockaddr_storage *address)
{
    struct wire_address wire = {0};
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    if (address->ss_family == AF_INET) {
        memcpy(&in, address, sizeof in);
        wire.family = 4;
        memcpy(wire.port, &in.sin_port, 2);
        memcpy(wire.address, &in.sin_addr, 4);
    } else {
        memcpy(&in6, address, sizeof in6);
        wire.family = 6;
        memcpy(wire.port, &in6.sin6_port, 2);
        memcpy(wire.address, &in6.sin6_addr, 16);
    }
    return wire;
}

/* Decodes an address. False: the family is neither 4 nor 6, or the port is 0. */
static inline bool wire_address_read(const struct wire_address *wire, struct sockaddr_storage *address_p)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};

    memset(address_p, 0, sizeof *address_p);
    if (wire->family == 4) {
        memcpy(&in.sin_port, wire->port, 2);
        memcpy(&in.sin_addr, wire->address, 4);
        memcpy(address_p, &in, sizeof in);
    } else {
        memcpy(&in6.sin6_port, wire->port, 2);
        memcpy(&in6.sin6_addr, wire->address, 16);
        memcpy(address_p, &in6, sizeof in6);
    }
    return (wire->family == 4 || wire->family == 6) && (wire->port[0] || wire->port[1]);
}

#endif
