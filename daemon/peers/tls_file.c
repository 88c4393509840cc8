/* SPDX-License-Identifier: Apache-2.0 */
/* Files with keys and certificates, and OpenSSL's messages about them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/err.h>

#include "daemon/peers/tls_impl.h"

const char *tls_reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return text ? text : "no reason given";
}

void tls_free_secret(uint8_t *bytes, size_t n)
{
    if (bytes)
        OPENSSL_cleanse(bytes, n);
    free(bytes);
}

enum rdt_status tls_read_file(const char *what, const char *path, size_t max_bytes, bool secret, uint8_t **bytes_p, size_t *n_p,
                              struct rdt_error *err)
{
    /* O_NONBLOCK: a FIFO must not stop the daemon's start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    enum rdt_status status = RDT_OK;
    uint8_t *bytes = NULL;
    struct stat st;
    size_t n = 0;

    if (fd < 0)
        return rdt_error_sys(err, errno, "%s %s", what, path);
    if (fstat(fd, &st) < 0)
        status = rdt_error_sys(err, errno, "%s %s", what, path);
    else if (!S_ISREG(st.st_mode))
        status = rdt_error_set(err, RDT_INVALID, "%s %s is not a regular file", what, path);
    else if (secret && (st.st_mode & (S_IRWXG | S_IRWXO)))
        status = rdt_error_set(err, RDT_INVALID, "%s %s is open to others (mode %04o): chmod 600 %s", what, path,
                               (unsigned)st.st_mode & 07777u, path);
    else if (!(bytes = malloc(max_bytes + 1)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for %s", path);
    while (status == RDT_OK && n <= max_bytes) {
        ssize_t got = read(fd, bytes + n, max_bytes + 1 - n);

        if (got == 0)
            break;
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR)
            status = rdt_error_sys(err, errno, "%s %s", what, path);
    }
    (void)close(fd);
    if (status == RDT_OK && n > max_bytes)
        status = rdt_error_set(err, RDT_INVALID, "%s %s has more than %zu bytes", what, path, max_bytes);
    if (status != RDT_OK) {
        tls_free_secret(bytes, n);
        return status;
    }
    *bytes_p = bytes;
    *n_p = n;
    return RDT_OK;
}
