/* SPDX-License-Identifier: Apache-2.0 */
/* The extension module _rdt: librdt's calls as Python objects and nothing more. What makes them convenient is written in
 * Python, in rdtd/.
 *
 *   conn.c      Conn: a connection, who may still use it, and when the session really ends
 *   calls.c     Conn's calls with one answer (publish, waits);  groups.c: its calls about groups;  info.c: those that describe
 *   transfer.c  Conn's put and fetch;  shards.c: its calls about versions of many parts, and Plan;  follow.c: Follower
 *   many.c      Conn's calls about many objects or names
 *   ref.c       Ref: the name of an object, and the hold on that object if the Ref has one
 *   request.c   Request and Object: what a call started, and what a fetch brought
 *   tensor.c    Tensor and Memory: the daemon's memory as numpy, torch and the buffer protocol see it;  dlpack.c: DLPack
 *   gather.c    borrows any library's tensors as struct rdt_tensor;  gather_torch.c: torch's;  gather_gpu.c: tensors on GPUs;
 *               gather_targets.c: what of their memory must hold until it is written
 *   gpu.c       GPU memory: the calls of librdt-cuda (refused where the package was built without cuda.h)
 *   delta.c     deltas between two versions of a tensor's bytes
 *   header.c    parses the names out of a safetensors header
 *   waits.c     the calls that wait, and signal handlers
 *   module.c    the module itself, and how statuses become exceptions
 *
 * All state here is protected by the GIL. Every call of librdt that can block releases the GIL, and is made between
 * waits_begin and waits_end, so that Ctrl-C ends it. A Conn outlives whatever was
 * made from it: each Request, Object, Memory and holding Ref owns a reference to its Conn.
 */
#ifndef RDTPY_H
#define RDTPY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <rdt.h>
#include <rdt_many.h>
#include <rdt_plan.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#ifdef RDTPY_WITHOUT_CUDA
typedef struct rdt_cuda rdt_cuda;
#else
#include <rdt_cuda.h>
#endif

/* The package also builds against an installed librdt, without proto/container_of.h. */
#define container_of(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct link { /* an element of one of Conn's lists */
    struct link *next, *prev;
};

#define HOST (-1)
#define GRACE_NS INT64_C(10000000000) /* unless put was told another */
#define MAX_GPUS 64

struct conn {
    PyObject_HEAD rdt *rdt; /* NULL: the session has ended */
    bool closed;            /* close() was called: new calls are refused, but memory that is still visible stays mapped */
    size_t calls;           /* threads that are inside librdt with this connection */
    size_t session_users;   /* Objects and Memories; the session lasts until this is 0 */
    struct link requests, holds, publishings;
    struct link retained; /* of struct retained_hold: holds that outlive their Refs */
    struct link memories;
    struct link followers;
    /* dict: packed ref -> address of the Request whose hold all unpickled copies of that ref share; NULL: empty */
    PyObject *shared;
    rdt_cuda *cuda;             /* NULL: no call has used GPU memory yet */
    pthread_mutex_t cuda_opens; /* held by the thread that opens it */
    bool pooled;                /* torch's pool has used this connection, so the session lasts until the process ends */
    PyObject *weakrefs;
};

enum ref_end {               /* of the object, when the connection that put it is closed */
               REF_ENDS,     /* the object ends, unless somebody else holds it */
               REF_ENDED,    /* it has ended so */
               REF_OUTLIVES, /* a name holds it as well */
};

struct ref {
    PyObject_HEAD struct rdt_ref ref;
    struct conn *conn; /* owned; NULL: this Ref has no producer's hold */
    struct link link;  /* in conn->holds, if conn is set */
    PyObject *hold;    /* the Request whose hold this Ref uses; NULL: none */
    int wanting; /* HOLD or TAKE_OVER (_requests.py): takes that hold with the first connection that uses it; 0: takes none */
    Py_ssize_t copied; /* number of tensors that put copied into the daemon's memory; -1: not from put */
    bool retained;     /* the hold passes to the connection when this Ref is deallocated */
    enum ref_end end;
    bool live;        /* from put: the caller's GPU memory must not be reused until the object is freed */
    int hint;         /* for readers: 1 if the tensors were torch's */
    int64_t grace_ns; /* how long the daemon holds the object for a process that this Ref is pickled for; 0: not at all */
};

