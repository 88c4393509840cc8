/* The extension module _rdt: librdt's calls as Python objects, nothing more; what is convenient is written in Python above it.
 *
 *   conn.c      Conn: a connection; who may still use it, and when it is really closed
 *   calls.c     Conn's calls that are one answer: stat, publish, waits;  groups.c: those about groups
 *   transfer.c  Conn's put and fetch
 *   ref.c       Ref: a name, and maybe the hold on what it names
 *   request.c   Request and Object: what was started, what it brought
 *   tensor.c    Tensor and Memory: memory of the daemon's as numpy, torch and the buffer protocol see it;  dlpack.c: DLPack
 *   gather.c    anybody's tensors as struct rdt_tensor, borrowed;  gather_torch.c: torch's;  gather_gpu.c: those on GPUs
 *   gpu.c       GPU memory: what of librdt-cuda is called; built without it where there was no cuda.h
 *   together.c  what many that go at once give back goes together
 *   header.c    the names in a header of many tensors
 *   module.c    the module, errors
 *
 * Everything here is under the GIL, which is released around every call of librdt that can block. Conn outlives what was made from
 * it: Request, Object, Memory and a holding Ref own a reference.
 */
#ifndef RDTPY_H
#define RDTPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <rdt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef RDTPY_WITHOUT_CUDA
typedef struct rdt_cuda rdt_cuda;
#else
#include <rdt_cuda.h>
#endif

/* The package also builds against an installed librdt, without proto/container_of.h. */
#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer) - offsetof(type, member)))

struct link { /* in one of Conn's lists */
    struct link *next, *prev;
};

#define HOST (-1)
#define MAX_GPUS 64

struct conn {
    PyObject_HEAD
    rdt *rdt; /* NULL: closed for good */
    bool closed;    /* close() was called: no further calls, but memory that somebody still sees stays */
    size_t calls;   /* threads that are in librdt with this connection */
    size_t keepers; /* Objects and Memories: as long as there is one the session goes on */
    struct link requests, holds;
    struct link kept; /* struct kept: what the connection holds for Refs that are gone */
    struct link memories;
    PyObject *shared; /* dict of packed refs to the address of the Request whose hold all who unpickle them share; NULL: none was */
    rdt_cuda *cuda;  /* NULL: GPU memory was not asked for yet */
    pid_t pid;            /* whose it is */
    int64_t gave_back_ns; /* last: CLOCK_MONOTONIC */
    struct conn *corked;  /* the next one in together.c's list */
    bool is_corked;       /* it is in there */
    bool pooled;     /* it serves, or served, the pool of torch: the session stays */
    PyObject *weakrefs;
};

struct ref {
    PyObject_HEAD
    struct rdt_ref ref;
    struct conn *conn; /* owned; NULL: it does not hold as its producer */
    struct link link;  /* conn->holds, if conn */
    PyObject *hold;    /* the Request that holds it; NULL: none */
    bool wanting;      /* it shall hold when a connection is used with it */
    Py_ssize_t copied; /* of put: tensors that had to be copied in; -1: not from put */
    bool kept;         /* the connection goes on holding it when this is gone */
    bool live;         /* of put: GPU memory that the caller could use again has to stay until it is freed */
    int hint;          /* for the reader: 1 if the tensors were torch's */
};

struct request {
    PyObject_HEAD
    struct conn *conn;
    rdt_request *request; /* NULL: its connection is closed */
    struct link link;
    struct held_set *targets; /* NULL: none */
    PyObject *shared_as;      /* its key in conn->shared; NULL: it is not in there */
    PyObject *how;            /* what the Python side wants to know when it has ended */
    PyObject *weakrefs;
};

struct object {
    PyObject_HEAD
    struct conn *conn;
    rdt_object *object;
    uint64_t gpus; /* a bit for each ordinal that it has a tensor on */
};

struct memory {
    PyObject_HEAD
    struct conn *conn;
    struct link link; /* conn->memories, if conn */
    void *addr;
    size_t bytes;
    int gpu; /* ordinal; HOST */
};

struct tensor {
    PyObject_VAR_HEAD
    PyObject *owner; /* Object or Memory */
    PyObject *weakrefs;
    uint8_t *data;
    enum rdt_dtype dtype;
    int ndim;
    bool readonly;
    int gpu;          /* ordinal in this process; HOST: its memory is the processor's */
    Py_ssize_t bytes; /* of the elements */
    Py_ssize_t dims[]; /* [3 * ndim]: shape, strides in elements, strides in bytes */
};

extern PyTypeObject conn_type, ref_type, request_type, object_type, memory_type, tensor_type;

