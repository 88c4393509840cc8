/* A whole daemon against its clients: two of them say what the input says, with fds; what they were given they can name.
 *
 *   | type 6, known 1, who 1 | fds 6, request flags 1, close first 1 | bytes 2 | message | next ...
 *
 * The daemon must answer everything or close, and hold nothing when both are gone.
 */
#include "tests/fuzz/harness/client.h"
#include "tests/fuzz/harness/daemon.h"

#define MOST_REQUESTS 24

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    struct fuzz_client clients[2];
    bool open[2] = {false};

    fuzz_daemon_start(false);
    for (unsigned i = 0; at < end && i < MOST_REQUESTS; i++) {
        uint8_t what = (uint8_t)fuzz_take(&at, end, 1), how = (uint8_t)fuzz_take(&at, end, 1), who = what >> 7;
        size_t n = fuzz_take(&at, end, 2);

        if (n > (size_t)(end - at))
            n = (size_t)(end - at);
        if (open[who] && (how & 0x80 || clients[who].sock < 0)) {
            fuzz_client_close(&clients[who]);
            open[who] = false;
        }
        if (!open[who])
            fuzz_client_open(&clients[who]);
        open[who] = true;
        fuzz_client_say(&clients[who], what & 0x3f, how & 0x40 ? FRAME_EVENT : 0, at, n, how & 0x3f, what & 0x40);
        at += n;
    }
    for (unsigned who = 0; who < 2; who++)
        if (open[who])
            fuzz_client_close(&clients[who]);
    fuzz_daemon_settle();
    return 0;
}