struct request {
    PyObject_HEAD struct conn *conn;
    rdt_request *request; /* NULL: the connection was closed */
    struct link link;
    struct borrowed_set *targets; /* NULL: none */
    PyObject *shared_as;          /* the key in conn->shared; NULL: not in that dict */
    PyObject *how;                /* belongs to the Python side: how to read the result */
    PyObject *weakrefs;
};

#define MAX_USED_STREAMS 6u

/* The streams that consumers of a tensor have named (__dlpack__). They may read it when Python drops it. */
struct used_streams {
    void *at[MAX_USED_STREAMS];
    unsigned n;
    bool unknown; /* there may be others */
};

struct object {
    PyObject_HEAD struct conn *conn;
    struct used_streams used;
    rdt_object *object;
    struct rdt_object_info info;
    uint64_t gpus; /* bit n: a tensor of this object is on the GPU with ordinal n */
};

struct memory {
    PyObject_HEAD struct conn *conn;
    struct link link; /* in conn->memories, if conn is set */
    void *addr;
    size_t bytes;
    int gpu; /* ordinal of the GPU, or HOST */
    struct used_streams used;
};

struct plan {
    PyObject_HEAD struct conn *conn;
    rdt_plan *plan;
    struct borrowed_set *targets; /* NULL after let_go */
    PyObject *list;               /* the tensors of `targets` */
    bool runs;                    /* in some thread; under the GIL */
};

struct tensor {
    PyObject_VAR_HEAD PyObject *owner; /* Object or Memory */
    PyObject *weakrefs;
    uint8_t *data;
    enum rdt_dtype dtype;
    int ndim;
    bool readonly;
    int gpu;           /* ordinal of the GPU in this process, or HOST */
    Py_ssize_t bytes;  /* the number of elements times the size of one */
    Py_ssize_t dims[]; /* [3 * ndim]: shape, strides in elements, strides in bytes */
};
struct used_streams *tensor_streams(struct tensor *tensor);

extern PyTypeObject conn_type, ref_type, request_type, object_type, memory_type, tensor_type, plan_type, publishing_type,
    follower_type;

/* Set by the Python side (see module.c); NULL until then. */
extern PyObject *made_ref_type, *made_request_type;
extern PyObject *torch_tensor_type, *torch_dtypes; /* type; dict of torch.dtype to number */
extern PyObject *torch_stream;                     /* function: GPU ordinal -> torch's current stream there, as a number */
extern PyObject *numpy_names;                      /* dict of numpy's dtype names to numbers */
extern PyObject *kind_of;                          /* of _arrays.py: calls set_torch if torch was imported */

/* ---- errors ---- */