/* What Python's side told: see module.c. Borrowed by nobody, NULL until then. */
extern PyObject *made_ref_type, *made_request_type;
extern PyObject *torch_tensor_type, *torch_dtypes; /* type; dict of torch.dtype to number */
extern PyObject *torch_stream;                     /* of a GPU's ordinal: the stream that torch works in now, as a number */
extern PyObject *numpy_names;                      /* dict of numpy's dtype names to numbers */

/* ---- errors ---- */

/* Raises what mirrors err; NULL. */
PyObject *raise_error(const struct rdt_error *err);
PyObject *raise_status(enum rdt_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Seconds or None as librdt's time; *_p is `none` for None. False: an exception. */
bool timeout_from(PyObject *seconds, int64_t none, int64_t *ns_p);

/* ---- conn ---- */

/* Around every use of conn->rdt. False: an exception (it was closed). */
bool conn_enter(struct conn *conn);
void conn_leave(struct conn *conn);
void conn_keep(struct conn *conn);   /* one more keeper, with a reference */
void conn_unkeep(struct conn *conn); /* gives both back */

#define CONN_CALL(conn, call)         \
    do {                              \
        Py_BEGIN_ALLOW_THREADS        \
        (call);                       \
        Py_END_ALLOW_THREADS          \
        conn_leave(conn);             \
    } while (0)

void link_init(struct link *link);
void link_add(struct link *list, struct link *link);
void link_remove(struct link *link);

/* ---- together ---- */

bool together_init(void); /* false: no memory */

/* The caller is about to give something back, as an array or a ref does when it goes. When that comes one upon the other in the main thread it is
 * kept until the interpreter has done with what lets go of it, and a millisecond at most, and wakes the daemon once. */
void together(struct conn *conn);

/* What is kept goes now: of this connection, before what shall not wait; of all others, before one is used that might look for it. */
void together_end(struct conn *conn);
void together_end_others(const struct conn *conn);

/* ---- ref ---- */

struct kept {
    struct link link;
    struct rdt_ref ref;
    rdt_request *hold; /* NULL: as its producer */
};
void kept_drop(struct conn *conn, struct kept *kept); /* lets go, without waiting for an answer */

/* The connection holds it no more, if it did. */
void conn_forget(struct conn *conn, const struct rdt_ref *ref);

/* A new Ref of Python's class; conn NULL: it holds nothing. */
PyObject *ref_new(const struct rdt_ref *ref, struct conn *conn);

/* ---- request, object ---- */

PyObject *request_new(struct conn *conn, rdt_request *take_request);
bool request_holds(PyObject *request);

/* Of one that holds and that nobody else has: what was started is the caller's now. NULL: it does not hold. */
rdt_request *request_take_hold(PyObject *request, struct conn **conn_p);
PyObject *object_new(struct conn *conn, rdt_object *take_object);

/* ---- tensor ---- */

PyObject *tensor_new(PyObject *owner, const struct rdt_tensor *view, bool readonly, int gpu);
struct conn *tensor_conn(const struct tensor *tensor); /* borrowed */
bool memory_has_one_of(const struct conn *conn, const struct rdt_tensor *tensors, size_t count); /* whether one lies in a Memory of conn */
const char *tensor_format(enum rdt_dtype dtype); /* of struct's module; NULL: it has no letter */
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *tensor_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *tensor_capsule(PyObject *self, PyObject *ignored);

/* ---- gather ---- */

struct held {
    Py_buffer view;  /* obj NULL: none */
    PyObject *alive; /* what else has to stay; NULL */
    int64_t *dims;   /* [2 * ndim] on the heap, or NULL */
    int64_t few[8];  /* instead */
    bool on_gpu;
    bool ordered;    /* who made it frees and writes its memory in the stream's order: it may be read there after this call */
    void *stream;    /* what writes it stands there; of on_gpu */
};

struct held_set {
    size_t count;
    struct rdt_tensor *tensors; /* [count] */
    struct held *held;          /* [count] */
    size_t on_gpus;             /* of them */
    struct conn *conn;          /* borrowed, of `offered` */
    void **offered;             /* [count] GPU memory that the daemon knows for this alone; NULL: none */
};

/* Borrows the memory of a list's or tuple's tensors until held_set_free. `writable`: and they must be. `stream`: where what writes those on
 * GPUs stands, as a number; None: each says it itself. NULL: an exception that says which one is wrong; `what` begins the sentence. */
struct held_set *held_set_from(PyObject *list, bool writable, PyObject *stream, const char *what);
void held_set_free(struct held_set *set); /* NULL is fine */

/* torch's: see gather_torch.c. find_exchange: once, with torch's class of tensors. False: an exception. */
bool torch_find_exchange(PyObject *type);
bool torch_take(struct held *held, struct rdt_tensor *tensor, PyObject *torch, bool writable, PyObject *stream);

/* Those on GPUs: see gather_gpu.c. As the others, false: an exception. */
int64_t *held_dims(struct held *held, Py_ssize_t ndim);
bool dims_from_tuple(PyObject *tuple, int64_t *dims, Py_ssize_t ndim);
bool strides_from_bytes(int64_t *strides, const Py_ssize_t *shape, const Py_ssize_t *bytes, Py_ssize_t ndim, Py_ssize_t itemsize);
bool gpu_torch_stream(struct held *held, PyObject *torch, PyObject *stream);
PyObject *gpu_dlpack(struct held *held, PyObject *object, int ordinal, PyObject *stream); /* the capsule, made safe on the held stream */
bool gpu_array_interface(struct held *held, struct rdt_tensor *tensor, PyObject *object, bool writable, PyObject *stream);
bool stream_from(PyObject *number, void **stream_p);

/* ---- GPU memory ---- */

/* Opens it for the connection, once. False: an exception, Unsupported with why. */
bool gpu_open(struct conn *conn);
void gpu_close(struct conn *conn); /* before rdt_close, without the GIL */

/* The options' place from (memory or None, uuid or None). False: an exception. */
bool gpu_place(PyObject *place, const char **memory_p, const char **device_p);
int gpu_ordinal(struct conn *conn, const char *memory, const char *uuid); /* HOST also for one that this process does not see */
bool gpu_uuid(struct conn *conn, int ordinal, const char **uuid_p);       /* false: an exception */

/* rdt_put of a set with tensors on GPUs; without the GIL. What the daemon does not know is copied. *copied_p: how many were; *live_p: one lies
 * in memory that somebody here may use again, and has to stay. */
enum rdt_status gpu_put(struct conn *conn, const struct held_set *set, struct rdt_put_options *options, struct rdt_ref *ref_p,
                        Py_ssize_t *copied_p, bool *live_p, struct rdt_error *err);

/* Makes targets on GPUs known to the daemon until held_set_free, and waits for what still stands in their streams. Without the GIL. */
enum rdt_status gpu_offer(struct conn *conn, struct held_set *set, struct rdt_error *err);
void gpu_take_back(struct held_set *set);

/* Before memory there is given back: nothing of this process's uses it any more. Without the GIL. */
void gpu_settle(struct conn *conn, uint64_t gpus);

enum rdt_status gpu_read(struct conn *conn, const void *from, void *to, size_t bytes, struct rdt_error *err);

/* Conn's methods: _gpu(ordinal), its UUID; _gpu_open(), tensors on GPUs come as such; _use_pool(), torch's pool takes its memory. */
PyObject *conn_gpu(PyObject *self, PyObject *ordinal);
PyObject *conn_gpu_open(PyObject *self, PyObject *ignored);
PyObject *conn_use_pool(PyObject *self, PyObject *ignored);
PyObject *gpu_pool_info(PyObject *module, PyObject *ignored);

/* Struct's letters or DLPack's codes. 0: there is no such thing here. */
enum rdt_dtype dtype_of_format(const char *format, Py_ssize_t itemsize);
enum rdt_dtype dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);
bool dlpack_of_dtype(enum rdt_dtype dtype, uint8_t *code_p, uint8_t *bits_p);

