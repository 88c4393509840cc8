#include <rdt.h>
#include <stdio.h>
int main(void) {
    rdt *c; rdt_object *o; struct rdt_ref ref; struct rdt_error err; float *x; struct rdt_tensor got;
    if (rdt_connect(NULL, &c, &err) || rdt_alloc(c, 4096, (void **)&x, &err)) return puts(err.msg), 1;
    for (int i = 0; i < 1024; i++) x[i] = (float)i;
    struct rdt_tensor t = {.dtype = RDT_F32, .ndim = 2, .shape = (int64_t[]){32, 32}, .data = x};
    if (rdt_put(c, &t, 1, NULL, &ref, &err) || rdt_fetch(c, &ref, 1, NULL, &o, &err)) return puts(err.msg), 1;
    rdt_object_tensor(o, 0, &got, &err); printf("x[1][1] = %g\n", ((float *)got.data)[33]);
    rdt_release(o); rdt_close(c);
}
