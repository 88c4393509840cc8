/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to rdtd, which main.c writes to the socket; and the clock. */
#include <time.h>

#include "etcd.h"

int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool tell(struct etcd *etcd, enum _Rdt__Pb__EtcdMessage type, const ProtobufCMessage *message)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *payload;

    if (etcd->writer.queued_bytes > QUEUE_BYTES_MAX ||
        frame_writer_push(&etcd->writer, (uint16_t)type, 0, 0, (uint32_t)bytes, NULL, 0, &payload) != RDT_OK)
        return false;
    (void)protobuf_c_message_pack(message, payload);
    return true;
}