/* Raises the exception class of err->status with its message. Returns NULL. */
PyObject *raise_error(const struct rdt_error *err);
PyObject *raise_status(enum rdt_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

PyObject *none_or_raise(enum rdt_status status, const struct rdt_error *err); /* None, or NULL with an exception set */

/* Converts a timeout (seconds, or None, which becomes `none`) to nanoseconds. Returns false with an exception set. */
bool timeout_from(PyObject *seconds, int64_t none, int64_t *ns_p);

/* The same as converters for O& of PyArg_ParseTuple, to an int64_t. */
int timeout_or_forever(PyObject *seconds, void *ns_p); /* None is without end */
int timeout_or_none(PyObject *seconds, void *ns_p);    /* None does not wait */
int timeout_option(PyObject *seconds, void *ns_p);     /* for options of rdt.h, where 0 is the default, and not "do not wait" */

/* ---- conn ---- */

/* Bracket every use of conn->rdt. conn_enter returns false with an exception set if the connection is closed. */
bool conn_enter(struct conn *conn);
void conn_leave(struct conn *conn);
void conn_hold_session(struct conn *conn);    /* counts one more user of the session and takes a reference */
void conn_release_session(struct conn *conn); /* undoes conn_hold_session */

/* ---- waits ---- */

/* A call of librdt that can block. Between waits_begin and waits_end the GIL is released, and the handlers of signals run in
 * the first thread, as soon as they arrive. What a handler raises ends the call, and then raise_error raises it; if the call
 * has ended well, it is raised soon afterwards, as that of a signal which arrives after the call. */
struct waits {
    PyThreadState *thread;
    const struct conn *conn; /* whose close() ends the call, too; NULL: none */
    bool has_raised;
};
void waits_begin(struct waits *waits, const struct conn *conn);

/* status: not RDT_OK if the caller calls raise_error. */
void waits_end(struct waits *waits, enum rdt_status status);

/* Raises what a handler has raised in a call of this thread that has failed. False: there is nothing. */
bool waits_raise(void);

/* give_up_by(flag): from now on the calls of this thread end when another thread sets the first byte of this buffer. None: no
 * longer. */
PyObject *waits_give_up_by(PyObject *ignored, PyObject *flag);

/* Whether close() has ended the last call of this thread. For raise_error: afterwards the answer is false. */
bool waits_were_closed(void);

#define WAITS(conn, status, call)   \
    do {                            \
        struct waits waits_;        \
        waits_begin(&waits_, conn); \
        (status) = (call);          \
        waits_end(&waits_, status); \
    } while (0)

/* The last use of conn->rdt before conn_leave. */
#define CONN_CALL(conn, status, call) \
    do {                              \
        WAITS(conn, status, call);    \
        conn_leave(conn);             \
    } while (0)

void link_init(struct link *link);
void link_add(struct link *list, struct link *link);
void link_remove(struct link *link);

/* ---- ref ---- */

struct retained_hold {
    struct link link;
    struct rdt_ref ref;
    rdt_request *hold; /* NULL: the producer's hold */
};

/* Drops the connection's retained hold on the object of `ref`; NULL: drops all of them. */
void conn_forget(struct conn *conn, const struct rdt_ref *ref);

/* A new Ref of the Python subclass. With conn NULL it has no hold. */
PyObject *ref_new(const struct rdt_ref *ref, struct conn *conn);

/* Copies the value of a Ref. Returns false with TypeError set if the object is none. */
bool ref_read(PyObject *object, struct rdt_ref *value_p);

/* ---- parts ---- */

/* The key of tensor i of a list. Returns NULL with an exception set. */
const char *part_key(PyObject *list, size_t i);

/* Reads entry i of a list, a tuple of `ndim` numbers; None leaves *to as it is. Returns false with an exception set. */
bool part_numbers(PyObject *list, Py_ssize_t i, Py_ssize_t ndim, int64_t *to);

/* Begins a run or a commit of a plan: its targets are where they were, and their streams are known to it. `order`: after
 * let_go, a list with a target on each GPU. The caller then uses the connection, which was entered, and sets plan->runs to
 * false. Returns false with an exception set. */
bool plan_enter(struct plan *plan, PyObject *order);

/* Gives up the versions that the connection is publishing tensor by tensor, unless a thread is inside a call of one. */
void conn_end_publishings(struct conn *conn);

/* ---- request, object ---- */

PyObject *request_new(struct conn *conn, rdt_request *take_request);

/* Ends a call that was to start a request: makes the Request, or raises the error, and calls conn_leave. */
PyObject *request_started(struct conn *conn, enum rdt_status status, rdt_request *take_request, const struct rdt_error *err);
bool request_holds(PyObject *request);

/* Takes the started hold out of a Request that nobody else references; the caller owns the result. NULL: it has no hold. */
rdt_request *request_take_hold(PyObject *request, struct conn **conn_p);
PyObject *object_new(struct conn *conn, rdt_object *take_object);

/* ---- tensor ---- */

PyObject *tensor_new(PyObject *owner, const struct rdt_tensor *view, bool readonly, int gpu);
bool memory_has_one_of(const struct conn *conn, const struct rdt_tensor *tensors, size_t count); /* in a Memory of conn */
PyObject *tuple_of(const Py_ssize_t *numbers, uint32_t count);
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *tensor_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *tensor_capsule(PyObject *self, PyObject *ignored);

/* ---- gather ---- */

/* The structures of dlpack.h. */
struct dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};
struct dl_managed_versioned {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags; /* 1: read-only, 2: a copy */
    struct dl_tensor tensor;
};
#define DL_CPU 1
#define DL_CUDA 2
#define DL_READ_ONLY ((uint64_t)1)

