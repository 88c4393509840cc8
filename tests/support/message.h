/* SPDX-License-Identifier: Apache-2.0 */
/* A message of the protocol with its fields, to be packed: Rdt__Pb__Free message = MESSAGE(free, .ref = &ref). Texts that are
 * not given are NULL, which packs like the empty text. */
#ifndef TESTS_SUPPORT_MESSAGE_H
#define TESTS_SUPPORT_MESSAGE_H

#include "rdt.pb-c.h"

#define MESSAGE(name, ...)                                                   \
    {                                                                        \
        PROTOBUF_C_MESSAGE_INIT(&rdt__pb__##name##__descriptor), __VA_ARGS__ \
    }

#endif
