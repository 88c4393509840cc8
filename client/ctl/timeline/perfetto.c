/* SPDX-License-Identifier: Apache-2.0 */
/* Perfetto's own format: a node is a process, a transfer a track in it, a stage a slice of that, and an object a flow. */
#include <stdlib.h>

#include "client/ctl/timeline/timeline.h"
#include "perfetto.pb-c.h"

#define CLOCK_ID_MONOTONIC 3u

static uint64_t node_track(unsigned node)
{
    return (uint64_t)(node + 1) << 56;
}

static uint64_t transfer_track(const struct timeline_event *event)
{
    return node_track(event->node) | (event->transfer & (((uint64_t)1 << 56) - 1));
}

/* Packets go one by one, each as the field `packet` of the file's message. */
static enum rdt_status write_packet(Perfetto__TracePacket *packet, FILE *out, struct rdt_error *err)
{
    Perfetto__Trace trace = PERFETTO__TRACE__INIT;
    size_t bytes;
    uint8_t *packed;

    packet->has_trusted_packet_sequence_id = 1;
    packet->trusted_packet_sequence_id = 1;
    trace.n_packet = 1;
    trace.packet = &packet;
    bytes = perfetto__trace__get_packed_size(&trace);
    packed = malloc(bytes);
    if (!packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a packet");
    perfetto__trace__pack(&trace, packed);
    (void)fwrite(packed, 1, bytes, out);
    free(packed);
    return RDT_OK;
}

static enum rdt_status write_node(const struct timeline *timeline, unsigned node, FILE *out, struct rdt_error *err)
{
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    Perfetto__TrackDescriptor track = PERFETTO__TRACK_DESCRIPTOR__INIT;
    Perfetto__ProcessDescriptor process = PERFETTO__PROCESS_DESCRIPTOR__INIT;

    process.has_pid = 1;
    process.pid = (int)node + 1;
    process.process_name = (char *)timeline->nodes[node].name;
    track.has_uuid = 1;
    track.uuid = node_track(node);
    track.process = &process;
    packet.track_descriptor = &track;
    return write_packet(&packet, out, err);
}

static enum rdt_status write_track(const struct timeline_event *event, FILE *out, struct rdt_error *err)
{
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    Perfetto__TrackDescriptor track = PERFETTO__TRACK_DESCRIPTOR__INIT;
    char name[96];

    (void)snprintf(name, sizeof name, "%llu %s %s", (unsigned long long)event->transfer, event->direction, event->id);
    track.has_uuid = track.has_parent_uuid = 1;
    track.uuid = transfer_track(event);
    track.parent_uuid = node_track(event->node);
    track.name = name;
    packet.track_descriptor = &track;
    return write_packet(&packet, out, err);
}

static enum rdt_status write_event(const struct timeline_event *event, Perfetto__TrackEvent__Type type, uint64_t at_ns,
                                   FILE *out, struct rdt_error *err)
{
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    Perfetto__TrackEvent track_event = PERFETTO__TRACK_EVENT__INIT;
    Perfetto__DebugAnnotation notes[3] = {PERFETTO__DEBUG_ANNOTATION__INIT, PERFETTO__DEBUG_ANNOTATION__INIT,
                                          PERFETTO__DEBUG_ANNOTATION__INIT};
    Perfetto__DebugAnnotation *list[3] = {&notes[0], &notes[1], &notes[2]};
    char *category = (char *)event->direction;
    uint64_t flow = event->flow;

    packet.has_timestamp = packet.has_timestamp_clock_id = 1;
    packet.timestamp = at_ns;
    packet.timestamp_clock_id = CLOCK_ID_MONOTONIC;
    packet.track_event = &track_event;
    track_event.has_type = track_event.has_track_uuid = 1;
    track_event.type = type;
    track_event.track_uuid = transfer_track(event);
    if (type != PERFETTO__TRACK_EVENT__TYPE__TYPE_SLICE_END) {
        track_event.name = (char *)event->stage;
        track_event.categories = &category;
        track_event.n_categories = 1;
        notes[0].name = (char *)"path";
        notes[0].string_value = (char *)event->path;
        notes[1].name = (char *)"peer";
        notes[1].string_value = (char *)event->peer;
        notes[2].name = (char *)"bytes";
        notes[2].has_uint_value = 1;
        notes[2].uint_value = event->bytes;
        track_event.debug_annotations = list;
        track_event.n_debug_annotations = 3;
        track_event.flow_ids = &flow;
        track_event.n_flow_ids = event->flows;
    }
    return write_packet(&packet, out, err);
}

enum rdt_status timeline_write_perfetto(const struct timeline *timeline, FILE *out, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (unsigned i = 0; i < timeline->n_nodes && status == RDT_OK; i++)
        status = write_node(timeline, i, out, err);
    for (size_t i = 0; i < timeline->n && status == RDT_OK; i++) {
        const struct timeline_event *event = &timeline->events[i];
        if (event->first)
            status = write_track(event, out, err);
        if (status == RDT_OK)
            status = write_event(
                event, event->last ? PERFETTO__TRACK_EVENT__TYPE__TYPE_INSTANT : PERFETTO__TRACK_EVENT__TYPE__TYPE_SLICE_BEGIN,
                event->at_ns, out, err);
        if (status == RDT_OK && !event->last)
            status = write_event(event, PERFETTO__TRACK_EVENT__TYPE__TYPE_SLICE_END, event->at_ns + event->ns, out, err);
    }
    return status;
}
