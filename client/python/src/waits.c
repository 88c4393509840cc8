/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait, and the signal handlers that run meanwhile. */
#include <sys/syscall.h>
#include <unistd.h>

#include "rdtpy.h"

/* What a handler raised in a call that has not ended since, and the thread that has made the call. Under the GIL. */
static struct {
    PyThreadState *thread; /* NULL: there is none */
    PyObject *type, *value, *traceback;
} raised;

static _Thread_local bool closed; /* close() has ended the last call of this thread */

static _Thread_local Py_buffer given_up; /* of waits_give_up_by */

PyObject *waits_give_up_by(PyObject *ignored, PyObject *flag)
{
    PyBuffer_Release(&given_up); /* which leaves buf and len as they were */
    given_up = (Py_buffer){0};
    if (flag != Py_None && PyObject_GetBuffer(flag, &given_up, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_RETURN_NONE;
}

bool waits_were_closed(void)
{
    bool were = closed;

    closed = false;
    return were;
}

static bool raise_it(void)
{
    if (raised.thread != PyThreadState_Get())
        return false;
    raised.thread = NULL;
    PyErr_Restore(raised.type, raised.value, raised.traceback);
    return true;
}

bool waits_raise(void)
{
    return raised.thread && raise_it();
}

static int raise_soon(void *ignored)
{
    return waits_raise() ? -1 : 0;
}

/* Runs the handlers of signals. Returns true if one has raised an exception. With the GIL. */
static bool run_handlers(struct waits *waits)
{
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback); /* a destructor may run while an exception is on its way */
    if (PyErr_CheckSignals() < 0) {
        bool replaces = raised.thread;
        PyObject *before[] = {raised.type, raised.value, raised.traceback};

        PyErr_Fetch(&raised.type, &raised.value, &raised.traceback);
        raised.thread = PyThreadState_Get();
        waits->has_raised = true;
        for (size_t i = 0; replaces && i < 3; i++)
            Py_XDECREF(before[i]); /* may run code that raises what is there now */
    }
    PyErr_Restore(type, value, traceback);
    return waits->has_raised;
}

/* Only the first thread of a process runs handlers. Others take the GIL only at the end of their call: at the end of the
 * interpreter they would not come back from here. */
static bool interrupted(void *arg)
{
    struct waits *waits = arg;
    bool yes = false;

    if ((pid_t)syscall(SYS_gettid) == getpid()) {
        PyEval_RestoreThread(waits->thread);
        yes = run_handlers(waits);
        waits->thread = PyEval_SaveThread();
    }
    return yes || (waits->conn && __atomic_load_n(&waits->conn->closed, __ATOMIC_RELAXED)) ||
           (given_up.len > 0 && __atomic_load_n((const uint8_t *)given_up.buf, __ATOMIC_RELAXED));
}

void waits_begin(struct waits *waits, const struct conn *conn)
{
    *waits = (struct waits){.conn = conn};
    rdt_interrupt_by(interrupted, waits);
    waits->thread = PyEval_SaveThread();
}

void waits_end(struct waits *waits, enum rdt_status status)
{
    PyEval_RestoreThread(waits->thread);
    rdt_interrupt_by(NULL, NULL);
    closed = status == RDT_CANCELLED && waits->conn && waits->conn->closed;
    if (waits->has_raised && status == RDT_OK) /* nobody calls raise_error */
        (void)Py_AddPendingCall(raise_soon, NULL);
}