struct borrowed {
    Py_buffer view;  /* view.obj is NULL if no buffer was taken */
    PyObject *alive; /* what must stay alive while borrowed; NULL: nothing */
    PyObject *pin;   /* of pin_owner, if the memory will be written; NULL: none */
    int64_t *dims;   /* shape and strides, [2 * ndim], on the heap; NULL: in `few` */
    int64_t few[8];  /* shape and strides of tensors with at most 4 dimensions */
    bool on_gpu;
    bool ordered; /* its allocator frees and reuses memory in stream order, so the stream may read it after this call */
    void *stream; /* if on_gpu: the stream in which the tensor is written */
};

struct landing {      /* daemon memory where the target is, from which the bytes go to the target */
    void *buffer;     /* on the target's GPU; NULL: none */
    const void *from; /* within host_room, for a target in host memory; NULL: none */
    void *target;     /* NULL: it gets nothing */
    size_t bytes;
    bool delivered; /* the copy from the buffer is queued */
};

struct borrowed_set {
    size_t count;
    struct rdt_tensor *tensors; /* [count] */
    struct borrowed *borrowed;  /* [count] */
    size_t on_gpus;             /* how many of them are on GPUs */
    struct conn *conn;          /* borrowed; the connection that `offered` belongs to */
    void **offered;             /* [n_offered] starts of GPU memory that the daemon knows for this set only; NULL: none */
    size_t n_offered;
    bool fetched;             /* the fetch has succeeded, so the daemon writes no target any more */
    struct landing *landings; /* [count] of targets that the daemon cannot write; NULL: none */
    void *host_room;          /* memory of the daemon for all targets in host memory, if others are on GPUs; NULL: none */
};

/* Borrows the memory of the tensors in a list or tuple until borrowed_set_free. With `writable`, read-only tensors are
 * refused. `stream` is the stream that writes tensors on GPUs, as a number; None: each tensor says so itself. On failure
 * returns NULL with an exception that names the tensor; `what` begins its sentence. */
struct borrowed_set *borrowed_set_from(PyObject *list, bool writable, PyObject *stream, const char *what);
void borrowed_set_free(struct borrowed_set *set); /* NULL is fine */

/* Targets (gather_targets.c). Returns a weak reference to the array that has the object's memory: while there is one, numpy
 * does not resize the array, not even with refcheck=False. NULL without an exception: it has none. */
PyObject *pin_owner(PyObject *object);

/* Whether the tensors in `list` are where they were when the set was made from it. False with an exception set. now_p: NULL, or
 * receives the set that was made of them now, for the caller to free. */
bool borrowed_set_is_unmoved(const struct borrowed_set *before, PyObject *list, const char *what, struct borrowed_set **now_p);

/* _rdt.target_twins(list): ({number: number of an earlier target in the very same memory}, None, or the numbers of two targets
 * that share memory otherwise). */
PyObject *target_twins(PyObject *module, PyObject *list);

/* torch's tensors (gather_torch.c). torch_find_exchange is called once, with the class torch.Tensor. Both return false with
 * an exception set. */
bool torch_find_exchange(PyObject *type);
bool torch_take(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *torch, bool writable, PyObject *stream);
/* _rdt.torch_notes(list): a letter for each tensor (note_of). _rdt.torch_overlap(list): whether the memory of two of its torch
 * tensors may overlap. */
PyObject *torch_notes(PyObject *module, PyObject *tensors);
PyObject *torch_overlap(PyObject *module, PyObject *tensors);

/* Tensors on GPUs (gather_gpu.c). Each returns false or NULL with an exception set. */
bool dims_from_tuple(PyObject *tuple, int64_t *dims, Py_ssize_t ndim);

/* Fill in shape and strides, which they copy: the owner may be resized while the GIL is released. strides NULL: row-major;
 * itemsize > 0: they are in bytes. tensor_from_dl fills in the address as well. */