/* DLPack, as its header has it. */
struct dl_tensor {
    void *data;
    struct { int32_t type, id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_managed_versioned {
    struct { uint32_t major, minor; } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags; /* 1: read-only, 2: a copy */
    struct dl_tensor tensor;
};
#define DL_CPU 1
#define DL_CUDA 2
#define DL_READ_ONLY ((uint64_t)1)

/* _rdt.header_names(bytes): (names in the order of their tensors, "__metadata__" as JSON), or None: it is no header as put writes it. */
PyObject *header_names(PyObject *module, PyObject *header);

/* ---- Conn's methods ---- */

extern PyMethodDef conn_methods[];
PyObject *conn_close(PyObject *self, PyObject *ignored);
PyObject *conn_put(PyObject *self, PyObject *args);
PyObject *conn_fetch(PyObject *self, PyObject *args);
PyObject *conn_get(PyObject *self, PyObject *args);
PyObject *conn_wait(PyObject *self, PyObject *args);
PyObject *conn_shared(PyObject *self, PyObject *packed);
PyObject *conn_group_create(PyObject *self, PyObject *args);
PyObject *conn_group_destroy(PyObject *self, PyObject *name);
PyObject *conn_groups(PyObject *self, PyObject *ignored);
PyObject *conn_broadcast(PyObject *self, PyObject *args);

#endif
