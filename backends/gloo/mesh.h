/* SPDX-License-Identifier: Apache-2.0 */
/* A C interface to Gloo: a device, a mesh of pairs between the ranks of one group, and blocking calls. mesh.cc catches every
 * exception: a function returns true on success, and otherwise false with a sentence in why.
 *
 * A stranger at a port, a reset or malformed bytes end at most the pair that they reach. A call that waits on a pair that
 * fails returns false.
 *
 * The functions may be called from any thread; for each rank of a mesh at most one thread sends and one receives at a time.
 * mesh_close makes blocking calls return. Once a call has returned, nothing reads or writes its memory any more.
 */
#ifndef GLOO_MESH_H
#define GLOO_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MESH_WHY_BYTES 192

struct mesh_device;
struct mesh;

/* Creates a device whose meshes listen on the interface, or, if that is "", at the numeric address. Gloo's thread runs only
 * while the device has a mesh. */
bool mesh_device_create(const char *interface, const char *address, struct mesh_device **device_p, char why[MESH_WHY_BYTES]);
void mesh_device_destroy(struct mesh_device *device); /* after every mesh of it was destroyed or discarded */

/* The token is a secret that only the ranks of a group know; a connection that does not show it is refused. */
struct mesh_id {
    uint8_t token[16];
    uint64_t epoch;
};

bool mesh_create(struct mesh_device *device, const struct mesh_id *id, uint32_t rank, uint32_t size, struct mesh **mesh_p,
                 char why[MESH_WHY_BYTES]);

/* Writes the addresses at which each of the other ranks reaches this one. False: they do not fit into `room` bytes. */
bool mesh_offer(struct mesh *mesh, uint8_t *blob, size_t room, size_t *bytes_p, char why[MESH_WHY_BYTES]);

/* Connects with one rank, which must do the same, and blocks until this is done or has failed. blob is what mesh_offer wrote
 * for that rank. All ranks connect in the order of ranks. */
bool mesh_connect(struct mesh *mesh, uint32_t rank, const void *blob, size_t bytes, char why[MESH_WHY_BYTES]);

/* Send bytes to, and receive them from, one rank; a send matches the receive with the same slot. */
bool mesh_send(struct mesh *mesh, uint32_t rank, uint64_t slot, const void *from, size_t bytes, char why[MESH_WHY_BYTES]);
bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES]);

/* Makes all calls on the mesh return false, now and later. */
void mesh_close(struct mesh *mesh);

/* Both free a mesh on which no call is running; NULL is allowed. Gloo waits up to 10 ms per pair for its thread. mesh_destroy
 * is called after mesh_close, and returns when everything is closed. mesh_discard closes the mesh, leaves the rest to a thread
 * of the device, and returns at once. */
void mesh_destroy(struct mesh *mesh);
void mesh_discard(struct mesh *mesh);

#ifdef __cplusplus
}
#endif

#endif
