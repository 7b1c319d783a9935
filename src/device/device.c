/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a device by its name: cpu, cuda, auto (a GPU if there is one), or card:NAME for planning.
 * Built without CUDA, the two functions of the cuda device are stubs here, so that no caller needs
 * an #ifdef. */
#include "config.h"

#include "device/device.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

#ifndef HAVE_CUDA
int device_cuda_count(void)
{
    return 0;
}

int device_cuda_open(struct device **out, int idx)
{
    (void)out, (void)idx; /* *out is unchanged on error */
    log_error("device: cuda was not built in; use --device cpu or build with the CUDA toolkit");
    return ERR_UNSUPPORTED;
}
#endif

/* Without CUDA there is no choice to make. */
int device_choose_kernels(const char *kernels)
{
    if (kernels == NULL || strcmp(kernels, "auto") == 0)
        return ERR_OK;
    if (strcmp(kernels, "portable") != 0) {
        log_error("device: kernels \"%s\" is unknown; use auto or portable", kernels);
        return ERR_INVALID;
    }
#ifdef HAVE_CUDA
    if (k_use_portable() != 0) {
        log_error("device: the portable kernels were not built in (configure --with-cuda-arch)");
        return ERR_UNSUPPORTED;
    }
#endif
    return ERR_OK;
}

/* Errors of the kinds are logged by them. "auto" warns if a GPU was expected, since running on the
 * CPU by accident is slow, not wrong. */
int device_open(struct device **out, const char *kind, int idx, int cpu_threads)
{
    if (strcmp(kind, "cpu") == 0)
        return device_cpu_open(out, cpu_threads);
    if (strcmp(kind, "cuda") == 0)
        return device_cuda_open(out, idx);
    if (strcmp(kind, "auto") == 0 && device_cuda_count() > 0)
        return device_cuda_open(out, idx);
    if (strcmp(kind, "auto") == 0) {
#ifdef HAVE_CUDA
        log_warn("device: CUDA is built in, but there is no usable GPU (nvidia-smi may say why); "
                 "using the CPU");
#endif
        return device_cpu_open(out, cpu_threads);
    }
    if (strncmp(kind, "card:", 5) == 0)
        return device_card_open(out, kind + 5);
    log_error("device: \"%s\" is unknown; use auto, cuda or cpu", kind);
    return ERR_INVALID;
}

/* Demand a sixteenth more than needed, because other processes allocate meanwhile. */
bool device_host_has_room(size_t bytes)
{
    size_t available = mem_available();

    if (FAULT_HIT(device_sleep))
        available = 1;
    if (available == 0 || available >= bytes + bytes / 16) /* 0: the system does not report it */
        return true;
    log_error("device: weights need %zu MiB of host memory, %zu are free", bytes >> 20,
              available >> 20);
    return false;
}

/* NULL is allowed, so that callers can close what they have not opened. */
void device_close(struct device *d)
{
    if (d != NULL)
        d->ops->close(d);
}