bool dims_from_tuples(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *shape, PyObject *strides,
                      Py_ssize_t itemsize);
bool tensor_from_dl(struct borrowed *borrowed, struct rdt_tensor *tensor, const struct dl_tensor *dl);
bool gpu_torch_stream(struct borrowed *borrowed, PyObject *torch, PyObject *stream);

/* Returns the object's capsule. From then on borrowed->stream waits for the producer's stream. */
PyObject *gpu_dlpack(struct borrowed *borrowed, PyObject *object, PyObject *stream);
bool gpu_array_interface(struct borrowed *borrowed, struct rdt_tensor *tensor, PyObject *object, bool writable,
                         PyObject *stream);
bool stream_from(PyObject *number, void **stream_p);

/* ---- GPU memory ---- */

/* Opens GPU memory for the connection, once. Returns false with Unsupported set, which says why. */
bool gpu_open(struct conn *conn);
void gpu_close(struct conn *conn); /* called before rdt_close, without the GIL */

/* Reads the place (memory or None, uuid or None, and whether tensors in host memory stay there) into options. Returns false
 * with an exception set. */
bool gpu_place(PyObject *place, const char **memory_p, const char **device_p, bool *host_stays_p);
/* Returns the GPU's ordinal; HOST also for a GPU that this process does not see. */
int gpu_ordinal(struct conn *conn, const char *memory, const char *uuid);

/* Returns false with an exception set. */
bool gpu_uuid(struct conn *conn, int ordinal, const char **uuid_p);

/* rdt_put for a set with tensors on GPUs; called without the GIL. Tensors in memory that the daemon does not know are copied,
 * or with PUT_MAY_SHARE in `how` exported if the driver lets them be; with PUT_TO_HOST all are copied to host memory.
 * *copied_p counts the copies. *live_p: a tensor lies in memory of a local allocator, which must not reuse it before the
 * object is freed. */
enum rdt_status gpu_put(struct conn *conn, const struct borrowed_set *set, struct rdt_put_options *options,
                        struct rdt_ref *ref_p, uint32_t how, Py_ssize_t *copied_p, bool *live_p, struct rdt_error *err);

/* As rdt_cuda_put_many, when the work that is queued in the streams of the set's tensors has ended. Called without the GIL. */
enum rdt_status gpu_put_many(struct conn *conn, const struct borrowed_set *set, const struct rdt_value *values, size_t count,
                             struct rdt_put_options *put, struct rdt_ref *refs_p, enum rdt_status *statuses_p,
                             struct rdt_error *err);

/* Lets runs of the plan wait for the streams that write the tensors of the set on GPUs. Returns false with an exception set. */
bool gpu_order(struct conn *conn, rdt_plan *plan, const struct borrowed_set *set);

/* Waits for the work that is queued in the streams of a set's tensors on GPUs. *timeout_ns, if it is above
 * RDT_NO_WAIT, limits that, and is what is left of it afterwards. Called without the GIL. */
enum rdt_status gpu_await(struct conn *conn, const struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err);

/* Registers targets on GPUs with the daemon until borrowed_set_free and waits for the work queued in their streams, as
 * gpu_await. Called without the GIL. */
enum rdt_status gpu_offer(struct conn *conn, struct borrowed_set *set, int64_t *timeout_ns, struct rdt_error *err);
void gpu_take_back(struct borrowed_set *set);

/* The fetch has ended well: copies what has landed elsewhere to its targets, in their streams. Without the GIL. */
enum rdt_status gpu_deliver(struct conn *conn, struct borrowed_set *set, struct rdt_error *err);

/* Releases an object, or deallocates memory, when the streams that use it have come there. Does not wait, except for tensors of
 * which it is not known which streams use them. Without the GIL. */
void gpu_release(struct conn *conn, uint64_t gpus, const struct used_streams *used, rdt_object *take_object, void *take_addr);

enum rdt_status gpu_read(struct conn *conn, const void *from, void *to, size_t bytes, struct rdt_error *err);

