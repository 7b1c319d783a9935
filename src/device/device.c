/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the device by name. */
#include "config.h"

#include "device/device.h"

#include <string.h>

#include "base/log.h"

#ifndef HAVE_CUDA
int device_cuda_count(void)
{
    return 0;
}

int device_cuda_open(struct device **out)
{
    (void)out; /* stays as it is on error */
    log_error("device: cuda was not built in; use --device cpu or build with the CUDA toolkit");
    return ERR_UNSUPPORTED;
}
#endif

int device_open(struct device **out, const char *kind, int cpu_threads)
{
    if (strcmp(kind, "cpu") == 0)
        return device_cpu_open(out, cpu_threads);
    if (strcmp(kind, "cuda") == 0)
        return device_cuda_open(out);
    if (strcmp(kind, "auto") == 0)
        return device_cuda_count() > 0 ? device_cuda_open(out) : device_cpu_open(out, cpu_threads);
    log_error("device: \"%s\" is unknown; use auto, cuda or cpu", kind);
    return ERR_INVALID;
}

void device_close(struct device *d)
{
    if (d != NULL)
        d->ops->close(d);
}
