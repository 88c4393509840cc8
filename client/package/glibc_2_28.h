/* SPDX-License-Identifier: Apache-2.0 */
/* Included before everything else in what a wheel contains, so that it runs with every glibc since 2.28, whatever newer one
 * it is built with. Later versions moved threads and dlopen into libc.so, under new versions of their symbols: these lines
 * choose the old versions, which all have. */
#ifndef RDT_PACKAGE_GLIBC_2_28_H
#define RDT_PACKAGE_GLIBC_2_28_H
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define RDT_OLD "GLIBC_2.2.5"
#define RDT_OLD_SETCLOCK "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define RDT_OLD "GLIBC_2.17"
#define RDT_OLD_SETCLOCK "GLIBC_2.17"
#else
#error "the versions of this processor's symbols in glibc 2.28 are not listed"
#endif
#define RDT_TAKE(symbol, version) __asm__(".symver " #symbol ", " #symbol "@" version)

RDT_TAKE(dlclose, RDT_OLD);
RDT_TAKE(dlerror, RDT_OLD);
RDT_TAKE(dlopen, RDT_OLD);
RDT_TAKE(dlsym, RDT_OLD);
RDT_TAKE(pthread_condattr_setclock, RDT_OLD_SETCLOCK);
RDT_TAKE(pthread_create, RDT_OLD);
RDT_TAKE(pthread_join, RDT_OLD);
RDT_TAKE(pthread_mutex_trylock, RDT_OLD);
RDT_TAKE(pthread_once, RDT_OLD);
RDT_TAKE(pthread_sigmask, RDT_OLD);
RDT_TAKE(sem_destroy, RDT_OLD);
RDT_TAKE(sem_init, RDT_OLD);
RDT_TAKE(sem_post, RDT_OLD);
RDT_TAKE(sem_wait, RDT_OLD);

/* Functions since 2.33. On these processors the kernel fills the same struct. */
#define fstat(fd, status_p) ((int)syscall(SYS_fstat, (fd), (status_p)))
#define stat(path, status_p) ((int)syscall(SYS_newfstatat, AT_FDCWD, (path), (status_p), 0))

#endif