/* Conn's methods: _gpu(ordinal) returns the GPU's UUID; _gpu_open() makes fetches deliver GPU tensors; _use_pool() makes
 * torch's pool allocate from this connection. */
PyObject *conn_gpu(PyObject *self, PyObject *ordinal);
PyObject *conn_gpu_open(PyObject *self, PyObject *ignored);
PyObject *conn_offer(PyObject *self, PyObject *args);
PyObject *conn_use_pool(PyObject *self, PyObject *ignored);
PyObject *gpu_pool_info(PyObject *module, PyObject *ignored);

/* The dtype of DLPack's code, and of the kind and the size in numpy's typestr. 0: rdtd has none. */
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_COMPLEX };
enum rdt_dtype dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);
enum rdt_dtype dtype_of_numpy(char kind, Py_ssize_t bytes);

/* Whether every torch accepts this dtype in a DLPack capsule. */
bool torch_takes(enum rdt_dtype dtype);

/* _rdt.header_names(bytes): (names in the order of their tensors, "__metadata__" as JSON), or None if put did not write this
 * header. */
PyObject *header_names(PyObject *module, PyObject *header);

/* ---- delta ---- */

/* _rdt.delta_encode(base, next, elem_bytes, out): the length of the delta in out, or None if out is too small for it. */
PyObject *delta_encode(PyObject *module, PyObject *args);
/* _rdt.delta_apply(target, elem_bytes, delta) */
PyObject *delta_apply(PyObject *module, PyObject *args);

/* ---- Conn's methods ---- */

enum put_flags { /* of _put, beside enum rdt_put_flags */
                 PUT_SNAPSHOT_UNLESS_OURS = 0x10000,
                 PUT_MAY_SHARE = 0x20000, /* GPU tensors need not be copied */
                 PUT_TO_HOST = 0x40000,   /* GPU tensors are copied to host memory */
};

enum wait_for { /* what _start begins to wait for */
                WAIT_PUT,
                WAIT_FREED,
                WAIT_FREED_RANGE, /* the end of all objects in a range of addresses */
                WAIT_HOLD,
                WAIT_TAKE_OVER, /* a hold that is taken over from the process that pickled the Ref */
};

extern PyMethodDef conn_methods[];
PyObject *conn_close(PyObject *self, PyObject *ignored);
PyObject *conn_put(PyObject *self, PyObject *args);
PyObject *conn_fetch(PyObject *self, PyObject *args);
PyObject *conn_get(PyObject *self, PyObject *args);
PyObject *conn_fetch_ready(PyObject *self, PyObject *args);
PyObject *conn_wait(PyObject *self, PyObject *args);
PyObject *conn_put_many(PyObject *self, PyObject *args);
PyObject *conn_publish_many(PyObject *self, PyObject *args);
PyObject *conn_end_prefix(PyObject *self, PyObject *args);
PyObject *conn_exists(PyObject *self, PyObject *list);
PyObject *conn_lookup(PyObject *self, PyObject *args);
PyObject *conn_load_many(PyObject *self, PyObject *args);
PyObject *conn_lease_end(PyObject *self, PyObject *list);
PyObject *conn_shared(PyObject *self, PyObject *packed);
PyObject *conn_group_create(PyObject *self, PyObject *args);
PyObject *conn_group_destroy(PyObject *self, PyObject *name);
PyObject *conn_json(PyObject *self, PyObject *args);
PyObject *conn_request_json(PyObject *self, PyObject *args);
PyObject *conn_broadcast(PyObject *self, PyObject *args);
PyObject *conn_put_part(PyObject *self, PyObject *args);
PyObject *conn_publish_part(PyObject *self, PyObject *args);
PyObject *conn_give_up_part(PyObject *self, PyObject *args);
PyObject *conn_part_version(PyObject *self, PyObject *request);
PyObject *conn_manifest(PyObject *self, PyObject *args);
PyObject *conn_plan(PyObject *self, PyObject *args);
PyObject *conn_publishing(PyObject *self, PyObject *args);

/* ---- follow ---- */

PyObject *conn_follow(PyObject *self, PyObject *args);
void conn_end_followers(struct conn *conn); /* the connection is closed */

#endif
