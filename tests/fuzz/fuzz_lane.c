/* SPDX-License-Identifier: Apache-2.0
 *
 * What the engine reads of a lane: any bytes in the shared part of it. The input is laid over
 * the lane from its first engine-or-front-written field on; then the engine's calls are made. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "ipc/lane.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    size_t from = offsetof(struct wire_lane, heartbeat_us);
    struct lane l;
    struct wire_request r;
    uint32_t slot;
    int fd;

    if (lane_create(&l, &fd, 4, 4096, 1, 1) != ERR_OK)
        return 0;
    if (len > l.lane_bytes - from)
        len = l.lane_bytes - from;
    memcpy((char *)l.shared + from, bytes, len);
    for (int i = 0; i < 16 && lane_take(&l, &slot, &r) == 1; i++) {
        int32_t ids[1024];

        if (lane_room(&l, slot) > 4)
            lane_put(&l, slot, (struct wire_out){.kind = WIRE_FINISHED});
        if (r.n_tokens >= 1 && r.n_tokens <= 1024 && lane_tokens(&l, &r, 1000, ids) == ERR_OK &&
            ids[0] >= 1000)
            __builtin_trap();
        (void)lane_cancelled(&l, slot);
    }
    lane_taken(&l);
    lane_flush(&l);
    lane_detach(&l);
    (void)close(fd);
    return 0;
}
