/* Gloo as C sees it: a device, a mesh of pairs between the ranks of one group, and calls that block until
 * they are done. Every exception ends in mesh.cc: true is success, false leaves a sentence in why.
 *
 * A stranger at a port, a reset or malformed bytes end only the pair that they reach. A call that waits on a
 * pair that fails returns false.
 *
 * Any thread; of one mesh and one peer one thread sends and one receives. mesh_close ends what blocks; when
 * such a call has returned, nothing reads or writes its memory any more.
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

/* Listens on that interface, or ("") at that numeric address. */
bool mesh_device_create(const char *interface, const char *address, struct mesh_device **device_p, char why[MESH_WHY_BYTES]);
void mesh_device_destroy(struct mesh_device *device); /* every mesh of it must be destroyed or discarded */

/* A secret that only the ranks of a group know; connections that do not show it are refused. */
struct mesh_id {
    uint8_t token[16];
    uint64_t epoch;
};

bool mesh_create(struct mesh_device *device, const struct mesh_id *id, uint32_t rank, uint32_t size, struct mesh **mesh_p,
                 char why[MESH_WHY_BYTES]);

/* The addresses at which each of the other ranks reaches this one. */
bool mesh_offer(struct mesh *mesh, uint8_t *blob, size_t room, size_t *bytes_p, char why[MESH_WHY_BYTES]);

/* Connects with one rank, which must call the same; blocks until it is done or has failed. All ranks connect
 * in the order of ranks. */
bool mesh_connect(struct mesh *mesh, uint32_t rank, const void *blob, size_t bytes, char why[MESH_WHY_BYTES]);

bool mesh_send(struct mesh *mesh, uint32_t rank, uint64_t slot, const void *from, size_t bytes, char why[MESH_WHY_BYTES]);
bool mesh_recv(struct mesh *mesh, uint32_t rank, uint64_t slot, void *to, size_t bytes, char why[MESH_WHY_BYTES]);

void mesh_close(struct mesh *mesh);

/* Both free a mesh on which no call is under way; NULL is allowed. Gloo waits up to 10 ms for its thread with
 * each pair: mesh_destroy, which needs a mesh_close before it, returns when everything is closed; mesh_discard
 * closes the mesh, has a thread of the device do the rest, and returns at once. */
void mesh_destroy(struct mesh *mesh);
void mesh_discard(struct mesh *mesh);

#ifdef __cplusplus
}
#endif

#endif
