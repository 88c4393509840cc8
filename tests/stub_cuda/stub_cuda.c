/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for the CUDA toolkit's lib/stubs/libcuda.so, under the name that a loader looks for. Every function exists and
 * none does anything; cuInit returns 34, CUDA_ERROR_STUB_LIBRARY. */
#include "backends/common/cuda_driver.h"

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
#define ALIAS(name) __asm__(".globl " TEXT(name) "\n.type " TEXT(name) ", @function\n.set " TEXT(name) ", stub_any");

__attribute__((used)) CUresult stub_any(void);
CUresult stub_any(void)
{
    return CUDA_ERROR_STUB_LIBRARY;
}
CUDA_FUNCTIONS(ALIAS)
