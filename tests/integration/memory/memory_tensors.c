/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of every kind come back unchanged, from daemon memory and from the heap. */
#include "tests/integration/memory/memory.h"

/* There and back by share and by copy, from daemon memory and from the heap. */
static void round_trip(const struct rdt_tensor *tensors, size_t count)
{
    struct rdt_ref ref;
    rdt *reader = node_client(&node, "reader");

    must_ok(rdt_put(conn, tensors, count, NULL, &ref, &err));
    for (unsigned mode = 0; mode < 6; mode++) {
        rdt_object *object = fetch_one(mode < 3 ? conn : reader, &ref, (enum rdt_fetch_mode)(mode % 3));
        cr_assert_eq(rdt_object_count(object), count);
        for (size_t i = 0; i < count; i++) {
            struct rdt_tensor seen = tensor_of(object, i);
            cr_assert(tensors_equal(&seen, &tensors[i]), "tensor %zu by mode %u", i, mode % 3);
            cr_assert(mode % 3 != RDT_FETCH_COPY || is_row_major(&seen), "a copy of tensor %zu has holes", i);
        }
        rdt_release(object);
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(reader);
}

Test(memory_tensors, every_dtype_goes_there_and_back)
{
    static const enum rdt_dtype dtypes[] = {
#define X(number, name, bytes, text, safetensors) RDT_##name,
        RDT_DTYPE_MAP(X)
#undef X
    };
    enum { N = sizeof dtypes / sizeof dtypes[0] };
    struct rdt_tensor tensors[2 * N];
    int64_t shape[] = {7, 5};
    char *memory, *heap = malloc(N * 1024);

    begin(NULL);
    memory = alloc_memory(conn, N * 1024);
    fill_pattern(memory, N * 1024, 3);
    fill_pattern(heap, N * 1024, 4);
    for (unsigned i = 0; i < N; i++) {
        tensors[i] = (struct rdt_tensor){.dtype = dtypes[i], .ndim = 2, .shape = shape, .data = memory + 1024 * i};
        tensors[N + i] = (struct rdt_tensor){.dtype = dtypes[i], .ndim = 2, .shape = shape, .data = heap + 1024 * i};
    }
    round_trip(tensors, 2 * N);
    free(heap);
    end();
}

Test(memory_tensors, overlapping_and_duplicate_tensors_keep_their_views)
{
    struct rdt_tensor tensors[5];
    char *memory;

    begin(NULL);
    memory = alloc_memory(conn, 65536);
    fill_pattern(memory, 65536, 9);
    tensors[0] = VECTOR(RDT_U8, 65536, memory);
    tensors[1] = VECTOR(RDT_U8, 65536, memory);
    tensors[2] = VECTOR(RDT_F32, 1000, memory + 4);
    tensors[3] = MATRIX(RDT_I16, 100, 100, memory + 40000);
    tensors[4] = VECTOR(RDT_U8, 1, memory + 65535);
    round_trip(tensors, 5);
    end();
}

Test(memory_tensors, strided_tensors_keep_their_elements)
{
    static const int64_t shape[] = {4, 3, 5}, transposed[] = {1, 4, 12}, backwards[] = {-15, -5, -1}, repeated[] = {0, 5, 1},
                         holes[] = {60, 20, 2}, mixed[] = {-30, 0, 7};
    const int64_t *strides[] = {transposed, backwards, repeated, holes, mixed};
    struct rdt_tensor tensors[10];
    float *memory, *heap = malloc(65536);

    begin(NULL);
    memory = alloc_memory(conn, 65536);
    fill_pattern(memory, 65536, 9);
    fill_pattern(heap, 65536, 10);
    for (unsigned i = 0; i < 5; i++) {
        tensors[i] =
            (struct rdt_tensor){.dtype = RDT_F32, .ndim = 3, .shape = shape, .strides = strides[i], .data = memory + 500};
        tensors[5 + i] = tensors[i];
        tensors[5 + i].data = heap + 500;
    }
    round_trip(tensors, 10);
    free(heap);
    end();
}

Test(memory_tensors, empty_scalar_and_32_dimensional_tensors)
{
    static const int64_t none[] = {0}, hollow[] = {3, 0, 5}, one[] = {1};
    int64_t many[32], steps[32];
    struct rdt_tensor tensors[8];
    double *memory, local = 4.5;

    begin(NULL);
    memory = alloc_memory(conn, 65536);
    fill_pattern(memory, 65536, 9);
    for (unsigned d = 0; d < 32; d++) {
        many[d] = d % 5 == 0 ? 2 : 1;
        steps[d] = -(int64_t)(d / 5) - 1;
    }
    tensors[0] = (struct rdt_tensor){.dtype = RDT_F64, .data = memory};
    tensors[1] = (struct rdt_tensor){.dtype = RDT_F64, .data = &local};
    tensors[2] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = none};
    tensors[3] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 3, .shape = hollow, .data = memory};
    tensors[4] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = one, .data = (char *)memory + 65535};
    tensors[5] = (struct rdt_tensor){.dtype = RDT_F64, .ndim = 32, .shape = many, .data = memory};
    tensors[6] = (struct rdt_tensor){.dtype = RDT_F64, .ndim = 32, .shape = many, .strides = steps, .data = memory + 1000};
    tensors[7] = (struct rdt_tensor){.dtype = RDT_F64, .ndim = 3, .shape = hollow, .strides = hollow};
    round_trip(tensors, 8);
    round_trip(tensors + 2, 2);
    round_trip(tensors, 0);
    end();
}
