/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, loaded at run time; version 2.14 or later. The functions that are used are declared here, because NCCL's own header
 * needs three packages, and the library has 218 MB. If nccl.h is installed, nccl_api.c checks the declarations against it.
 */
#ifndef NCCL_API_H
#define NCCL_API_H

#include <stddef.h>

#include "backends/common/cuda_driver.h"

struct nccl_id { /* ncclUniqueId */
    char bytes[128];
};

struct nccl_config { /* ncclConfig_t of 2.14; a later library regards the fields that it lacks as unset */
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_BYTES = 1 }; /* ncclUint8 */

typedef struct ncclComm *nccl_comm;

#define NCCL_FUNCTIONS(X)                                                                                                   \
    X(ncclGetVersion, int, (int *version_p))                                                                                \
    X(ncclGetUniqueId, int, (struct nccl_id * id_p))                                                                        \
    X(ncclCommInitRankConfig, int, (nccl_comm * comm_p, int size, struct nccl_id id, int rank, struct nccl_config *config)) \
    X(ncclCommGetAsyncError, int, (nccl_comm comm, int *error_p))                                                           \
    X(ncclCommAbort, int, (nccl_comm comm))                                                                                 \
    X(ncclGetErrorString, const char *, (int error))                                                                        \
    X(ncclGetLastError, const char *, (nccl_comm comm))                                                                     \
    X(ncclGroupStart, int, (void))                                                                                          \
    X(ncclGroupEnd, int, (void))                                                                                            \
    X(ncclSend, int, (const void *from, size_t count, int type, int peer, nccl_comm comm, CUstream stream))                 \
    X(ncclRecv, int, (void *to, size_t count, int type, int peer, nccl_comm comm, CUstream stream))

struct nccl_api {
#define NCCL_MEMBER(name, result, arguments) result(*name) arguments;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
    char version[24]; /* "2.28.9" */
};

/* Loads NCCL once; *api_p stays valid for ever. UNSUPPORTED, with a sentence that says what is missing; every later call
 * returns the same error. NCCL starts no thread and opens no socket before the first ncclGetUniqueId. Any thread. */
enum rdt_status nccl_api_open(const struct nccl_api **api_p, struct rdt_error *err);

#endif
